"""Greedy continuation of many prompts at once with the training model (no cache: the batch is read again each step)."""
import torch

from model import Batch

EOS = 1


def last_rows(batch):
    """For each input sequence, in input order, its last row in the flat batch."""
    rows = [0] * len(batch.sequences)
    for k, (start, ids) in enumerate(zip(batch.starts, batch.sequences)):
        rows[batch.order[k]] = start + len(ids) - 1
    return rows


@torch.no_grad()
def continuations(model, prompts, limit, chunk=150):
    """Token lists -> the lists of tokens that follow, up to and with EOS, at most `limit`."""
    out = []
    for at in range(0, len(prompts), chunk):
        part = prompts[at:at + chunk]
        more, active = [[] for _ in part], list(range(len(part)))
        for _ in range(limit):
            batch = Batch([part[i] + more[i] for i in active])
            logits = model(batch, mtp=False)[0]
            for i, token in zip(active, logits[last_rows(batch)].argmax(-1).tolist()):
                more[i].append(token)
            active = [i for i in active if more[i][-1] != EOS]
            if not active:
                break
        out += more
    return out
