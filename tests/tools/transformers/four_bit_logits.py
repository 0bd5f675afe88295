"""Logits of a folder with experts of four bits, as transformers and compressed-tensors read it.

    four_bit_logits.py FOLDER TOKEN,TOKEN,... OUT.safetensors

"as_loaded" [tokens, vocabulary] is what from_pretrained makes of the folder: it gives experts in BF16, whatever type is
asked for; it is left out for NVFP4, since transformers 5.23 does not hand compressed-tensors the experts'
weight_global_scale (integrations/compressed_tensors.py), whatever program made the folder. "logits" is the same model with
the experts as compressed-tensors' own decompress gives them in FP32; that they are what was loaded, but for rounding and
that scale, is checked.
"""

import sys
from pathlib import Path

import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

INT4 = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
NVFP4 = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
BF16_ROUNDING = 2.0**-8


def decompressed(tensors, module):
    state = {name.removeprefix(module + "."): tensor for name, tensor in tensors.items() if name.startswith(module + ".")}
    state["weight_scale"] = state["weight_scale"].float()
    is_int4 = "weight_shape" in state
    scheme = QuantizationScheme(targets=["Linear"], weights=INT4 if is_int4 else NVFP4)
    compressor = PackedQuantizationCompressor if is_int4 else NVFP4PackedCompressor
    return compressor.decompress(state, scheme)["weight"].float()


def put_exact_experts(model, tensors):
    layers = 0
    for number, layer in enumerate(model.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue
        named = lambda part: [decompressed(tensors, "model.layers.%d.mlp.experts.%d.%s" % (number, one, part))
                              for one in range(experts.down_proj.shape[0])]
        gate_up = torch.stack([torch.cat(pair) for pair in zip(named("gate_proj"), named("up_proj"))])
        down = torch.stack(named("down_proj"))
        lost = tensors.get("model.layers.%d.mlp.experts.0.gate_proj.weight_global_scale" % number, torch.ones(1))
        for loaded, exact in ((experts.gate_up_proj / lost, gate_up), (experts.down_proj / lost, down)):
            assert ((loaded.float() - exact).abs() <= exact.abs() * BF16_ROUNDING).all(), "loaded otherwise than decompressed"
        experts.gate_up_proj, experts.down_proj = torch.nn.Parameter(gate_up), torch.nn.Parameter(down)
        layers += 1
    assert layers > 0, "no layer has experts"


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def main(folder, tokens, out):
    ids = torch.tensor([[int(token) for token in tokens.split(",")]])
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(path))
    model = load(folder)  # before a first pass: that fixes the weights
    put_exact_experts(model, tensors)
    with torch.no_grad():
        logits = {"logits": model(ids).logits[0].float()}
        if not any(name.endswith("weight_global_scale") for name in tensors):
            logits["as_loaded"] = load(folder)(ids).logits[0].float()
    save_file({name: values.contiguous() for name, values in logits.items()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:4])
