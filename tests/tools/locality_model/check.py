#!/usr/bin/env python3
"""Runs a checkpoint of generate.py with transformers and says whether it goes where it was told.

    generate.py DIR --deep --set num_hidden_layers=8 && check.py DIR

Demanded: every token's experts in every layer, in the router's order, are those of routes.npy, and the head says the next
token. Printed: how many of a layer's experts its router finds on the layer before's state. Needs torch and transformers
(../tiny_v3/requirements.txt) and memory for the whole model in FP32.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tiny_v3"))
import dequantise_patch  # noqa: E402


@torch.no_grad()
def main(folder, count=200):
    told = torch.from_numpy(np.load(Path(folder) / "routes.npy").astype(np.int64))
    model = dequantise_patch.load(folder)
    gates = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    inputs = []
    for block in gates:
        block.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    tokens = torch.arange(count)
    said = model(tokens[None]).logits[0].argmax(-1)
    assert torch.equal(said, tokens + 1), "the text is another one"

    def picked(block, states):
        _, weights, ids = block.gate(states)
        return ids.gather(-1, weights.argsort(-1, descending=True))

    foreseen = []
    for index, block in enumerate(gates):
        assert torch.equal(picked(block, inputs[index]), told[:count, index]), f"MoE layer {index} goes elsewhere"
        if index > 0:
            guess = picked(block, inputs[index - 1])
            foreseen.append((guess[:, :, None] == told[:count, index][:, None, :]).any(-1).float().mean().item())
    print(f"{len(gates)} layers, {count} tokens: routes and text are as told; "
          f"{100 * sum(foreseen) / len(foreseen):.1f} % of the experts foreseen")


if __name__ == "__main__":
    main(sys.argv[1])
