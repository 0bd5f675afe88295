"""Checkpoints that NVIDIA's modelopt writes, from end to end: transformers opens the model, mtq.quantize calibrates
it with prompts of random tokens on a CPU, export_hf_checkpoint saves it; modelopt's own tensors read the weights, in
FP32."""
import copy
import json
import tempfile
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, NVFP4QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from modelopt.torch.quantization.utils import update_quant_cfg_with_kv_cache_quant
from transformers import AutoModelForCausalLM

import source

BLOCK = 128  # of its block-wise FP8


def value(parts):
    """The values of one layer: its parts by what follows the module's name."""
    weight, scale = parts["weight"], parts["weight_scale"]
    if "weight_scale_2" in parts:
        shape = (weight.shape[0], weight.shape[1] * 2)
        return NVFP4QTensor(shape, torch.float32, weight).dequantize(
            torch.float32, scale=scale, double_scale=parts["weight_scale_2"], block_sizes={-1: 16})
    if weight.dtype == torch.uint8:
        shape = torch.Size((weight.shape[0], weight.shape[1] * 2))
        return MXFP4QTensor(shape, torch.float32, weight).dequantize(torch.float32, scale=scale, block_sizes={-1: 32})
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale)
    if weight.dtype == torch.int8:
        return INT8QTensor(weight.shape, torch.float32, weight).dequantize(
            torch.float32, scale=scale[:, None], block_sizes=None)
    if scale.dim() == 4:  # [blocks of rows, 1, blocks of columns, 1], its own layout
        filled = torch.zeros(scale.shape[0] * BLOCK, scale.shape[2] * BLOCK, dtype=weight.dtype)
        filled[:weight.shape[0], :weight.shape[1]] = weight
        read = FP8QTensor(filled.shape, torch.float32, filled).dequantize(
            torch.float32, scale=scale[:, 0, :, 0], block_sizes={0: BLOCK, 1: BLOCK})
        return read[:weight.shape[0], :weight.shape[1]]
    if scale.dim() == 1 and scale.numel() > 1:
        scale = scale[:, None]
    return FP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale, block_sizes=None)


def make(folder, twin, preset, cache=None, moved=False, refused=False, fp8=()):
    """`moved`: quantization_config is left out of config.json, as in releases that only have hf_quant_config.json.
    `fp8`: patterns of modules that get FP8 besides.
    `refused`: the weights alone do not say what the layer computes, so there is no twin."""
    settings = copy.deepcopy(getattr(mtq, preset))
    settings["quant_cfg"] += [
        {"quantizer_name": "*%s*%s_quantizer" % (pattern, which), "enable": True, "cfg": {"num_bits": (4, 3), "axis": None}}
        for pattern in fp8 for which in ("weight", "input")]
    if cache:
        settings = update_quant_cfg_with_kv_cache_quant(settings, getattr(mtq, cache)["quant_cfg"])
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(Path(scratch) / "plain")
        model = AutoModelForCausalLM.from_pretrained(Path(scratch) / "plain", dtype=torch.bfloat16)

    def run(model):
        for prompt in source.prompts(8):
            model(torch.tensor([prompt]))

    with torch.inference_mode():
        export_hf_checkpoint(mtq.quantize(model, settings, run), export_dir=str(folder))
    if moved:
        told = json.loads((Path(folder) / "config.json").read_text())
        told.pop("quantization_config")
        (Path(folder) / "config.json").write_text(json.dumps(told, indent=1) + "\n")
    if refused:
        return
    stored = source.saved(folder)
    layers = {}
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        layers.setdefault(module, {})[part] = tensor
    source.save_twin(folder, twin, {module + ".weight": value(parts) for module, parts in layers.items()
                                    if "weight_scale" in parts})


KINDS = {
    "modelopt-nvfp4": lambda *to: make(*to, "NVFP4_DEFAULT_CFG"),
    "modelopt-nvfp4-fp8-cache": lambda *to: make(*to, "NVFP4_DEFAULT_CFG", cache="FP8_KV_CFG"),
    "modelopt-nvfp4-nvfp4-cache": lambda *to: make(*to, "NVFP4_DEFAULT_CFG", cache="NVFP4_KV_CFG"),
    "modelopt-nvfp4-experts": lambda *to: make(*to, "NVFP4_EXPERTS_ONLY_CFG"),
    "modelopt-nvfp4-mlp-fp8-cache-moved": lambda *to: make(*to, "NVFP4_MLP_ONLY_CFG", cache="FP8_KV_CFG", moved=True),
    "modelopt-nvfp4-weights": lambda *to: make(*to, "W4A16_NVFP4_CFG"),
    "modelopt-nvfp4-and-fp8-fp8-cache": lambda *to: make(
        *to, "NVFP4_EXPERTS_ONLY_CFG", cache="FP8_KV_CFG", fp8=("self_attn.*proj", "shared_experts")),
    "modelopt-fp8": lambda *to: make(*to, "FP8_DEFAULT_CFG"),
    "modelopt-fp8-fp8-cache": lambda *to: make(*to, "FP8_DEFAULT_CFG", cache="FP8_KV_CFG"),
    "modelopt-fp8-channel": lambda *to: make(*to, "FP8_PER_CHANNEL_PER_TOKEN_CFG"),
    "modelopt-fp8-blocks": lambda *to: make(*to, "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"),
    "modelopt-int8": lambda *to: make(*to, "INT8_WEIGHT_ONLY_CFG"),
    "modelopt-int8-smoothquant": lambda *to: make(*to, "INT8_SMOOTHQUANT_CFG", refused=True),
    "modelopt-mxfp4": lambda *to: make(*to, "MXFP4_DEFAULT_CFG"),
    "modelopt-mxfp4-fp8-activations": lambda *to: make(*to, "W4A8_MXFP4_FP8_CFG"),
    "modelopt-mxfp8": lambda *to: make(*to, "MXFP8_DEFAULT_CFG"),
}
