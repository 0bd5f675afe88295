"""From the training parameters to the released tensor names and back."""
import torch

import fp8
from shape import Shape

S = Shape()
MTP = f"model.layers.{S.layers}."
COPIES = {MTP + "embed_tokens.weight": "model.embed_tokens.weight", MTP + "shared_head.head.weight": "lm_head.weight"}


def is_fp8(name):
    """All attention projections and all MLP and expert projections; eh_proj and the router stay BF16."""
    return name.endswith(("_proj.weight", "_proj_with_mqa.weight")) and not name.endswith("eh_proj.weight")


def is_fp8_parameter(key):
    """The same question about a training parameter."""
    return key.endswith(("gate_up", "down")) or is_fp8(key.replace("/", "."))


def parts(key, value):
    """The matrices that a training parameter is stored as: gate_up is two, and blocks must not straddle them."""
    return value.chunk(2, -2) if key.endswith("gate_up") else (value,)


def split(params, bias):
    """Training names -> released names, float32: fused and stacked matrices apart, the MTP module's copies added."""
    out = {}
    for key, value in params.items():
        name = key.replace("/", ".")
        if name.endswith(("gate_up", "down")):
            at = name.rsplit(".", 1)[0]
            labels = ("gate_proj", "up_proj") if name.endswith("gate_up") else ("down_proj",)
            for part, w in zip(labels, parts(key, value)):
                if w.dim() == 3:
                    for e in range(w.shape[0]):
                        out[f"{at}.{e}.{part}.weight"] = w[e]
                else:
                    out[f"{at}.{part}.weight"] = w
        else:
            out[name] = value
    for i, b in bias.items():
        out[f"model.layers.{i}.mlp.gate.e_score_correction_bias"] = b
    for copy, original in COPIES.items():
        out[copy] = out[original]
    return out


def join(tensors):
    """The inverse, from dequantised released tensors: what the training model wants."""
    params, bias = {}, {}
    for name, value in tensors.items():
        if name in COPIES or name.endswith(("up_proj.weight", "down_proj.weight")):
            continue
        if name.endswith("e_score_correction_bias"):
            bias[int(name.split(".")[2])] = value
        elif name.endswith("gate_proj.weight"):
            at = name[:-len("gate_proj.weight")]
            if ".experts." in name:
                stack, e = at.rstrip(".").rsplit(".", 1)
                if e != "0":
                    continue
                get = lambda part: torch.stack([tensors[f"{stack}.{k}.{part}.weight"] for k in range(S.experts)])
                at = stack + "."
            else:
                get = lambda part: tensors[at + part + ".weight"]
            params[(at + "gate_up").replace(".", "/")] = torch.cat([get("gate_proj"), get("up_proj")], -2)
            params[(at + "down").replace(".", "/")] = get("down_proj")
        else:
            params[name.replace(".", "/")] = value
    return params, bias


def store(tensors):
    """Released names, float32 -> what is stored: FP8 with scales, BF16, and F32 for the routing bias."""
    out = {}
    for name, value in tensors.items():
        if is_fp8(name):
            out[name], out[name + "_scale_inv"] = fp8.quantise(value)
        else:
            out[name] = value.contiguous() if name.endswith("e_score_correction_bias") else value.bfloat16()
    return out


def unstore(tensors):
    """The inverse: everything float32, scales folded in."""
    return {n: fp8.dequantise(t, tensors[n + "_scale_inv"]) if is_fp8(n) else t.float()
            for n, t in tensors.items() if not n.endswith("_scale_inv")}
