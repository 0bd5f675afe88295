"""Writes the checkpoint folder: shards, index, config.json, generation_config.json (tokenizer files: tokenizer.py).

    python export.py WORK_DIR/train.pt ../../data/tiny-v3

The shards are written by hand, to look like the released ones: no padding after the header, so that tensor data starts
at odd and 2-mod-4 offsets; within a shard the largest element type first (so scales lead), then by name; cuts that part
a weight from its scale and an expert's projections. `total_size` is twice the number of elements, as released.
"""
import json
import pathlib
import re
import struct
import sys

import torch

import names
from shape import CONFIG, GENERATION_CONFIG

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3"}
SHARDS = 5


def raw(t):
    return t.contiguous().view(torch.uint8).numpy().tobytes()


def model_order(name):
    """Embedding, layers, final norm, head, MTP layer; experts by number; a weight right before its scale."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    place = int(layer.group(1)) if layer else {"model.embed_tokens.weight": -1}.get(name, names.S.layers - 0.5)
    expert = re.search(r"experts\.(\d+)\.", name)
    rest = name.split(".")[-2:] if expert else [name]
    part = {"gate_proj": "0", "up_proj": "1", "down_proj": "2"}.get(rest[0], rest[0])
    return place, expert is not None, int(expert.group(1)) if expert else 0, part, rest[-1]


def cut(tensors):
    """Names per shard, about equal in bytes; cuts fall by turns before a scale and inside an expert."""
    order = sorted(tensors, key=model_order)
    total, shards, done = sum(t.nbytes for t in tensors.values()), [[]], 0
    for i, name in enumerate(order):
        shards[-1].append(name)
        done += tensors[name].nbytes
        if len(shards) == SHARDS or done < total * len(shards) / SHARDS or ".experts." not in name:
            continue
        ending = "gate_proj.weight" if len(shards) % 2 else "up_proj.weight_scale_inv"
        if name.endswith(ending):
            shards.append([])
    return shards


def header_and_order(tensors, shard):
    order = sorted(shard, key=lambda n: (-tensors[n].element_size(), n))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for n in order:
        t = tensors[n]
        header[n] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    return json.dumps(header, separators=(",", ":")).encode(), order


def write(tensors, folder):
    folder = pathlib.Path(folder)
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    shards = cut(tensors)
    weight_map, starts = {}, []
    for k, shard in enumerate(shards):
        file = f"model-{k + 1:05d}-of-{len(shards):06d}.safetensors"
        header, order = header_and_order(tensors, shard)
        want = {0: 2, 1: 1}.get(k)     # the first two shards: 2 mod 4, and odd; the others as they fall
        while want is not None and (8 + len(header)) % 4 != want:
            header += b" "
        starts.append(8 + len(header))
        with open(folder / file, "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header)
            for n in order:
                f.write(raw(tensors[n]))
                weight_map[n] = file
    index = {"metadata": {"total_size": 2 * sum(t.numel() for t in tensors.values())},
             "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)
    parted = sum(weight_map[n] != weight_map[n + "_scale_inv"] for n in tensors if n + "_scale_inv" in tensors)
    halved = {n.split(".experts.")[0] + "." + n.split(".experts.")[1].split(".")[0] for n in tensors if ".experts." in n and
              weight_map[n] != weight_map[re.sub(r"(gate|up|down)_proj", "gate_proj", n)]}
    assert parted > 0 and halved and {1, 2} <= {s % 4 for s in starts}
    print(f"{len(tensors)} tensors, {sum(t.nbytes for t in tensors.values())} bytes in {len(shards)} shards, "
          f"data starts mod 4: {[s % 4 for s in starts]}, weights parted from their scales: {parted}, "
          f"experts in two shards: {sorted(halved)}")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(source, folder):
    data = torch.load(source)
    for i, b in data["bias"].items():
        assert b.min() > 0 and b.unique().numel() > 1, f"layer {i}: the routing bias must be positive and alive"
    write(names.store(names.split(data["params"], data["bias"])), folder)
    write_json(pathlib.Path(folder) / "config.json", CONFIG)
    write_json(pathlib.Path(folder) / "generation_config.json", GENERATION_CONFIG)


if __name__ == "__main__":
    main(*sys.argv[1:3])
