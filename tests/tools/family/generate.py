"""Writes tests/data/family: for each variant a checkpoint, prompts, the logits after every token, and of sparse attention
the chosen positions.

    python generate.py ../../data/family [VARIANT ...]

The logits are transformers' (FP32, dequantised weights); a second implementation (reference.py: NumPy, float64, from the
published equations) must give the same within 1e-10 (NMSE) and choose the same positions, or nothing is written. Prompts are
found token by token: a token is taken if no decision after it is closer than 1e-3. What each part of the graph contributes
is measured by leaving it out, and must be far above the tolerance of the test.
"""
import json
import pathlib
import platform
import sys

import numpy as np
import torch
import transformers

import checkpoint
import hf
import indexer
import reference
import variants

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import safetensors_io  # noqa: E402

MARGIN = 1e-3
SPARE = 1.2e-3  # what a token must show, so that the FP32 of transformers cannot fall below MARGIN
LENGTHS = {"long": 40, "short": 6}  # a variant may have a longer one
AGREEMENT = 1e-10  # NMSE of FP32 against float64; the test allows 1e-8
DRAFTS = 2  # after the first, as MTP modules are asked
EFFECT = 1e-5  # NMSE that a mistake in any part of the graph must cause at least


def nmse(got, wanted):
    return float(((got - wanted) ** 2).sum() / (wanted ** 2).sum())


def find_prompt(model, length, random):
    tokens, worst = [], float("inf")
    while len(tokens) < length:
        for token in random.permutation(model.c["vocab_size"]):
            margin = model.run([*tokens, token]).margin[-1]
            if margin >= SPARE:
                tokens.append(int(token))
                worst = min(worst, float(margin))
                break
        else:
            raise SystemExit("no token has the margin: another seed is needed")
    return tokens, worst


def index_parts(config, length):
    if not indexer.layer_types(config) or config["index_topk"] >= length:
        return []
    left_out = set() if config.get("rope_scaling") else {"index_yarn"}
    if "shared" not in indexer.layer_types(config):
        left_out |= {"sharing", "sharing_last"}
    left_out.add("sharing_drafts")  # of drafts alone: see chain
    return [part for part in indexer.PARTS if part not in left_out]


def parts_of(config, length):
    """What can be left out of this variant, and must be missed then."""
    parts = ["shared", "epsilon", "latent_epsilon"]
    if config["routed_scaling_factor"] != 1:
        parts.append("scale")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) == "yarn":
        parts += ["yarn", "mscale"]
    if rope.get("llama_4_scaling_beta"):
        parts.append("query_scale")
    if config.get("topk_method") == "noaux_tc":
        parts.append("bias")
    if config["norm_topk_prob"]:
        parts.append("normalise")
    if config.get("topk_method") != "greedy" and (config.get("n_group") or 1) > 1:
        parts.append("groups")
    return parts + index_parts(config, length)


def write(path, tensors, metadata=None):
    safetensors_io.write(path, tensors)
    assert safetensors_io.parse(path.read_bytes())[0].keys() == tensors.keys()


def choices_of(run, config):
    """{layer: [queries, index_topk] positions, ascending} of the queries that have a choice, as hf.py has them."""
    count = config.get("index_topk", 0)
    return {layer: np.array([np.flatnonzero(row) for row in chosen[count:]])
            for layer, chosen in run.choices.items() if len(chosen) > count}


def goldens(prompt, config, exact, theirs, tokens, mine):
    """({name: tensor}, facts) of one prompt, when both references agree."""
    golden, chosen = hf.logits(theirs, tokens)
    assert mine.margin.min() >= MARGIN and (golden.argmax(-1) == mine.logits.argmax(-1)).all()
    apart = nmse(golden.astype(np.float64), mine.logits)
    assert apart <= AGREEMENT, f"transformers and reference.py differ by {apart}"
    tensors = {prompt + ".tokens": ("I32", [len(tokens)], np.array(tokens, np.int32).tobytes()),
               prompt + ".logits": ("F32", list(golden.shape), golden.astype(np.float32).tobytes())}
    facts = {"name": prompt, "margin": round(float(mine.margin.min()), 6), "nmse_of_references": float(f"{apart:.2g}"),
             "experts_used": len({e for rows in mine.routes.values() for row in rows for e in row})}
    if mine.mtp is not None:
        module, more = hf.mtp_logits(theirs, config, exact, tokens)
        apart = nmse(module.astype(np.float64), mine.mtp)
        assert apart <= AGREEMENT and (module.argmax(-1) == mine.mtp.argmax(-1)).all(), f"MTP modules differ by {apart}"
        tensors[prompt + ".mtp_logits"] = ("F32", list(module.shape), module.astype(np.float32).tobytes())
        chosen, facts["mtp_nmse_of_references"] = {**chosen, **more}, float(f"{apart:.2g}")
    wanted = choices_of(mine, config)
    assert wanted.keys() == chosen.keys()
    for layer, positions in sorted(chosen.items()):
        assert (positions == wanted[layer]).all(), f"layer {layer}: the references choose otherwise"
        tensors[f"{prompt}.choices.{layer}"] = ("U16", list(positions.shape), positions.astype("<u2").tobytes())
    if chosen:
        facts["choices"] = sum(len(positions) for positions in chosen.values())
        facts["index_margin"] = round(float(mine.index_margin.min()), 6)
    return tensors, facts


def chain(naive, config, exact, tokens, random):
    """({name: tensor}, facts) of drafts after a prompt. Of the second reference alone: transformers does not share them."""
    drafts = []
    while len(drafts) < DRAFTS:
        for token in random.permutation(config["vocab_size"]):
            logits, margins = naive.chain(tokens, [*drafts, int(token)])
            if margins.min() >= SPARE:
                drafts.append(int(token))
                break
        else:
            raise SystemExit("no draft has the margin: another seed is needed")
    other = reference.Model(config, exact, ["sharing_drafts"]).chain(tokens, drafts)[0]
    tensors = {"long.chain_tokens": ("I32", [DRAFTS], np.array(drafts, np.int32).tobytes()),
               "long.chain_logits": ("F32", list(logits.shape), logits.astype(np.float32).tobytes())}
    changed = float(f"{nmse(other, logits):.2g}")
    return tensors, {"margin": round(float(margins.min()), 6), "changed_by_choices_of_their_own": changed}


def missed(config, exact, tokens, mine):
    """{part: NMSE of the logits without it}, {part of the indexer: share of the first layer's chosen positions that change}"""
    logits, choices = {}, {}
    for part in parts_of(config, len(tokens)):
        run = reference.Model(config, exact, [part]).run(tokens)
        logits[part] = float(f"{nmse(run.logits, mine.logits):.2g}")
        if part in indexer.PARTS and 0 in run.choices and not part.startswith("sharing"):
            wanted = mine.choices[0][config["index_topk"]:]
            choices[part] = float(f"{(wanted & ~run.choices[0][config['index_topk']:]).sum() / wanted.sum():.2g}")
    return logits, choices


def make(folder, name, how, seed):
    released = json.loads((folder / "configs" / (how["released"] + ".json")).read_text())
    config = variants.make_config(released, how["config"])
    kinds = reference.Model(config, {})
    made = checkpoint.Maker(config, how, seed).make(kinds.is_moe)
    naive, theirs = reference.Model(config, made.exact), hf.load(config, made.exact)
    random = np.random.default_rng(seed + 1)
    tensors, facts = {}, {"shows": how["shows"], "released": how["released"], "seed": seed, "prompts": []}
    for prompt, length in LENGTHS.items():
        tokens, _ = find_prompt(naive, how.get(prompt, length), random)
        mine = naive.run(tokens)
        more, about = goldens(prompt, config, made.exact, theirs, tokens, mine)
        tensors.update(more)
        facts["prompts"].append(about)
        if prompt == "long":
            facts["missed"], choices = missed(config, made.exact, tokens, mine)
            facts.update({"choices_changed": choices} if choices else {})
            if mine.mtp is not None:
                more, facts["chain"] = chain(naive, config, made.exact, tokens, np.random.default_rng(seed + 2))
                tensors.update(more)
    assert min(facts["missed"].values()) >= EFFECT, f"{name}: {facts['missed']}"
    out = folder / name
    out.mkdir(parents=True, exist_ok=True)
    write(out / "model.safetensors", made.stored)
    write(out / "golden.safetensors", tensors)
    (out / "config.json").write_text(json.dumps(variants.wrap(config, how), indent=2) + "\n")
    size = sum(path.stat().st_size for path in out.iterdir())
    print(f"{name}: {size} bytes, {facts['prompts'][0]}, {facts['missed']}", flush=True)
    return facts


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    index = folder / "family.json"
    before = json.loads(index.read_text()) if index.exists() else {"variants": {}}
    known, versions = before["variants"], {
        "python": platform.python_version(), "torch": torch.__version__.split("+")[0], "numpy": np.__version__,
        "transformers": transformers.__version__}
    of_all = versions if not sys.argv[2:] else before.get("versions", versions)
    for number, (name, how) in enumerate(variants.VARIANTS.items()):
        if not sys.argv[2:] or name in sys.argv[2:]:
            known[name] = {**make(folder, name, how, 1000 + number), **({} if versions == of_all else {"versions": versions})}
    facts = {"logits": "transformers, FP32, eager attention",
             "second_reference": "tests/tools/family/reference.py (NumPy, float64, DeepSeek's published equations)",
             "versions": of_all,
             "margin": MARGIN, "variants": {name: known[name] for name in variants.VARIANTS if name in known}}
    index.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
