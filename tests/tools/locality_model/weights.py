"""Weights that make a model of the DeepSeek-V3 kind go where it is told: to given experts, and from token to token.

The residual stream holds one number for each token of the vocabulary and one for each mark (Space). A token's embedding
is 1 at its own place. Nothing that attention or routed experts add counts (o_proj is zero, their down_proj has small
scales), so a layer's router reads which token it is, and its weights are a table: the logits wanted for each token. The
output head is a table too: token -> the one that follows.

Every layer's shared expert (its MLP where it is dense) adds a mark of the token, the next layer's takes it away again.
The router counts on the mark's presence or absence, so that the same router on the layer before's state guesses
some experts wrongly, as it does in trained models.

The MTP module reads the embedding alone, and its head foretells the token after next; for some tokens a wrong one.
"""

import numpy as np

from routes import Router

CHOSEN, STEP, OTHERS = 3.0, 0.25, -1.0  # logits of the best chosen expert, from one rank to the next, of all the rest
MARK = 0.5
EXPERT_OUTPUT_SCALE = 2.0**-36  # of down_proj's FP8 numbers: outputs of about 1e-6, beside an embedding of 1
FP8_ONE = 0x38


def bf16(values):
    """Round to nearest, ties away from zero: bytes."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x8000) >> 16).astype(np.uint16).tobytes()


def one_hot(rows, columns, shape):
    table = np.zeros(shape, np.float32)
    table[rows, columns] = 1
    return table


class Space:
    """Places of the residual stream: tokens first, then marks. State of a token before layer `l`: 1 at its place, MARK
    at its mark's where `l` is odd."""

    def __init__(self, hidden, tokens, marks, epsilon):
        if tokens + marks > hidden:
            raise ValueError(f"{tokens} tokens and {marks} marks do not fit a hidden size of {hidden}")
        self.hidden, self.tokens, self.marks, self.epsilon = hidden, tokens, marks, epsilon
        self.mark_of = np.arange(tokens) % marks

    def normalised(self, marked):
        """What the norm makes of the 1: the number in the normalised state."""
        return 1 / np.sqrt((1 + (MARK if marked else 0) ** 2) / self.hidden + self.epsilon)


def wanted_logits(routes, experts):
    """ids [tokens, top_k], best first -> logits [tokens, experts]."""
    logits = np.full((len(routes), experts), OTHERS, np.float32)
    ranks = CHOSEN - STEP * np.arange(routes.shape[1], dtype=np.float32)
    np.put_along_axis(logits, routes, np.broadcast_to(ranks, routes.shape), axis=1)
    return logits


def foreseen(routes, router, disturbance):
    """Share of the experts that remain after logits were disturbed."""
    guess = router.pick(1 / (1 + np.exp(-wanted_logits(routes, router.experts) - disturbance)))
    return float((guess[:, :, None] == routes[:, None, :]).any(axis=-1).mean())


def mark_strength(routes, router, wanted_share, random):
    """Standard deviation of the marks' logits with which the layer before foresees the wanted share."""
    noise, low, high = random.standard_normal((len(routes), router.experts)), 0.0, 8.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if foreseen(routes, router, middle * noise) > wanted_share else (low, middle)
    return (low + high) / 2


class Tables:
    """Tensors of a model whose tokens go where `routes` [tokens, layers, top_k] says; layers from the first that has
    experts, the MTP module's last. `follows` and `drafted` [tokens]: the token after each, and what the module says of
    it."""

    def __init__(self, config, space, routes, follows, drafted, foresight, seed):
        self.config, self.space, self.routes = config, space, routes
        self.follows, self.drafted = follows, drafted
        self.router = Router(config["n_routed_experts"], config["num_experts_per_tok"], config["n_group"],
                             config["topk_group"])
        self.random = np.random.default_rng(seed)
        self.strength = mark_strength(routes[:, 0], self.router, foresight, self.random)

    def tensor(self, name, shape):
        """Bytes of a tensor; None: whatever comes."""
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
        is_weight = name.endswith(".weight")
        if "norm" in name:
            return bf16(np.ones(shape))
        if name.endswith("e_score_correction_bias"):
            return bytes(4 * shape[0])
        if ".self_attn.o_proj.weight" in name and is_weight:
            return bytes(shape[0] * shape[1])
        if name.endswith("mlp.gate.weight"):
            return bf16(self.router_table(layer, shape))
        if name.endswith("embed_tokens.weight"):
            return bf16(one_hot(np.arange(self.space.tokens), np.arange(self.space.tokens), shape))
        if name.endswith("eh_proj.weight"):
            return bf16(one_hot(np.arange(shape[0]), np.arange(shape[0]), shape) / self.space.normalised(False))
        if name == "lm_head.weight":
            return bf16(one_hot(self.follows, np.arange(self.space.tokens), shape))
        if name.endswith("shared_head.head.weight"):
            return bf16(one_hot(self.drafted, np.arange(self.space.tokens), shape))
        if ".mlp.experts." in name:
            return self.scales(shape, EXPERT_OUTPUT_SCALE) if name.endswith("down_proj.weight_scale_inv") else None
        if ".mlp." in name:
            return self.mark_writer(layer, name, shape)
        return None

    @staticmethod
    def scales(shape, value):
        return np.full(shape, value, np.float32).tobytes()

    def router_table(self, layer, shape):
        space, table = self.space, np.zeros(shape, np.float32)
        index = layer - self.config["first_k_dense_replace"]
        logits = wanted_logits(self.routes[:, index], shape[0]).T
        is_module = layer == self.config["num_hidden_layers"]
        marked = layer % 2 == 1 and not is_module
        if not is_module:
            mark = self.strength * self.random.standard_normal((shape[0], space.marks)).astype(np.float32)
            table[:, space.tokens:space.tokens + space.marks] = mark / MARK
            if marked:
                logits = logits - mark[:, space.mark_of]
        table[:, :space.tokens] = logits
        return table / space.normalised(marked)

    def mark_writer(self, layer, name, shape):
        """gate and up: 1 at (mark, token); down: its scale makes the mark of it, or takes it away."""
        space, marked = self.space, layer % 2 == 1
        if name.endswith("_scale_inv"):
            if "down_proj" not in name:
                return self.scales(shape, 1)
            inner = space.normalised(marked)
            wanted = 0 if layer == self.config["num_hidden_layers"] else -MARK if marked else MARK
            return self.scales(shape, wanted * (1 + np.exp(-inner)) / inner**2)
        places = np.zeros(shape, np.uint8)
        if "down_proj" in name:
            places[space.tokens + np.arange(space.marks), np.arange(space.marks)] = FP8_ONE
        else:
            places[space.mark_of, np.arange(space.tokens)] = FP8_ONE
        return places.tobytes()
