"""Checkpoints that llm-compressor writes, from end to end: transformers opens the model, oneshot quantises it with
prompts of random tokens on a CPU, save_pretrained saves it; compressed-tensors reads the values, with scales as
FP32."""
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from compressed_tensors.quantization import QuantizationConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

import source
from with_compressed_tensors import read

LEFT_OUT = ["lm_head", "re:.*mlp.gate$"]
CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def make(folder, twin, modifier, **settings):
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(scratch)
        model = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.bfloat16)
        prompts = Dataset.from_list([{"input_ids": prompt, "attention_mask": [1] * len(prompt)}
                                     for prompt in source.prompts()])
        oneshot(model=model, tokenizer=AutoTokenizer.from_pretrained(scratch), dataset=prompts, max_seq_length=64,
                num_calibration_samples=len(prompts),
                recipe=modifier(targets="Linear", ignore=LEFT_OUT, **settings))
        model.save_pretrained(folder, save_compressed=True)
    told = source.told(Path(folder))
    config = QuantizationConfig(**{key: value for key, value in told.items() if key in QuantizationConfig.model_fields})
    scheme, = config.config_groups.values()
    layers = {}
    for name, tensor in source.saved(folder).items():
        module, _, part = name.rpartition(".")
        layers.setdefault(module, {})[part] = tensor
    source.save_twin(folder, twin, {module + ".weight": read(parts, scheme, told["format"])
                                    for module, parts in layers.items() if "weight_scale" in parts})


def plain(scheme, **more):
    return lambda *to: make(*to, QuantizationModifier, scheme=scheme, **more)


KINDS = {
    "llmc-w4a16": plain("W4A16"),
    "llmc-w4a16-asym": plain("W4A16_ASYM"),
    "llmc-w8a16": plain("W8A16"),
    "llmc-w8a8": plain("W8A8"),
    "llmc-fp8": plain("FP8"),
    "llmc-fp8-dynamic-fp8-cache": plain("FP8_DYNAMIC", kv_cache_scheme=CACHE),
    "llmc-fp8-block": plain("FP8_BLOCK"),
    "llmc-nvfp4": plain("NVFP4"),
    "llmc-nvfp4-weights": plain("NVFP4A16"),
    "llmc-mxfp4": plain("MXFP4"),
    "llmc-gptq-actorder-weight": lambda *to: make(*to, GPTQModifier, scheme="W4A16", actorder="weight"),
    "llmc-gptq-actorder-static-asym": lambda *to: make(*to, GPTQModifier, scheme="W4A16_ASYM", actorder="static"),
}
