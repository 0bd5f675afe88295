"""The first reference for DeepSeek-V4: transformers (5.24 or later), float64 and eager, on the decoded weights under their
released names."""
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
from transformers import DeepseekV4ForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import safetensors_io  # noqa: E402


def load(config, exact):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        plain = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype")}
        (folder / "config.json").write_text(json.dumps(plain))
        tensors = {}
        for name, values in exact.items():
            dtype = "I64" if name.endswith("tid2eid") else "F32"
            tensors[name] = (dtype, list(values.shape), values.astype("<i8" if dtype == "I64" else "<f4").tobytes())
        safetensors_io.write(folder / "model.safetensors", tensors)
        model = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                      experts_implementation="eager")
    return model.eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()


def logits_one_by_one(model, tokens, first):
    """The first so many at once, then each by itself, with a cache."""
    with torch.no_grad():
        out = model(torch.tensor([tokens[:first]]), use_cache=True)
        rows = [out.logits[0]]
        for token in tokens[first:]:
            out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
            rows.append(out.logits[0])
        return torch.cat(rows).double().numpy()


def nmse(got, wanted):
    return float(((got - wanted) ** 2).sum() / (wanted ** 2).sum())


__all__ = ["load", "logits", "logits_one_by_one", "nmse", "np"]
