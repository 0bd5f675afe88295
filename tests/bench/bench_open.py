#!/usr/bin/env python3
"""Opening a packed repository with as many files and tensors as DeepSeek-V3's: seconds, memory, open files.

    tests/bench/bench_open.py --work SCRATCH [--repeat 5]

The weights are V3's in number and name (91,991 tensors, 15,168 files, 15,104 experts) and tiny in size, so that little but
opening is measured. `dsrun logits` of one token reads manifest and config, plans every expert's place, loads what is always
needed and reads the first experts of all layers: an upper bound of "ready to read the first expert". Then a longer prompt
goes through under several limits of open files, and the most that were open at once is watched.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_support as bench

TINY = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "kv_lora_rank": 16, "q_lora_rank": 16,
        "num_attention_heads": 2, "num_key_value_heads": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
        "vocab_size": 1024}


def prepare(arguments):
    packed = arguments.work / "packed-tiny"
    if not (packed / "manifest.json").exists():
        source = arguments.work / "source-tiny"
        settings = [word for key, value in TINY.items() for word in ("--set", "%s=%d" % (key, value))]
        subprocess.run([sys.executable, bench.ROOT / "tests" / "tools" / "v3_checkpoint.py", source, "--shards", "163",
                        "--payload", "random", *settings], check=True)
        subprocess.run([arguments.reshard, source, "--by", "expert", "--out", packed], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return packed


def logits(arguments, packed, tokens):
    return [arguments.dsrun, "logits", packed, "--tokens", ",".join(map(str, tokens)), "--ctx", "256", "--out", os.devnull]


def timed(command):
    """(seconds, processor seconds, largest resident bytes), by GNU time."""
    with tempfile.NamedTemporaryFile("r") as report:
        subprocess.run(["time", "-q", "-f", "%e %U %S %M", "-o", report.name, *map(str, command)], check=True,
                       stdout=subprocess.DEVNULL)
        wall, user, system, kilobytes = map(float, report.read().split())
    return wall, user + system, kilobytes * 1024


def most_open(command, limit):
    """Most descriptors of the command at once, looked at every few milliseconds."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    most = 0
    while process.poll() is None:
        try:
            most = max(most, len(os.listdir("/proc/%d/fd" % process.pid)))
        except FileNotFoundError:
            pass
        time.sleep(0.002)
    if process.returncode != 0:
        sys.exit("dsrun failed under a limit of %d open files" % limit)
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--reshard", type=Path, default=bench.ROOT / "build" / "reshard" / "reshard")
    parser.add_argument("--dsrun", type=Path, default=bench.ROOT / "build" / "runtime" / "dsrun")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    packed = prepare(arguments)
    print("\n".join(bench.facts(arguments.work)))
    print("manifest     %.1f MB\n" % ((packed / "manifest.json").stat().st_size / 1e6))
    runs = [timed(logits(arguments, packed, [1])) for _ in range(arguments.repeat)]
    print("one token    %.2f s (%.2f to %.2f), %.2f s of the processor, %.0f MB resident" % (
        statistics.median(run[0] for run in runs), min(run[0] for run in runs), max(run[0] for run in runs),
        statistics.median(run[1] for run in runs), max(run[2] for run in runs) / 1e6))
    for limit in (1024, 256, 64):
        print("256 tokens   limit of %4d open files: %d at most" % (
            limit, most_open(logits(arguments, packed, range(256)), limit)), flush=True)


if __name__ == "__main__":
    main()
