#!/usr/bin/env python3
"""The peer of compare_python.py: splits a downloaded checkpoint by expert, as one writes it today. Needs torch and
safetensors.

    peer_resave.py CHECKPOINT OUT

One file for each expert and one for the rest of each layer, by safe_open and save_file. No digests, no resumption, no
check of what was written.
"""

import collections
import json
import re
import sys
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file


def group_of(name):
    expert = re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.", name)
    if expert:
        return "layer-%s/expert-%s" % (expert[1], expert[2])
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return "layer-%s/dense" % layer[1] if layer else "rest"


def main(checkpoint, out):
    checkpoint, out = Path(checkpoint), Path(out)
    weight_map = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]
    groups = collections.defaultdict(list)
    for name in weight_map:
        groups[group_of(name)].append(name)
    shards = {}
    for shard in sorted(set(weight_map.values())):
        shards[shard] = safe_open(checkpoint / shard, framework="pt")
    for group, names in groups.items():
        tensors = {name: shards[weight_map[name]].get_tensor(name) for name in names}
        path = out / (group + ".safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    main(*sys.argv[1:])
