"""Checkpoints that transformers and bitsandbytes write: the model is opened with a BitsAndBytesConfig on a CPU and
saved, and bitsandbytes' own functions read the weights, with FP32 as the type of the result."""
import tempfile
from pathlib import Path

import torch
from bitsandbytes import functional as bnb
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import source

STATE = "weight.quant_state."


def four(parts):
    kept = {name: tensor for name, tensor in parts.items() if name != "weight"}
    state = bnb.QuantState.from_dict({name.removeprefix("weight."): tensor for name, tensor in kept.items()},
                                     device=torch.device("cpu"))
    state.dtype = torch.float32
    return bnb.dequantize_4bit(parts["weight"], state)


def eight(parts):
    return bnb.int8_vectorwise_dequant(parts["weight"], parts["SCB"].float())


def make(folder, twin, dtype=torch.bfloat16, **settings):
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(Path(scratch) / "plain", dtype)
        model = AutoModelForCausalLM.from_pretrained(
            Path(scratch) / "plain", torch_dtype=dtype, device_map={"": "cpu"},
            quantization_config=BitsAndBytesConfig(llm_int8_skip_modules=["lm_head"], **settings))
    model.save_pretrained(folder)
    layers = {}
    wanted = source.modules(source.weights())
    for name, tensor in source.saved(folder).items():
        module = next((module for module in wanted if name.startswith(module + ".")), None)
        if module:
            layers.setdefault(module, {})[name[len(module) + 1:]] = tensor
    coded = {module: parts for module, parts in layers.items() if len(parts) > 1}
    assert len(coded) == len(wanted), "only %d of %d layers were quantised" % (len(coded), len(wanted))
    source.save_twin(folder, twin, {module + ".weight": four(parts) if "SCB" not in parts else eight(parts)
                                    for module, parts in coded.items()})


KINDS = {
    "bnb-nf4": lambda *to: make(*to, load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bnb-nf4-nested": lambda *to: make(
        *to, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bnb-nf4-nested-f16": lambda *to: make(
        *to, dtype=torch.float16, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bnb-fp4": lambda *to: make(*to, load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "bnb-fp4-nested": lambda *to: make(
        *to, load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=True),
    "bnb-nf4-bf16-storage": lambda *to: make(
        *to, load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage=torch.bfloat16),
    "bnb-int8": lambda *to: make(*to, load_in_8bit=True),
}
