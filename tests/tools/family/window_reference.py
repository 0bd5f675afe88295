"""DeepSeek-V4's graph in NumPy, float64, from DeepSeek's published equations, all positions at once, without a cache; decisions
with their margins. `without` leaves a part of the graph out, or does it as a known mistake does."""
import numpy as np


def rms(x, gain, epsilon):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y if gain is None else y * gain


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sinkhorn(c, rounds, epsilon):
    """c [.., j, k]: softmax over k, then columns and rows in turn."""
    c = softmax(c) + epsilon
    c = c / (c.sum(-2, keepdims=True) + epsilon)
    for _ in range(rounds - 1):
        c = c / (c.sum(-1, keepdims=True) + epsilon)
        c = c / (c.sum(-2, keepdims=True) + epsilon)
    return c


class Reference:
    def __init__(self, config, weights, without=()):
        self.c, self.w, self.without = config, weights, set(without)
        self.epsilon = config["rms_norm_eps"]
        self.margin, self.index_margin = np.inf, np.inf

    def has(self, part):
        return part not in self.without

    # Rotary embedding -----------------------------------------------------------------------------------------------

    def angles(self, positions, ratio):
        c, dim = self.c, self.c["qk_rope_head_dim"]
        compressed = ratio > 0 and self.has("compress_rope_theta")
        theta = c["compress_rope_theta"] if compressed else c["rope_theta"]
        inverse = theta ** -(np.arange(0, dim, 2) / dim)
        yarn = c.get("rope_scaling")
        if yarn and ratio > 0 and self.has("yarn"):
            def at(rotations):
                return dim * np.log(yarn["original_max_position_embeddings"] / (rotations * 2 * np.pi)) / (2 * np.log(theta))
            low, high = max(np.floor(at(yarn["beta_fast"])), 0), min(np.ceil(at(yarn["beta_slow"])), dim - 1)
            ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
            inverse = inverse / yarn["factor"] * ramp + inverse * (1 - ramp)
        return np.asarray(positions)[:, None] * inverse

    def rotate(self, x, positions, ratio, sign=1.0):
        """x [rows, .., dim]: the last values, pairs of neighbours."""
        dim = self.c["qk_rope_head_dim"]
        angle = self.angles(positions, ratio).reshape((len(positions),) + (1,) * (x.ndim - 2) + (dim // 2,))
        cos, sin = np.cos(angle), sign * np.sin(angle)
        y, part = x.copy(), x[..., -dim:]
        a, b = part[..., 0::2], part[..., 1::2]
        y[..., -dim:][..., 0::2] = a * cos - b * sin
        y[..., -dim:][..., 1::2] = a * sin + b * cos
        return y

    # Attention --------------------------------------------------------------------------------------------------------

    def entries(self, at, x, dim, ratio):
        """[entries, dim], of whole blocks."""
        ape = self.w[at + "ape"] * (1.0 if self.has("ape") else 0.0)
        u, v = x @ self.w[at + "wkv.weight"].T, x @ self.w[at + "wgate.weight"].T
        blocks, made = len(x) // ratio, []
        for i in range(blocks):
            rows = np.arange(i * ratio, (i + 1) * ratio)
            if ratio == 4:
                first, second = (slice(0, dim), slice(dim, 2 * dim)) if self.has("halves") else (slice(dim, 2 * dim), slice(0, dim))
                values, gates = [u[rows][:, second]], [(v[rows] + ape)[:, second]]
                if i > 0:
                    before = rows - ratio
                    values.insert(0, u[before][:, first])
                    gates.insert(0, (v[before] + ape)[:, first])
                values, gates = np.concatenate(values), np.concatenate(gates)
            else:
                values, gates = u[rows], v[rows] + ape
            made.append((softmax(gates, 0) * values).sum(0))
        made = rms(np.array(made).reshape(blocks, dim), self.w[at + "norm.weight"], self.epsilon)
        return self.rotate(made, np.arange(blocks) * ratio, ratio)

    def chosen(self, at, x, latent, ratio):
        """[rows, entries] bool: the index_topk best of those that a row may see."""
        c = self.c
        heads, dim, most = c["index_n_heads"], c["index_head_dim"], c["index_topk"] - (0 if self.has("topk") else 1)
        keys = self.entries(at + "indexer.compressor.", x, dim, ratio)
        queries = self.rotate((latent @ self.w[at + "indexer.wq_b.weight"].T).reshape(len(x), heads, dim), np.arange(len(x)), ratio)
        weights = x @ self.w[at + "indexer.weights_proj.weight"].T
        scores = (np.maximum(np.einsum("thd,id->thi", queries, keys), 0) * weights[..., None]).sum(1)
        chosen = np.zeros((len(x), len(keys)), bool)
        for t in range(len(x)):
            visible = (t + 1) // ratio
            if visible <= most:
                chosen[t, :visible] = True
                continue
            order = np.argsort(-scores[t, :visible], kind="stable")
            self.index_margin = min(self.index_margin, scores[t, order[most - 1]] - scores[t, order[most]])
            chosen[t, order[:most]] = True
        return chosen

    def queries(self, at, x, positions, ratio):
        """Queries [rows, heads, dim], and the latent that they come from."""
        latent = rms(x @ self.w[at + "wq_a.weight"].T, self.w[at + "q_norm.weight"], self.epsilon)
        q = (latent @ self.w[at + "wq_b.weight"].T).reshape(len(x), self.c["num_attention_heads"], self.c["head_dim"])
        if self.has("norm of queries"):
            q = rms(q, None, self.epsilon)
        return self.rotate(q, positions, ratio), latent

    def keys(self, at, x, positions, ratio):
        return self.rotate(rms(x @ self.w[at + "wkv.weight"].T, self.w[at + "kv_norm.weight"], self.epsilon), positions, ratio)

    def attend(self, at, q, keys, seen, positions, ratio):
        """The block's output, from queries and the keys that each row sees [rows, keys]."""
        c, rows = self.c, len(q)
        heads, dim = c["num_attention_heads"], c["head_dim"]
        scores = np.where(seen[:, None], np.einsum("thd,jd->thj", q, keys) * dim ** -0.5, -np.inf)
        if self.has("sinks"):
            sinks = np.broadcast_to(self.w[at + "attn_sink"][None, :, None], (rows, heads, 1))
            weights = softmax(np.concatenate([scores, sinks], -1))[..., :-1]
        else:
            weights = softmax(scores)
        out = np.einsum("thj,jd->thd", weights, keys)
        if self.has("inverse rotation"):
            out = self.rotate(out, positions, ratio, -1.0)
        groups, rank = c["o_groups"], c["o_lora_rank"]
        a = self.w[at + "wo_a.weight"].reshape(groups, rank, -1)
        out = np.einsum("tgj,grj->tgr", out.reshape(rows, groups, -1), a).reshape(rows, -1)
        return out @ self.w[at + "wo_b.weight"].T

    def window(self):
        return self.c["sliding_window"] - (0 if self.has("window") else 1)

    def attention(self, layer, x):
        c, at = self.c, self.place(layer) + "attn."
        ratio, dim = c["compress_ratios"][layer], c["head_dim"]
        positions = np.arange(len(x))
        q, latent = self.queries(at, x, positions, ratio)
        keys = self.keys(at, x, positions, ratio)
        distance = positions[:, None] - positions
        seen = (distance >= 0) & (distance < self.window())
        if ratio > 0:
            made = self.entries(at + "compressor.", x, dim, ratio)
            keys = np.concatenate([keys, made])
            visible = np.arange(len(made)) < ((positions + 1) // ratio)[:, None]
            if ratio == 4:
                visible &= self.chosen(at, x, latent, ratio)
            seen = np.concatenate([seen, visible], 1)
        return self.attend(at, q, keys, seen, positions, ratio)

    # Experts ----------------------------------------------------------------------------------------------------------

    def mlp(self, at, x, clamps):
        gate, up = x @ self.w[at + "w1.weight"].T, x @ self.w[at + "w3.weight"].T
        if clamps:
            limit = self.c["swiglu_limit"]
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return (gate * sigmoid(gate) * up) @ self.w[at + "w2.weight"].T

    def experts(self, layer, x, tokens):
        c, at = self.c, self.place(layer) + "ffn."
        scores = np.sqrt(np.logaddexp(0, x @ self.w[at + "gate.weight"].T))
        if layer < c["num_hash_layers"]:
            ids = self.w[at + "gate.tid2eid"][tokens]
        else:
            choice = scores + (self.w[at + "gate.bias"] if self.has("bias") else 0)
            order = np.argsort(-choice, -1, kind="stable")
            ids, top = order[:, :c["num_experts_per_tok"]], np.take_along_axis(choice, order, -1)
            self.margin = min(self.margin, (top[:, c["num_experts_per_tok"] - 1] - top[:, c["num_experts_per_tok"]]).min())
        weights = np.take_along_axis(scores, ids, -1)
        weights = weights / weights.sum(-1, keepdims=True) * c["routed_scaling_factor"]
        y = self.mlp(at + "shared_experts.", x, self.has("clamp of shared")) if c["n_shared_experts"] else np.zeros_like(x)
        for slot in range(ids.shape[1]):
            for expert in np.unique(ids[:, slot]):
                rows = ids[:, slot] == expert
                y[rows] += weights[rows, slot, None] * self.mlp(f"{at}experts.{expert}.", x[rows], self.has("clamp"))
        return y

    # The whole ----------------------------------------------------------------------------------------------------------

    def mixture(self, at, h):
        z = h.reshape(len(h), -1)
        m = (z @ self.w[at + "_fn"].T) / np.sqrt((z * z).mean(-1, keepdims=True) + self.epsilon)
        return m, self.w[at + "_base"], self.w[at + "_scale"]

    def block(self, at, h, run):
        c, n = self.c, self.c["hc_mult"]
        m, base, scale = self.mixture(at, h)
        epsilon = c["hc_eps"] if self.has("hc_eps") else 0
        pre = sigmoid(scale[0] * m[:, :n] + base[:n]) + epsilon
        post = (2 if self.has("2 of post") else 1) * sigmoid(scale[1] * m[:, n:2 * n] + base[n:2 * n])
        logits = (scale[2] * m[:, 2 * n:] + base[2 * n:]).reshape(-1, n, n)
        comb = sinkhorn(logits, c["hc_sinkhorn_iters"] - (0 if self.has("round") else 1), epsilon)
        if not self.has("order of C"):
            comb = comb.transpose(0, 2, 1)
        y = run((pre[..., None] * h).sum(1))
        return post[..., None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, h)

    def place(self, layer):
        """Modules for drafts count as layers after the last."""
        layers = self.c["num_hidden_layers"]
        return f"layers.{layer}." if layer < layers else f"mtp.{layer - layers}."

    def layer(self, layer, h, tokens, attention=None):
        w, at = self.w, self.place(layer)
        attention = attention or self.attention
        h = self.block(at + "hc_attn", h, lambda x: attention(layer, rms(x, w[at + "attn_norm.weight"], self.epsilon)))
        return self.block(at + "hc_ffn", h, lambda x: self.experts(layer, rms(x, w[at + "ffn_norm.weight"], self.epsilon), tokens))

    def mixed(self, h, at=""):
        """Before the last norm: [rows, hidden]."""
        m, base, scale = self.mixture(at + "hc_head" if self.has("mixture of the module") else "hc_head", h)
        return ((sigmoid(scale[0] * m + base) + self.c["hc_eps"])[..., None] * h).sum(1)

    def logits(self, h, at=""):
        return rms(self.mixed(h, at), self.w[at + "norm.weight"], self.epsilon) @ self.w["head.weight"].T

    def embedded(self, tokens):
        return np.repeat(self.w["embed.weight"][np.asarray(tokens)][:, None], self.c["hc_mult"], 1)

    def streams(self, tokens, after=None):
        """After the last layer: [rows, streams, hidden]. `after`: a dictionary that gets those after every layer."""
        h = self.embedded(tokens)
        for layer in range(self.c["num_hidden_layers"]):
            h = self.layer(layer, h, tokens)
            if after is not None:
                after[layer] = h
        return h

    def run(self, tokens):
        """Logits [rows, vocab]."""
        return self.logits(self.streams(np.asarray(tokens)))

    def drafts(self, tokens, chain=()):
        """Logits of the MTP module [rows, vocab]: row i is from position i and the next token; then a row for each token of a
        chain, from the module's own output before it."""
        w, at, layer = self.w, "mtp.0.", self.c["num_hidden_layers"]
        tokens = np.asarray(tokens)

        def joined(next_tokens, h):
            embedded = w["embed.weight"][np.asarray(next_tokens)]
            if self.has("enorm"):
                embedded = rms(embedded, w[at + "enorm.weight"], self.epsilon)
            if self.has("hnorm of each"):
                h = rms(h, w[at + "hnorm.weight"], self.epsilon)
            else:  # of all streams together
                h = rms(h.reshape(len(h), -1), None, self.epsilon).reshape(h.shape) * w[at + "hnorm.weight"]
            return (embedded @ w[at + "e_proj.weight"].T)[:, None] + h @ w[at + "h_proj.weight"].T

        z = joined(tokens[1:], self.streams(tokens)[:-1])
        for token in chain:
            z = np.concatenate([z, joined([token], self.layer(layer, z, None)[-1:])])
        return self.logits(self.layer(layer, z, None), at)

    def blocks(self, tokens, positions):
        """DSpark. For each position t: logits [block, vocab] of drafts after token t + 1, each as if those before it were the
        tokens that follow, and the confidence of each [block], a logit."""
        c, w, block = self.c, self.w, self.c["dspark_block_size"]
        first = c["num_hidden_layers"]
        stages = range(first, len(c["compress_ratios"]))
        after, last = {}, self.place(stages[-1])
        self.streams(np.asarray(tokens), after)
        sources = [after[layer] if self.has("streams after layers") else after[layer - 1] for layer in c["dspark_target_layer_ids"]]
        means = np.concatenate([h.mean(1) if self.has("mean of streams") else h[:, 0] for h in sources], 1)
        main = means @ w[self.place(first) + "main_proj.weight"].T
        if self.has("main_norm"):
            main = rms(main, w[self.place(first) + "main_norm.weight"], self.epsilon)
        past = {stage: self.keys(self.place(stage) + "attn.", main, np.arange(len(main)), 0) for stage in stages}
        logits, confidence = [], []
        for t in positions:
            at = np.arange(t + 1, t + 1 + block)

            def attention(stage, x):
                name = self.place(stage) + "attn."
                keys = np.concatenate([past[stage][max(0, t + 1 - self.window()):t + 1], self.keys(name, x, at, 0)])
                seen = np.ones((block, len(keys)), bool)
                if not self.has("whole block"):
                    seen[:, -block:] = np.tril(np.ones((block, block), bool))
                return self.attend(name, self.queries(name, x, at, 0)[0], keys, seen, at, 0)

            h = self.embedded([tokens[t + 1]] + [c["dspark_noise_token_id"]] * (block - 1))
            for stage in stages:
                h = self.layer(stage, h, None, attention)
            before = w[last + "markov_head.markov_w1.weight"][np.asarray(tokens[t + 1:t + 1 + block])]
            bias = before @ w[last + "markov_head.markov_w2.weight"].T if self.has("Markov head") else 0
            logits.append(self.logits(h, last) + bias)
            confidence.append((np.concatenate([self.mixed(h, last), before], 1) @ w[last + "confidence_head.proj.weight"].T)[:, 0])
        return np.array(logits), np.array(confidence)


# What can be left out, or done wrong.
PARTS = ["clamp", "clamp of shared", "sinks", "ape", "halves", "inverse rotation", "yarn", "compress_rope_theta", "norm of queries",
         "bias", "order of C", "2 of post", "round", "hc_eps", "window", "topk"]
MODULE_PARTS = ["enorm", "hnorm of each", "mixture of the module"]
STAGE_PARTS = ["streams after layers", "mean of streams", "main_norm", "whole block", "window", "Markov head", "mixture of the module"]
