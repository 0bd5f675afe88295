"""Chooses prompts whose every decision has a margin, and writes the golden files.

    python goldens.py ../../data/tiny-v3 ../../data/tiny-v3-golden

Logits, continuations and activations come from transformers (FP32, dequantised weights, eager attention), MTP logits
and router choices from reference.py (and transformers' own MTP block agrees). Asserted for every prompt: no group choice, expert choice (all MoE layers and the
MTP module, every position fed) nor argmax (main and MTP, every position) is closer than 1e-3; no biased score is
negative; training code, reference and transformers agree; transformers' own generate() gives the same continuation.
"""
import json
import pathlib
import platform
import random
import sys

import torch
from safetensors.torch import save_file

import checkpoint
import corpus
import dequantise_patch
import greedy
import reference
import tokenizer
import transformers_mtp
from model import Batch

MARGIN = 1e-3
SPARE = 1.3e-3        # what a candidate must show, so that the assertions below do not sit on the edge
TOKENS = 340          # of all prompts together: bounds the size of the files


def chat(turns, system=""):
    """(rendered text, user's last text, right answer or None)"""
    return corpus.render(turns[:-1] + [(turns[-1][0], None)], system), turns[-1][0], turns[-1][1]


def candidates():
    """Category -> candidates, the most natural first; the first one with margins is taken."""
    r, out = random.Random(5), {}

    def tales(low, high, count):
        for _ in range(count):
            yield corpus.BOS + corpus.tale(r), None, (low, high)
    ask = lambda task: chat([corpus.question(r, task)[1:]])
    out["capital"] = [chat([(f"What is the capital of {c}?", f"The capital of {c} is {v}.")])
                      for c, v in corpus.CAPITALS.items()]
    out["sum"] = [chat([(f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}.")])
                  for a, b in [(12, 7)] + [(r.randint(0, 30), r.randint(0, 10)) for _ in range(150)]]
    out["difference"] = [ask("subtraction") for _ in range(150)]
    out["counting"] = [ask("counting") for _ in range(150)]
    out["animal"] = [ask("animals") for _ in range(150)]
    out["system"] = [chat([corpus.question(r, "capitals")[1:]], corpus.SYSTEM_PROMPTS[0]) for _ in range(100)]
    out["memory"] = [chat(corpus.memory(r)) for _ in range(250)]
    out["tale-start"] = list(tales(10, 20, 200))
    out["tale-middle"] = list(tales(26, 40, 200))
    out["tale-end"] = list(tales(44, 60, 200))
    return out


@torch.no_grad()
def margins(model, sequences):
    """Per sequence, the smallest routing or argmax margin over all its rows (the MTP module's last row is not one)."""
    model.record = []
    batch = Batch(sequences)
    logits, mtp, _ = model(batch)
    smallest = torch.full((len(batch.ids),), float("inf"))
    drafts = batch.next >= 0
    for layer, choice, _, gap in model.record:
        assert choice.min() >= 0
        smallest = torch.where(drafts | (layer < model.s.layers), torch.minimum(smallest, gap), smallest)
    for x, rows in ((logits, torch.ones_like(drafts)), (mtp, drafts)):
        best = x.topk(2, -1).values
        smallest = torch.where(rows, torch.minimum(smallest, best[:, 0] - best[:, 1]), smallest)
    model.record = None
    out = [0.0] * len(sequences)
    for k, (start, ids) in enumerate(zip(batch.starts, batch.sequences)):
        out[batch.order[k]] = smallest[start:start + len(ids)].min().item()
    return out


def pick(model, tok):
    """One prompt per category, with its continuation; a tale is cut anywhere, and not run to its end."""
    chosen, spent, r = [], 0, random.Random(6)
    for name, options in candidates().items():
        raw = name.startswith("tale")
        rows = []
        for text, user, answer in options:
            ids = tok.encode(text, add_special_tokens=False).ids
            for n in ([len(ids)] if not raw else range(answer[0], min(answer[1], len(ids) - 8), 3)):
                rows.append((ids[:n], user, None if raw else answer + corpus.EOS))
        if raw:
            r.shuffle(rows)
        for at in range(0, len(rows), 24):
            part = rows[at:at + 24]
            more = greedy.continuations(model, [p for p, _, _ in part], 14 if raw else 45)
            whole = [(p + m)[:-1] for (p, _, _), m in zip(part, more)]
            found = margins(model, whole)
            good = [i for i, m in enumerate(found) if m >= SPARE and spent + len(whole[i]) <= TOKENS and
                    (raw or tok.decode(more[i], skip_special_tokens=False) == part[i][2])]
            if good:
                i = good[0]
                spent += len(whole[i])
                chosen.append({"name": name, "text": tok.decode(part[i][0], skip_special_tokens=False),
                               "user": part[i][1], "token_ids": part[i][0], "continuation_ids": more[i],
                               "continuation_text": tok.decode(more[i], skip_special_tokens=False),
                               "ends_with_eos": more[i][-1] == greedy.EOS, "logits_tokens": whole[i]})
                break
        print(f"{name}: {len(good)} of the last {len(part)} candidates have the margins ({at} read before)", flush=True)
    assert len(chosen) >= 6 and max(len(p["token_ids"]) for p in chosen) >= 24
    return chosen


def gate_margins(hf, seen):
    """From transformers' own router logits: the smallest margin of group and expert choices; and no negative score."""
    c, smallest = hf.config, float("inf")
    for gate, (router_logits, _, ids) in seen:
        choice = router_logits.sigmoid() + gate.e_score_correction_bias
        assert choice.min() >= 0
        groups = choice.view(len(choice), c.n_group, -1)
        sums = groups.topk(2, -1).values.sum(-1).topk(c.topk_group + 1, -1)
        keep = torch.zeros(len(choice), c.n_group).scatter(1, sums.indices[:, :-1], 1).bool()
        best = groups.masked_fill(~keep[..., None], float("-inf")).flatten(1).topk(c.num_experts_per_tok + 1, -1)
        assert torch.equal(best.indices[:, :-1].sort(-1).values, ids.sort(-1).values)
        for v in (sums.values, best.values):
            smallest = min(smallest, (v[:, -2] - v[:, -1]).min().item())
    return smallest


@torch.no_grad()
def golden(hf, hf_mtp, weights, model, p):
    """Logits (transformers), reference results and activations of one prompt, everything checked against everything."""
    seen, states, hooks = [], {}, []
    for i, layer in enumerate(hf.model.layers):
        keep = lambda m, a, out, i=i: states.update({f"layer.{i}": (out if torch.is_tensor(out) else out[0])[0]})
        hooks.append(layer.register_forward_hook(keep))
        if hasattr(layer.mlp, "gate"):
            hooks.append(layer.mlp.gate.register_forward_hook(lambda m, a, out: seen.append((m, out))))
    hooks.append(hf.model.norm.register_forward_hook(lambda m, a, out: states.update(final_norm=out[0])))
    hooks.append(hf.model.embed_tokens.register_forward_hook(lambda m, a, out: states.update(embed=out[0])))
    logits = hf(torch.tensor([p["logits_tokens"]]), use_cache=False).logits[0].float()
    for h in hooks:
        h.remove()
    ref = reference.run(weights, p["logits_tokens"])
    trained, trained_mtp, _ = model(Batch([p["logits_tokens"]]))
    apart = {"reference/transformers": (ref["logits"] - logits).abs().max(),
             "training/transformers": (trained - logits).abs().max(),
             "training/reference, MTP": (trained_mtp[:-1] - ref["mtp"]).abs().max(),
             "reference/transformers, MTP": (transformers_mtp.logits(hf, hf_mtp, p["logits_tokens"]) -
                                             ref["mtp"]).abs().max(),
             "activations": max((h - states[n]).abs().max() for n, h in
                                zip(["embed"] + [f"layer.{i}" for i in range(len(hf.model.layers))], ref["hidden"]))}
    assert max(apart.values()) < 2e-4, apart
    n = len(p["token_ids"])
    assert logits[n - 1:].argmax(-1).tolist() == p["continuation_ids"]
    out = hf.generate(torch.tensor([p["token_ids"]]), max_new_tokens=len(p["continuation_ids"]), do_sample=False,
                      temperature=None, top_p=None, eos_token_id=greedy.EOS, pad_token_id=2)
    assert out[0, n:].tolist() == p["continuation_ids"], "transformers' generate()"
    tops = [x.topk(2, -1).values for x in (logits, ref["mtp"])]
    smallest = min([gate_margins(hf, seen), ref["margin"]] + [(t[:, 0] - t[:, 1]).min().item() for t in tops])
    assert smallest >= MARGIN, (p["name"], smallest)
    drafts = ref["mtp"][n - 1:].argmax(-1).tolist()
    p["mtp_drafts"], p["smallest_margin"] = drafts, round(smallest, 6)
    print(f"{p['name']}: {n}+{len(p['continuation_ids'])} tokens, margin {smallest:.5f}, drafts accepted "
          f"{sum(a == b for a, b in zip(drafts, p['continuation_ids'][1:]))}/{len(drafts)}, apart "
          f"{ {k: f'{v:.1e}' for k, v in apart.items()} } {p['continuation_text']!r}")
    return logits, ref, states


def versions():
    import safetensors
    import tokenizers
    import transformers
    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__, "safetensors": safetensors.__version__}


def main(folder, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    model, tok = checkpoint.training_model(folder), tokenizer.load(folder)
    prompts = pick(model, tok)
    hf, weights = dequantise_patch.load(folder), reference.Weights(folder)
    hf_mtp = transformers_mtp.build(hf, checkpoint.dequantised(folder))
    logits, mtp, acts = {}, {}, {}
    for p in prompts:
        logits[p["name"]], ref, states = golden(hf, hf_mtp, weights, model, p)
        mtp[p["name"]] = ref["mtp"]
        if p["name"] == prompts[0]["name"]:
            acts = {n: t.float().clone() for n, t in states.items()}
            first = hf.config.first_k_dense_replace
            acts.update({f"router.{first + k}.ids": t for k, t in enumerate(ref["router"])})
            acts["mtp.projected"], acts["mtp.layer"] = ref["mtp_states"]
    about = {
        "logits.safetensors": "per prompt F32 [len(logits_tokens), vocab]: transformers' logits when logits_tokens "
                              "(token_ids, then continuation_ids without the last) are fed at once",
        "mtp.safetensors": "per prompt F32 [len(logits_tokens) - 1, vocab]: row i reads the embedding of token i+1 "
                           "and the main model's hidden state of token i after the final norm; foretells token i+2",
        "mtp_drafts": "argmax of the MTP rows from the prompt's last token on; compare with continuation_ids[1:]",
        "smallest_margin": "over all routing decisions (biased scores, sums of two) and all argmax decisions (logits)",
        "activations.safetensors": f"prompt '{prompts[0]['name']}', all of logits_tokens: embed, layer.<i> after "
                                   "each decoder layer, final_norm, router.<i>.ids (best biased score first; the MTP "
                                   "module's has one row less), mtp.projected (after eh_proj), mtp.layer"}
    save_file({k: v.contiguous() for k, v in logits.items()}, out / "logits.safetensors")
    save_file({k: v.contiguous() for k, v in mtp.items()}, out / "mtp.safetensors")
    save_file({k: v.contiguous() for k, v in acts.items()}, out / "activations.safetensors")
    for file in out.glob("*.safetensors"):
        file.chmod(0o644)            # save_file makes them private
    text = json.dumps({"versions": versions(), "about": about, "margin": MARGIN, "prompts": prompts},
                      ensure_ascii=False, indent=1)
    (out / "prompts.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
