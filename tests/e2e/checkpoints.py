"""Checkpoints to work on: a hand-written one of a dozen tensors for cases in which size does not matter, and one
packed copy of the trained small one for each grouping, made once a program and shared by the cases that only read it."""

import atexit
import functools
import json
import math
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import safetensors_io
import weight_formats
from common import clean_environment, path_from_environment

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
EXPERT_0 = "model/layers/001/experts/000.safetensors"


def raw(count, seed):
    return bytes((seed * 37 + i * (seed + 3)) % 251 for i in range(count))


def small_tensors():
    """Two shards' tensors; expert 0's scale and expert 1's third matrix lie in the other shard than the rest."""
    first = {"model.embed_tokens.weight": ("BF16", [4, 8], raw(64, 1)),
             "model.layers.0.mlp.down_proj.weight": ("F8_E4M3", [64, 64], raw(4096, 2)),
             "model.layers.0.mlp.down_proj.weight_scale_inv": ("F32", [1, 1], raw(4, 3))}
    second = {"model.norm.weight": ("BF16", [8], raw(16, 4)), "lm_head.weight": ("BF16", [4, 8], raw(64, 5)),
              "model.layers.1.mlp.gate.weight": ("BF16", [2, 8], raw(32, 6))}
    for expert in (0, 1):
        for number, part in enumerate(("gate_proj", "up_proj", "down_proj")):
            name = "model.layers.1.mlp.experts.%d.%s.weight" % (expert, part)
            moved = expert == 1 and number == 2
            (second if moved else first)[name] = ("F8_E4M3", [64, 64], raw(4096, 7 + 3 * expert + number))
            (second if expert == 0 else first)[name + "_scale_inv"] = ("F32", [1, 1], raw(4, 14 + number))
    return [first, second]


def write_small(folder, shards=None):
    """Writes the shards, their index and two companions into a new folder; returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    weight_map = {}
    for name, tensors in zip(SHARDS, shards or small_tensors()):
        safetensors_io.write(folder / name, tensors)
        weight_map.update({tensor: name for tensor in tensors})
    safetensors_io.write_index(folder, weight_map)
    (folder / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"}))
    (folder / "README.md").write_text("# small\n")
    return folder


def write_odd(folder):
    """What other writers may do and ours does not: spaces around the header's JSON, metadata, tensors of no bytes, names
    in another order than their bytes, shards in a folder. Returns the folder."""
    folder = Path(folder)
    (folder / "weights").mkdir(parents=True)
    tensors = {"model.layers.0.mlp.b": ("F32", [3], raw(12, 1)), "empty.first": ("BF16", [0, 8], b""),
               "model.layers.0.mlp.a": ("U8", [5], raw(5, 2)), "scalar": ("I64", [], raw(8, 3)),
               "empty.last": ("F32", [4, 0], b"")}
    header = safetensors_io.header_of(tensors)
    header = {"__metadata__": {"format": "pt", "made by": "somebody \u00e4"},
              **{name: header[name] for name in sorted(header, reverse=True)}}
    payload = b"".join(data for _, _, data in tensors.values())
    text = b" \n\t" + json.dumps(header, indent=1).encode() + b"\n" + b" " * 77
    (folder / "weights" / "odd.safetensors").write_bytes(safetensors_io.with_length(text) + payload)
    other = {"model.layers.1.mlp.experts.3.up_proj.weight": ("F4", [2, 3], raw(3, 4)), "z": ("BOOL", [1], b"\1")}
    safetensors_io.write(folder / "weights" / "plain.safetensors", other)
    weight_map = {name: "weights/odd.safetensors" for name in tensors}
    weight_map.update({name: "weights/plain.safetensors" for name in other})
    safetensors_io.write_index(folder, weight_map)
    (folder / "empty.txt").write_bytes(b"")
    return folder


COMPRESSED_INT8 = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
    "global_compression_ratio": None, "kv_cache_scheme": None, "ignore": ["re:.*mlp.gate$"],
    "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": None, "input_activations": {
        "num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}, "weights": {
            "num_bits": 8, "type": "int", "strategy": "channel", "dynamic": False, "symmetric": True,
            "observer": "minmax", "observer_kwargs": {}, "group_size": None, "block_structure": None,
            "actorder": None}}}}


def write_int8(folder, variant, scale="BF16", plain=()):
    """A BF16 variant of the family with its linear layers in int8, a scale for each row, as compressed-tensors writes
    it, in folder/int8; and the same numbers as F32 in folder/f32. Scales are stored as `scale`, F32 ones rounded to
    powers of two; [rows, 1] and [rows] take turns. `plain`: layers to leave as they are. Returns both folders."""
    source = Path(path_from_environment("DSPACK_TEST_DATA")) / "family" / variant
    tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
    narrow, letter = {"BF16": (weight_formats.to_bf16, None),
                      "F16": (lambda value: struct.unpack("<e", struct.pack("<e", value))[0], "e"),
                      "F32": (lambda value: 2.0 ** math.ceil(math.log2(value)) if value else 0.0, "f")}[scale]
    coded, meant = {}, {}
    for name, (dtype, shape, raw) in tensors.items():
        layer = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if len(shape) != 2 or layer in ("embed_tokens", "gate", *plain):
            coded[name] = meant[name] = (dtype, shape, raw)
            continue
        values = [weight_formats.bf16_value(code) for code in weight_formats.bf16_codes(raw)]
        codes, scales = weight_formats.int8_rows(values, shape[1], narrow)
        stored = b"".join(struct.pack("<" + letter, one) if letter else struct.pack("<f", one)[2:] for one in scales)
        coded[name] = ("I8", shape, codes)
        coded[name + "_scale"] = (scale, [shape[0], 1] if len(coded) % 4 else [shape[0]], stored)
        numbers = weight_formats.int8_values(codes, shape[1], scales)
        meant[name] = ("F32", shape, struct.pack("<%df" % len(numbers), *numbers))
    config = json.loads((source / "config.json").read_text())
    folders = [Path(folder) / "int8", Path(folder) / "f32"]
    for place, kept, more in zip(folders, (coded, meant), ({"quantization_config": COMPRESSED_INT8}, {})):
        place.mkdir(parents=True)
        safetensors_io.write(place / "model.safetensors", kept)
        (place / "config.json").write_text(json.dumps({**config, **more}))
    return folders


BIG = 300_000  # payload of a shard that is much larger than the probe of a file


def write_big(folder, payload=BIG):
    """Two shards of one tensor each."""
    shards = [{"model.layers.%d.w" % number: ("U8", [payload], raw(payload, number))} for number in range(2)]
    return write_small(folder, shards)


@functools.lru_cache(maxsize=None)
def _pack_tiny(by):
    scratch = Path(tempfile.mkdtemp(prefix="dspack-e2e-shared-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    source = Path(path_from_environment("DSPACK_TEST_DATA")) / "tiny-v3"
    started = time.monotonic()
    subprocess.run([path_from_environment("DSPACK_RESHARD"), source, "--by", by, "--out", scratch / "packed"],
                   check=True, env=clean_environment(scratch), stdout=subprocess.DEVNULL)
    return scratch / "packed", time.monotonic() - started


def packed_tiny(by="expert"):
    """The small trained checkpoint, packed; to be read only."""
    return _pack_tiny(by)[0]


def packing_seconds():
    """How long that took, undisturbed."""
    return _pack_tiny("expert")[1]


@functools.lru_cache(maxsize=None)
def _made(*arguments):
    """What reshard makes with these arguments."""
    scratch = Path(tempfile.mkdtemp(prefix="dspack-e2e-shared-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    subprocess.run([path_from_environment("DSPACK_RESHARD"), *arguments, "--out", scratch / "out"], check=True,
                   env=clean_environment(scratch), stdout=subprocess.DEVNULL)
    return scratch / "out"


def compressed_tiny(by="expert"):
    """The small trained checkpoint, packed and compressed; to be read only."""
    return _made(Path(path_from_environment("DSPACK_TEST_DATA")) / "tiny-v3", "--by", by, "--compress", "zstd")


def converted_tiny(transform, by="expert"):
    """The small trained checkpoint with a transform; to be read only. "bf16-to-fp8" is made of bf16_tiny()."""
    source = bf16_tiny() if transform == "bf16-to-fp8" else Path(path_from_environment("DSPACK_TEST_DATA")) / "tiny-v3"
    return _made(source, "--by", by, "--transform", transform)


def bf16_tiny():
    """The small trained checkpoint as ordinary shards of BF16; to be read only."""
    return _made("unpack", converted_tiny("fp8-to-bf16"), "--shard-size", "8MB")
