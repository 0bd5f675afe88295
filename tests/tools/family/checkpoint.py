"""Makes a variant's tensors: random weights under the released names, stored as the variant says."""
import numpy as np

import indexer
import storage

# Latents and embeddings are small, so that the epsilons of their norms count.
LATENT_GAIN = 0.01
EMBEDDING_GAIN = 0.02


class Maker:
    def __init__(self, config, how, seed):
        self.c, self.how, self.random = config, how, np.random.default_rng(seed)
        self.stored, self.exact = {}, {}  # name -> (dtype, shape, bytes); name -> float64 values

    # One tensor ----------------------------------------------------------------------------------------------------

    def put(self, name, values, dtype):
        self.stored[name], self.exact[name] = storage.plain(values, dtype)

    def vector(self, name, length, low=0.6, high=1.4, dtype=None):
        self.put(name, self.random.uniform(low, high, length), dtype or self.plain_dtype())

    def plain_dtype(self):
        return "BF16" if self.how["store"] == "fp8" else self.how["store"]

    def linear(self, module, rows, columns, gain=1.0, plain=False):
        """`gain`: of all rows, or one for each."""
        values = self.random.normal(0, 1 / np.sqrt(columns), (rows, columns)) * np.reshape(gain, (-1, 1))
        name = module + ".weight"
        if self.how["store"] != "fp8" or plain:
            return self.put(name, values, self.plain_dtype())
        sides = {"row": 1, "all": max(rows, columns)}
        block = [sides.get(side, side) for side in self.how["block"]]
        self.stored[name], scale, self.exact[name] = storage.fp8(
            values, block, self.how.get("scale_dtype", "F32"), self.how.get("power_of_two", False))
        self.stored[module + "." + self.how.get("scale_name", "weight_scale_inv")] = self.reshaped(scale)
        if self.how.get("input_scale"):
            self.stored[module + ".input_scale"] = storage.plain(self.random.uniform(0.01, 0.1, ()), "F32")[0]
        return None

    def reshaped(self, scale):
        """Both spellings of scales for rows ([rows, 1], [rows]) and of one scale ([], [1]), in turn."""
        dtype, shape, data = scale
        if self.how.get("scale_name") != "weight_scale":
            return scale
        turn = len(self.stored) % 4 < 2
        if shape == [1, 1]:
            return dtype, [] if turn else [1], data
        return dtype, shape if turn else shape[:1], data

    # The model -----------------------------------------------------------------------------------------------------

    def mlp(self, at, width, plain=False):
        hidden = self.c["hidden_size"]
        self.linear(at + "gate_proj", width, hidden, 1.5, plain)
        self.linear(at + "up_proj", width, hidden, 1.5, plain)
        self.linear(at + "down_proj", hidden, width, 1.5, plain)

    def attention(self, layer):
        at = f"model.layers.{layer}.self_attn."
        c, hidden, heads = self.c, self.c["hidden_size"], self.c["num_attention_heads"]
        nope, rope, value, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        if c.get("q_lora_rank"):
            self.linear(at + "q_a_proj", c["q_lora_rank"], hidden, LATENT_GAIN)
            self.vector(at + "q_a_layernorm.weight", c["q_lora_rank"])
            self.linear(at + "q_b_proj", heads * (nope + rope), c["q_lora_rank"], 1.5)
        else:
            self.linear(at + "q_proj", heads * (nope + rope), hidden, 1.5)
        self.linear(at + "kv_a_proj_with_mqa", rank + rope, hidden, [LATENT_GAIN] * rank + [1.2] * rope)
        self.vector(at + "kv_a_layernorm.weight", rank)
        self.linear(at + "kv_b_proj", heads * (nope + value), rank)
        self.linear(at + "o_proj", hidden, heads * value, 1.5)
        if self.how.get("inv_freq"):
            self.put(at + "rotary_emb.inv_freq", np.exp2(-np.arange(rope // 2)), "BF16")
        if indexer.is_full(c, layer):
            self.indexer(at + "indexer.")

    def indexer(self, at):
        """`index_key_gain`: a small one makes keys so small that the epsilon of their norm counts."""
        c, how = self.c, self.how
        count, width, dtype = c["index_n_heads"], c["index_head_dim"], how.get("index_norm_dtype", "F32")
        bias = how.get("index_bias", 0.1)
        self.linear(at + "wq_b", count * width, c["q_lora_rank"])
        self.linear(at + "wk", width, c["hidden_size"], how.get("index_key_gain", 1.0))
        self.vector(at + "k_norm.weight", width, dtype=dtype)
        self.vector(at + "k_norm.bias", width, -bias, bias, dtype=dtype)
        self.linear(at + "weights_proj", count, c["hidden_size"], plain=True)

    def moe(self, at):
        c, plain = self.c, self.how.get("plain") == "experts"
        self.linear(at + "gate", c["n_routed_experts"], c["hidden_size"], 1.5, plain=True)
        if c.get("topk_method") == "noaux_tc":
            self.vector(at + "gate.e_score_correction_bias", c["n_routed_experts"], 0, 0.3, dtype="F32")
        self.mlp(at + "shared_experts.", c["n_shared_experts"] * c["moe_intermediate_size"])
        if self.how.get("fused"):
            return self.fused_experts(at + "experts.")
        for expert in range(c["n_routed_experts"]):
            self.mlp(f"{at}experts.{expert}.", c["moe_intermediate_size"], plain)
        return None

    def fused_experts(self, at):
        """All experts in two tensors, gate above up, with one scale for each expert."""
        c = self.c
        width, hidden = c["moe_intermediate_size"], c["hidden_size"]
        for name, rows, columns in (("gate_up_proj", 2 * width, hidden), ("down_proj", hidden, width)):
            codes, scales = b"", b""
            for expert in range(c["n_routed_experts"]):
                values = self.random.normal(0, 1.5 / np.sqrt(columns), (rows, columns))
                (_, _, code), (_, _, scale), exact = storage.fp8(values, [rows, columns])
                codes, scales = codes + code, scales + scale
                halves = {"gate_proj": exact[:width], "up_proj": exact[width:]} if name == "gate_up_proj" else {name: exact}
                self.exact.update({f"{at}{expert}.{part}.weight": half for part, half in halves.items()})
            self.stored[at + name] = ("F8_E4M3", [c["n_routed_experts"], rows, columns], codes)
            self.stored[at + name + "_scale_inv"] = ("F32", [c["n_routed_experts"], 1, 1], scales)
            self.stored[at + name + "_activation_scale"] = storage.plain(self.random.uniform(0.01, 0.1, ()), "F32")[0]

    def make(self, is_moe):
        c = self.c
        self.put("model.embed_tokens.weight", self.random.normal(0, EMBEDDING_GAIN, (
            c["vocab_size"], c["hidden_size"])), self.plain_dtype())
        for layer in range(c["num_hidden_layers"]):
            self.layer(layer, is_moe(layer))
        self.vector("model.norm.weight", c["hidden_size"])
        self.linear("lm_head", c["vocab_size"], c["hidden_size"], plain=True)
        if c.get("num_nextn_predict_layers"):
            self.mtp(c["num_hidden_layers"])
        if "wrapper" in self.how:
            self.stored = {"language_model." + name: tensor for name, tensor in self.stored.items()}
        return self

    def layer(self, layer, is_moe):
        at = f"model.layers.{layer}."
        self.vector(at + "input_layernorm.weight", self.c["hidden_size"])
        self.attention(layer)
        self.vector(at + "post_attention_layernorm.weight", self.c["hidden_size"])
        if is_moe:
            self.moe(at + "mlp.")
        else:
            self.mlp(at + "mlp.", self.c["intermediate_size"])

    def mtp(self, layer):
        """The module behind the last layer; with copies of embedding and head where released checkpoints have them."""
        at, hidden = f"model.layers.{layer}.", self.c["hidden_size"]
        for name in ("enorm", "hnorm", "shared_head.norm"):
            self.vector(at + name + ".weight", hidden)
        self.linear(at + "eh_proj", hidden, 2 * hidden, plain=True)
        self.layer(layer, True)
        if self.how.get("mtp_copies"):
            for copy, source in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
                for tensors in (self.stored, self.exact):
                    tensors[at + copy + ".weight"] = tensors[source + ".weight"]
