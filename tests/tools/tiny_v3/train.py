"""Trains the tiny model: main loss + MTP loss + a hinge on routing gaps, and V3's load balancing without a loss.

    python train.py WORK_DIR --tokenizer DIR --minutes 25

Two processes of one thread each share parameters and gradients (threads inside one process would wait for each other at
every small product). The last part of the run ("finish") sees the weights as they will be stored (FP8 blocks, BF16),
gradients going to the exact values behind them, and frozen routing biases, so that nothing is lost by the export. Saves WORK_DIR/train.pt.
"""
import argparse
import math
import os
import pathlib
import random
import time

import torch
import torch.nn.functional as F

import corpus
import fp8
import names
import tokenizer
from model import Batch, TinyV3

RANKS = 2
EVERY = 50    # steps per printed line


def as_stored(name, p):
    """The value that the checkpoint will hold for a parameter."""
    if names.is_fp8_parameter(name):
        return torch.cat([fp8.dequantise(*fp8.quantise(h)) for h in names.parts(name, p)], dim=-2)
    return p.bfloat16().float()


class Stream:
    """Endless batches of about `tokens` tokens; losses are taken at answers and tales, and at some rows of questions."""

    def __init__(self, tok, tokens, seed):
        self.tok, self.tokens, self.rng = tok, tokens, random.Random(seed)
        self.user, self.assistant = tok.token_to_id(corpus.USER), tok.token_to_id(corpus.ASSISTANT)

    def next(self):
        sequences, total = [], 0
        while total < self.tokens:
            texts = [corpus.sample(self.rng) for _ in range(8)]
            for e in self.tok.encode_batch_fast(texts, add_special_tokens=False):
                sequences.append(e.ids)
                total += len(e.ids)
        batch = Batch(sequences)
        wanted = torch.ones(len(batch.ids), dtype=torch.bool)   # a question cannot be foretold: little loss inside it
        for start, ids in zip(batch.starts, batch.sequences):
            asking = False
            for j, t in enumerate(ids):
                asking = t == self.user or (asking and t != self.assistant)
                if asking and self.rng.random() < 0.8:
                    wanted[start + j] = False
        batch.wanted = wanted
        return batch


def losses(model, batch, gap):
    rows, mtp_rows = ((batch.wanted & (target >= 0)).nonzero().flatten() for target in (batch.next, batch.next2))
    logits, mtp, margins = model(batch, rows=rows, mtp_rows=mtp_rows)
    hinge = sum(F.relu(1 - m / gap).mean() for m in margins) / len(margins)
    return F.cross_entropy(logits, batch.next[rows]), F.cross_entropy(mtp, batch.next2[mtp_rows]), hinge, margins


def balance(bias, counts, speed):
    """bias, counts: [layers, experts]. Overloaded experts become less likely, without any loss."""
    bias += speed * torch.sign(counts.mean(1, keepdim=True) - counts)
    bias += 0.02 - bias.amin(1, keepdim=True)   # a common shift changes no choice, and keeps biased scores positive


def share_of(rank, model, a):
    """This rank's part of the parameters, and its optimiser: every second one, largest first."""
    order = sorted(model.p.keys(), key=lambda n: -model.p[n].numel())
    mine = order[rank::RANKS]
    return mine, torch.optim.AdamW([
        {"params": [model.p[n] for n in mine if model.p[n].dim() > 1], "weight_decay": 0.02},
        {"params": [model.p[n] for n in mine if model.p[n].dim() == 1], "weight_decay": 0}],
        lr=a.lr, betas=(0.9, 0.98), fused=True)


class Common:
    """What the ranks share: parameters, gradients per rank, routing loads per rank, biases, the clock, a barrier."""

    def __init__(self, model, context):
        self.params = {n: p.detach().clone().share_memory_() for n, p in model.p.items()}
        self.grads = [{n: torch.zeros_like(p).share_memory_() for n, p in self.params.items()} for _ in range(RANKS)]
        self.layers = sorted(model.bias)
        self.bias = torch.stack([model.bias[i] for i in self.layers]).share_memory_()
        self.counts = torch.zeros(RANKS, *self.bias.shape).share_memory_()
        self.squares = torch.zeros(RANKS, dtype=torch.float64).share_memory_()
        self.progress = torch.zeros(1, dtype=torch.float64).share_memory_()
        self.barrier = context.Barrier(RANKS)

    def bind(self, model, rank):
        for n, p in model.p.items():
            p.data, p.grad = self.params[n], self.grads[rank][n]
        model.bias = {i: self.bias[k] for k, i in enumerate(self.layers)}


def worker(rank, a, common):
    torch.set_num_threads(1)
    os.setsid()      # a session of its own: the scheduler shares the cores among sessions
    model, stream = TinyV3(), Stream(tokenizer.load(a.tokenizer), a.tokens // RANKS, a.seed * 1000 + rank)
    common.bind(model, rank)
    mine, opt = share_of(rank, model, a)
    for g in opt.param_groups:
        g["full_lr"] = g["lr"]
    masters = {}
    began, step, sums = time.time(), 0, torch.zeros(4)
    while True:
        if rank == 0:
            common.progress[0] = step / a.steps if a.steps else (time.time() - began) / (60 * a.minutes)
        common.barrier.wait()
        done = common.progress.item()
        if done >= 1:
            break
        finishing = done > 1 - a.finish
        pace = min(1, (step + 1) / 60) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for g in opt.param_groups:
            g["lr"] = g["full_lr"] * pace
        batch = stream.next()
        main_loss, mtp_loss, hinge, margins = losses(model, batch, a.gap)
        (main_loss + 0.3 * mtp_loss + a.gap_weight * hinge).backward()
        for k, i in enumerate(common.layers):
            common.counts[rank, k] = model.load[i]
        common.barrier.wait()
        with torch.no_grad():                      # each rank averages, clips and applies its own share
            for n in mine:
                model.p[n].grad = (common.grads[0][n] + common.grads[1][n]) / RANKS
            common.squares[rank] = sum(model.p[n].grad.double().pow(2).sum() for n in mine)
            common.barrier.wait()
            scale = min(1.0, 1.0 / (common.squares.sum().sqrt().item() + 1e-6))
            for n in mine:
                model.p[n].grad *= scale
            for n, exact in masters.items():       # the shared parameters hold stored values, their owner the exact ones
                model.p[n].copy_(exact)
            opt.step()
            if finishing:
                for n in mine:
                    masters[n] = model.p[n].detach().clone()
                    model.p[n].copy_(as_stored(n, masters[n]))
            for n, p in model.p.items():
                p.grad = common.grads[rank][n].zero_()
            if rank == 0 and not finishing:
                balance(common.bias, common.counts.sum(0), 0.002 * (1 - done))
        close = sum((m < 1e-3).float().mean().item() for m in margins) / len(margins)
        sums += torch.tensor([main_loss.item(), mtp_loss.item(), hinge.item(), close])
        step += 1
        if rank == 0 and step % EVERY == 0:
            c = common.counts.sum(0)
            print(f"{step:5d} {time.time() - began:6.0f}s pace {pace:.3f} main {sums[0] / EVERY:.4f} mtp "
                  f"{sums[1] / EVERY:.4f} hinge {sums[2] / EVERY:.4f} close {sums[3] / EVERY:.4f} busiest "
                  f"{(c.amax(1) / c.mean(1)).max():.1f}", flush=True)
            sums.zero_()
        if rank == 0 and step % 500 == 0:
            save(common, a.work / "train.pt")
    if rank == 0:
        save(common, a.work / "train.pt")
        print(f"{step} steps, {time.time() - began:.0f} s")


def save(common, path):
    torch.save({"params": common.params, "bias": {i: common.bias[k].clone() for k, i in enumerate(common.layers)}}, path)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("work", type=pathlib.Path)
    a.add_argument("--tokenizer", type=pathlib.Path, required=True)
    a.add_argument("--minutes", type=float, default=25)
    a.add_argument("--steps", type=int, default=0, help="exact number of steps instead of minutes")
    a.add_argument("--tokens", type=int, default=2048)
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--finish", type=float, default=0.12, help="share of the run that sees stored weights")
    a.add_argument("--gap", type=float, default=0.03)
    a.add_argument("--gap-weight", type=float, default=0.03)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--resume", type=pathlib.Path)
    a = a.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    model = TinyV3(seed=a.seed)
    if a.resume:
        data = torch.load(a.resume)
        model.bias = data["bias"]
        with torch.no_grad():
            for n, p in model.p.items():
                p.copy_(data["params"][n])
    context = torch.multiprocessing.get_context("spawn")
    common = Common(model, context)
    torch.multiprocessing.spawn(worker, (a, common), nprocs=RANKS)


if __name__ == "__main__":
    main()
