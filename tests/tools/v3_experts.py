#!/usr/bin/env python3
"""Makes a checkpoint of random routed experts with DeepSeek-V3's shapes, for measuring reshard. Standard library only.

    python3 tests/tools/v3_experts.py FOLDER [EXPERTS] [SHARDS]

One layer; an expert is 44 MB (three FP8 matrices with their scales) and lies whole in one shard, as most released ones do.
"""

import json
import os
import pathlib
import struct
import sys

PROJECTIONS = {"gate_proj": (2048, 7168), "up_proj": (2048, 7168), "down_proj": (7168, 2048)}
BLOCK = 128
PIECE_BYTES = 1 << 24


def expert_tensors(expert):
    """(name, dtype, shape, bytes) of one expert's tensors, scale first as in the release."""
    for projection, (rows, columns) in PROJECTIONS.items():
        name = f"model.layers.3.mlp.experts.{expert}.{projection}.weight"
        scale = (-(-rows // BLOCK), -(-columns // BLOCK))
        yield name + "_scale_inv", "F32", scale, 4 * scale[0] * scale[1]
        yield name, "F8_E4M3", (rows, columns), rows * columns


def write_shard(path, tensors):
    header, offset = {}, 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while offset > 0:
            piece = min(offset, PIECE_BYTES)
            file.write(os.urandom(piece))
            offset -= piece


def main(folder, experts=48, shards=4):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        tensors = [tensor for expert in range(shard, experts, shards) for tensor in expert_tensors(expert)]
        write_shard(folder / name, tensors)
        weight_map.update({tensor[0]: name for tensor in tensors})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text("{}\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
