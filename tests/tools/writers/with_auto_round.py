"""Checkpoints that AutoRound writes, from end to end: it quantises the model with prompts of random tokens on a CPU
and exports it; its own layers read the codes, with scales as FP32. What it exports as "llm_compressor" is read by
compressed-tensors."""
import shutil
import tempfile
import types
from pathlib import Path

import torch
from auto_round import AutoRound
from auto_round.experimental.qmodules.fp8_static import WeightFP8ActFP8StaticQuantLinear
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp
from compressed_tensors.quantization import QuantizationScheme
from transformers import AutoModelForCausalLM, AutoTokenizer

import source
from with_compressed_tensors import floats, four_bit, integers, read

LAYERS = {"auto_round:auto_gptq": qlinear_torch_zp, "auto_gptq": qlinear_torch_zp, "auto_round": qlinear_torch,
          "auto_round:gptqmodel": qlinear_torch}


def value(parts, form, bits):
    if "qweight" in parts and form.endswith("awq"):
        groups = parts["scales"].shape[0]
        return dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].float(), bits,
                               parts["qweight"].shape[0] // groups).t()
    if "qweight" in parts:
        rows, columns = parts["scales"].shape[1], parts["qweight"].shape[0] * 32 // bits
        layer = LAYERS[form].QuantLinear(bits, columns // parts["scales"].shape[0], columns, rows, False)
        layer.qweight, layer.qzeros, layer.scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
        return layer(torch.eye(columns)).t()
    if "weight_packed" in parts:
        columns = parts["weight_packed"].shape[1] * 2
        group = columns // parts["weight_scale"].shape[1]
        if "weight_shape" in parts:
            group = int(parts["weight_shape"][1]) // parts["weight_scale"].shape[1]
            return read(parts, QuantizationScheme(targets=[], **integers(bits, "group", group)), "pack-quantized")
        return read(parts, QuantizationScheme(targets=[], **four_bit(group)), "")
    if "weight_scale_inv" in parts:
        parts = {**parts, "weight_scale": parts["weight_scale_inv"]}
        return read(parts, QuantizationScheme(targets=[], **floats("block", [128, 128])), "float-quantized")
    if parts["weight_scale"].dtype == torch.uint8:
        scheme = {"weights": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}}
        return read({**parts, "weight_scale": parts["weight_scale"].view(torch.float8_e8m0fnu)},
                    QuantizationScheme(targets=[], **scheme), "naive-quantized")
    scale = parts["weight_scale"].float()
    if scale.numel() in (1, parts["weight"].shape[0]):
        return WeightFP8ActFP8StaticQuantLinear.dequant_weight_online(types.SimpleNamespace(
            pre_dequantized=False, weight=parts["weight"], dtype=torch.float32, weight_scale=scale.reshape(-1)))
    raise AssertionError("scales of %s" % list(scale.shape))


def make(folder, twin, form, scheme, bits=4, refused=False, **settings):
    """`refused`: for an export of which nothing reads the values."""
    with tempfile.TemporaryDirectory() as scratch:
        plain, out = Path(scratch) / "plain", Path(scratch) / "out"
        source.save_plain(plain)
        model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
        rounds = AutoRound(model, AutoTokenizer.from_pretrained(plain), scheme=scheme, iters=0, device_map="cpu",
                           seqlen=64, dataset=[torch.tensor([prompt]) for prompt in source.prompts(8)], nsamples=8,
                           disable_opt_rtn=True, **settings)
        rounds.quantize_and_save(output_dir=str(out), format=form)
        written, = [path.parent for path in out.rglob("config.json")]
        shutil.copytree(written, folder)
    if refused:
        return
    layers = {}
    for name, tensor in source.saved(folder).items():
        module, _, part = name.rpartition(".")
        layers.setdefault(module, {})[part] = tensor
    told = source.told(folder).get("packing_format", form)
    source.save_twin(folder, twin, {module + ".weight": value(parts, told, bits)
                                    for module, parts in layers.items()
                                    if len(parts) > 1 and not module.endswith("mlp.gate")})


KINDS = {
    "autoround-gptq": lambda *to: make(*to, "auto_round:auto_gptq", "W4A16"),
    "autoround-gptq-8": lambda *to: make(*to, "auto_round:auto_gptq", "W8A16", bits=8),
    "autoround-awq-asym": lambda *to: make(*to, "auto_round:auto_awq", "W4A16", sym=False),
    "autoround-awq": lambda *to: make(*to, "auto_round:auto_awq", "W4A16"),
    "autoround-asym-g64": lambda *to: make(*to, "auto_round", "W4A16", sym=False, group_size=64),
    "autoround-auto-gptq": lambda *to: make(*to, "auto_gptq", "W4A16"),
    "autoround-auto-awq-asym": lambda *to: make(*to, "auto_awq", "W4A16", sym=False),
    "autoround-auto-awq": lambda *to: make(*to, "auto_awq", "W4A16"),
    "autoround-ct-int4": lambda *to: make(*to, "llm_compressor", "W4A16"),
    "autoround-ct-nvfp4": lambda *to: make(*to, "llm_compressor", "NVFP4"),
    "autoround-ct-mxfp4": lambda *to: make(*to, "llm_compressor", "MXFP4"),
    "autoround-ct-fp8": lambda *to: make(*to, "llm_compressor", "FP8_STATIC"),
    "autoround-nvfp4": lambda *to: make(*to, "auto_round", "NVFP4"),
    "autoround-mxfp4": lambda *to: make(*to, "auto_round", "MXFP4"),
    "autoround-mxfp8": lambda *to: make(*to, "auto_round", "MXFP8"),
    "autoround-fp8": lambda *to: make(*to, "auto_round", "FP8_STATIC"),
    "autoround-fp8-block": lambda *to: make(*to, "auto_round", "FP8_BLOCK"),
    "autoround-3-bits": lambda *to: make(*to, "auto_round", "W3A16", refused=True),
}
