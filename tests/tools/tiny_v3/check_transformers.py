"""Checks that transformers loads two folders to the same model (an ordinary checkpoint and its packed form, say).

    python check_transformers.py DIR_A DIR_B

Loads both with AutoModelForCausalLM.from_pretrained on the CPU (block-FP8 weights are dequantised in FP32; see
dequantise_patch.py for why that needs a patch) and compares the state dicts exactly. So DIR_B may also be DIR_A with the
transform fp8-to-f32. Weights that the model class
leaves aside (the MTP module) are not seen here; check_safetensors.py sees them.
"""
import sys

import torch

import dequantise_patch


def load(folder):
    import json
    import pathlib

    from transformers import AutoModelForCausalLM
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    if "quantization_config" in config:
        return dequantise_patch.load(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")  # as above


def main(a, b):
    one, two = load(a), load(b)
    assert type(one) is type(two), (type(one), type(two))
    x, y = one.state_dict(), two.state_dict()
    assert x.keys() == y.keys(), sorted(x.keys() ^ y.keys())[:5]
    for name in x:
        assert x[name].dtype == y[name].dtype and torch.equal(x[name], y[name]), name
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        assert torch.equal(one(ids).logits, two(ids).logits)
    print(f"{type(one).__name__}: {len(x)} parameters equal, logits equal")


if __name__ == "__main__":
    main(*sys.argv[1:3])
