"""Checkpoints that AMD's Quark writes, from end to end: its ModelQuantizer calibrates the model with prompts of
random tokens on a CPU, export_safetensors saves it; import_model_from_safetensors opens it again, and the layers of
that, with scales as FP32, read the values."""
import tempfile
from pathlib import Path

import quark.torch.quantization.config.config as settings
import torch
from quark.torch import ModelQuantizer, export_safetensors, import_model_from_safetensors
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

import source


def spec(name, **more):
    return getattr(settings, name)(is_dynamic=False, **more).to_quantization_spec()


def fp8_tensor():
    return spec("FP8E4M3PerTensorSpec", observer_method="min_max")


def make(folder, twin, mode="quark", **specs):
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(Path(scratch) / "plain")
        model = AutoModelForCausalLM.from_pretrained(Path(scratch) / "plain", dtype=torch.bfloat16)
        quantizer = ModelQuantizer(settings.QConfig(exclude=["lm_head"], global_quant_config=settings.QLayerConfig(
            **{part: make_spec() for part, make_spec in specs.items()})))
        prompts = DataLoader([torch.tensor(prompt) for prompt in source.prompts(8)], batch_size=1)
        model = quantizer.freeze(quantizer.quantize_model(model, prompts))
        with torch.no_grad():
            export_safetensors(model, str(folder), custom_mode=mode)
        # F32, so that its layers decode into F32.
        again = import_model_from_safetensors(AutoModelForCausalLM.from_pretrained(
            Path(scratch) / "plain", dtype=torch.float32), str(folder), device="cpu")
    values = {}
    for module in source.modules(source.weights()):
        layer = again.get_submodule(module)
        if layer.weight_quantizer.scale.is_floating_point():
            layer.weight_quantizer.scale.data = layer.weight_quantizer.scale.data.float()
        values[module + ".weight"] = layer.weight_quantizer(layer.weight)
    assert all(value.dtype == torch.float32 for value in values.values())
    source.save_twin(folder, twin, values)


KINDS = {
    "quark-mxfp4": lambda *to: make(*to, weight=lambda: spec("OCP_MXFP4Spec", ch_axis=-1)),
    "quark-fp8": lambda *to: make(*to, weight=fp8_tensor, input_tensors=fp8_tensor),
    "quark-fp8-as-fp8": lambda *to: make(*to, mode="fp8", weight=fp8_tensor, input_tensors=fp8_tensor),
    "quark-fp8-channel": lambda *to: make(*to, weight=lambda: spec("FP8E4M3PerChannelSpec", ch_axis=0)),
    "quark-int8": lambda *to: make(*to, weight=lambda: spec(
        "Int8PerChannelSpec", symmetric=True, scale_type="float", round_method="half_even", ch_axis=0)),
    "quark-uint4": lambda *to: make(*to, weight=lambda: spec("Uint4PerGroupSpec", ch_axis=-1, group_size=128)),
}
