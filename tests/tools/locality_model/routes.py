"""Routes with the locality that others measured: which experts each token of a text goes to, layer by layer.

Every layer's router has a latent score for each expert, the sum of four parts, each a normal variable:

* a topic, the same for some 200 tokens in all layers, then another one;
* a hot set that drifts, with a memory of 30 tokens;
* the phrase, with a memory of 2 tokens;
* the token itself.

The router then picks as DeepSeek-V3's does: the best groups by the sum of their two best scores, the best experts within
them. All experts are alike in the long run, as balanced training makes them. How much the token itself weighs is found by
bisection, so that a layer's experts are to the wanted share those of the token before. Published shares: 41.3 % GLM-5.2
(colibri), 43 and 35 % Qwen3 (BigMoeOnEdge), 33.6 % Kimi-Linear, 29.5 % Kimi-K3 (WASTE). Published hit rates of LRU for
512 experts a layer: 43.5 % with room for 18 % of them, 62.0 % for 36 %, 72.0 % for 54 % (kekzl/imp#2061).
"""

import numpy as np

TOPIC_TOKENS, DRIFT_TOKENS, PHRASE_TOKENS = 200, 30, 2
TOPIC, DRIFT, PHRASE = 0.5, 0.5, 0.5  # weights of the parts
PROBE_TOKENS = 250  # of each try to find the weight of the token itself


class Router:
    """experts, top_k, groups, groups_kept as in config.json."""

    def __init__(self, experts, top_k, groups=1, groups_kept=1):
        self.experts, self.top_k, self.groups, self.groups_kept = experts, top_k, groups, groups_kept

    def pick(self, scores):
        """Scores [..., experts] -> ids [..., top_k], best first."""
        if self.groups > 1:
            grouped = scores.reshape(*scores.shape[:-1], self.groups, -1)
            best_two = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
            left_out = np.argsort(-best_two, axis=-1)[..., self.groups_kept:]
            grouped = grouped.copy()
            np.put_along_axis(grouped, left_out[..., None], -np.inf, axis=-2)
            scores = grouped.reshape(scores.shape)
        return np.argsort(-scores, axis=-1, kind="stable")[..., :self.top_k]


class Text:
    """Latent scores token by token, for `layers` layers at once."""

    def __init__(self, router, layers, token_weight, seed):
        self.token_weight = token_weight
        self.random = np.random.default_rng(seed)
        self.shape = (layers, router.experts)
        self.topic, self.drift, self.phrase = self.normal(), self.normal(), self.normal()

    def normal(self):
        return self.random.standard_normal(self.shape)

    def moved(self, state, memory):
        keep = np.exp(-1 / memory)
        return keep * state + np.sqrt(1 - keep * keep) * self.normal()

    def token(self, phrase):
        return TOPIC * self.topic + DRIFT * self.drift + PHRASE * phrase + self.token_weight * self.normal()

    def next(self):
        """Scores [2, layers, experts]: of the text's next token, and of another one that might have come there."""
        if self.random.random() < 1 / TOPIC_TOKENS:
            self.topic = self.normal()
        self.drift = self.moved(self.drift, DRIFT_TOKENS)
        instead = self.token(self.moved(self.phrase, PHRASE_TOKENS))
        self.phrase = self.moved(self.phrase, PHRASE_TOKENS)
        return np.stack([self.token(self.phrase), instead])


def reuse(routes):
    """Share of a token's experts that the token before had, of routes [tokens, layers, top_k]."""
    same = (routes[1:, :, :, None] == routes[:-1, :, None, :]).any(axis=-1)
    return float(same.mean())


def token_weight_for(wanted, router, seed):
    low, high = 0.01, 4.0
    for _ in range(9):
        middle = (low * high) ** 0.5
        text = Text(router, 16, middle, seed)
        found = reuse(np.stack([router.pick(text.next()[0]) for _ in range(PROBE_TOKENS)]))
        low, high = (middle, high) if found > wanted else (low, middle)
    return (low * high) ** 0.5


def make(router, layers, tokens, wanted_reuse, seed):
    """(routes, scores): ids [2, tokens, layers, top_k] and the scores [2, tokens, layers, experts] (float32) behind them;
    [0] is the text, [1] the tokens that might have come instead."""
    text = Text(router, layers, token_weight_for(wanted_reuse, router, seed), seed)
    scores = np.empty((2, tokens, layers, router.experts), np.float32)
    for number in range(tokens):
        scores[:, number] = text.next()
    return router.pick(scores), scores


def lru_hit_rate(routes, slots):
    """Of one layer's routes [tokens, top_k] with `slots` slots, first touches included."""
    held, hits = {}, 0
    for expert in routes.reshape(-1):
        if held.pop(expert, None):
            hits += 1
        elif len(held) >= slots:
            held.pop(next(iter(held)))
        held[expert] = True
    return hits / routes.size
