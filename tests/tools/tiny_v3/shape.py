"""The shape of the checkpoint: V3's config.json with every key, small numbers, no two kinds of size alike."""
import math

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 320,
    "kv_lora_rank": 80,
    "max_position_embeddings": 1024,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 5,
    "num_key_value_heads": 6,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 24,
    "vocab_size": 1152,
}
GENERATION_CONFIG = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 1, "do_sample": True,
                     "temperature": 0.6, "top_p": 0.95, "transformers_version": "4.39.3"}


class Shape:
    """The numbers above by short names."""

    def __init__(self, c=CONFIG):
        self.vocab, self.d, self.layers, self.heads = (c["vocab_size"], c["hidden_size"], c["num_hidden_layers"],
                                                       c["num_attention_heads"])
        self.q_rank, self.kv_rank = c["q_lora_rank"], c["kv_lora_rank"]
        self.nope, self.rope, self.v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.dense, self.inter, self.moe_inter = (c["first_k_dense_replace"], c["intermediate_size"],
                                                  c["moe_intermediate_size"])
        self.experts, self.groups, self.kept, self.top = (c["n_routed_experts"], c["n_group"], c["topk_group"],
                                                          c["num_experts_per_tok"])
        self.route_scale, self.eps = c["routed_scaling_factor"], c["rms_norm_eps"]
        self.theta, self.yarn, self.max_len = c["rope_theta"], c["rope_scaling"], c["max_position_embeddings"]

    def softmax_scale(self):
        m = 0.1 * self.yarn["mscale_all_dim"] * math.log(self.yarn["factor"]) + 1.0
        return (self.nope + self.rope) ** -0.5 * m * m

    def frequencies(self):
        """YaRN: fast pairs keep their frequency, slow ones are divided by the factor, a ramp between."""
        n, y = self.rope, self.yarn
        corr = lambda turns: n * math.log(y["original_max_position_embeddings"] / (turns * 2 * math.pi)) / \
            (2 * math.log(self.theta))
        low, high = max(math.floor(corr(y["beta_fast"])), 0), min(math.ceil(corr(y["beta_slow"])), n - 1)
        if low == high:
            high += 0.001
        out = []
        for k in range(n // 2):
            f = self.theta ** (-2 * k / n)
            smooth = 1 - min(max((k - low) / (high - low), 0), 1)
            out.append(f / y["factor"] * (1 - smooth) + f * smooth)
        return out
