"""The lightning indexer of DeepSeek Sparse Attention (DSA) in NumPy, float64, straight from the published equations.

Source: the DeepSeek-V3.2 report and DeepSeek's published inference code (Indexer); for choices that layers share, the
GLM-5.2 config.json and the schedule that its keys describe. The Hadamard rotation of that code is left out, since it is
orthogonal and changes no product, and so is its rounding to FP8. Every choice is made with its margin: the distance
between the last score that is chosen and the first that is not. `without` leaves a part out, as in reference.py; `index_scale`
is not among the parts, for a positive factor of all scores chooses the same.
"""
import numpy as np

KEY_EPSILON = 1e-6  # of the key's LayerNorm: a constant of the published code, whatever rms_norm_eps is

# {part: the mistake}
PARTS = {
    "index_relu": "scores of heads are added with their sign",
    "index_weights": "every head counts alike",
    "index_bias": "the key's LayerNorm has no bias",
    "index_gain": "the key's LayerNorm has no gain",
    "index_mean": "the key's LayerNorm does not subtract the mean",
    "index_norm": "the key has no LayerNorm",
    "index_epsilon": "the LayerNorm's epsilon is ten times as large",
    "index_latent": "the index query reads the query's latent before its norm's gain",
    "index_rope": "index queries and keys are not rotated",
    "index_rope_form": "pairs are neighbours instead of halves apart, or the other way round",
    "index_rope_place": "the last dimensions are rotated instead of the first",
    "index_yarn": "the index rotates by frequencies without YaRN",
    "index_causal": "positions to come take places; the query's own is kept",
    "index_count": "one position fewer is chosen",
    "sharing": "shared layers attend to all positions",
    "sharing_last": "shared layers reuse the first full layer's choice instead of the last one's",
    "sharing_drafts": "drafts of the MTP module choose for themselves",
    "dense": "all layers attend to all positions",
}


def layer_types(config):
    """"full" or "shared" for each layer of the main model, or [] where there is no indexer."""
    if not config.get("index_topk"):
        return []
    layers = config["num_hidden_layers"]
    if config.get("indexer_types"):
        types = config["indexer_types"]
    elif config.get("index_topk_pattern"):
        types = [{"F": "full", "S": "shared"}[letter] for letter in config["index_topk_pattern"]]
    else:
        every, offset = config.get("index_topk_freq", 1), config.get("index_skip_topk_offset", 2)
        types = ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)]
    assert len(types) == layers and types[0] == "full" and set(types) <= {"full", "shared"}
    return types


def is_full(config, layer):
    """Whether the layer has an indexer of its own. The MTP module, behind the last layer, always has."""
    types = layer_types(config)
    return bool(types) and (layer >= len(types) or types[layer] == "full")


def is_interleaved(config):
    return config["model_type"] == "glm_moe_dsa"


def layer_norm(x, gain, bias, without):
    if "index_norm" in without:
        return x
    centred = x if "index_mean" in without else x - x.mean(-1, keepdims=True)
    epsilon = KEY_EPSILON * (10 if "index_epsilon" in without else 1)
    y = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return y * (1 if "index_gain" in without else gain) + (0 if "index_bias" in without else bias)


def rotate(model, x):
    """x [tokens, ..., index_head_dim]: the first qk_rope_head_dim are turned by position."""
    if "index_rope" in model.without:
        return x
    dim = model.c["qk_rope_head_dim"]
    halves = is_interleaved(model.c) == ("index_rope_form" in model.without)
    yarn = "index_yarn" not in model.without
    positions = np.arange(len(x))
    if "index_rope_place" in model.without:
        return np.concatenate([x[..., :-dim], model.rotate(x[..., -dim:], positions, halves, yarn)], -1)
    return np.concatenate([model.rotate(x[..., :dim], positions, halves, yarn), x[..., dim:]], -1)


def scores(model, at, x, latent):
    """[queries, keys]; x [tokens, hidden] after the layer's norm, latent [tokens, q_lora_rank] after its own."""
    c, w, without = model.c, model.w, model.without
    heads, dim = c["index_n_heads"], c["index_head_dim"]
    if "index_latent" in without:
        latent = latent / w[at + "q_a_layernorm.weight"]
    q = rotate(model, model.linear(at + "indexer.wq_b", latent).reshape(len(x), heads, dim))
    key = layer_norm(model.linear(at + "indexer.wk", x), w[at + "indexer.k_norm.weight"],
                     w[at + "indexer.k_norm.bias"], without)
    products = np.einsum("thd,jd->thj", q, rotate(model, key))
    if "index_relu" not in without:
        products = np.maximum(products, 0)
    weights = model.linear(at + "indexer.weights_proj", x)
    if "index_weights" in without:
        weights = np.ones_like(weights)
    return np.einsum("th,thj->tj", weights * heads ** -0.5 * dim ** -0.5, products)


def choose(model, at, x, latent):
    """(chosen [queries, keys], margin [queries]): the best index_topk of the positions up to the query's own, of equal
    scores those of the lowest positions. The margin is infinite where there is nothing to choose."""
    n, without = len(x), model.without
    count = model.c["index_topk"] - ("index_count" in without)
    values = scores(model, at, x, latent)
    chosen, margin = np.tril(np.ones((n, n), bool)), np.full(n, np.inf)
    for t in range(count, n):
        seen = values[t] if "index_causal" in without else values[t, :t + 1]
        order = np.argsort(-seen, kind="stable")
        margin[t] = seen[order[count - 1]] - seen[order[count]]
        chosen[t, order[count:]] = False
        chosen[t, t] |= "index_causal" in without
    return chosen, margin


class Sharing:
    """Which positions each layer attends to, as the layers of one pass ask one after the other."""

    def __init__(self, model, repeated=None):
        """`repeated`: a row whose choice all rows behind it attend to, in the place of their own."""
        self.model, self.repeated, self.choices, self.last, self.first = model, repeated, {}, None, None
        self.margin = None  # [tokens], the smallest so far

    def of_layer(self, layer, at, x, latent):
        """[queries, keys], or None for all positions up to the query's."""
        c, without = self.model.c, self.model.without
        if not layer_types(c) or "dense" in without:
            return None
        if not is_full(c, layer):
            if "sharing" in without:
                return None
            return self.first if "sharing_last" in without else self.last
        self.last, margin = choose(self.model, at, x, latent)
        if self.repeated is not None:
            self.last[self.repeated + 1:] = self.last[self.repeated]
            margin[self.repeated + 1:] = np.inf
        self.choices[layer] = self.last
        self.margin = margin if self.margin is None else np.minimum(self.margin, margin)
        if self.first is None:
            self.first = self.last
        return self.last
