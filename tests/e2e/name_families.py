"""Small checkpoints with the tensor names of every family: what a family is, written down a second time from the
released indexes, so that a misreading in the program is not repeated by its tests."""

import json
import random
from pathlib import Path

import safetensors_io

SHARDS = 3
EXPERTS = 5
HIDDEN, INNER, HEADS = 16, 256, 8  # an expert's matrix is one page of FP8


class Family:
    """`tensors`: {name: (dtype, shape, raw bytes)}; `roles`: how many tensors of each the program should see;
    `experts`: {(layer as people read it, expert): names of its tensors as they are packed}; `fused`: {name: its slices'
    names in the order of the experts}."""

    def __init__(self, seed, index="model.safetensors.index.json", shard="model-%05d-of-%05d.safetensors"):
        self.random = random.Random(seed)
        self.index, self.shard = index, shard
        self.tensors, self.roles, self.experts, self.fused = {}, {}, {}, {}

    def add(self, role, name, shape, dtype="BF16", experts=1):
        count = safetensors_io.BITS[dtype]
        for dimension in shape:
            count *= dimension
        self.tensors[name] = (dtype, shape, self.random.randbytes(count // 8))
        self.roles[role] = self.roles.get(role, 0) + experts

    def add_expert(self, layer, number, name, shape, dtype="BF16"):
        self.add("routed_expert", name, shape, dtype)
        self.experts.setdefault((str(layer), number), set()).add(name)

    def add_fused(self, layer, prefix, leaf, shape, dtype="BF16"):
        self.add("routed_expert", prefix + leaf, [EXPERTS, *shape], dtype, experts=EXPERTS)
        self.fused[prefix + leaf] = ["%s%d.%s" % (prefix, number, leaf) for number in range(EXPERTS)]
        for number, name in enumerate(self.fused[prefix + leaf]):
            self.experts.setdefault((str(layer), number), set()).add(name)

    def packed(self):
        """The tensors as a packed repository has them: fused ones in slices."""
        tensors = {}
        for name, (dtype, shape, raw) in self.tensors.items():
            slices = self.fused.get(name)
            if not slices:
                tensors[name] = (dtype, shape, raw)
                continue
            size = len(raw) // len(slices)
            for number, slice_name in enumerate(slices):
                tensors[slice_name] = (dtype, shape[1:], raw[number * size:(number + 1) * size])
        return tensors

    def write(self, folder):
        """Scattered over shards, so that what belongs together lies apart; with an index and two companions."""
        folder = Path(folder)
        folder.mkdir(parents=True)
        names = list(self.tensors)
        self.random.shuffle(names)
        weight_map = {}
        for number in range(SHARDS):
            path = self.shard % (number + 1, SHARDS)
            safetensors_io.write(folder / path, {name: self.tensors[name] for name in names[number::SHARDS]})
            weight_map.update({name: path for name in names[number::SHARDS]})
        text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
        (folder / self.index).write_text(text)
        (folder / "config.json").write_text("{}")
        (folder / "README.md").write_text("# a family\n")
        return folder


def transformers(prefix="model.", head="lm_head", shared="shared_experts", router=("weight", "e_score_correction_bias")):
    """DeepSeek-V2 and V3, Kimi-K2, Qwen: FP8 with block scales; layer 0 dense, 1 and 2 with experts, 3 the MTP module."""
    family = Family(prefix)
    family.add("embed", prefix + "embed_tokens.weight", [32, HIDDEN])
    family.add("head", prefix + "norm.weight", [HIDDEN])
    family.add("head", head + ".weight", [32, HIDDEN])
    for layer in range(4):
        start = "%slayers.%d." % (prefix, layer)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            family.add("norm", start + norm + ".weight", [HIDDEN])
        family.add("attention", start + "self_attn.o_proj.weight", [HIDDEN, HIDDEN], "F8_E4M3")
        family.add("attention", start + "self_attn.o_proj.weight_scale_inv", [1, 1], "F32")
        for part in ("gate_proj", "up_proj", "down_proj"):
            shape = [HIDDEN, INNER] if part == "down_proj" else [INNER, HIDDEN]
            if layer == 0:
                family.add("dense_mlp", start + "mlp.%s.weight" % part, shape)
                continue
            family.add("shared_expert", start + "mlp.%s.%s.weight" % (shared, part), shape)
            for number in range(EXPERTS):
                name = start + "mlp.experts.%d.%s.weight" % (number, part)
                family.add_expert(layer, number, name, shape, "F8_E4M3")
                family.add_expert(layer, number, name + "_scale_inv", [2, 1], "F32")
        if layer:
            for name in router:
                family.add("router", start + "mlp.gate." + name, [EXPERTS, HIDDEN][:1 if "bias" in name else 2])
    family.add("mtp", prefix + "layers.3.eh_proj.weight", [HIDDEN, 2 * HIDDEN])
    return family


def qwen():
    """Qwen3-Next: a gate of the shared expert, linear attention, and an MTP module that is counted apart."""
    family = transformers(shared="shared_expert", router=("weight",))
    for layer in (1, 2):
        family.add("shared_expert", "model.layers.%d.mlp.shared_expert_gate.weight" % layer, [1, HIDDEN])
        family.add("attention", "model.layers.%d.linear_attn.A_log" % layer, [HEADS], "F32")
    family.add("mtp", "mtp.fc.weight", [HIDDEN, 2 * HIDDEN])
    for number in range(EXPERTS):
        for part in ("gate_proj", "up_proj", "down_proj"):
            family.add_expert("mtp.0", number, "mtp.layers.0.mlp.experts.%d.%s.weight" % (number, part), [3, 5])
    return family


def mixtral():
    family = Family("mixtral")
    family.add("embed", "model.embed_tokens.weight", [32, HIDDEN])
    for layer in range(2):
        start = "model.layers.%d." % layer
        family.add("attention", start + "self_attn.q_proj.weight", [HIDDEN, HIDDEN])
        family.add("router", start + "block_sparse_moe.gate.weight", [EXPERTS, HIDDEN])
        for number in range(EXPERTS):
            for part in ("w1", "w2", "w3"):
                shape = [HIDDEN, INNER] if part == "w2" else [INNER, HIDDEN]
                family.add_expert(layer, number, start + "block_sparse_moe.experts.%d.%s.weight" % (number, part), shape)
    return family


def deepseek_own():
    """DeepSeek-V4: FP4 experts as I8 with E8M0 scales, hyper-connections, a table of experts by token, mtp.0."""
    family = Family("v4")
    family.add("embed", "embed.weight", [32, HIDDEN])
    for name, shape in (("norm.weight", [HIDDEN]), ("head.weight", [32, HIDDEN]), ("hc_head_fn", [4, HIDDEN])):
        family.add("head", name, shape)
    for layer in ("0", "1", "mtp.0"):
        start = layer + "." if layer == "mtp.0" else "layers.%s." % layer
        for norm in ("attn_norm", "ffn_norm"):
            family.add("norm", start + norm + ".weight", [HIDDEN])
        family.add("attention", start + "attn.wq_a.weight", [HIDDEN, HIDDEN], "F8_E4M3")
        family.add("attention", start + "attn.wq_a.scale", [1, 1], "F8_E8M0")
        family.add("attention", start + "attn.attn_sink", [HEADS], "F32")
        family.add("residual", start + "hc_attn_fn", [3, HIDDEN], "F32")
        family.add("router", start + "ffn.gate.weight", [EXPERTS, HIDDEN])
        family.add("router", start + ("ffn.gate.tid2eid" if layer == "0" else "ffn.gate.bias"), [EXPERTS], "I64")
        for part in ("w1", "w2", "w3"):
            shape = [HIDDEN, INNER] if part == "w2" else [INNER, HIDDEN]
            family.add("shared_expert", start + "ffn.shared_experts.%s.weight" % part, shape)
            for number in range(EXPERTS):
                name = start + "ffn.experts.%d.%s" % (number, part)
                family.add_expert(layer, number, name + ".weight", shape, "I8")
                family.add_expert(layer, number, name + ".scale", [shape[0], 2], "F8_E8M0")
    for name in ("e_proj.weight", "h_proj.weight", "enorm.weight", "hnorm.weight", "norm.weight", "hc_head_fn", "main_proj.weight",
                 "main_proj.scale", "main_norm.weight", "markov_head.markov_w1.weight", "confidence_head.proj.weight"):
        family.add("mtp", "mtp.0." + name, [HIDDEN, HIDDEN])
    return family


def mistral_own():
    """Mistral-Large-3: FP8 with one scale a tensor for weights and one for activations, and an index of its own name."""
    family = Family("mistral", "consolidated.safetensors.index.json", "consolidated-%05d-of-%05d.safetensors")
    family.add("embed", "tok_embeddings.weight", [32, HIDDEN])
    family.add("head", "norm.weight", [HIDDEN])
    family.add("head", "output.weight", [32, HIDDEN])
    family.add("other", "vision_encoder.transformer.layers.0.attention.wq.weight", [HIDDEN, HIDDEN])

    def quantised(role, name, shape, expert=None):
        for suffix, dtype, size in (("weight", "F8_E4M3", shape), ("qscale_act", "BF16", []), ("qscale_weight", "BF16", [])):
            if expert:
                family.add_expert(*expert, "%s.%s" % (name, suffix), size, dtype)
            else:
                family.add(role, "%s.%s" % (name, suffix), size, dtype)

    for layer in range(3):
        start = "layers.%d." % layer
        for norm in ("attention_norm", "ffn_norm"):
            family.add("norm", start + norm + ".weight", [HIDDEN])
        quantised("attention", start + "attention.wkv_a_with_mqa", [HIDDEN, HIDDEN])
        if layer:
            family.add("router", start + "gate.weight", [EXPERTS, HIDDEN])
        for part in ("w1", "w2", "w3"):
            shape = [HIDDEN, INNER] if part == "w2" else [INNER, HIDDEN]
            if layer == 0:
                quantised("dense_mlp", start + "feed_forward." + part, shape)
                continue
            quantised("shared_expert", start + "shared_experts." + part, shape)
            for number in range(EXPERTS):
                quantised("", start + "experts.%d.%s" % (number, part), shape, (layer, number))
    return family


def fused(prefix, part, leaves, router):
    """All experts of a layer in a few tensors; `leaves`: {what stands behind "experts.": (shape of one expert, dtype)}."""
    family = Family(prefix + part)
    family.add("embed", prefix + "embed_tokens.weight", [32, HIDDEN])
    family.add("head", prefix + "norm.weight", [HIDDEN])
    for layer in range(3):
        start = "%slayers.%d." % (prefix, layer)
        family.add("attention", start + "self_attn.o_proj.weight", [HIDDEN, HIDDEN])
        family.add("router", start + part + router, [EXPERTS, HIDDEN])
        for leaf, (shape, dtype) in leaves.items():
            family.add_fused(layer, start + part + "experts.", leaf, shape, dtype)
    return family


def llama4():
    return fused("language_model.model.", "feed_forward.", {
        "gate_up_proj": ([HIDDEN, 2 * INNER], "BF16"), "down_proj": ([INNER, HIDDEN], "BF16")}, "router.weight")


def gpt_oss():
    return fused("model.", "mlp.", {
        "gate_up_proj_blocks": ([2 * INNER, 1, 16], "U8"), "gate_up_proj_scales": ([2 * INNER, 1], "U8"),
        "gate_up_proj_bias": ([2 * INNER], "BF16"), "down_proj_blocks": ([HIDDEN, 8, 16], "U8"),
        "down_proj_scales": ([HIDDEN, 8], "U8"), "down_proj_bias": ([HIDDEN], "BF16")}, "router.weight")


def qwen_pictures():
    """Qwen3-VL: a prefix of its own, ".weight" here and there, one scale an expert, FP4."""
    family = fused("model.language_model.", "mlp.", {
        "gate_up_proj.weight": ([3, 10], "F4"), "down_proj.weight": ([10, 3], "F4"),
        "down_proj.weight_scale": ([], "F32")}, "gate.weight")
    family.add("other", "model.visual.blocks.0.norm1.weight", [HIDDEN])
    return family


FAMILIES = {
    "deepseek": transformers,
    "kimi": lambda: transformers("language_model.model.", "language_model.lm_head"),
    "base-model": lambda: transformers("", "lm_head"),
    "qwen": qwen,
    "mixtral": mixtral,
    "deepseek-own": deepseek_own,
    "mistral-own": mistral_own,
    "llama4": llama4,
    "gpt-oss": gpt_oss,
    "qwen-pictures": qwen_pictures,
}
