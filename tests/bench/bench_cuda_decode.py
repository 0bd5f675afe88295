#!/usr/bin/env python3
"""Decoding on a GPU that holds the whole model, beside its floor: the bytes that a token reads over the card's measured
copy bandwidth.

    tests/tools/v3_checkpoint.py V3ISH --set num_hidden_layers=6 --payload random       34 GB: 3 dense layers, 3 of experts
    tests/bench/bench_cuda_decode.py --build build V3ISH
    tests/bench/bench_cuda_decode.py --build build --precision bf16 --positions 32 2048 8192 V3ISH

For each precision and each prompt length: `dsrun DIR --tokens ... -n N --device cuda --stats`, several rounds, the median.
    floor, ms     (output head + layers + a token's routed experts + latent cache at the middle position) / bandwidth
    of floor      floor / measured: 100 % is the memory's speed
Bytes are what `dsrun plan --json` says of this folder, the bandwidth what bench_cuda measures in the same run. Time of
decoding is that of --stats: without loading and without the prompt. The standard library is all it needs.
"""
import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PRECISIONS = ("exact", "split", "bf16", "fp8")
CACHES = ("f32", "bf16", "f16", "fp8")
COPY = re.compile(r"^copy bandwidth: ([0-9.]+) GB/s$", re.MULTILINE)


def run(*command):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True)
    if done.returncode == 77:
        print(done.stdout + done.stderr, file=sys.stderr)
        sys.exit(77)
    if done.returncode != 0:
        sys.exit("bench_cuda_decode.py: %s failed:\n%s%s" % (command[0], done.stdout, done.stderr))
    return done.stdout


def copy_bandwidth(args, library):
    """GB/s, and what the card is called."""
    said = run(args.build / "tests/bench/bench_cuda", "--only", "small", *args.bench_flags, *library)
    return float(COPY.search(said).group(1)), said.splitlines()[0]


def cache_row_bytes(config, cache):
    """Of one position of one layer (kernels/latent_rows.h)."""
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if cache != "fp8":
        return (latent + rope) * (4 if cache == "f32" else 2)
    return sum(-(-part // 16) * 16 for part in (latent, -(-latent // 128) * 4, 2 * rope))


def bytes_of_token(args, choice, position):
    """What a token that stands at this position reads."""
    plan = json.loads(run(args.dsrun, "plan", args.folder, "--json", *choice))["memory"]
    held = plan["vram"]["bytes"]
    config = json.loads((args.folder / "config.json").read_text())
    cache = cache_row_bytes(config, args.kv_dtype) * config["num_hidden_layers"] * position
    return held["head"] + held["layers"] + plan["token_bytes"] + cache


def milliseconds(args, choice, prompt, stats_file):
    numbers = random.Random(prompt)
    vocab = json.loads((args.folder / "config.json").read_text())["vocab_size"]
    ids = ",".join(str(numbers.randrange(2, vocab)) for _ in range(prompt))
    run(args.dsrun, args.folder, "--tokens", ids, "-n", args.tokens, "--stats", stats_file, *choice)
    decode = json.loads(stats_file.read_text())["decode"]
    return 1000 * decode["seconds"] / decode["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build"), help="a release build (default: build)")
    parser.add_argument("--cuda-library", help="the CUDA library to load, if not the program's own")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--kv-dtype", choices=CACHES, default="bf16")
    parser.add_argument("--positions", nargs="+", type=int, default=[32, 1024, 8192], help="lengths of the prompts")
    parser.add_argument("--tokens", type=int, default=64, help="to decode each time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mtp", default="off", help="as dsrun's --mtp (default: off)")
    parser.add_argument("--bench-flags", nargs="*", default=[], help="for bench_cuda, without dashes: quick")
    args = parser.parse_args()
    args.bench_flags = ["--" + flag for flag in args.bench_flags]
    args.dsrun = args.build / "runtime/dsrun"
    library = ("--dev", "cuda-library=%s" % args.cuda_library) if args.cuda_library else ()
    bandwidth, card = copy_bandwidth(args, ("--cuda-library", args.cuda_library) if args.cuda_library else ())
    print("%s\ncopy bandwidth %.1f GB/s; %s, cache %s, --mtp %s, %d tokens, median of %d rounds" % (
        card, bandwidth, args.folder, args.kv_dtype, args.mtp, args.tokens, args.rounds))
    print("| precision | prompt | bytes a token | floor, ms | measured, ms | lowest to highest | of floor |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for precision in args.precision:
            if precision == "split" and args.kv_dtype != "bf16":
                continue  # it takes no other
            for prompt in args.positions:
                choice = ("--device", args.device, "--precision", precision, "--kv-dtype", args.kv_dtype, "--ctx",
                          prompt + args.tokens, "--mtp", args.mtp, *library)
                times = [milliseconds(args, choice, prompt, Path(scratch) / "stats.json") for _ in range(args.rounds)]
                size = bytes_of_token(args, choice, prompt + args.tokens // 2)
                floor, median = size / bandwidth / 1e6, statistics.median(times)
                print("| %s | %d | %.3f GB | %.3f | %.3f | %.3f to %.3f | %.1f %% |" % (
                    precision, prompt, size / 1e9, floor, median, min(times), max(times), 100 * floor / median),
                      flush=True)


if __name__ == "__main__":
    main()
