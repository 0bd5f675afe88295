"""The model for training: DeepSeek-V3's math on flattened tokens, experts as sorted segments, fast enough on two cores.

Parameters carry the released names (experts stacked: `model.layers.1.mlp.experts.gate_up` is [experts, 2m, d]), so the
export is a rename. A batch is a flat list of tokens; attention alone sees sequences (padded per length group).
"""
import torch
import torch.nn.functional as F
from torch import nn

from shape import Shape


class SegmentedSwiGLU(torch.autograd.Function):
    """Rows sorted by expert; segment e goes through expert e. One matrix product per expert and no padding."""

    @staticmethod
    def forward(ctx, x, gate_up, down, bounds):
        m = down.shape[2]
        h, y = x.new_empty(x.shape[0], 2 * m), torch.empty_like(x)
        for e, (s, t) in enumerate(bounds):
            if t > s:
                torch.mm(x[s:t], gate_up[e].t(), out=h[s:t])
        a = F.silu(h[:, :m]) * h[:, m:]
        for e, (s, t) in enumerate(bounds):
            if t > s:
                torch.mm(a[s:t], down[e].t(), out=y[s:t])
        ctx.save_for_backward(x, gate_up, down, h)
        ctx.bounds = bounds
        return y

    @staticmethod
    def backward(ctx, dy):
        x, gate_up, down, h = ctx.saved_tensors
        m, dy = down.shape[2], dy.contiguous()
        g, u = h[:, :m], h[:, m:]
        sig = torch.sigmoid(g)
        silu = g * sig
        a = silu * u
        da, dx = torch.empty_like(a), torch.empty_like(x)
        d_gate_up, d_down = torch.zeros_like(gate_up), torch.zeros_like(down)
        for e, (s, t) in enumerate(ctx.bounds):
            if t > s:
                torch.mm(dy[s:t], down[e], out=da[s:t])
                torch.mm(dy[s:t].t(), a[s:t], out=d_down[e])
        dh = torch.cat([da * u * (sig * (1 + g * (1 - sig))), da * silu], dim=1)
        for e, (s, t) in enumerate(ctx.bounds):
            if t > s:
                torch.mm(dh[s:t], gate_up[e], out=dx[s:t])
                torch.mm(dh[s:t].t(), x[s:t], out=d_gate_up[e])
        return dx, d_gate_up, d_down, None


class Batch:
    """Sequences flattened: ids, next ids (-1 where none), positions, and per length group an index [N, T] into them."""

    def __init__(self, sequences, groups=5):
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        seqs = [sequences[i] for i in order]
        self.sequences, self.order = seqs, order   # sequence k of the batch was sequences[order[k]]
        flat, nxt, pos, starts = [], [], [], []
        for s in seqs:
            starts.append(len(flat))
            flat += s
            nxt += s[1:] + [-1]
            pos += range(len(s))
        self.ids, self.next, self.pos = map(torch.tensor, (flat, nxt, pos))
        self.next2 = torch.full_like(self.next, -1)   # the token after the next one: what the MTP module predicts
        self.next2[:-1] = self.next[1:]
        self.next2[self.next < 0] = -1
        self.starts, self.groups = starts, []
        cut = [len(seqs) * g // groups for g in range(groups + 1)]
        for lo, hi in zip(cut, cut[1:]):
            if hi > lo:
                length = len(seqs[hi - 1])
                lens = torch.tensor([len(s) for s in seqs[lo:hi]])[:, None]
                steps = torch.arange(length)[None]
                index = torch.tensor(starts[lo:hi])[:, None] + torch.minimum(steps, lens - 1)
                valid = (steps < lens).flatten().nonzero().flatten()
                self.groups.append((index, valid))


def rms(x, w, eps):
    return F.rms_norm(x, (x.shape[-1],), w, eps)


class TinyV3(nn.Module):
    def __init__(self, shape=None, seed=1):
        super().__init__()
        s = self.s = shape or Shape()
        self.p = nn.ParameterDict()      # released name, dots written as '/' (module names hold no dots)
        self.bias = {}                   # layer -> e_score_correction_bias, not trained by gradient
        self.load = {}                   # layer -> tokens per expert of the last forward
        self.record = None               # a list here receives (layer, biased scores, ids)
        gen = torch.Generator().manual_seed(seed)

        def new(name, *size, std=None):
            t = torch.ones(size) if std is None else torch.randn(size, generator=gen) * std
            self.p[name.replace(".", "/")] = nn.Parameter(t)

        d, deep = s.d, (2 * s.layers) ** -0.5
        new("model.embed_tokens.weight", s.vocab, d, std=0.3)
        new("lm_head.weight", s.vocab, d, std=d ** -0.5)
        new("model.norm.weight", d)
        for i in range(s.layers + 1):
            at = f"model.layers.{i}."
            new(at + "input_layernorm.weight", d)
            new(at + "post_attention_layernorm.weight", d)
            a = at + "self_attn."
            new(a + "q_a_proj.weight", s.q_rank, d, std=d ** -0.5)
            new(a + "q_a_layernorm.weight", s.q_rank)
            new(a + "q_b_proj.weight", s.heads * (s.nope + s.rope), s.q_rank, std=s.q_rank ** -0.5)
            new(a + "kv_a_proj_with_mqa.weight", s.kv_rank + s.rope, d, std=d ** -0.5)
            new(a + "kv_a_layernorm.weight", s.kv_rank)
            new(a + "kv_b_proj.weight", s.heads * (s.nope + s.v), s.kv_rank, std=s.kv_rank ** -0.5)
            new(a + "o_proj.weight", d, s.heads * s.v, std=(s.heads * s.v) ** -0.5 * deep)
            if i < s.dense:
                new(at + "mlp.gate_up", 2 * s.inter, d, std=d ** -0.5)
                new(at + "mlp.down", d, s.inter, std=s.inter ** -0.5 * deep)
                continue
            new(at + "mlp.gate.weight", s.experts, d, std=1.5 * d ** -0.5)
            self.bias[i] = torch.full((s.experts,), 0.1)
            new(at + "mlp.experts.gate_up", s.experts, 2 * s.moe_inter, d, std=d ** -0.5)
            new(at + "mlp.experts.down", s.experts, d, s.moe_inter, std=s.moe_inter ** -0.5 * deep)
            new(at + "mlp.shared_experts.gate_up", 2 * s.moe_inter, d, std=d ** -0.5)
            new(at + "mlp.shared_experts.down", d, s.moe_inter, std=s.moe_inter ** -0.5 * deep)
        at = f"model.layers.{s.layers}."
        for n in ("enorm", "hnorm", "shared_head.norm"):
            new(at + n + ".weight", d)
        new(at + "eh_proj.weight", d, 2 * d, std=(2 * d) ** -0.5)
        angles = torch.arange(s.max_len)[:, None] * torch.tensor(s.frequencies())[None]
        self.cos, self.sin = angles.cos(), angles.sin()

    def w(self, name):
        return self.p[name.replace(".", "/")]

    def times(self, x, name):
        return x @ self.w(name).t()

    def rotate(self, x, pos):
        """Pairs (x0, x1), (x2, x3)... as released; written out as evens then odds, which no dot product sees."""
        cos, sin = self.cos[pos], self.sin[pos]
        while cos.dim() < x.dim():
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def attention(self, i, x, batch):
        s, at = self.s, f"model.layers.{i}.self_attn."
        n = x.shape[0]
        q = rms(self.times(x, at + "q_a_proj.weight"), self.w(at + "q_a_layernorm.weight"), s.eps)
        q = self.times(q, at + "q_b_proj.weight").view(n, s.heads, s.nope + s.rope)
        latent = self.times(x, at + "kv_a_proj_with_mqa.weight")
        c = rms(latent[:, :s.kv_rank], self.w(at + "kv_a_layernorm.weight"), s.eps)
        kv = self.times(c, at + "kv_b_proj.weight").view(n, s.heads, s.nope + s.v)
        k_rope = self.rotate(latent[:, s.kv_rank:], batch.pos)[:, None].expand(-1, s.heads, -1)
        q = torch.cat([q[..., :s.nope], self.rotate(q[..., s.nope:], batch.pos)], -1) * s.softmax_scale()
        k, v = torch.cat([kv[..., :s.nope], k_rope], -1), kv[..., s.nope:]
        outs = []
        for index, valid in batch.groups:
            count, t = index.shape
            qg, kg, vg = (x.index_select(0, index.flatten()).view(count, t, s.heads, -1).transpose(1, 2)
                          for x in (q, k, v))
            mask = torch.full((t, t), float("-inf")).triu(1)
            o = torch.softmax(qg @ kg.transpose(2, 3) + mask, -1) @ vg
            o = o.transpose(1, 2).reshape(count * t, -1)
            outs.append(o.index_select(0, valid))        # rows come out in flat order: groups are contiguous
        return self.times(torch.cat(outs), at + "o_proj.weight")

    def swiglu(self, x, at):
        h = self.times(x, at + "gate_up")
        m = h.shape[1] // 2
        return self.times(F.silu(h[:, :m]) * h[:, m:], at + "down")

    def route(self, i, x):
        """Sigmoid scores; the bias decides who, never how much; groups by the sum of their best two."""
        s = self.s
        scores = torch.sigmoid(x @ self.w(f"model.layers.{i}.mlp.gate.weight").t())
        choice = scores + self.bias[i]
        grouped = choice.view(-1, s.groups, s.experts // s.groups)
        group_score = grouped.topk(2, -1)[0].sum(-1)
        order = group_score.topk(s.kept + 1, -1)
        keep = torch.zeros_like(group_score).scatter(1, order.indices[:, :s.kept], 1).bool()
        masked = grouped.masked_fill(~keep[..., None], float("-inf")).flatten(1)
        best = masked.topk(s.top + 1, -1)
        ids = best.indices[:, :s.top]
        gaps = (order.values[:, s.kept - 1] - order.values[:, s.kept],
                best.values[:, s.top - 1] - best.values[:, s.top])
        weights = scores.gather(1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * s.route_scale
        if self.record is not None:
            self.record.append((i, choice.detach(), ids.detach(), torch.minimum(*gaps).detach()))
        return ids, weights, gaps

    def moe(self, i, x, margins):
        s, at = self.s, f"model.layers.{i}.mlp."
        ids, weights, gaps = self.route(i, x)
        margins += gaps
        order = torch.argsort(ids.flatten(), stable=True)
        counts = torch.bincount(ids.flatten(), minlength=s.experts)
        self.load[i] = counts
        ends = counts.cumsum(0).tolist()
        bounds = list(zip([0] + ends[:-1], ends))
        rows = order // s.top
        y = SegmentedSwiGLU.apply(x.index_select(0, rows), self.w(at + "experts.gate_up"), self.w(at + "experts.down"),
                                  bounds)
        y = y * weights.flatten()[order][:, None]
        return torch.zeros_like(x).index_add(0, rows, y) + self.swiglu(x, at + "shared_experts.")

    def layer(self, i, x, batch, margins):
        s, at = self.s, f"model.layers.{i}."
        x = x + self.attention(i, rms(x, self.w(at + "input_layernorm.weight"), s.eps), batch)
        h = rms(x, self.w(at + "post_attention_layernorm.weight"), s.eps)
        return x + (self.swiglu(h, at + "mlp.") if i < s.dense else self.moe(i, h, margins))

    def forward(self, batch, mtp=True, rows=None, mtp_rows=None):
        """Main logits, MTP logits (row i: what follows token i+1), and the routing gaps of all layers.

        `rows`, `mtp_rows`: where logits are wanted; everywhere if not given.
        """
        pick = lambda x, at: x if at is None else x.index_select(0, at)
        s, margins = self.s, []
        embed, head = self.w("model.embed_tokens.weight"), "lm_head.weight"
        x = embed[batch.ids]
        for i in range(s.layers):
            x = self.layer(i, x, batch, margins)
        h = rms(x, self.w("model.norm.weight"), s.eps)
        logits = self.times(pick(h, rows), head)
        if not mtp:
            return logits, None, margins
        at = f"model.layers.{s.layers}."
        z = torch.cat([rms(embed[batch.next.clamp(min=0)], self.w(at + "enorm.weight"), s.eps),
                       rms(h, self.w(at + "hnorm.weight"), s.eps)], -1)
        z = self.layer(s.layers, self.times(z, at + "eh_proj.weight"), batch, margins)
        z = rms(pick(z, mtp_rows), self.w(at + "shared_head.norm.weight"), s.eps)
        return logits, self.times(z, head), margins
