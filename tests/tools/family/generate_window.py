"""Writes the variants of DeepSeek-V4 in tests/data/family: a checkpoint each, tokens, the logits after every token, and those
of the MTP module after every third and in a chain of drafts, or those of DSpark's blocks after some tokens.

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
BLOCKS = [0, 1, 2, 5, 22, 23, 24, 25, 100, 126, 127, 128, 129, 200, 257, 258]  # positions after which one is drafted

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
    # Since July: stages that read three layers, not the last ones, in an order of their own.
    "v4-dspark": {**FLASH, "compress_ratios": [0, 4, 128, 4, 0, 0, 0], "num_hidden_layers": 4, "n_routed_experts": 6,
                  "dspark_block_size": 5, "dspark_noise_token_id": 255, "dspark_target_layer_ids": [3, 1, 2], "dspark_markov_rank": 24},
}


def effects(config, exact, tokens, logits):
    found = {}
    for part in window_reference.PARTS:
        found[part] = window_hf.nmse(window_reference.Reference(config, exact, [part]).run(tokens), logits)
    return found


def effects_on_drafts(config, exact, tokens, logits):
    return {part: window_hf.nmse(window_reference.Reference(config, exact, [part]).drafts(tokens), logits)
            for part in window_reference.MODULE_PARTS}


def effects_on_blocks(config, exact, tokens, wanted):
    return {part: window_hf.nmse(window_reference.Reference(config, exact, [part]).blocks(tokens, BLOCKS)[0], wanted)
            for part in window_reference.STAGE_PARTS}


def drafts_of(reference, tokens, chain):
    """Tensors of the golden, beside tokens and logits."""
    if "dspark_block_size" in reference.c:
        logits, confidence = reference.blocks(tokens, BLOCKS)
        return {"long.block_positions": np.array(BLOCKS, "<i4"), "long.block_logits": logits.astype("<f4"),
                "long.block_confidence": confidence.astype("<f4")}
    logits = reference.drafts(tokens, chain)
    return {"long.mtp_logits": logits[2:TOKENS - 1:3].astype("<f4"), "long.chain_tokens": np.array(chain, "<i4"),
            "long.chain_logits": logits[TOKENS - 1:].astype("<f4")}


def find(config, number):
    for seed in range(1000 * number, 1000 * number + 200):
        made = window_checkpoint.Maker(config, seed).make()
        tokens = [int(token) for token in np.random.default_rng(seed).integers(0, config["vocab_size"], TOKENS + CHAIN)]
        tokens, chain = tokens[:TOKENS], tokens[TOKENS:]
        reference = window_reference.Reference(config, made.exact)
        logits, drafts = reference.run(tokens), drafts_of(reference, tokens, chain)
        print("seed", seed, "margins", reference.margin, reference.index_margin, flush=True)
        if min(reference.margin, reference.index_margin) >= MARGIN:
            return seed, made, tokens, logits, drafts, reference
    raise SystemExit("no seed has such margins")


def stored(values):
    return ("I32" if values.dtype == np.dtype("<i4") else "F32", list(values.shape), values.tobytes())


def main():
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(VARIANTS)
    report_path = folder / "window.json"
    report = json.loads(report_path.read_text()) if report_path.exists() else {}
    for number, name in enumerate(VARIANTS):
        if name not in wanted:
            continue
        config = VARIANTS[name]
        seed, made, tokens, logits, drafts, reference = find(config, number + 1)
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
        window_hf.safetensors_io.write(target / "golden.safetensors", {
            "long.tokens": stored(np.array(tokens, "<i4")), "long.logits": stored(logits.astype("<f4")),
            **{key: stored(values) for key, values in drafts.items()}})
        report[name] = {"seed": seed, "margin": reference.margin, "index_margin": reference.index_margin,
                        "nmse_of_transformers": at_once, "nmse_token_by_token": one_by_one,
                        "effects": effects(config, made.exact, tokens, logits)}
        if "dspark_block_size" in config:
            report[name]["effects_on_drafts"] = effects_on_blocks(config, made.exact, tokens, drafts["long.block_logits"])
        else:
            wanted = window_reference.Reference(config, made.exact).drafts(tokens)
            report[name]["effects_on_drafts"] = effects_on_drafts(config, made.exact, tokens, wanted)
        report["versions"] = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
                              "transformers": transformers.__version__}
        report_path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
