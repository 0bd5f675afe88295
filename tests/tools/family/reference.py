"""The DeepSeek graph in NumPy, float64, straight from the published equations: naive and slow on purpose.

Source: DeepSeek-V2 and DeepSeek-V3 papers and DeepSeek's published inference code (Gate, MLA, YaRN). Keys and values are
expanded for every position and head, as the papers write them; nothing is absorbed, cached or fused. Every decision
(groups, experts, positions, likeliest token) is made with its margin, so that inputs can be chosen on which rounding
decides nothing. indexer.py chooses the positions of sparse attention. `without` leaves a part of the graph out (an
epsilon: makes it ten times as large): what that changes shows whether an input can notice a mistake there.
"""
import collections
import math

import numpy as np

import indexer

LATENT_EPSILON = 1e-6  # of the norms of the two latents: no published implementation passes rms_norm_eps on to them


# logits [tokens, vocab]; margin [tokens]; routes {layer: [[expert]]}; choices {layer: [queries, keys]} of the layers with an
# indexer of their own; index_margin [tokens] or None; mtp: the MTP module's logits [tokens - 1, vocab] or None, whose row i
# reads token i + 1 and final[i]; final [tokens, hidden], after the last norm.
Run = collections.namedtuple("Run", "logits margin routes choices index_margin mtp final")


def norm(x, gain, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def lead(logits):
    """How far the likeliest token is ahead."""
    best = np.sort(logits, -1)
    return best[:, -1] - best[:, -2]


def magnitude(factor, mscale):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


class Model:
    def __init__(self, config, weights, without=()):
        """`weights`: name -> float64 array, dequantised, under the released names."""
        self.c, self.w, self.without = config, weights, frozenset(without)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        self.theta = rope.get("rope_theta", config.get("rope_theta"))
        self.yarn = rope if rope.get("rope_type", rope.get("type")) == "yarn" else None
        self.epsilon = config["rms_norm_eps"] * (10 if "epsilon" in self.without else 1)
        self.latent_epsilon = LATENT_EPSILON * (10 if "latent_epsilon" in self.without else 1)

    # Position ------------------------------------------------------------------------------------------------------

    def frequencies(self, yarn=True):
        dim = self.c["qk_rope_head_dim"]
        plain = self.theta ** (-np.arange(0, dim, 2) / dim)
        if not self.yarn or not yarn or "yarn" in self.without:
            return plain
        y = self.yarn

        def turning(rotations):
            """The dimension whose wave turns so often within the original context."""
            return dim * math.log(y["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (
                2 * math.log(self.theta))
        low = max(math.floor(turning(y["beta_fast"])), 0)
        high = min(math.ceil(turning(y["beta_slow"])), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
        return plain / y["factor"] * ramp + plain * (1 - ramp)

    def rotate(self, x, positions, halves=False, yarn=True):
        """x [tokens, ..., dim]: pairs as complex numbers, neighbours or half of dim apart."""
        first, second = (np.s_[..., :x.shape[-1] // 2], np.s_[..., x.shape[-1] // 2:]) if halves else \
            (np.s_[..., 0::2], np.s_[..., 1::2])
        z = x[first] + 1j * x[second]
        turn = np.exp(1j * np.outer(positions, self.frequencies(yarn)))
        z = z * turn.reshape(len(positions), *[1] * (x.ndim - 2), -1)
        if self.yarn:  # 1 in every released model, where both are equal
            z = z * (magnitude(self.yarn["factor"], self.yarn["mscale"]) /
                     magnitude(self.yarn["factor"], self.yarn["mscale_all_dim"]))
        out = np.empty_like(x)
        out[first], out[second] = z.real, z.imag
        return out

    def query_scale(self, positions):
        """[tokens, 1, 1]: how much queries grow each time the original context is passed (Llama-4, Mistral-Small-4)."""
        beta = (self.yarn or {}).get("llama_4_scaling_beta")
        if not beta or "query_scale" in self.without:
            return np.ones((len(positions), 1, 1))
        passed = np.floor(positions / self.yarn["original_max_position_embeddings"])
        return (1 + beta * np.log(1 + passed)).reshape(-1, 1, 1)

    # Blocks --------------------------------------------------------------------------------------------------------

    def linear(self, name, x):
        return x @ self.w[name + ".weight"].T

    def attention(self, layer, x, sharing):
        at = f"model.layers.{layer}.self_attn."
        c, n = self.c, len(x)
        heads, nope, rope, rank = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                                   c["kv_lora_rank"])
        positions, chosen = np.arange(n), None
        if c.get("q_lora_rank"):
            latent = norm(self.linear(at + "q_a_proj", x), self.w[at + "q_a_layernorm.weight"], self.latent_epsilon)
            q = self.linear(at + "q_b_proj", latent)
            chosen = sharing.of_layer(layer, at, x, latent)
        else:
            q = self.linear(at + "q_proj", x)
        q = q.reshape(n, heads, nope + rope)
        q = np.concatenate([q[..., :nope], self.rotate(q[..., nope:], positions)], -1) * self.query_scale(positions)
        both = self.linear(at + "kv_a_proj_with_mqa", x)
        shared_key = self.rotate(both[:, rank:], positions)
        latent = norm(both[:, :rank], self.w[at + "kv_a_layernorm.weight"], self.latent_epsilon)
        kv = self.linear(at + "kv_b_proj", latent)
        kv = kv.reshape(n, heads, nope + c["v_head_dim"])
        scale = (nope + rope) ** -0.5
        if self.yarn and "mscale" not in self.without:
            scale *= magnitude(self.yarn["factor"], self.yarn["mscale_all_dim"]) ** 2
        out = []
        for head in range(heads):
            key = np.concatenate([kv[:, head, :nope], shared_key], -1)
            scores = q[:, head] @ key.T * scale
            scores[np.triu_indices(n, 1)] = -np.inf
            if chosen is not None:
                scores[~chosen] = -np.inf
            out.append(softmax(scores) @ kv[:, head, nope:])
        return self.linear(at + "o_proj", np.concatenate(out, -1))

    def mlp(self, at, x):
        return self.linear(at + "down_proj", silu(self.linear(at + "gate_proj", x)) * self.linear(at + "up_proj", x))

    def choose(self, logits, bias):
        """One token: ([expert], [weight], margin)."""
        c, experts, k = self.c, len(logits), self.c["num_experts_per_tok"]
        if c.get("scoring_func", "softmax" if c["model_type"] == "mistral4" else "sigmoid") == "softmax":
            scores = softmax(logits)
            rank = np.log(scores)  # a choice by softmax is one by logits: the margin is a ratio of scores
        else:
            scores = 1 / (1 + np.exp(-logits))
            rank = scores + (0 if bias is None or "bias" in self.without else bias)
            assert rank.min() >= 0, "a negative biased score: implementations that mask with 0 would differ"
        margin, allowed = math.inf, range(experts)
        groups, kept = c.get("n_group") or 1, c.get("topk_group") or 1
        if c.get("topk_method") != "greedy" and groups > kept and "groups" not in self.without:
            size = experts // groups
            inside = np.sort(rank.reshape(groups, size), -1)
            value = inside[:, -1] if bias is None else inside[:, -2:].sum(-1)
            order = np.argsort(-value, kind="stable")
            margin = value[order[kept - 1]] - value[order[kept]]
            allowed = [e for g in order[:kept] for e in range(g * size, (g + 1) * size)]
        order = sorted(allowed, key=lambda e: -rank[e])
        if len(order) > k:
            margin = min(margin, rank[order[k - 1]] - rank[order[k]])
        chosen = order[:k]
        weights = scores[chosen]
        if c["norm_topk_prob"] and "normalise" not in self.without:
            weights = weights / weights.sum()
        return chosen, weights * (1 if "scale" in self.without else c["routed_scaling_factor"]), margin

    def moe(self, at, x):
        logits = self.linear(at + "gate", x)
        bias = self.w.get(at + "gate.e_score_correction_bias")
        out, margins, routes = [], [], []
        for row, token_logits in zip(x, logits):
            chosen, weights, margin = self.choose(token_logits, bias)
            out.append(sum(weight * self.mlp(f"{at}experts.{e}.", row) for e, weight in zip(chosen, weights)))
            margins.append(margin)
            routes.append(chosen)
        shared = self.mlp(at + "shared_experts.", x) if self.c["n_shared_experts"] else 0
        return np.array(out) + (0 if "shared" in self.without else shared), np.array(margins), routes

    def is_moe(self, layer):
        if layer >= self.c["num_hidden_layers"]:
            return True  # the MTP module
        types = self.c.get("mlp_layer_types")
        if types:
            return types[layer] == "sparse"
        return layer >= self.c["first_k_dense_replace"] and layer % self.c.get("moe_layer_freq", 1) == 0

    def layer(self, layer, x, sharing, routes):
        """(x [tokens, hidden], margin [tokens])"""
        at = f"model.layers.{layer}."
        x = x + self.attention(layer, norm(x, self.w[at + "input_layernorm.weight"], self.epsilon), sharing)
        h = norm(x, self.w[at + "post_attention_layernorm.weight"], self.epsilon)
        if not self.is_moe(layer):
            return x + self.mlp(at + "mlp.", h), np.full(len(x), np.inf)
        out, margin, routes[layer] = self.moe(at + "mlp.", h)
        return x + out, margin

    def mtp_input(self, tokens, hidden):
        """[rows, hidden]: row i reads tokens[i] and hidden[i]."""
        at = f"model.layers.{self.c['num_hidden_layers']}."
        embedded = self.w["model.embed_tokens.weight"][np.asarray(tokens, int)]
        both = [norm(embedded, self.w[at + "enorm.weight"], self.epsilon),
                norm(hidden, self.w[at + "hnorm.weight"], self.epsilon)]
        return self.linear(at + "eh_proj", np.concatenate(both, -1))

    def mtp(self, z, sharing, routes):
        """(logits [rows, vocab], margin, final [rows, hidden]) of the module, the last after its norm."""
        layer = self.c["num_hidden_layers"]
        x, margin = self.layer(layer, z, sharing, routes)
        final = norm(x, self.w[f"model.layers.{layer}.shared_head.norm.weight"], self.epsilon)
        logits = self.linear("lm_head", final)
        return logits, np.minimum(margin, lead(logits)), final

    def chain(self, tokens, drafts):
        """(logits [drafts, vocab], their margins): the module after all of `tokens` reads drafts, each with its own state
        of the one before. Where iterations share, they attend to what the last row before them has chosen."""
        last = len(tokens) - 2
        hidden = self.run(tokens).final[:-1]
        read = list(tokens[1:])
        for draft in drafts:
            final = self.mtp(self.mtp_input(read, hidden), self.module_sharing(last), {})[2]
            read, hidden = [*read, draft], np.concatenate([hidden, final[-1:]])
        sharing = self.module_sharing(last)
        logits, margin, _ = self.mtp(self.mtp_input(read, hidden), sharing, {})
        if sharing.margin is not None:
            margin = np.minimum(margin, sharing.margin)
        return logits[last + 1:], margin[last + 1:]

    def module_sharing(self, last=None):
        shares = self.c.get("index_share_for_mtp_iteration") and "sharing_drafts" not in self.without
        return indexer.Sharing(self, last if shares else None)

    def run(self, tokens):
        """Everything about one list of tokens; see Run."""
        x = self.w["model.embed_tokens.weight"][np.asarray(tokens)]
        margin, routes, sharing = np.full(len(tokens), np.inf), {}, indexer.Sharing(self)
        for layer in range(self.c["num_hidden_layers"]):
            x, margins = self.layer(layer, x, sharing, routes)
            margin = np.minimum(margin, margins)
        final = norm(x, self.w["model.norm.weight"], self.epsilon)
        logits, mtp = self.linear("lm_head", final), None
        margin = np.minimum(margin, lead(logits))
        index_margin = sharing.margin
        if index_margin is not None:
            margin = np.minimum(margin, index_margin)
        if self.c.get("num_nextn_predict_layers") and len(tokens) > 1:
            module = self.module_sharing()
            mtp, margins, _ = self.mtp(self.mtp_input(tokens[1:], final[:-1]), module, routes)
            sharing.choices.update(module.choices)
            if module.margin is not None:
                margins = np.minimum(margins, module.margin)
                index_margin[1:] = np.minimum(index_margin[1:], module.margin)
            margin[1:] = np.minimum(margin[1:], margins)  # row i is there once token i + 1 is
        return Run(logits, margin, routes, sharing.choices, index_margin, mtp, final)
