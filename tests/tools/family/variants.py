"""The variants: a released config.json with small sizes, and how its tensors are stored.

`released` names a file of tests/data/family/configs. Overrides replace its values; a value of None with DROP removes the
key. What a variant is there to show is in `shows`.
"""
DROP = object()

SIZES = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 40, "moe_intermediate_size": 6,
         "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 24,
         "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1,
         "bos_token_id": 0, "eos_token_id": 1, "rope_theta": 100}
# 40 tokens are 2.5 times the original context; theta is small so that the ramp of YaRN has several steps.
YARN_POSITIONS = 16


def yarn(factor, **more):
    return {"beta_fast": 32, "beta_slow": 1, "factor": factor, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": YARN_POSITIONS, "type": "yarn", **more}


LONG = {"rope_scaling": yarn(40), "max_position_embeddings": 40 * YARN_POSITIONS}
GROUPS = {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
V3 = {**SIZES, **LONG, **GROUPS, "q_lora_rank": 24, "num_nextn_predict_layers": 0}
WITHOUT_FP8 = {"quantization_config": DROP}


def fp8(block, **more):
    return {"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                    "weight_block_size": block, **more}}


# Long prompts are at least three times index_topk. Keys of the index are small, so that the epsilon of their norm counts.
SPARSE = {"long": 96, "index_key_gain": 0.01, "index_bias": 0.5}
GLM = {**SIZES, "max_position_embeddings": 512, "q_lora_rank": 24, "num_experts_per_tok": 2, "rope_theta": DROP,
       "eos_token_id": [1, 2, 3], "pad_token_id": 1, "index_head_dim": 32, "n_routed_experts": 8}
LAYERS = 8  # of GLM-5.2: as released, 0, 1, 2 and 6 choose, the others share

COMPRESSED = {"quantization_config": {
    "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
    "global_compression_ratio": None, "kv_cache_scheme": None, "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": None, "input_activations": {
        "num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}, "weights": {
            "num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True,
            "observer": "minmax", "observer_kwargs": {}, "group_size": None, "block_structure": None,
            "actorder": None}}}}}

# transformers' Mistral4Config, below "text_config" as in Mistral's repositories.
MISTRAL_ROPE = {**yarn(128.0), "rope_theta": 100, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5,
                "max_position_embeddings": 128 * YARN_POSITIONS}

# The place in this list decides the seed: further ones come last.
VARIANTS = {
    "v2-lite": {"released": "deepseek-v2-lite-chat", "config": {
        **SIZES, **{**LONG, "rope_scaling": yarn(40, mscale=0.707, mscale_all_dim=0.707)}, "num_hidden_layers": 3,
        "n_routed_experts": 16, "num_experts_per_tok": 4},
        "store": "BF16", "shows": "softmax, greedy, no q_lora_rank, mscale 0.707, two shared experts"},
    "v2": {"released": "deepseek-v2.5-236b", "config": {
        **SIZES, **LONG, "q_lora_rank": 24, "n_routed_experts": 24, "n_group": 8, "topk_group": 3,
        "num_experts_per_tok": 6},
        "store": "BF16", "shows": "group_limited_greedy by group maximum, 8 groups, routed scale 16"},
    "v2.5": {"released": "deepseek-v2.5-236b", "config": {**SIZES, **LONG, **GROUPS, "q_lora_rank": 40,
                                                         "num_hidden_layers": 3},
             "store": "BF16", "shows": "as V2, 4 groups, two MoE layers"},
    "v3": {"released": "deepseek-v3", "config": {
        **V3, "hidden_size": 136, "intermediate_size": 136, "num_attention_heads": 5, "num_key_value_heads": 5},
        "store": "fp8", "block": [128, 128],
        "shows": "sigmoid, bias, groups by their two best, FP8 in blocks of 128 x 128 with ragged ends"},
    "v3.1": {"released": "deepseek-v3.1", "config": {**V3, "intermediate_size": 136},
             "store": "fp8", "block": [128, 128], "power_of_two": True, "shows": "scale_fmt ue8m0, scales stored as F32"},
    "v3.1-e8m0": {"released": "deepseek-v3.1", "config": {**V3, "intermediate_size": 136},
                  "store": "fp8", "block": [128, 128], "scale_dtype": "F8_E8M0",
                  "shows": "scale_fmt ue8m0, scales stored as F8_E8M0"},
    "kimi-k2": {"released": "kimi-k2-instruct", "config": {
        **SIZES, "rope_scaling": yarn(32.0, beta_fast=1.0, beta_slow=1.0), "max_position_embeddings": 512,
        "hidden_size": 24, "intermediate_size": 24, "moe_intermediate_size": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16,
        **fp8([128, 128], modules_to_not_convert=["mlp.experts"])},
        "store": "fp8", "block": [128, 128], "plain": "experts", "inv_freq": True,
        "shows": "384 experts in one group, YaRN betas 1/1, types that differ from tensor to tensor"},
    "moonlight": {"released": "moonlight-16b-a3b", "config": {
        **SIZES, "max_position_embeddings": 512, "n_routed_experts": 16, "num_experts_per_tok": 4},
        "store": "BF16", "shows": "V3's routing without groups, without YaRN, without q_lora_rank; epsilon 1e-5"},
    "glm-4.7-flash": {"released": "glm-4.7-flash", "config": {
        **SIZES, "max_position_embeddings": 512, "qk_nope_head_dim": 24, "v_head_dim": 40, "q_lora_rank": 24,
        "n_routed_experts": 16, "num_nextn_predict_layers": 0, "first_k_dense_replace": DROP, "rope_theta": DROP,
        "rope_scaling": DROP, "partial_rotary_factor": DROP, "eos_token_id": [1, 2, 3], "pad_token_id": 1,
        "rope_parameters": {"rope_theta": 100, "rope_type": "default", "partial_rotary_factor": 1.0},
        "mlp_layer_types": ["dense", "sparse"], "rope_interleave": True},
        "store": "BF16", "shows": "v_head_dim larger than qk_nope_head_dim, epsilon 1e-5, keys of transformers 5"},
    "v3.2": {"released": "deepseek-v3.2-exp", "config": {
        **V3, **WITHOUT_FP8, "index_topk": 64, "index_n_heads": 4, "index_head_dim": 32},
        "store": "BF16", "shows": "an indexer that is without effect up to index_topk positions"},
    "f16": {"released": "moonlight-16b-a3b", "config": {
        **SIZES, "max_position_embeddings": 512, "n_routed_experts": 8, "num_experts_per_tok": 3},
        "store": "F16", "shows": "weights in F16"},
    "f32": {"released": "deepseek-v2-lite-chat", "config": {
        **SIZES, **LONG, "n_routed_experts": 8, "num_experts_per_tok": 3},
        "store": "F32", "shows": "weights in F32"},
    "fp8-channel": {"released": "deepseek-v3", "config": {**V3, **COMPRESSED}, "store": "fp8", "block": ["row", "all"],
                    "scale_dtype": "BF16", "scale_name": "weight_scale",
                    "shows": "FP8 with a scale for each row, [rows, 1] and [rows], as compressed-tensors writes it"},
    "fp8-tensor": {"released": "deepseek-v3", "config": {
        **V3, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}},
        "store": "fp8", "block": ["all", "all"], "scale_name": "weight_scale", "input_scale": True,
        "shows": "FP8 with one scale for a matrix, [] and [1]; scales of activations are not read"},
    "fp8-blocks": {"released": "deepseek-v3", "config": {**V3, **fp8([40, 28])}, "store": "fp8", "block": [40, 28],
                   "shows": "FP8 in blocks that are no power of two"},
    "v3.2-sparse": {"released": "deepseek-v3.2-exp", "config": {
        **V3, **fp8([32, 32], scale_fmt="ue8m0"), "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "index_topk": 24,
        "index_n_heads": 4, "index_head_dim": 32},
        "store": "fp8", "block": [32, 32], "power_of_two": True, "mtp_copies": True, **SPARSE,
        "shows": "24 positions chosen of up to 96, half-split rotation under YaRN, an MTP module with an indexer of its own"},
    "glm-5": {"released": "glm-5", "config": {
        **GLM, "num_hidden_layers": 3, "num_nextn_predict_layers": 0, "v_head_dim": 32, "head_dim": 16, "qk_head_dim": 32,
        "index_topk": 24, "index_n_heads": 2, "num_experts_per_tok": 4, "n_routed_experts": 16},
        "store": "BF16", "index_norm_dtype": "BF16", **SPARSE,
        "shows": "interleaved rotation of the index, every layer chooses, values wider than keys, theta 1e6 without YaRN"},
    "glm-5.2": {"released": "glm-5.2", "config": {
        **GLM, "hidden_size": 40, "intermediate_size": 32, "moe_intermediate_size": 4, "num_attention_heads": 2,
        "num_key_value_heads": 2, "kv_lora_rank": 20, "q_lora_rank": 20, "num_hidden_layers": LAYERS, "qk_nope_head_dim": 24,
        "v_head_dim": 40, "head_dim": 24, "qk_head_dim": 40, "first_k_dense_replace": 3, "index_topk": 16, "index_n_heads": 4,
        "indexer_types": ["full"] * 3 + ["shared"] * 3 + ["full", "shared"],
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * (LAYERS - 3)},
        "store": "BF16", "index_norm_dtype": "BF16", **SPARSE,
        "shows": "choices that layers share, head_dim that says nothing, an MTP module with an indexer, without copies"},
    "mistral-small-4": {"released": "mistral-small-4", "config": {
        **SIZES, "first_k_dense_replace": 0, "q_lora_rank": 24, "n_routed_experts": 16, "num_experts_per_tok": 4,
        "rope_theta": DROP, "rope_parameters": MISTRAL_ROPE, "max_position_embeddings": 128 * YARN_POSITIONS, "head_dim": 32,
        "qk_head_dim": 32,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}},
        "store": "fp8", "block": ["all", "all"], "fused": True, "wrapper": "mistral3",
        "shows": "softmax with normalised weights, queries scaled by position, experts in fused FP8 tensors, wrapped"},
    "gigachat3": {"released": "deepseek-v3-bf16", "config": {
        **SIZES, **LONG, "q_lora_rank": None, "n_routed_experts": 16, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4,
        "n_shared_experts": 1, "v_head_dim": 24, "routed_scaling_factor": 1.0, "num_nextn_predict_layers": 0},
        "store": "BF16", "shows": "V3's routing in one group under YaRN, without q_lora_rank, values wider than keys"},
}


def make_config(released, overrides):
    config = {key: value for key, value in {**released, **overrides}.items() if value is not DROP}
    return dict(sorted(config.items()))


def wrap(config, how):
    """The config.json of a model with pictures, whose language model this is, or the same where there is no wrapper."""
    if "wrapper" not in how:
        return config
    inner = {key: value for key, value in config.items() if key != "quantization_config"}
    return {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": how["wrapper"],
            "quantization_config": config["quantization_config"], "text_config": inner}
