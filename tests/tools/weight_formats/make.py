#!/usr/bin/env python3
"""Writes tests/data/weight_formats: small matrices as the formats' own libraries pack them, and the FP32 values that
these libraries read from them.

    make.py FOLDER --awq AUTOAWQ/awq/utils/packing_utils.py --gptq AUTO_GPTQ/nn_modules/qlinear/qlinear_cuda.py

compressed-tensors packs and unpacks its own formats and the E2M1 codes of the others; what is multiplied with scales is
multiplied in FP32, where the library itself may round to the scales' type. Names of other programs: see README.md."""

import argparse
import importlib.util
import json
from pathlib import Path

import torch
from bitsandbytes import functional as bnb
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

GENERATOR = torch.Generator().manual_seed(20)


def integers(rows, columns, bits, group, scale_dtype, symmetric=True):
    """pack-quantized. group None: a scale for each row. Every code appears."""
    strategy = "channel" if group is None else "group"
    arguments = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    groups = 1 if group is None else columns // group
    half = 2 ** (bits - 1)
    scale = (torch.rand(rows, groups, generator=GENERATOR) + 0.5).mul(0.01).to(scale_dtype)
    zero = torch.zeros(rows, groups, dtype=torch.int8)
    if not symmetric:
        zero = torch.randint(-half, half, (rows, groups), generator=GENERATOR, dtype=torch.int8)
    codes = torch.randint(-half, half, (rows, columns), generator=GENERATOR, dtype=torch.int8)
    span = columns // groups
    meant = (codes.float() - zero.float().repeat_interleave(span, 1)) * scale.float().repeat_interleave(span, 1)
    state = PackedQuantizationCompressor.compress(
        {"weight": meant, "weight_scale": scale.float(), "weight_zero_point": zero}, scheme)
    read = PackedQuantizationCompressor.decompress(dict(state), scheme)["weight"].float()
    assert torch.equal(read, meant), "the library reads other values than were packed"
    return {**{name: state[name] for name in ("weight_packed", "weight_shape", "weight_zero_point") if name in state},
            "weight_scale": scale, "expected": read}


def fp4_codes(rows, columns):
    codes = torch.randint(0, 256, (rows, columns // 2), generator=GENERATOR, dtype=torch.uint8)
    return codes, unpack_fp4_from_uint8(codes, rows, columns, dtype=torch.float32)


def nvfp4(rows, columns, names):
    codes, values = fp4_codes(rows, columns)
    scale = (torch.rand(rows, columns // 16, generator=GENERATOR) * 400 + 1).to(torch.float8_e4m3fn)
    if names == "compressed-tensors":
        one = torch.tensor([1234.567], dtype=torch.float32)
        arguments = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
        read = dequantize(x_q=values, scale=scale.float(), args=arguments, global_scale=one, dtype=torch.float32)
        return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": one, "expected": read}
    one = torch.tensor(0.00012345, dtype=torch.float32)
    read = values * (scale.float() * one).repeat_interleave(16, 1)
    return {"weight": codes, "weight_scale": scale, "weight_scale_2": one, "expected": read}


def mxfp4(rows, columns, names):
    codes, values = fp4_codes(rows, columns)
    exponents = torch.randint(90, 140, (rows, columns // 32), generator=GENERATOR, dtype=torch.uint8)
    exponents[0, 0] = 0
    exponents[-1, -1] = 254
    scale = decompress_mx_scale(exponents).float()
    scale[0, 0] = 2.0**-127  # which the library's power in BF16 flushes to zero or not, with the processor
    read = values * scale.repeat_interleave(32, 1)
    if names == "deepseek-v4":
        return {"weight": codes.view(torch.int8), "scale": exponents.view(torch.float8_e8m0fnu), "expected": read}
    kept = exponents if names == "compressed-tensors" else exponents.view(torch.float8_e8m0fnu)
    return {"weight_packed": codes, "weight_scale": kept, "expected": read}


def words(numbers, bits, order=None):
    """[rows, columns] of numbers without sign as I32 [rows, columns / in a word]."""
    in_word = 32 // bits
    order = order or list(range(in_word))
    grouped = numbers.to(torch.int64).reshape(numbers.shape[0], -1, in_word)
    packed = sum(grouped[:, :, one] << (bits * place) for place, one in enumerate(order))
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def transposed(ins, outs, bits, group):
    """Codes [in, out], zero points and scales [groups, out]."""
    codes = torch.randint(0, 2**bits, (ins, outs), generator=GENERATOR)
    # 0 is none that GPTQ's first version can store: AutoGPTQ's own layers disagree about it.
    zeros = torch.randint(1, 2**bits, (ins // group, outs), generator=GENERATOR)
    scales = (torch.rand(ins // group, outs, generator=GENERATOR) + 0.5).mul(0.01).to(torch.float16)
    return codes, zeros, scales


def awq(ins, outs, group):
    codes, zeros, scales = transposed(ins, outs, 4, group)
    order = TOOLS["awq"].AWQ_ORDER
    state = {"qweight": words(codes, 4, order), "qzeros": words(zeros, 4, order), "scales": scales}
    read = TOOLS["awq"].dequantize_gemm(state["qweight"], state["qzeros"], scales.float(), 4, group)
    return {**state, "expected": read.t()}


def gptq(ins, outs, bits, group, version=1, ordered=False):
    """AutoGPTQ's layer multiplies the identity, with its scales as FP32. It reads version 1: zero points less one."""
    codes, zeros, scales = transposed(ins, outs, bits, group)
    g_idx = torch.arange(ins) // group
    if ordered:
        g_idx = g_idx[torch.randperm(ins, generator=GENERATOR)]
    layer = TOOLS["gptq"].QuantLinear(bits, group, ins, outs, False, kernel_switch_threshold=False)
    layer.qweight = words(codes.t(), bits).t().contiguous()
    layer.qzeros = words((zeros - 1) % 2**bits, bits)
    layer.scales = scales.float()
    layer.g_idx = g_idx.to(torch.int32)
    read = layer(torch.eye(ins))
    stored = layer.qzeros if version == 1 else words(zeros, bits)
    return {"qweight": layer.qweight, "qzeros": stored, "scales": scales, "g_idx": layer.g_idx, "expected": read.t()}


def bnb_four(rows, columns, kind, nested, block=64):
    """As transformers stores it; read with FP32 as the type of the result."""
    meant = torch.randn(rows, columns, generator=GENERATOR).mul(0.02)
    codes, state = bnb.quantize_4bit(meant, blocksize=block, compress_statistics=nested, quant_type=kind,
                                     quant_storage=torch.uint8)
    codes = torch.randint(0, 256, codes.shape, generator=GENERATOR, dtype=torch.uint8)
    read = bnb.dequantize_4bit(codes, state)
    assert read.dtype == torch.float32
    beside = {"weight." + name: tensor for name, tensor in state.as_dict(packed=True).items()}
    return {"weight": codes, **beside, "expected": read}


def bnb_eight(rows, columns):
    codes = torch.randint(-128, 128, (rows, columns), generator=GENERATOR, dtype=torch.int8)
    largest = torch.rand(rows, generator=GENERATOR) + 0.1
    return {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8),
            "expected": bnb.int8_vectorwise_dequant(codes, largest)}


MATRICES = {
    "int4_g32_bf16": lambda: integers(24, 96, 4, 32, torch.bfloat16),
    "int4_g64_f16": lambda: integers(17, 192, 4, 64, torch.float16),
    "int4_g128_f32": lambda: integers(9, 256, 4, 128, torch.float32),
    "int4_channel": lambda: integers(19, 77, 4, None, torch.bfloat16),
    "int4_g32_zeros": lambda: integers(13, 96, 4, 32, torch.bfloat16, symmetric=False),
    "int4_channel_zeros": lambda: integers(21, 43, 4, None, torch.float16, symmetric=False),
    "int8_g32": lambda: integers(11, 64, 8, 32, torch.bfloat16),
    "int8_channel": lambda: integers(7, 45, 8, None, torch.float32),
    "int8_g32_zeros": lambda: integers(10, 64, 8, 32, torch.bfloat16, symmetric=False),
    "nvfp4_modelopt": lambda: nvfp4(9, 80, "modelopt"),
    "nvfp4_compressed": lambda: nvfp4(10, 48, "compressed-tensors"),
    "mxfp4_compressed": lambda: mxfp4(6, 96, "compressed-tensors"),
    "mxfp4_e8m0": lambda: mxfp4(5, 64, "e8m0"),
    "mxfp4_v4": lambda: mxfp4(7, 160, "deepseek-v4"),
    "awq_g32": lambda: awq(96, 40, 32),
    "awq_g128": lambda: awq(256, 24, 128),
    "gptq_g32": lambda: gptq(96, 64, 4, 32),
    "gptq_v2_g64": lambda: gptq(128, 32, 4, 64, version=2),
    "gptq_8_g32": lambda: gptq(64, 32, 8, 32),
    "gptq_ordered_g32": lambda: gptq(96, 32, 4, 32, ordered=True),
    "gptq_8_ordered_v2_g32": lambda: gptq(64, 32, 8, 32, version=2, ordered=True),
    "bnb_nf4": lambda: bnb_four(6, 50, "nf4", False),
    "bnb_nf4_nested": lambda: bnb_four(175, 100, "nf4", True),  # 274 factors, in two blocks
    "bnb_fp4": lambda: bnb_four(7, 43, "fp4", False, block=128),
    "bnb_fp4_nested": lambda: bnb_four(9, 31, "fp4", True),
    "bnb_int8": lambda: bnb_eight(7, 45),
}


TOOLS = {}  # modules of other programs, by what they read


def load_file(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--awq", required=True)
    parser.add_argument("--gptq", required=True)
    arguments = parser.parse_args()
    folder = arguments.folder
    TOOLS.update(awq=load_file(arguments.awq), gptq=load_file(arguments.gptq))
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module, make in MATRICES.items():
        tensors.update({"%s.%s" % (module, name): tensor.contiguous() for name, tensor in make().items()})
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({}) + "\n")


if __name__ == "__main__":
    main()
