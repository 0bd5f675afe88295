"""Files and texts by which a person says what is wanted, as somebody else may have written them: recipes, lists of digests, layer
maps."""

import json

from checkpoints import write_small
from hostile.cases import DSRUN, RESHARD, Case
from hostile.weights import sound_again


def repack_case(name, options, files=None):
    def prepare(folder):
        write_small(folder / "source")
        for file, content in (files or {}).items():
            (folder / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        words = [folder / word if word in (files or {}) else word for word in options]
        return [(RESHARD, [folder / "source", "--out", folder / "packed", *words])]
    return Case(name, prepare, after=sound_again)


RECIPES = {
    "empty": b"", "open": b"{", "an array": b"[]", "nothing asked for": {}, "another key": {"by": "expert", "x": 1},
    "twice the same": b'{"by":"expert","by":"layer"}', "by a number": {"by": 5}, "by nothing": {"by": ""}, "by 0 experts": {"by": "expert:0"},
    "by 2^64 experts": {"by": "expert:18446744073709551616"}, "by -1 experts": {"by": "expert:-1"}, "shards of nothing": {"by": "shard:0"},
    "shards of 2^64": {"by": "shard:99999999999999999999GB"}, "shards of no size": {"by": "shard:x"}, "include a number": {"by": "expert", "include": 5},
    "include nothing": {"by": "expert", "include": [{}]}, "layers backwards": {"by": "expert", "include": [{"layers": "5-3"}]},
    "layers of 2^64": {"by": "expert", "include": [{"layers": "0-18446744073709551616"}]}, "layers are a list": {"by": "expert", "include": [{"layers": [1]}]},
    "a role of nobody": {"by": "expert", "include": [{"role": "x\x1b[2J"}]}, "a pattern of brackets": {"by": "expert", "include": [{"name": "[" * 5000}]},
    "a pattern of stars": {"by": "expert", "include": [{"name": "*a" * 3000 + "b"}]}, "a transform of nobody": {"by": "expert", "transform": "x"},
    "a transform of 2 MB": {"by": "expert", "transform": "x" * 2_000_000}, "compress at 10^9": {"by": "expert", "compress": "zstd:1000000000"},
    "dedupe a text": {"by": "expert", "dedupe": "yes"}, "a layer map of 10^9": {"by": "expert", "layer_map": "0-1," * 100_000 + "0"},
    "a layer map of no layer": {"by": "expert", "layer_map": "7-9"}, "a layer map of a number": {"by": "expert", "layer_map": 5},
    "repeated beyond": {"by": "expert", "ratio_repeat": "(0,9e99)"}, "deep": b'{"by":' * 100_000, "no UTF-8": b'{"by":"\xff"}',
    "2 MB": b" " * 2_000_000 + b'{"by":"expert"}', "half a surrogate": b'{"by":"\\ud800"}',
}
LISTS = {"no digest": b"hello", "a short digest": b"abcd  model.safetensors\n", "no path": b"a" * 64 + b"  \n", "a path of the parent":
         b"a" * 64 + b"  ../x\n", "twice": (b"a" * 64 + b"  x\n") + (b"b" * 64 + b"  x\n"), "NULs": bytes(1000), "an escape":
         b"a" * 64 + b"  \x1b[2Jx\n", "another digest": b"a" * 64 + b"  model-00001-of-00002.safetensors\n", "no UTF-8": b"\xff" * 200}
MAPS = {"nothing": "", "a letter": "x", "backwards": "3-1", "2^64": "0-18446744073709551616", "-1": "-1", "a layer too many": "0-5000",
        "an escape": "\x1b[2J", "a list of 100,000": "0," * 50_000 + "0", "an open range": "0-", "two ranges": "0--1", "spaces": " "}


def cases():
    for name, content in RECIPES.items():
        yield repack_case("recipe: " + name, ["--recipe", "recipe.json"], {"recipe.json": content})
    for name, content in LISTS.items():
        yield repack_case("digests: " + name, ["--by", "expert", "--sha256", "sums"], {"sums": content})
    for words in (["--by", "x\x1b[2J"], ["--by", "expert:0"], ["--by", "shard:-1"], ["--include", "x"], ["--include", "layers="],
                  ["--include", "role=" + "x" * 50_000], ["--transform", "\u202ex"], ["--part", "0/4"], ["--part", "5/4"], ["--part", "1/18446744073709551616"],
                  ["--jobs", "0"], ["--jobs", "99999999999999999999"], ["--limit-rate", "-1"], ["--limit-rate", "1e99GB"]):
        yield repack_case("flags: %.40r" % (words,), words if words[0] == "--by" else ["--by", "expert", *words])
    for name, content in MAPS.items():
        def prepare(folder, content=content):
            return [(DSRUN, [write_small(folder / "source"), "--tokens", "0", "-n", "1", "--layers", content])]
        yield Case("layer map: " + name, prepare)
