#!/usr/bin/env python3
"""Makes checkpoints with the names, shapes and types of DeepSeek-V4, at any size, for tests and measurements.

    v4_checkpoint.py FOLDER                            # all of DeepSeek-V4-Flash-0731: 166.9 GB that take 14 MB (zeros, sparse)
    v4_checkpoint.py FOLDER --model pro                # DeepSeek-V4-Pro-0813: 892.7 GB
    v4_checkpoint.py FOLDER --payload random --set hidden_size=256 ...      # every kind of tensor, but small
    v4_checkpoint.py FOLDER --experts nvfp4            # as NVIDIA's repacks: other experts in the layers, the stages as they were
    v4_checkpoint.py FOLDER --experts fp8              # as the -Base models

Standard library only. As in the releases: the names of all 72,317 (149,782) tensors and the shards that hold them, whose list
has a published digest; shapes and types, which give the published number of bytes; one layer a shard; the three stages that
draft (DSpark). Routed experts are FP4 (two numbers a byte, I8) with a scale of E8M0 for 32, other matrices FP8 with one for
128 x 128; layers that route by token id have a table of I64. What is approximated: the order within a shard, and the payload."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import v3_checkpoint  # noqa: E402
from v3_checkpoint import Tensor  # noqa: E402

FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
    "expert_dtype": "fp4", "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_act": "silu",
    "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "initializer_range": 0.02,
    "max_position_embeddings": 1048576, "model_type": "deepseek_v4", "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 6, "num_hidden_layers": 43,
    "num_hash_layers": 3, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 8, "o_lora_rank": 1024,
    "q_lora_rank": 1024, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128, "swiglu_limit": 10.0,
    "tie_word_embeddings": False, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 129280,
    "compress_rope_theta": 160000, "compress_ratios": [0, 0] + [4, 128] * 20 + [4] + [0] * 3, "dspark_block_size": 5,
    "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [40, 41, 42], "dspark_markov_rank": 256}
PRO = {**FLASH, "num_attention_heads": 128, "dspark_target_layer_ids": [58, 59, 60], "o_groups": 16, "num_hidden_layers": 61,
       "index_topk": 1024, "n_routed_experts": 384, "q_lora_rank": 1536, "moe_intermediate_size": 3072, "hidden_size": 7168,
       "routed_scaling_factor": 2.5, "dspark_markov_rank": 512, "compress_ratios": [128, 128] + [4, 128] * 29 + [4] + [0] * 3}
STAGES = 3  # that draft
BLOCK, FP4_GROUP, NVFP4_GROUP = 128, 32, 16
EXPERTS = ("fp4", "fp8", "nvfp4")  # how they are stored


def divided(count, size):
    return -(-count // size)


class Model:
    def __init__(self, config, experts="fp4"):
        self.config, self.experts = config, experts
        self.hidden, self.inner = config["hidden_size"], config["moe_intermediate_size"]
        self.tensors = []

    def add(self, name, dtype, *shape):
        self.tensors.append(Tensor(name, dtype, list(shape), self.part))

    def add_fp8(self, name, rows, columns):
        self.add(name + ".weight", "F8_E4M3", rows, columns)
        self.add(name + ".scale", "F8_E8M0", divided(rows, BLOCK), divided(columns, BLOCK))

    def add_fp4(self, name, rows, columns):
        self.add(name + ".weight", "I8", rows, columns // 2)
        self.add(name + ".scale", "F8_E8M0", rows, columns // FP4_GROUP)

    def add_nvfp4(self, name, rows, columns):
        self.add(name + ".weight", "U8", rows, columns // 2)
        self.add(name + ".weight_scale", "F8_E4M3", rows, columns // NVFP4_GROUP)
        self.add(name + ".weight_scale_2", "F32")
        self.add(name + ".input_scale", "F32")

    def add_expert(self, name, rows, columns):
        if self.experts == "fp8":
            self.add_fp8(name, rows, columns)
        elif self.experts == "nvfp4" and not name.startswith("mtp."):
            self.add_nvfp4(name, rows, columns)
        else:
            self.add_fp4(name, rows, columns)

    def add_streams(self, name, rows, scales):
        """What mixes the streams of hyper-connections."""
        self.add(name + "_fn", "F32", rows, self.config["hc_mult"] * self.hidden)
        self.add(name + "_base", "F32", rows)
        self.add(name + "_scale", "F32", scales)

    def add_compressor(self, name, ratio, width):
        channels = width * (2 if ratio == 4 else 1)
        for part in ("wkv", "wgate"):
            self.add("%s.%s.weight" % (name, part), "BF16", channels, self.hidden)
        self.add(name + ".norm.weight", "BF16", width)
        self.add(name + ".ape", "F32", ratio, channels)

    def add_attention(self, name, ratio):
        config, head = self.config, self.config["head_dim"]
        heads, rank, groups, out = (config[key] for key in ("num_attention_heads", "q_lora_rank", "o_groups", "o_lora_rank"))
        self.add_fp8(name + "wq_a", rank, self.hidden)
        self.add(name + "q_norm.weight", "BF16", rank)
        self.add_fp8(name + "wq_b", head * heads, rank)
        self.add_fp8(name + "wkv", head, self.hidden)
        self.add(name + "kv_norm.weight", "BF16", head)
        self.add_fp8(name + "wo_a", out * groups, head * heads // groups)
        self.add_fp8(name + "wo_b", self.hidden, out * groups)
        self.add(name + "attn_sink", "F32", heads)
        if ratio:
            self.add_compressor(name + "compressor", ratio, head)
        if ratio == 4:
            index_heads, width = config["index_n_heads"], config["index_head_dim"]
            self.add_fp8(name + "indexer.wq_b", index_heads * width, rank)
            self.add(name + "indexer.weights_proj.weight", "BF16", index_heads, self.hidden)
            self.add_compressor(name + "indexer.compressor", ratio, width)

    def add_block(self, start, ratio, by_token):
        config, experts = self.config, self.config["n_routed_experts"]
        mixes = config["hc_mult"] * (2 + config["hc_mult"])
        for part in ("attn", "ffn"):
            self.add("%s%s_norm.weight" % (start, part), "BF16", self.hidden)
            self.add_streams("%shc_%s" % (start, part), mixes, 3)
        self.add_attention(start + "attn.", ratio)
        gate = start + "ffn.gate."
        self.add(gate + "weight", "BF16", experts, self.hidden)
        if by_token:
            self.add(gate + "tid2eid", "I64", config["vocab_size"], config["num_experts_per_tok"])
        else:
            self.add(gate + "bias", "F32", experts)
        matrices = (("w1", self.inner, self.hidden), ("w3", self.inner, self.hidden), ("w2", self.hidden, self.inner))
        for number in range(experts):
            for name, rows, columns in matrices:
                self.add_expert("%sffn.experts.%d.%s" % (start, number, name), rows, columns)
        for name, rows, columns in matrices:
            self.add_fp8("%sffn.shared_experts.%s" % (start, name), rows, columns)

    def add_end(self, start):
        self.add(start + "norm.weight", "BF16", self.hidden)
        self.add_streams(start + "hc_head", self.config["hc_mult"], 1)

    def shards(self):
        """Lists of tensors, one a shard."""
        config, shards = self.config, []

        def begin(part):
            self.part, self.tensors = part, []
            shards.append(self.tensors)

        vocab, layers, rank = config["vocab_size"], config["num_hidden_layers"], config["dspark_markov_rank"]
        begin("embed")
        self.add("embed.weight", "BF16", vocab, self.hidden)
        for layer in range(layers):
            begin(layer)
            self.add_block("layers.%d." % layer, config["compress_ratios"][layer], layer < config["num_hash_layers"])
        begin("head")
        self.add("head.weight", "BF16", vocab, self.hidden)
        self.add_end("")
        for stage in range(STAGES):
            begin(layers + stage)
            start = "mtp.%d." % stage
            self.add_block(start, config["compress_ratios"][layers + stage], False)
            if stage == 0:
                self.add_fp8(start + "main_proj", self.hidden, len(config["dspark_target_layer_ids"]) * self.hidden)
                self.add(start + "main_norm.weight", "BF16", self.hidden)
            if stage == STAGES - 1:
                self.add_end(start)
                for part in ("markov_w1", "markov_w2"):
                    self.add("%smarkov_head.%s.weight" % (start, part), "BF16", vocab, rank)
                self.add(start + "confidence_head.proj.weight", "BF16", 1, self.hidden + rank)
        return shards


def write_checkpoint(folder, config, payload=None, experts="fp4"):
    """Shards, index and config.json in `folder`, which is made. Returns the shards."""
    shards = Model(config, experts).shards()
    names = ["model-%05d-of-%05d.safetensors" % (number, len(shards)) for number in range(1, len(shards) + 1)]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in zip(names, shards):
        v3_checkpoint.write_shard(folder / name, tensors, payload)
    index = {"metadata": {"total_size": sum(tensor.bytes for tensors in shards for tensor in tensors)},
             "weight_map": {tensor.name: name for name, tensors in zip(names, shards) for tensor in tensors}}
    (folder / v3_checkpoint.INDEX).write_text(json.dumps(index, indent=2))
    if experts == "fp8":
        config = {key: value for key, value in config.items() if key != "expert_dtype"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if experts == "nvfp4":  # beside it, and config.json as it was: so NVIDIA's
        modules = {tensor.name.removesuffix(".weight"): {"quant_algo": "NVFP4", "awq_block_size": NVFP4_GROUP}
                   for tensors in shards for tensor in tensors if tensor.dtype == "U8"}
        described = {"producer": {"name": "modelopt", "version": "dsv4-nvfp4-experts"},
                     "quantization": {"quant_algo": None, "kv_cache_quant_algo": None, "quantized_layers": modules,
                                      "exclude_modules": ["*.attn.*", "*.ffn.shared_experts.*", "*.ffn.gate.*"]}}
        (folder / "hf_quant_config.json").write_text(json.dumps(described, indent=4))
    return shards


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("flash", "pro"), default="flash")
    parser.add_argument("--set", action="append", default=[], type=v3_checkpoint.parse_setting, metavar="KEY=JSON", dest="settings",
                        help="replaces a field of the config")
    parser.add_argument("--payload", choices=("zeros", "random"), default="zeros", help="zeros are sparse files")
    parser.add_argument("--experts", choices=EXPERTS, default="fp4", help="how routed experts are stored")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = {**(PRO if arguments.model == "pro" else FLASH), **dict(arguments.settings)}
    payload = v3_checkpoint.RandomPayload(arguments.seed) if arguments.payload == "random" else None
    shards = write_checkpoint(arguments.folder, config, payload, arguments.experts)
    tensors = [tensor for shard in shards for tensor in shard]
    print("%s: %d shards, %d tensors of %d bytes" % (arguments.folder, len(shards), len(tensors), sum(tensor.bytes for tensor in tensors)))


if __name__ == "__main__":
    main()
