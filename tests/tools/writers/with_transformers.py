"""Checkpoints that transformers writes. FP8 in blocks by its own conversions, since its quantiser asks for a GPU
before it gets to them; torchao's from end to end."""
import tempfile
import types

import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, TorchAoConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

import source


def make_fp8(folder, twin, **settings):
    config = FineGrainedFP8Config(modules_to_not_convert=["lm_head"], **settings)
    quantizer = types.SimpleNamespace(quantization_config=config)
    original = source.weights()
    stored, values = dict(original), {}
    for module in source.modules(original):
        name = module + ".weight"
        stored.update(Fp8Quantize(quantizer).convert({name: original[name]}))
        if name + "_scale_inv" in stored:
            values[name] = Fp8Dequantize(quantizer)._dequantize_one(
                stored[name], stored[name + "_scale_inv"], torch.float32)
    assert len(values) > 30, "hardly any layer was quantised"
    source.save(folder, stored, config.to_dict())
    source.save_twin(folder, twin, values)


def make_torchao(folder, _, kind):
    import torchao.quantization
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(scratch)
        model = AutoModelForCausalLM.from_pretrained(
            scratch, dtype=torch.bfloat16, device_map={"": "cpu"},
            quantization_config=TorchAoConfig(getattr(torchao.quantization, kind)()))
        model.save_pretrained(folder)


KINDS = {
    "transformers-fp8": lambda *to: make_fp8(*to, weight_block_size=(128, 128)),
    "transformers-fp8-32": lambda *to: make_fp8(*to, weight_block_size=(32, 32)),
    "transformers-fp8-ue8m0": lambda *to: make_fp8(*to, weight_block_size=(32, 128), scale_fmt="ue8m0"),
    "transformers-fp8-tensor": lambda *to: make_fp8(*to, weight_block_size=None),
    "torchao-int8": lambda *to: make_torchao(*to, "Int8WeightOnlyConfig"),
    "torchao-fp8": lambda *to: make_torchao(*to, "Float8WeightOnlyConfig"),
}
