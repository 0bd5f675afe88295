"""Checkpoints that compressed-tensors writes: its configuration is applied to the model, its ModelCompressor packs the
weights and writes quantization_config, and its dequantize reads them again, with scales in FP32."""
import json
import tempfile
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             apply_quantization_config)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

import source

LEFT_OUT = ["lm_head"]
TOKEN = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}


def integers(bits, strategy, group=None, symmetric=True, **more):
    return {"weights": QuantizationArgs(num_bits=bits, type="int", strategy=strategy, group_size=group,
                                        symmetric=symmetric, **more)}


def floats(strategy, block=None, activations=None):
    weights = QuantizationArgs(num_bits=8, type="float", strategy=strategy, block_structure=block, symmetric=True)
    return {"weights": weights, "input_activations": activations or QuantizationArgs(type="float", **TOKEN)}


def four_bit(group, **more):
    strategy = "tensor_group" if group == 16 else "group"
    return {"weights": QuantizationArgs(num_bits=4, type="float", strategy=strategy, group_size=group, symmetric=True,
                                        **more)}


def spans(weight, args):
    """The weight as [..., numbers under one scale], rows of blocks filled up with zeros, as observers see it."""
    rows, columns = weight.shape
    if args.strategy == "tensor":
        return weight.reshape(1, -1)
    if args.strategy == "channel":
        return weight.reshape(rows, 1, columns)
    if args.strategy == "block":
        high, wide = args.block_structure
        filled = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -rows % high))
        return filled.reshape(filled.shape[0] // high, high, -1, wide).transpose(1, 2).flatten(2)
    return weight.reshape(rows, -1, args.group_size)


def observe(module):
    """Scales and zero points from the smallest and largest weights, as the simplest observer has it."""
    args, weight = module.quantization_scheme.weights, module.weight.data
    one = None
    if args.strategy == "tensor_group":
        one = generate_gparam(weight.min(), weight.max())
        module.weight_global_scale.data.copy_(one)
    seen = spans(weight, args)
    scale, zero = calculate_qparams(seen.amin(-1), seen.amax(-1), args, global_scale=one)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.reshape(module.weight_zero_point.shape).to(module.weight_zero_point.dtype)
    for name in ("input_scale", "input_global_scale"):
        if hasattr(module, name):
            getattr(module, name).data.fill_(0.75)


def read_fp4(state, args):
    """Codes of four bits in floating point, with scales for each 16 columns and one for all, or for each 32."""
    packed, is_mx = state["weight_packed"], args.group_size == 32
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
    scale = (decompress_mx_scale(state["weight_scale"]) if is_mx else state["weight_scale"]).float()
    return dequantize(x_q=codes, scale=scale, args=args, dtype=torch.float32,
                      global_scale=state.get("weight_global_scale"))


def read(state, scheme, form):
    """The values of a packed layer, in FP32: with its scales as FP32, since the library rounds to their type."""
    if scheme.weights.type == "float" and scheme.weights.num_bits == 4:
        return read_fp4(state, scheme.weights)
    scale = state["weight_scale"]
    if scale.dtype != torch.uint8:  # a power of two: its products are exact in any of the types
        scale = scale.float()
    values = BaseCompressor.get_value_from_registry(form).decompress({**state, "weight_scale": scale}, scheme)["weight"]
    assert values.dtype == torch.float32 or scale.dtype == torch.uint8
    return values.float()


def make(folder, twin, groups, dtype=torch.bfloat16, ignore=(), targets="Linear", change=None, cache=None):
    """`groups`: arguments of schemes, by the modules that they target."""
    model = source.skeleton(dtype)
    groups = groups if isinstance(groups, list) else [(targets, groups)]
    config = QuantizationConfig(
        config_groups={"group_%d" % place: QuantizationScheme(targets=[target], **scheme)
                       for place, (target, scheme) in enumerate(groups)},
        ignore=[*LEFT_OUT, *ignore])
    apply_quantization_config(model, config)
    quantised = {name: module for name, module in model.named_modules()
                 if getattr(module, "quantization_scheme", None) is not None}
    for module in quantised.values():
        observe(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    stored = model.state_dict()
    values = {name + ".weight": read(dict(module.state_dict()), module.quantization_scheme,
                                      module.quantization_scheme.format.value)
              for name, module in quantised.items()}
    if change:
        change(stored)
    with tempfile.TemporaryDirectory() as scratch:
        compressor.update_config(scratch)
        told = json.loads((Path(scratch) / "config.json").read_text())["quantization_config"]
    if cache:
        told["kv_cache_scheme"] = cache
    source.save(folder, stored, told)
    source.save_twin(folder, twin, values)


def narrow_shapes(stored):
    """As Moonshot's releases have it: sizes in I32."""
    for name in [name for name in stored if name.endswith("weight_shape")]:
        stored[name] = stored[name].to(torch.int32)


def only_experts():
    return ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*layers\\.0\\.mlp.*"]


F32, F16 = torch.float32, torch.float16
STATIC = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)
KINDS = {
    "ct-int4-g32": lambda *to: make(*to, integers(4, "group", 32)),
    "ct-int4-g64-f16": lambda *to: make(*to, integers(4, "group", 64), dtype=F16),
    "ct-int4-g128-f32": lambda *to: make(*to, integers(4, "group", 128), dtype=F32),
    "ct-int4-g128-actorder-weight": lambda *to: make(*to, integers(4, "group", 128, actorder="weight")),
    "ct-int4-channel": lambda *to: make(*to, integers(4, "channel")),
    "ct-int4-g32-asym": lambda *to: make(*to, integers(4, "group", 32, symmetric=False)),
    "ct-int4-channel-asym": lambda *to: make(*to, integers(4, "channel", symmetric=False)),
    "ct-int8-g128": lambda *to: make(*to, integers(8, "group", 128)),
    "ct-int8-channel-packed": lambda *to: make(*to, integers(8, "channel")),
    "ct-int8-g64-asym": lambda *to: make(*to, integers(8, "group", 64, symmetric=False)),
    "ct-int8-channel": lambda *to: make(
        *to, {**integers(8, "channel"), "input_activations": QuantizationArgs(type="int", **TOKEN)}),
    "ct-int8-channel-f32": lambda *to: make(
        *to, {**integers(8, "channel"), "input_activations": QuantizationArgs(type="int", **TOKEN)}, dtype=F32),
    "ct-int4-fp8-activations": lambda *to: make(
        *to, {**integers(4, "group", 128), "input_activations": QuantizationArgs(type="float", **TOKEN)}),
    "ct-int4-int8-activations": lambda *to: make(
        *to, {**integers(4, "channel"), "input_activations": QuantizationArgs(type="int", **TOKEN)}),
    "ct-fp8-channel": lambda *to: make(*to, floats("channel")),
    "ct-fp8-tensor": lambda *to: make(*to, floats("tensor", activations=STATIC)),
    "ct-fp8-block": lambda *to: make(*to, floats("block", [128, 128])),
    "ct-fp8-block-f32": lambda *to: make(*to, floats("block", [128, 128]), dtype=F32),
    "ct-nvfp4": lambda *to: make(*to, four_bit(16, scale_dtype=torch.float8_e4m3fn)),
    "ct-nvfp4-experts": lambda *to: make(*to, four_bit(16, scale_dtype=torch.float8_e4m3fn), ignore=only_experts()),
    "ct-mxfp4": lambda *to: make(*to, four_bit(32, scale_dtype=torch.uint8)),
    "ct-kimi": lambda *to: make(*to, integers(4, "group", 32), ignore=only_experts(), change=narrow_shapes),
    "ct-int6-g128": lambda *to: make(*to, integers(6, "group", 128)),
    "ct-int8-channel-asym": lambda *to: make(
        *to, {**integers(8, "channel", symmetric=False), "input_activations": QuantizationArgs(type="int", **TOKEN)}),
    "ct-mxfp8": lambda *to: make(*to, {"weights": QuantizationArgs(
        num_bits=8, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8)}),
    "ct-mixed": lambda *to: make(*to, [("re:.*experts\\.\\d+\\..*", integers(4, "group", 32)),
                                       ("re:.*(self_attn|shared_experts|layers\\.0\\.mlp).*", floats("channel"))]),
}
