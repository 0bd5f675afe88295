"""Makes a small DeepSeek-V4: random weights under the released names and in the released types (FP8 with E8M0 for 128 x 128,
FP4 experts with E8M0 for 32, tables of I64), and the exact values that they stand for."""
import numpy as np

import storage

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def fp4(values):
    """Two E2M1 codes a byte, the first in the low half, with a power of two for 32 columns."""
    rows, columns = values.shape
    groups = values.reshape(rows, columns // 32, 32)
    scale = np.exp2(np.ceil(np.log2(np.abs(groups).max(-1) / 6)))
    scaled = groups / scale[..., None]
    magnitude = np.abs(np.abs(scaled)[..., None] - E2M1).argmin(-1)
    codes = (magnitude + 8 * (scaled < 0)).reshape(rows, columns).astype(np.uint8)
    exact = (np.where(scaled < 0, -1, 1) * E2M1[magnitude] * scale[..., None]).reshape(rows, columns)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return (("I8", [rows, columns // 2], packed.tobytes()),
            ("F8_E8M0", list(scale.shape), (np.log2(scale) + 127).astype(np.uint8).tobytes()), exact)


class Maker:
    def __init__(self, config, seed):
        self.c, self.random = config, np.random.default_rng(seed)
        self.stored, self.exact = {}, {}

    def put(self, name, values, dtype):
        self.stored[name], self.exact[name] = storage.plain(values, dtype)

    def norm(self, name, length):
        self.put(name, self.random.uniform(0.6, 1.4, length), "BF16")

    def matrix(self, name, rows, columns, dtype, gain=1.0):
        self.put(name, self.random.normal(0, gain / np.sqrt(columns), (rows, columns)), dtype)

    def fp8(self, module, rows, columns, gain=1.0):
        values = self.random.normal(0, gain / np.sqrt(columns), (rows, columns))
        name = module + ".weight"
        self.stored[name], self.stored[module + ".scale"], self.exact[name] = storage.fp8(values, [128, 128], "F8_E8M0")

    def fp4(self, module, rows, columns, gain=1.0):
        values = self.random.normal(0, gain / np.sqrt(columns), (rows, columns))
        name = module + ".weight"
        self.stored[name], self.stored[module + ".scale"], self.exact[name] = fp4(values)

    def compressor(self, at, dim, ratio):
        width = dim * (2 if ratio == 4 else 1)
        self.matrix(at + "wkv.weight", width, self.c["hidden_size"], "BF16")
        self.matrix(at + "wgate.weight", width, self.c["hidden_size"], "BF16")
        self.norm(at + "norm.weight", dim)
        self.put(at + "ape", self.random.normal(0, 1, (ratio, width)), "F32")

    def attention(self, at, ratio):
        c = self.c
        hidden, heads, dim = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
        self.fp8(at + "wq_a", c["q_lora_rank"], hidden)
        self.norm(at + "q_norm.weight", c["q_lora_rank"])
        self.fp8(at + "wq_b", heads * dim, c["q_lora_rank"])
        self.fp8(at + "wkv", dim, hidden)
        self.norm(at + "kv_norm.weight", dim)
        self.fp8(at + "wo_a", c["o_groups"] * c["o_lora_rank"], heads * dim // c["o_groups"])
        self.fp8(at + "wo_b", hidden, c["o_groups"] * c["o_lora_rank"])
        self.put(at + "attn_sink", self.random.normal(0, 2, heads), "F32")
        if ratio > 0:
            self.compressor(at + "compressor.", dim, ratio)
        if ratio == 4:
            self.fp8(at + "indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            self.matrix(at + "indexer.weights_proj.weight", c["index_n_heads"], hidden, "BF16")
            self.compressor(at + "indexer.compressor.", c["index_head_dim"], ratio)

    def mixture(self, at, values, scales):
        width = self.c["hc_mult"] * self.c["hidden_size"]
        self.matrix(at + "_fn", values, width, "F32", 2.0)
        self.put(at + "_base", self.random.normal(0, 1, values), "F32")
        self.put(at + "_scale", self.random.uniform(0.4, 1.2, scales), "F32")

    def experts(self, at, layer):
        c = self.c
        hidden, inner, count = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
        self.matrix(at + "gate.weight", count, hidden, "BF16", 2.0)
        if layer < c["num_hash_layers"]:
            table = np.array([self.random.permutation(count)[:c["num_experts_per_tok"]] for _ in range(c["vocab_size"])])
            self.stored[at + "gate.tid2eid"] = ("I64", list(table.shape), table.astype("<i8").tobytes())
            self.exact[at + "gate.tid2eid"] = table
        else:
            self.put(at + "gate.bias", self.random.normal(0, 0.5, count), "F32")
        # Gates reach the limit now and then, in both kinds of experts.
        for expert in range(count):
            for name, rows, columns, gain in (("w1", inner, hidden, 4), ("w3", inner, hidden, 4), ("w2", hidden, inner, 0.2)):
                self.fp4(f"{at}experts.{expert}.{name}", rows, columns, gain)
        for name, rows, columns, gain in (("w1", inner, hidden, 4), ("w3", inner, hidden, 4), ("w2", hidden, inner, 0.2)):
            self.fp8(f"{at}shared_experts.{name}", rows, columns, gain)

    def layer(self, at, layer):
        n, hidden = self.c["hc_mult"], self.c["hidden_size"]
        self.norm(at + "attn_norm.weight", hidden)
        self.norm(at + "ffn_norm.weight", hidden)
        self.mixture(at + "hc_attn", n * (2 + n), 3)
        self.mixture(at + "hc_ffn", n * (2 + n), 3)
        self.attention(at + "attn.", self.c["compress_ratios"][layer])
        self.experts(at + "ffn.", layer)

    def module(self, at):
        """The MTP module of April, after all else: the model's weights do not depend on it."""
        hidden = self.c["hidden_size"]
        self.layer(at, self.c["num_hidden_layers"])
        self.fp8(at + "e_proj", hidden, hidden)
        self.fp8(at + "h_proj", hidden, hidden)
        for name in ("enorm", "hnorm", "norm"):
            self.norm(f"{at}{name}.weight", hidden)
        self.mixture(at + "hc_head", self.c["hc_mult"], 1)

    def stages(self):
        """DSpark's, in place of the module."""
        c, hidden, rank = self.c, self.c["hidden_size"], self.c["dspark_markov_rank"]
        count = len(c["compress_ratios"]) - c["num_hidden_layers"]
        for stage in range(count):
            self.layer(f"mtp.{stage}.", c["num_hidden_layers"] + stage)
        self.fp8("mtp.0.main_proj", hidden, len(c["dspark_target_layer_ids"]) * hidden)
        self.norm("mtp.0.main_norm.weight", hidden)
        at = f"mtp.{count - 1}."
        self.norm(at + "norm.weight", hidden)
        self.mixture(at + "hc_head", c["hc_mult"], 1)
        self.matrix(at + "markov_head.markov_w1.weight", c["vocab_size"], rank, "BF16", rank ** 0.5)
        self.matrix(at + "markov_head.markov_w2.weight", c["vocab_size"], rank, "BF16")
        self.matrix(at + "confidence_head.proj.weight", 1, hidden + rank, "BF16")

    def make(self):
        c, hidden = self.c, self.c["hidden_size"]
        self.put("embed.weight", self.random.normal(0, 1, (c["vocab_size"], hidden)), "BF16")
        for layer in range(c["num_hidden_layers"]):
            self.layer(f"layers.{layer}.", layer)
        self.mixture("hc_head", c["hc_mult"], 1)
        self.norm("norm.weight", hidden)
        self.matrix("head.weight", c["vocab_size"], hidden, "BF16")
        if "dspark_block_size" in c:
            self.stages()
        else:
            self.module("mtp.0.")
        return self
