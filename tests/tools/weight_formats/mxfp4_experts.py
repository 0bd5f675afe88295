#!/usr/bin/env python3
"""Writes a copy of a checkpoint folder with BF16 or F32 weights whose routed experts are MXFP4, as OCP's Microscaling
Formats 1.0 (section 6.3) converts: a scale of 2^(floor(log2 of the largest magnitude) - 2), codes to nearest, ties to
even. Names are compressed-tensors'. For comparing what forms of four bits lose; `reshard` does not make this one.

    mxfp4_experts.py FROM TO

Needs PyTorch and safetensors."""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
MIDDLES = (VALUES[1:] + VALUES[:-1]) / 2
GROUP = 32


def mxfp4(weight):
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    largest = groups.abs().amax(2)
    exponent = torch.where(largest > 0, largest.log2().floor() - 2, torch.zeros_like(largest))
    scaled = groups / exponent.exp2().unsqueeze(2)
    size = scaled.abs().clamp(max=6.0)
    codes = torch.bucketize(size, MIDDLES)  # of a tie the lower one
    upper = torch.bucketize(size, MIDDLES, right=True)
    codes = torch.where((upper != codes) & (codes % 2 == 1), upper, codes)
    codes = (codes + torch.where(scaled < 0, 8, 0)).reshape(weight.shape).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, (exponent + 127).to(torch.uint8)


def main(source, target):
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            shutil.copy(path, target / path.name)
    tensors = {}
    for path in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            if ".experts." not in name:
                tensors[name] = tensor
                continue
            tensors[name + "_packed"], tensors[name + "_scale"] = mxfp4(tensor)
    save_file(tensors, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": GROUP, "symmetric": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "ignore": [],
        "config_groups": {"group_0": {"targets": ["re:.*experts.*"], "weights": weights}}}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
