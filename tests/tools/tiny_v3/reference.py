"""An independent, naive implementation of DeepSeek-V3 with its MTP module, straight from the published equations.

Shares no code with the training model: reads the checkpoint by its released names, dequantises block by block, walks
token by token where that is plainer, rotates complex numbers, keeps every routing decision with its margin. FP32.
"""
import json
import math
import pathlib

import torch
from safetensors.torch import load_file


class Weights:
    """name -> float32 tensor, dequantised on first use."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text())
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        self.raw, self.ready = {}, {}
        for file in sorted(set(index.values())):
            self.raw.update(load_file(folder / file))

    def __getitem__(self, name):
        if name not in self.ready:
            w = self.raw[name].float()
            scale = self.raw.get(name + "_scale_inv")
            if scale is not None:
                for i in range(scale.shape[0]):
                    for j in range(scale.shape[1]):
                        w[128 * i:128 * (i + 1), 128 * j:128 * (j + 1)] *= scale[i, j]
            self.ready[name] = w
        return self.ready[name]


def norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotations(c, count):
    """Complex e^(i t f) for positions t and pairs, with YaRN's frequencies."""
    y, dim, base = c["rope_scaling"], c["qk_rope_head_dim"], c["rope_theta"]
    f = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    find = lambda beta: dim * math.log(y["original_max_position_embeddings"] / (beta * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(find(y["beta_fast"])), 0), min(math.ceil(find(y["beta_slow"])), dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2) - low) / (high - low)).clamp(0, 1)
    f = f / y["factor"] * ramp + f * (1 - ramp)
    angle = torch.outer(torch.arange(count, dtype=torch.float64), f)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


def rotate(x, turn):
    """x [..., dim] read as interleaved pairs (x0 + i x1), ..."""
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(z * turn).flatten(-2)


def attention(w, at, x, turns):
    c = w.config
    heads, nope, rope, v, rank = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                                  c["v_head_dim"], c["kv_lora_rank"])
    y = c["rope_scaling"]
    m = 0.1 * y["mscale_all_dim"] * math.log(y["factor"]) + 1
    scale = (nope + rope) ** -0.5 * m * m
    eps, n = c["rms_norm_eps"], x.shape[0]
    latent = x @ w[at + "kv_a_proj_with_mqa.weight"].T
    compressed = norm(latent[:, :rank], w[at + "kv_a_layernorm.weight"], eps)
    k_rope = rotate(latent[:, rank:], turns[:n])
    q = norm(x @ w[at + "q_a_proj.weight"].T, w[at + "q_a_layernorm.weight"], eps) @ w[at + "q_b_proj.weight"].T
    q, kv = q.view(n, heads, nope + rope), w[at + "kv_b_proj.weight"].view(heads, nope + v, rank)
    rows = []
    for t in range(n):
        parts = []
        for h in range(heads):
            k = torch.cat([compressed[:t + 1] @ kv[h, :nope].T, k_rope[:t + 1]], -1)
            asked = torch.cat([q[t, h, :nope], rotate(q[t, h, nope:], turns[t])])
            p = torch.softmax(k @ asked * scale, 0)
            parts.append(p @ (compressed[:t + 1] @ kv[h, nope:].T))
        rows.append(torch.cat(parts))
    return torch.stack(rows) @ w[at + "o_proj.weight"].T


def mlp(w, at, x):
    return (torch.nn.functional.silu(x @ w[at + "gate_proj.weight"].T) * (x @ w[at + "up_proj.weight"].T)) @ \
        w[at + "down_proj.weight"].T


def choose(c, scores, bias):
    """One token: chosen experts (best first), the margins of the group choice and of the expert choice."""
    biased = scores + bias
    assert biased.min() >= 0, "a negative biased score: implementations that mask with 0 would differ"
    size = c["n_routed_experts"] // c["n_group"]
    sums = [sum(sorted(biased[g * size:(g + 1) * size].tolist())[-2:]) for g in range(c["n_group"])]
    by_sum = sorted(range(c["n_group"]), key=lambda g: -sums[g])
    kept, lost = by_sum[:c["topk_group"]], by_sum[c["topk_group"]:]
    experts = sorted((e for g in kept for e in range(g * size, (g + 1) * size)), key=lambda e: -biased[e].item())
    k = c["num_experts_per_tok"]
    return experts[:k], sums[kept[-1]] - sums[lost[0]], (biased[experts[k - 1]] - biased[experts[k]]).item()


def moe(w, at, x, trace):
    c, rows, ids = w.config, [], []
    for row in x:
        scores = torch.sigmoid(w[at + "gate.weight"] @ row)
        chosen, group_margin, expert_margin = choose(c, scores, w[at + "gate.e_score_correction_bias"])
        total = sum(scores[e] for e in chosen)
        out = mlp(w, at + "shared_experts.", row)
        for e in chosen:
            out = out + scores[e] / total * c["routed_scaling_factor"] * mlp(w, f"{at}experts.{e}.", row)
        rows.append(out)
        ids.append(chosen)
        trace["margins"].append(min(group_margin, expert_margin))
    trace["ids"].append(torch.tensor(ids))
    return torch.stack(rows)


def layer(w, i, x, turns, trace):
    at, eps = f"model.layers.{i}.", w.config["rms_norm_eps"]
    x = x + attention(w, at + "self_attn.", norm(x, w[at + "input_layernorm.weight"], eps), turns)
    h = norm(x, w[at + "post_attention_layernorm.weight"], eps)
    return x + (mlp(w, at + "mlp.", h) if i < w.config["first_k_dense_replace"] else moe(w, at + "mlp.", h, trace))


@torch.no_grad()
def run(w, ids):
    """Everything about one token list: hidden states after each layer, logits, MTP logits, routing with margins."""
    c, eps, n = w.config, w.config["rms_norm_eps"], len(ids)
    turns, ids = rotations(c, n), torch.tensor(ids)
    trace = {"margins": [], "ids": []}
    x = w["model.embed_tokens.weight"][ids]
    hidden = [x]
    for i in range(c["num_hidden_layers"]):
        x = layer(w, i, x, turns, trace)
        hidden.append(x)
    final = norm(x, w["model.norm.weight"], eps)
    # The MTP module: its own copies of embedding and head; the embedding half comes first.
    i = c["num_hidden_layers"]
    at = f"model.layers.{i}."
    z = torch.cat([norm(w[at + "embed_tokens.weight"][ids[1:]], w[at + "enorm.weight"], eps),
                   norm(final[:-1], w[at + "hnorm.weight"], eps)], -1) @ w[at + "eh_proj.weight"].T
    states = [z]
    z = layer(w, i, z, turns, trace)
    states.append(z)
    mtp = norm(z, w[at + "shared_head.norm.weight"], eps) @ w[at + "shared_head.head.weight"].T
    return {"hidden": hidden, "final": final, "logits": final @ w["lm_head.weight"].T, "mtp": mtp,
            "mtp_states": states, "router": trace["ids"], "margin": min(trace["margins"])}
