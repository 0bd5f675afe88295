#!/usr/bin/env python3
"""Writes a checkpoint of the DeepSeek-V3 kind whose routing is as local as others measured it (routes.py), and which
speaks a known text: token 0, 1, 2, ... around. So `dsrun FOLDER --tokens 0 -n 100` is a decode with that locality.

    generate.py FOLDER                     # 384 experts of V3's shapes: 44,051,072 bytes each, 17.3 GB in all
    generate.py FOLDER --deep              # V3's 61 layers and its MTP module, in small: 0.4 GB
    generate.py FOLDER --weights trained   # FP8 bytes distributed as trained ones (trained.py), not evenly
    generate.py FOLDER --set n_routed_experts=128 --reuse 0.41 ...

Needs NumPy. Every expert has bytes of its own. For each of the text's tokens there may be another one that might have
come instead, with routes of its own: where the MTP module is wrong, it says that.

Prints what the routes are like and writes them to routes.npy; check.py says whether another program goes that way.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import routes  # noqa: E402
import v3_checkpoint  # noqa: E402
from trained import TrainedWeights  # noqa: E402
from weights import Space, Tables  # noqa: E402

# V3's experts, few of them, with little else that every token needs.
WIDE = {"num_hidden_layers": 7, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "n_routed_experts": 64,
        "intermediate_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 3072}
WIDE_MARKS = 512
# V3's depth. A pass must be longer than the clock's noise and shorter than a second.
DEEP = {"hidden_size": 512, "moe_intermediate_size": 64, "n_routed_experts": 64, "intermediate_size": 128,
        "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 448}
DEEP_MARKS = 64


class Payload(v3_checkpoint.RandomPayload):
    """Tensors of the tables; for the rest random bytes, or `trained` ones."""

    def __init__(self, tables, seed, trained=None):
        super().__init__(seed)
        self.tables, self.trained = tables, trained

    def write(self, file, tensor):
        known = self.tables.tensor(tensor.name, tensor.shape)
        if known is None and self.trained and tensor.dtype == "F8_E4M3":
            self.trained.write(file, tensor.name, tensor.shape)
            return
        if known is None:
            super().write(file, tensor)
            return
        if len(known) != tensor.bytes:
            raise ValueError(f"{tensor.name}: {len(known)} bytes instead of {tensor.bytes}")
        file.write(known)


class Plan:
    """Which tokens there are, where they go and what follows them. Tokens from 0 on are the text; behind it come those
    that the module says wrongly."""

    def __init__(self, config, marks, reuse, acceptance, seed):
        random = np.random.default_rng([seed, 1])
        vocab, modules = config["vocab_size"], config["num_nextn_predict_layers"]
        wrong = round(vocab * (1 - acceptance) / (2 - acceptance)) if modules else 0
        self.text = vocab - wrong
        wrong_places = np.sort(random.choice(self.text, wrong, replace=False))
        self.router = routes.Router(config["n_routed_experts"], config["num_experts_per_tok"], config["n_group"],
                                    config["topk_group"])
        layers = config["num_hidden_layers"] - config["first_k_dense_replace"] + modules
        both, _ = routes.make(self.router, layers, self.text, reuse, seed)
        self.routes = np.concatenate([both[0], both[1][wrong_places]])
        self.space = Space(config["hidden_size"], vocab, marks, config["rms_norm_eps"])
        place = np.concatenate([np.arange(self.text), wrong_places])  # of each token in the text
        self.follows = (place + 1) % self.text
        self.drafted = self.follows.copy()
        said = np.arange(self.text)
        said[wrong_places] = np.arange(self.text, vocab)
        self.drafted = said[self.follows]


def report(plan, tables, config):
    text = plan.routes[:plan.text]
    shares = {share: round(float(np.mean([routes.lru_hit_rate(text[:, layer], int(share * plan.router.experts))
                                          for layer in range(min(4, text.shape[1]))])), 3)
              for share in (0.125, 0.18, 0.25, 0.36, 0.5)}
    return {"experts": config["n_routed_experts"] * text.shape[1], "text_tokens": plan.text,
            "previous_token_reuse": round(routes.reuse(text), 3), "lru_hit_rate_of_a_layer": shares,
            "wrong_drafts": config["vocab_size"] - plan.text, "mark_strength": round(tables.strength, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--deep", action="store_true", help="V3's depth in small")
    parser.add_argument("--set", action="append", default=[], type=v3_checkpoint.parse_setting, metavar="KEY=JSON",
                        dest="settings", help="replaces a field of the config")
    parser.add_argument("--reuse", type=float, default=0.35, help="share of the previous token's experts")
    parser.add_argument("--foresight", type=float, default=0.72,
                        help="share of the next layer's experts that its router finds on this layer's state")
    parser.add_argument("--acceptance", type=float, default=0.82, help="share of the MTP module's right drafts")
    parser.add_argument("--marks", type=int, help="distinct marks (weights.py)")
    parser.add_argument("--weights", choices=("random", "trained"), default="random",
                        help="what the bytes of FP8 weights are like that decide nothing")
    parser.add_argument("--shard-bytes", type=int, default=4 << 30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = {**v3_checkpoint.V3, **(DEEP if arguments.deep else WIDE), **dict(arguments.settings)}
    config["eos_token_id"] = config["vocab_size"]  # the text has no end
    marks = arguments.marks or (DEEP_MARKS if arguments.deep else WIDE_MARKS)
    try:
        plan = Plan(config, marks, arguments.reuse, arguments.acceptance, arguments.seed)
        tables = Tables(config, plan.space, plan.routes, plan.follows, plan.drafted, arguments.foresight,
                        arguments.seed)
        shards = v3_checkpoint.make_shards(config, shard_bytes=arguments.shard_bytes)
    except ValueError as error:
        sys.exit(f"generate.py: {error}")
    trained = TrainedWeights(arguments.seed) if arguments.weights == "trained" else None
    v3_checkpoint.write_checkpoint(arguments.folder, config, shards, Payload(tables, arguments.seed, trained))
    np.save(arguments.folder / "routes.npy", plan.routes.astype(np.uint16))  # [tokens, layers with experts, top_k]
    print(json.dumps(report(plan, tables, config), indent=2))


if __name__ == "__main__":
    main()
