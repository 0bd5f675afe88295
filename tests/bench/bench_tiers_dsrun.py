#!/usr/bin/env python3
"""dsrun on a GPU whose memory holds some of the experts: a token's time beside the bound of the same run, drafts against
none, with and without prefetch.

    tests/tools/v3_checkpoint.py V3ISH --set num_hidden_layers=5 --payload random     44 GB: 3 dense layers, 2 of experts, MTP
    tests/bench/bench_tiers_dsrun.py --build build V3ISH
    tests/bench/bench_tiers_dsrun.py --build build --vram-experts 50% 12% --experts 100% 40% --miss move auto V3ISH

Every combination runs in every round, those that differ in --mtp alone right behind each other. Figures are medians of the
rounds, from --stats: decoding without loading and without the prompt, which warms the tiers (--prompt: random ids; 512 of
them ask for nearly every expert of V3).
    ratio       seconds / experts.decode_bound (wanted: at most 1.10)
    of off      time of a token / that with --mtp off in the same round (wanted of auto: at most 1.03)
On random weights no draft stands, which is the worst that can happen to --mtp auto; what drafts gain wants a real model.
Where the GPU alone computes (--miss move, or auto with --deterministic), the greedy text of all runs must be the same; with
--against-cpu (small models, --precision exact) every text must be the CPU's. Status 1 if not, 77: no GPU. The standard library
is all it needs.
"""
import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DECODE_GOAL, MTP_GOAL = 1.10, 1.03
HEADING = ("VRAM", "RAM", "miss", "prefetch", "mtp", "ms/token", "low to high", "bound, ms", "ratio", "of off", "hits %",
           "copies/t", "by CPU/t", "disk/t", "MB up/t", "link, GB/s", "CPU, GB/s", "wait ms/t", "drafts")


class Run:
    """What one run said."""

    def __init__(self, text, stats):
        self.text = text
        decode, experts = stats["decode"], stats["experts"]
        self.tokens = max(1, decode["tokens"])
        self.seconds = decode["seconds"] / self.tokens
        self.bound = experts["decode_bound"]["seconds"] / self.tokens
        self.ratio = experts["decode_bound"]["ratio"]
        self.host = experts["decode"]
        tier = experts.get("vram")
        if tier is None:
            sys.exit("bench_tiers_dsrun.py: the GPU holds every expert: give fewer with --vram-experts")
        self.tier = tier["decode"]
        self.up = self.tier["moved_bytes"] + self.tier["promoted_bytes"] + tier["prefetch"]["bytes"]
        self.link, self.cpu = tier["link_bytes_per_second"] / 1e9, tier["cpu_bytes_per_second"] / 1e9
        self.drafted = stats["mtp"]["drafted"] if "mtp" in stats else 0

    @property
    def hit_percent(self):
        demands = sum(self.tier[name] for name in ("hits", "late", "moved", "computed"))
        return 100 * (self.tier["hits"] + self.tier["late"]) / max(1, demands)

    def a_token(self, count):
        return count / self.tokens


def run(args, flags, scratch):
    stats = Path(scratch) / "stats.json"
    command = [*command_of(args), "--device", args.device, "--precision", args.precision, "--stats", stats, *flags]
    if args.cuda_library:
        command += ["--dev", "cuda-library=%s" % args.cuda_library]
    return Run(said_by(command), json.loads(stats.read_text()))


def command_of(args):
    return [args.dsrun or args.build / "runtime/dsrun", args.folder, "--tokens", args.ids, "-n", args.tokens, "--temp", 0,
            "--ctx", args.prompt + args.tokens + 8]


def said_by(command):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True)
    if done.returncode != 0 and is_without_gpu(done.stderr):
        print("SKIPPED: bench_tiers_dsrun.py measured nothing: " + done.stderr.strip(), file=sys.stderr)
        sys.exit(77)
    if done.returncode != 0:
        sys.exit("bench_tiers_dsrun.py: %s failed:\n%s%s" % (" ".join(map(str, command)), done.stdout, done.stderr))
    return done.stdout


def is_without_gpu(said):
    return any(words in said for words in ("this machine has no NVIDIA driver", "this build has no CUDA library",
                                           "the NVIDIA driver shows no GPU", "libdspack_cuda.so is not in"))


def row(case, runs, over_off):
    def of(value):
        return statistics.median(value(one) for one in runs)
    times = [1e3 * one.seconds for one in runs]
    return (*case, "%.3f" % statistics.median(times), "%.3f to %.3f" % (min(times), max(times)),
            "%.3f" % (1e3 * of(lambda one: one.bound)), "%.3f" % of(lambda one: one.ratio),
            "-" if over_off is None else "%.3f" % over_off, "%.1f" % of(lambda one: one.hit_percent),
            "%.2f" % of(lambda one: one.a_token(one.tier["moved"])),
            "%.2f" % of(lambda one: one.a_token(one.tier["computed"])),
            "%.2f" % of(lambda one: one.a_token(one.host["misses"])), "%.1f" % (of(lambda one: one.a_token(one.up)) / 1e6),
            "%.2f" % of(lambda one: one.link), "%.2f" % of(lambda one: one.cpu),
            "%.3f" % (1e3 * of(lambda one: one.a_token(one.tier["waiting_seconds"]))), "%d" % of(lambda one: one.drafted))


def measure(args, scratch):
    """{combination: runs}"""
    shared = list(itertools.product(args.vram_experts, args.experts, args.miss, args.prefetch))
    runs = {(*each, mtp): [] for each in shared for mtp in args.mtp}
    for number in range(args.rounds):
        for vram, ram, miss, prefetch in shared:
            # In turn from the other end, so that none always comes first.
            for mtp in args.mtp if number % 2 == 0 else reversed(args.mtp):
                flags = ["--vram-experts", vram, "--experts", ram, "--dev", "miss=%s" % miss, "--dev", "prefetch=%s" % prefetch, "--mtp", mtp]
                flags += ["--deterministic"] if args.deterministic else []
                runs[vram, ram, miss, prefetch, mtp].append(run(args, flags, scratch))
    return runs


def over_off(runs, case):
    off = runs.get((*case[:4], "off"))
    if off is None or case[4] == "off":
        return None
    return statistics.median(one.seconds / other.seconds for one, other in zip(runs[case], off))


def report(args, runs):
    print("| %s |\n|%s" % (" | ".join(HEADING), "---|" * len(HEADING)))
    for case, some in runs.items():
        print("| %s |" % " | ".join(row(case, some, over_off(runs, case))))
    worst = max(statistics.median(one.ratio for one in some) for some in runs.values())
    print("\nlargest ratio to the bound: %.3f (wanted: at most %.2f)" % (worst, DECODE_GOAL))
    autos = [over_off(runs, case) for case in runs if case[4] == "auto" and over_off(runs, case) is not None]
    if autos:
        print("--mtp auto: largest share of the time without drafts: %.3f (wanted: at most %.2f)" % (max(autos), MTP_GOAL))


def is_text_right(args, runs):
    texts = {one.text for some in runs.values() for one in some}
    if args.against_cpu:
        texts.add(said_by([*command_of(args), "--device", "cpu"]))
    elif "compute" in args.miss or ("auto" in args.miss and not args.deterministic):
        print("texts: not compared, for the CPU's sums have another order")
        return True
    print("texts%s: %s" % (" and the CPU's" if args.against_cpu else "",
                           "all alike" if len(texts) == 1 else "%d DIFFERENT ONES" % len(texts)))
    return len(texts) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build"), help="a release build (default: build)")
    parser.add_argument("--dsrun", type=Path, help="the program, if not that of --build")
    parser.add_argument("--cuda-library", help="the CUDA library to load, if not the program's own")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--precision", default="exact", choices=("exact", "split", "bf16", "fp8"))
    parser.add_argument("--vram-experts", nargs="+", default=["50%", "25%", "12%"])
    parser.add_argument("--experts", nargs="+", default=["100%", "40%"], help="in the host's memory; the rest is on disk")
    parser.add_argument("--miss", nargs="+", default=["auto"], choices=("move", "compute", "auto"))
    parser.add_argument("--prefetch", nargs="+", default=["off", "on"], choices=("off", "on", "auto"))
    parser.add_argument("--mtp", nargs="+", default=["off", "auto"], help="off, auto, or a number of drafts")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--against-cpu", action="store_true", help="the text must be that of --device cpu")
    parser.add_argument("--prompt", type=int, default=512, help="random ids")
    parser.add_argument("--tokens", type=int, default=64, help="to decode each time")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    numbers, vocab = random.Random(1), json.loads((args.folder / "config.json").read_text())["vocab_size"]
    args.ids = ",".join(str(numbers.randrange(2, vocab)) for _ in range(args.prompt))
    print("%s, %s, precision %s, %d tokens after a prompt of %d, medians of %d rounds" % (
        args.folder, args.device, args.precision, args.tokens, args.prompt, args.rounds), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        runs = measure(args, scratch)
    report(args, runs)
    return 0 if is_text_right(args, runs) else 1


if __name__ == "__main__":
    sys.exit(main())
