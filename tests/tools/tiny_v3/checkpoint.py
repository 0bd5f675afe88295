"""Reads the exported folder back: stored tensors, dequantised tensors, or the training model filled with them."""
import json
import pathlib

import torch
from safetensors import safe_open

import names
from model import TinyV3


def stored(folder):
    folder = pathlib.Path(folder)
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    out = {}
    for file in sorted(set(where.values())):
        with safe_open(folder / file, "pt") as f:
            for n in f.keys():
                assert where[n] == file
                out[n] = f.get_tensor(n)
    assert out.keys() == where.keys()
    return out


def dequantised(folder):
    return names.unstore(stored(folder))


def training_model(folder):
    model = TinyV3()
    params, model.bias = names.join(dequantised(folder))
    assert params.keys() == set(model.p.keys())
    with torch.no_grad():
        for n, p in model.p.items():
            p.copy_(params[n])
            p.requires_grad_(False)
    return model
