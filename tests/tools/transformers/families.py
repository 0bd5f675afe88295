"""The smallest models of the families of names for which transformers has a class: random, saved by itself, in the names of
the released checkpoints. save_pretrained turns its own conversions back; what it does not turn back is in RELEASED.

    python families.py OUT [NAME ...]

Writes OUT/NAME for each, and prints one JSON object a line: `name`, `model` (the class), `tensors`, and the name of one
`expert` tensor or fused one as it was saved.
"""

import argparse
import json
import logging
import pathlib
import re

import torch
import transformers
from safetensors.torch import load_file, save_file

MLA = dict(kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8)
BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
            pad_token_id=None)
ROUTED = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1)
GROUPED = dict(n_group=2, topk_group=1, first_k_dense_replace=1, **ROUTED)
QWEN = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
LOCAL = dict(num_local_experts=6, num_experts_per_tok=2)
PICTURES = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, patch_size=4)

# {model: what differs from BASE}; nested configs of models with pictures are written out.
FAMILIES = {
    "deepseek_v2": {**MLA, **ROUTED, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    "deepseek_v3": {**MLA, **GROUPED},
    "deepseek_v32": {**MLA, **GROUPED, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4},
    "glm_moe_dsa": {**MLA, **GROUPED, "n_group": 1, "v_head_dim": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4,
                    "indexer_types": ["full", "full", "shared"]},
    "kimi_k25": {"text_config": {**BASE, **MLA, **GROUPED, "model_type": "deepseek_v3"},
                 "vision_config": {**PICTURES, "num_hidden_layers": 1, "pos_emb_height": 4, "pos_emb_width": 4},
                 "projection_hidden_size": 32, "image_token_id": 2, "tie_word_embeddings": False},
    "glm4_moe": {**GROUPED, "head_dim": 8},
    "qwen2_moe": {**QWEN, "shared_expert_intermediate_size": 16},
    "qwen3_moe": QWEN,
    "qwen3_next": {**QWEN, "shared_expert_intermediate_size": 16, "num_hidden_layers": 4, "linear_num_key_heads": 2,
                   "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "mixtral": LOCAL,
    "minimax_m2": {**LOCAL, "head_dim": 8},
    "phimoe": LOCAL,
    "kimi_linear": {**MLA, **ROUTED, "num_experts": 6, "first_k_dense_replace": 1,
                    "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "jamba": {**QWEN, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4,
              "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "lfm2_moe": {**QWEN, "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv"]},
    "deepseek_v4": {**ROUTED, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 16, "num_hidden_layers": 4,
                    "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4,
                    "sliding_window": 8, "hc_mult": 2},
    "mistral_large4": {"text_config": {**BASE, **MLA, **GROUPED, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4},
                       "vision_config": {**PICTURES, "num_hidden_layers": 1, "head_dim": 8, "image_size": 16}},
    "llama4_text": {**LOCAL, "intermediate_size_mlp": 48, "head_dim": 8, "interleave_moe_layer_step": 1},
    "gpt_oss": {**LOCAL, "head_dim": 8},
    "qwen3_vl_moe": {"text_config": {**BASE, **QWEN},
                     "vision_config": {**PICTURES, "depth": 1, "num_heads": 4, "out_hidden_size": 32,
                                       "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}},
}

# {model: [(pattern, released name)]} of what save_pretrained of transformers 5.23 writes otherwise.
RELEASED = {
    "kimi_k25": [(r"^language_model\.model\.blocks\.", "language_model.model.layers.")],
    "deepseek_v4": [(r"^model\.embed_tokens\.", "embed."), (r"^model\.hc_head\.hc_", "hc_head_"), (r"^model\.", ""),
                    (r"\.attn\.norm\.", ".attn.kv_norm.")],
}


def config_of(name):
    options = FAMILIES[name]
    kind = type(transformers.AutoConfig.for_model(name))
    return kind(**(options if "text_config" in options else {**BASE, **options}))


def give_released_names(folder, renames):
    """All names of the checkpoint, after that."""
    def released(name):
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        return name

    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    if renames:
        for path in folder.glob("*.safetensors"):
            save_file({released(name): tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})
        content["weight_map"] = {released(name): path for name, path in content["weight_map"].items()}
        index.write_text(json.dumps(content))
    return list(content["weight_map"])


def make(name, out):
    config = config_of(name)
    torch.manual_seed(len(name))
    known = transformers.AutoModelForCausalLM._model_mapping
    auto = transformers.AutoModelForCausalLM if type(config) in known else transformers.AutoModelForImageTextToText
    model = auto.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():  # so that no two tensors are alike, whatever their class begins with
        for parameter in [*model.parameters(), *model.buffers()]:
            if parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape) * 0.05)
    model.save_pretrained(out / name, max_shard_size="60KB")
    names = give_released_names(out / name, RELEASED.get(name, []))
    return {"name": name, "model": type(model).__name__, "tensors": len(names),
            "expert": next((key for key in sorted(names) if ".experts." in key), "")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=list(FAMILIES))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.names or list(FAMILIES):
        print(json.dumps(make(name, arguments.out)), flush=True)


if __name__ == "__main__":
    main()
