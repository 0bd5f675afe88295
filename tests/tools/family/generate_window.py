"""Writes the variants of DeepSeek-V4 in tests/data/family: a checkpoint each, tokens, the logits after every token, and those
of the MTP module after every third and in a chain of drafts.

    python generate_window.py ../../data/family [VARIANT ...]

The logits are those of window_reference.py (NumPy, float64); transformers, at once and token by token, must give the same
within 1e-10 (NMSE), or nothing is written; it has no MTP module. Seeds are tried until no decision is closer than 2e-5. What each part of the graph
contributes is measured by leaving it out, and is written to window.json.
"""
import json
import pathlib
import platform
import sys

import numpy as np
import torch
import transformers

import window_checkpoint
import window_hf
import window_reference

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import v4_checkpoint  # noqa: E402

MARGIN, AGREEMENT = 2e-5, 1e-10
TOKENS = 264  # over two blocks of 128, and over 4 x index_topk
CHAIN = 3     # drafts after the first

# The released file without its drafts, with small sizes.
FLASH = {
    **{key: value for key, value in v4_checkpoint.FLASH.items() if not key.startswith("dspark_")},
    "compress_ratios": [0, 128, 4, 128, 4, 4, 0], "head_dim": 32, "hidden_size": 64, "index_head_dim": 16, "index_n_heads": 16,
    "index_topk": 12, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hash_layers": 2, "num_hidden_layers": 6, "o_groups": 2, "o_lora_rank": 24, "q_lora_rank": 48, "qk_rope_head_dim": 8,
    "sliding_window": 24, "vocab_size": 256}
VARIANTS = {
    "v4": FLASH,
    # As Pro's a first layer with entries of 128; two streams, three groups of heads, experts of 160 columns.
    "v4-pro": {**FLASH, "compress_ratios": [128, 128, 4, 128, 4, 0], "num_hidden_layers": 5, "num_hash_layers": 3, "hc_mult": 2,
               "num_attention_heads": 6, "o_groups": 3, "o_lora_rank": 16, "hidden_size": 160, "moe_intermediate_size": 96,
               "n_routed_experts": 6, "num_experts_per_tok": 3, "index_topk": 20, "sliding_window": 16, "routed_scaling_factor": 2.5,
               "vocab_size": 192},
}


def effects(config, exact, tokens, logits):
    found = {}
    for part in window_reference.PARTS:
        found[part] = window_hf.nmse(window_reference.Reference(config, exact, [part]).run(tokens), logits)
    return found


def effects_on_drafts(config, exact, tokens, logits):
    return {part: window_hf.nmse(window_reference.Reference(config, exact, [part]).drafts(tokens), logits)
            for part in window_reference.MODULE_PARTS}


def find(config, number):
    for seed in range(1000 * number, 1000 * number + 200):
        made = window_checkpoint.Maker(config, seed).make()
        tokens = [int(token) for token in np.random.default_rng(seed).integers(0, config["vocab_size"], TOKENS + CHAIN)]
        tokens, chain = tokens[:TOKENS], tokens[TOKENS:]
        reference = window_reference.Reference(config, made.exact)
        logits, drafts = reference.run(tokens), reference.drafts(tokens, chain)
        print("seed", seed, "margins", reference.margin, reference.index_margin, flush=True)
        if min(reference.margin, reference.index_margin) >= MARGIN:
            return seed, made, tokens, logits, chain, drafts, reference
    raise SystemExit("no seed has such margins")


def main():
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(VARIANTS)
    report_path = folder / "window.json"
    report = json.loads(report_path.read_text()) if report_path.exists() else {}
    for number, name in enumerate(VARIANTS):
        if name not in wanted:
            continue
        config = VARIANTS[name]
        seed, made, tokens, logits, chain, drafts, reference = find(config, number + 1)
        model = window_hf.load(config, {key: value for key, value in made.exact.items() if not key.startswith("mtp.")})
        at_once = window_hf.nmse(window_hf.logits(model, tokens), logits)
        one_by_one = window_hf.nmse(window_hf.logits_one_by_one(model, tokens, 37), logits)
        print(name, "transformers at once", at_once, "one by one", one_by_one, flush=True)
        if max(at_once, one_by_one) > AGREEMENT:
            raise SystemExit("the references disagree")
        target = folder / name
        target.mkdir(exist_ok=True)
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        window_hf.safetensors_io.write(target / "model.safetensors", made.stored)
        of_thirds, of_chain = drafts[2:TOKENS - 1:3], drafts[TOKENS - 1:]
        window_hf.safetensors_io.write(target / "golden.safetensors", {
            "long.tokens": ("I32", [len(tokens)], np.array(tokens, "<i4").tobytes()),
            "long.logits": ("F32", list(logits.shape), logits.astype("<f4").tobytes()),
            "long.mtp_logits": ("F32", list(of_thirds.shape), of_thirds.astype("<f4").tobytes()),
            "long.chain_tokens": ("I32", [len(chain)], np.array(chain, "<i4").tobytes()),
            "long.chain_logits": ("F32", list(of_chain.shape), of_chain.astype("<f4").tobytes())})
        report[name] = {"seed": seed, "margin": reference.margin, "index_margin": reference.index_margin,
                        "nmse_of_transformers": at_once, "nmse_token_by_token": one_by_one,
                        "effects": effects(config, made.exact, tokens, logits),
                        "effects_on_drafts": effects_on_drafts(config, made.exact, tokens, drafts[:TOKENS - 1])}
        report["versions"] = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
                              "transformers": transformers.__version__}
        report_path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
