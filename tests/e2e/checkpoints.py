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
    period = bytes((seed * 37 + i * (seed + 3)) % 251 for i in range(251))
    return (period * (count // 251 + 1))[:count]


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
    """What other writers may do and ours does not: spaces behind the header's JSON, metadata, tensors of no bytes, names
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
    text = json.dumps(header, indent=1).encode() + b"\n" + b" " * 77
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
        values = weight_formats.bf16_values(raw)
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


def _integers(values, columns, bits, zeros, scale_dtype):
    """compressed-tensors' pack-quantized, groups of 32."""
    rows = len(values) // columns
    groups = -(-columns // 32)
    narrow, letter = {"BF16": (weight_formats.to_bf16, None), "F32": (weight_formats.to_f32, "f"),
                      "F16": (lambda value: struct.unpack("<e", struct.pack("<e", value))[0], "e")}[scale_dtype]
    codes, scales, points, meant = weight_formats.grouped_integers(values, columns, 32, bits, narrow, zeros)
    stored = b"".join(struct.pack("<" + letter, one) if letter else struct.pack("<f", one)[2:] for one in scales)
    kept = {"weight_packed": ("I32", [rows, -(-columns * bits // 32)], weight_formats.packed_rows(codes, columns, bits, 4)),
            "weight_scale": (scale_dtype, [rows, groups], stored),
            "weight_shape": ("I64", [2], struct.pack("<2q", rows, columns))}
    if zeros:  # packed down the rows
        down = [points[row * groups + group] for group in range(groups) for row in range(rows)]
        words = [word for word, in struct.iter_unpack("<I", weight_formats.packed_rows(down, rows, bits, 4))]
        height = -(-rows * bits // 32)
        across = [words[group * height + row] for row in range(height) for group in range(groups)]
        kept["weight_zero_point"] = ("I32", [height, groups], struct.pack("<%dI" % len(across), *across))
    return kept, meant


def _fp4(values, columns, form):
    rows = len(values) // columns
    group = 32 if form.startswith("mxfp4") else 16
    groups = -(-columns // group)
    # Of NVFP4: the scale for all makes the largest of the groups' 448, in the one way or the other.
    largest = max(map(abs, values))
    one = weight_formats.to_f32(largest / 6 / 448) if form == "nvfp4" else weight_formats.to_f32(6 * 448 / largest)
    scale_of = weight_formats.mx_scale if group == 32 else weight_formats.nv_scale(one, form == "nvfp4")
    codes, scales, meant = weight_formats.grouped_e2m1(values, columns, group, scale_of)
    packed = ([rows, -(-columns // 2)], weight_formats.packed_rows(codes, columns, 4))
    scales = ([rows, groups], bytes(scales))
    if form == "mxfp4-v4":
        return {"weight": ("I8", *packed), "scale": ("F8_E8M0", *scales)}, meant
    if form == "mxfp4":
        return {"weight_packed": ("U8", *packed), "weight_scale": ("U8", *scales)}, meant
    if form == "nvfp4":
        return {"weight": ("U8", *packed), "weight_scale": ("F8_E4M3", *scales),
                "weight_scale_2": ("F32", [], struct.pack("<f", one))}, meant
    return {"weight_packed": ("U8", *packed), "weight_scale": ("F8_E4M3", *scales),
            "weight_global_scale": ("F32", [1], struct.pack("<f", one))}, meant


def _transposed(values, columns, form):
    """AutoAWQ's and GPTQ's, groups of 32; `ordered`: a column's group is that of the column mirrored."""
    rows, groups = len(values) // columns, -(-columns // 32)
    bits = 8 if "8" in form else 4
    narrow = lambda value: struct.unpack("<e", struct.pack("<e", value))[0]
    mirrored = list(range(columns))[::-1] if "ordered" in form else list(range(columns))
    shuffled = [values[row * columns + one] for row in range(rows) for one in mirrored]
    codes, scales, points, meant = weight_formats.grouped_integers(shuffled, columns, 32, bits, narrow, True)
    at = [row * columns + mirrored[column] for row in range(rows) for column in range(columns)]
    codes, meant = [codes[one] for one in at], [meant[one] for one in at]

    def across(numbers, width):  # the transposed matrix, row by row
        turned = [numbers[row * width + column] for column in range(width) for row in range(rows)]
        if form == "awq":
            full = -(-rows // 8) * 8
            padded = [turned[first + one] if one < rows else 0 for first in range(0, len(turned), rows) for one in range(full)]
            ordered = [padded[first + one] for first in range(0, len(padded), 8) for one in (0, 2, 4, 6, 1, 3, 5, 7)]
            return weight_formats.packed_rows(ordered, full, 4, 4)
        return weight_formats.packed_rows(turned, rows, bits, 4)

    width = -(-rows * bits // 32)
    stored = [(point - (0 if form == "awq" or "v2" in form else 1)) % 2**bits for point in points]
    kept = {"qzeros": ("I32", [groups, width], across(stored, groups)),
            "scales": ("F16", [groups, rows], b"".join(struct.pack("<e", scales[row * groups + group])
                                                       for group in range(groups) for row in range(rows)))}
    if form == "awq":
        kept["qweight"] = ("I32", [columns, width], across(codes, columns))
        return kept, meant
    words = [word for word, in struct.iter_unpack("<I", weight_formats.packed_rows(codes, columns, bits, 4))]
    height = -(-columns * bits // 32)
    turned = [words[row * height + one] for one in range(height) for row in range(rows)]
    kept["qweight"] = ("I32", [height, rows], struct.pack("<%dI" % len(turned), *turned))
    kept["g_idx"] = ("I32", [columns], struct.pack("<%di" % columns, *(mirrored[one] // 32 for one in range(columns))))
    return kept, meant


def _gptq(bits, **settings):
    return {"quant_method": "gptq", "bits": bits, "group_size": 32, "damp_percent": 0.1, "desc_act": False, "sym": False,
            "true_sequential": True, "static_groups": False, **settings}


def _compressed(form, bits, kind, group, symmetric=True):
    weights = {"num_bits": bits, "type": kind, "strategy": "tensor_group" if form.startswith("nv") else "group",
               "group_size": group, "symmetric": symmetric, "dynamic": False, "observer": "minmax", "actorder": None}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}


def _bnb_four(values, columns, nested):
    """bitsandbytes' four bits: any map of 16 values, blocks of 64 over all rows, the first code in the high half."""
    meaning = [weight_formats.to_f32(-1 + code * 2 / 15) for code in range(16)]
    factors = [weight_formats.to_f32(max(map(abs, values[first:first + 64])) or 1.0) for first in range(0, len(values), 64)]
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [len(values) // columns, columns]}
    kept = {}
    if nested:
        outer = weight_formats.to_f32(max(factors))
        steps = [weight_formats.to_f32(code / 255 - 0.5) for code in range(256)]
        offset = weight_formats.to_f32(outer / 2)
        coded = [min(255, max(0, round((factor - offset) / outer * 255 + 127.5))) for factor in factors]
        factors = [weight_formats.to_f32(weight_formats.to_f32(steps[code] * outer) + offset) for code in coded]
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset)
        outers = -(-len(coded) // 256)
        kept = {"weight.nested_absmax": ("F32", [outers], struct.pack("<%df" % outers, *[outer] * outers)),
                "weight.nested_quant_map": ("F32", [256], struct.pack("<256f", *steps)),
                "weight.absmax": ("U8", [len(coded)], bytes(coded))}
    else:
        kept = {"weight.absmax": ("F32", [len(factors)], struct.pack("<%df" % len(factors), *factors))}
    codes = []
    for i, value in enumerate(values):
        factor = factors[i // 64]
        near = round((value / factor + 1) * 7.5)  # the steps are even: the nearest is this code or one beside it
        codes.append(min(range(max(0, min(14, near - 1)), max(1, min(16, near + 2))),
                         key=lambda code: abs(meaning[code] * factor - value)))
    padded = codes + [0] * (len(codes) % 2)
    raw = bytes(padded[i] << 4 | padded[i + 1] for i in range(0, len(padded), 2))
    text = json.dumps(state).encode()
    kept.update({"weight": ("U8", [len(raw), 1], raw), "weight.quant_map": ("F32", [16], struct.pack("<16f", *meaning)),
                 "weight.quant_state.bitsandbytes__nf4": ("U8", [len(text)], text)})
    return kept, [weight_formats.to_f32(meaning[code] * factors[i // 64]) for i, code in enumerate(codes)]


def _bnb_eight(values, columns):
    rows = len(values) // columns
    largest = [weight_formats.to_f32(max(map(abs, values[row * columns:][:columns])) or 1.0) for row in range(rows)]
    codes = [round(value * 127 / largest[i // columns]) for i, value in enumerate(values)]
    over = weight_formats.to_f32(1 / 127)
    meant = [weight_formats.to_f32(weight_formats.to_f32(code * largest[i // columns]) * over)
             for i, code in enumerate(codes)]
    return {"weight": ("I8", [rows, columns], struct.pack("<%db" % len(codes), *codes)),
            "SCB": ("F32", [rows], struct.pack("<%df" % rows, *largest)), "weight_format": ("U8", [], bytes(1))}, meant


FOUR_BIT = {
    "int4": (lambda values, columns: _integers(values, columns, 4, False, "BF16"),
             _compressed("pack-quantized", 4, "int", 32)),
    "int4-f16": (lambda values, columns: _integers(values, columns, 4, False, "F16"), None),
    "int4-zeros": (lambda values, columns: _integers(values, columns, 4, True, "BF16"),
                   _compressed("pack-quantized", 4, "int", 32, symmetric=False)),
    "int8-group": (lambda values, columns: _integers(values, columns, 8, False, "BF16"),
                   _compressed("pack-quantized", 8, "int", 32)),
    "int8-zeros": (lambda values, columns: _integers(values, columns, 8, True, "F32"), None),
    "awq": (lambda values, columns: _transposed(values, columns, "awq"),
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True,
             "modules_to_not_convert": None}),
    "gptq": (lambda values, columns: _transposed(values, columns, "gptq"), _gptq(4)),
    "gptq-v2-8": (lambda values, columns: _transposed(values, columns, "gptq-v2-8"),
                  _gptq(8, checkpoint_format="gptq_v2")),
    "gptq-ordered": (lambda values, columns: _transposed(values, columns, "gptq-ordered"), _gptq(4, desc_act=True)),
    "nf4": (lambda values, columns: _bnb_four(values, columns, False),
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
             "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
             "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None, "_load_in_4bit": True}),
    "nf4-nested": (lambda values, columns: _bnb_four(values, columns, True), None),
    "bnb-int8": (_bnb_eight, {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}),
    "mxfp4": (lambda values, columns: _fp4(values, columns, "mxfp4"),
              _compressed("mxfp4-pack-quantized", 4, "float", 32)),
    "mxfp4-v4": (lambda values, columns: _fp4(values, columns, "mxfp4-v4"), None),
    "nvfp4": (lambda values, columns: _fp4(values, columns, "nvfp4"),
              {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"],
               "kv_cache_quant_algo": None, "producer": {"name": "modelopt", "version": "0.33"}}),
    "nvfp4-over": (lambda values, columns: _fp4(values, columns, "nvfp4-over"),
                   _compressed("nvfp4-pack-quantized", 4, "float", 16)),
}


@functools.lru_cache(maxsize=None)
def _in_form(form, raw, columns):
    """The tensors of BF16 values in a form of FOUR_BIT, and their meaning as bytes of F32."""
    values = weight_formats.bf16_values(raw)
    kept, numbers = FOUR_BIT[form][0](values, columns)
    return kept, struct.pack("<%df" % len(numbers), *numbers)


def write_four_bit(folder, variant, form, only=lambda name: True):
    """A BF16 variant of the family with the linear layers that `only` takes in a form of FOUR_BIT, in folder/FORM, and
    the same numbers as F32 in folder/f32. Returns both folders."""
    source = Path(path_from_environment("DSPACK_TEST_DATA")) / "family" / variant
    tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
    quantisation = FOUR_BIT[form][1]
    coded, meant = {}, {}
    for name, (dtype, shape, raw) in tensors.items():
        module = name.removesuffix("weight")
        layer = module.rsplit(".", 2)[-2]
        if len(shape) != 2 or layer in ("embed_tokens", "gate", "lm_head") or not only(name):
            coded[name] = meant[name] = (dtype, shape, raw)
            continue
        kept, numbers = _in_form(form, raw, shape[1])
        coded.update({module + part: tensor for part, tensor in kept.items()})
        meant[name] = ("F32", shape, numbers)
    config = json.loads((source / "config.json").read_text())
    folders = [Path(folder) / form, Path(folder) / "f32"]
    for place, kept, more in zip(folders, (coded, meant), ({"quantization_config": quantisation} if quantisation else {}, {})):
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


@functools.lru_cache(maxsize=None)
def copied_tiny():
    """The small trained checkpoint on the file system of the scratch folders, where its files can get further names
    (sealing.link_tree); to be read only."""
    scratch = Path(tempfile.mkdtemp(prefix="dspack-e2e-shared-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return Path(shutil.copytree(Path(path_from_environment("DSPACK_TEST_DATA")) / "tiny-v3", scratch / "tiny-v3"))


def packed_of(source, by="expert"):
    """What a checkpoint that stays packs to; to be read only."""
    return _made(source, "--by", by)


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
