#!/usr/bin/env python3
"""What compressed repositories gain in bytes and cost in time: made, read from a disk, read over a link of a set speed.

    tests/bench/compare_compressed.py --work /fast/disk/scratch --python VENV/bin/python [--what sizes expand disk link]

VENV holds NumPy, for the model: 144 experts of DeepSeek-V3's size (44 MB) in three layers, 6.8 GB, whose FP8 bytes are
distributed as trained ones (tests/tools/locality_model/trained.py); it speaks a known text, so that it runs. Raw and
compressed take turns, who begins changes every time; medians, spread, and their ratios are printed.

sizes   bytes raw and with zstd, beside the entropy of single bytes, which no code of one byte at a time goes below; how fast
        reshard makes them (final sync included). Levels 9 and 19 on four experts.
expand  experts into slots from the page cache (bench_io), with one reading thread and with two: what decompression allows.
disk    decoding with slots for --experts of the experts; page cache emptied before every run.
link    decoding, prompt included, from an HTTP server in a network of its own, whose loopback tc holds to so many MB/s; the
        cache is new every time. Fewer tokens where the link is slow.

Needs root (page cache, tc), nginx, curl and 30 GB in --work, where source and packed folders stay for the next time.
"""

import argparse
import collections
import ctypes
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import bench_support as bench

GENERATE = bench.ROOT / "tests" / "tools" / "locality_model" / "generate.py"
MODEL = ["--weights", "trained", "--set", "num_hidden_layers=4", "--set", "n_routed_experts=48"]
SAMPLE = ["--include", "layers=1 experts=0-3"]
LINKS = ((20, 1), (50, 2), (100, 4), (200, 6), (400, 8))  # MB/s and tokens
CLONE_NEWNET = 0x40000000


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit("failed: %s\n%s" % (" ".join(map(str, command)), done.stderr))
    return done.stdout


def spread(values, form="%.2f"):
    return "%s (%s to %s)" % tuple(form % value for value in (statistics.median(values), min(values), max(values)))


def in_turn(functions, repeat):
    """{name: [result]} of `repeat` calls of each; who begins changes every time."""
    results = {name: [] for name in functions}
    for number in range(repeat):
        for name in list(functions) if number % 2 == 0 else list(functions)[::-1]:
            results[name].append(functions[name]())
    return results


def pair_ratios(raw, compressed):
    return [one / other for one, other in zip(compressed, raw)]


class Bench:
    def __init__(self, arguments):
        self.options, self.work = arguments, arguments.work
        self.source = self.work / "source"

    def packed(self, level):
        """Folder with the model packed by expert; level None: raw."""
        return self.work / ("raw" if level is None else "zstd-%d" % level)

    def pack_command(self, level, out, *more):
        how = [] if level is None else ["--compress", "zstd:%d" % level]
        return [self.options.reshard, self.source, "--by", "expert", "--out", out, *how, *more]

    def prepare(self):
        self.work.mkdir(parents=True, exist_ok=True)
        if not (self.source / "config.json").exists():  # which is written last
            run(self.options.python, GENERATE, self.source, *MODEL)
        for level in (None, 1):
            if not (self.packed(level) / "manifest.json").exists():
                run(*self.pack_command(level, self.packed(level)))

    # Sizes ---------------------------------------------------------------------------------------------------------

    def sizes(self):
        raw = self.stored(self.packed(None))
        print("sizes   raw         %d experts of %s bytes" % (len(raw), "%d" % statistics.median(raw)))
        bits = self.entropy_bits()
        print("sizes   entropy     %.3f bits a byte of FP8: at most %.2f %% saved by coding single bytes" % (
            bits, 100 * (1 - bits / 8)))
        for level in (1, 3):
            out = self.packed(level)
            if not (out / "manifest.json").exists():
                run(*self.pack_command(level, out))
            self.print_saved("zstd:%d" % level, raw, self.stored(out))
        sample = {level: self.work / ("sample-%s" % level) for level in (None, 1, 3, 9, 19)}
        seconds = {}
        for level, out in sample.items():
            bench.remove(out)
            seconds[level] = bench.measure([self.pack_command(level, out, *SAMPLE, "--jobs", 1)], [out]).seconds
        for level in (9, 19):
            self.print_saved("zstd:%d" % level, self.stored(sample[None]), self.stored(sample[level]))
        size = sum(self.stored(sample[None]))
        for level in (1, 3, 9, 19):
            took = seconds[level] - seconds[None]
            print("sizes   zstd:%-2d     compression alone, one thread, 4 experts: %.0f MB/s" % (level, size / took / 1e6))
        bench.remove(*sample.values())
        self.time_packing()

    @staticmethod
    def stored(folder):
        """Bytes of each expert's file."""
        return [path.stat().st_size for path in sorted(folder.glob("model/layers/*/experts/*"))]

    def entropy_bits(self):
        """Of the FP8 bytes of one expert: a file's matrices, which stand before its scales."""
        path = sorted(self.packed(None).glob("model/layers/*/experts/*"))[0]
        data = path.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        fields = json.loads(data[8:header])
        counts = collections.Counter()
        for field in fields.values():
            if field.get("dtype") == "F8_E4M3":
                begin, end = field["data_offsets"]
                counts.update(data[header + begin:header + end])
        total = sum(counts.values())
        return -sum(count / total * math.log2(count / total) for count in counts.values())

    @staticmethod
    def print_saved(name, raw, stored):
        print("sizes   %-11s %.4f of raw, %.2f %% saved (%d bytes)" % (
            name, sum(stored) / sum(raw), 100 * (1 - sum(stored) / sum(raw)), sum(stored)), flush=True)

    def time_packing(self):
        out = self.work / "timed"
        size = sum(path.stat().st_size for path in self.source.glob("*.safetensors"))

        def timed(level):
            bench.remove(out)
            return bench.measure([self.pack_command(level, out)], [out])
        results = in_turn({name: lambda l=level: timed(l) for name, level in
                           (("raw", None), ("zstd:1", 1), ("zstd:3", 3))}, self.options.repeat)
        bench.remove(out)
        for name, runs in results.items():
            print("making  %-8s %s s, %.0f MB/s; at most %.2f GB on the disk at once, %.0f MB resident" % (
                name, spread([one.seconds for one in runs]), size / statistics.median(one.seconds for one in runs) / 1e6,
                max(one.disk_bytes for one in runs) / 1e9, max(one.rss_bytes for one in runs) / 1e6), flush=True)

    # Decompression -------------------------------------------------------------------------------------------------

    def expand(self):
        experts = 40
        for threads in (1, 2):
            def speed(level):
                line = json.loads(run(self.options.bench_io, self.packed(level), "buffered", experts, 1, 8, 0, threads))
                return line["bytes_per_second"] / 1e6, line["processor_seconds"] / line["bytes"] * 1e9
            speed(None), speed(1)  # into the page cache
            results = in_turn({"raw": lambda: speed(None), "zstd:1": lambda: speed(1)}, self.options.repeat)
            for name, runs in results.items():
                print("expand  %-7s %d thread%s from the page cache: %s MB/s raw, %s processor seconds a GB" % (
                    name, threads, "s" if threads > 1 else " ", spread([one[0] for one in runs], "%.0f"),
                    spread([one[1] for one in runs])), flush=True)

    # Decoding ------------------------------------------------------------------------------------------------------

    def decode(self, place, tokens, *more):
        """What --stats says."""
        stats = self.work / "stats.json"
        text = run(self.options.dsrun, place, "--tokens", 0, "-n", tokens, "--ctx", 256, "--experts",
                   self.options.experts, "--dev", "prefetch=off", "--stats", stats, *more)
        wanted = list(range(1, tokens + 1))  # what the model was made to say
        if [int(word) for word in re.findall(r"\d+", text)] != wanted:
            sys.exit("%s says %r instead of %r" % (place, text, wanted))
        return json.loads(stats.read_text())

    def disk(self):
        def decoded(level):
            bench.empty_page_cache()
            stats = self.decode(self.packed(level), 25)
            return (1e3 * stats["decode"]["seconds"] / stats["decode"]["tokens"], stats["io"]["method"],
                    stats["experts"]["decode"]["misses"] / stats["decode"]["tokens"],
                    1e3 * stats["experts"]["decode_bound"]["transfer"] / stats["decode"]["tokens"],
                    1e3 * stats["experts"]["decode_bound"]["compute"] / stats["decode"]["tokens"])
        results = in_turn({"raw": lambda: decoded(None), "zstd:1": lambda: decoded(1)}, self.options.repeat)
        for name, runs in results.items():
            print("disk    %-7s %s ms a token; %.1f misses, transfer %.0f ms, compute %.0f ms; read %s" % (
                name, spread([one[0] for one in runs], "%.0f"), statistics.median(one[2] for one in runs),
                statistics.median(one[3] for one in runs), statistics.median(one[4] for one in runs),
                " ".join(sorted({one[1] for one in runs}))), flush=True)
        self.print_pairs("disk", results, 0)

    @staticmethod
    def print_pairs(what, results, field):
        pairs = pair_ratios(*([one[field] for one in results[name]] for name in ("raw", "zstd:1")))
        print("%-7s time of zstd:1 / time of raw, by pairs: %s: median %.3f" % (
            what, " ".join("%.3f" % ratio for ratio in pairs), statistics.median(pairs)), flush=True)

    def link(self):
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
            sys.exit("a network of its own needs root: %s" % os.strerror(ctypes.get_errno()))
        run("ip", "link", "set", "lo", "up")
        with bench.Server(self.packed(None), 18100) as raw, bench.Server(self.packed(1), 18101) as compressed:
            places = {"raw": raw.url + "/", "zstd:1": compressed.url + "/"}
            for speed, tokens in LINKS:
                if self.options.links and speed not in self.options.links:
                    continue
                run("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", "%dbit" % (speed * 8_000_000), "burst",
                    max(262_144, speed * 10_000), "latency", "50ms")
                self.decode_over_link(speed, tokens, places)

    def decode_over_link(self, speed, tokens, places):
        cache = self.work / "cache"

        def decoded(name):
            bench.remove(cache)
            stats = self.decode(places[name], tokens, "--cache", cache)
            # Without loading: what every token needs is mostly zeros in this model, and no measure of anything.
            return stats["prefill"]["seconds"] + stats["decode"]["seconds"], stats["network"]["bytes"]["experts"]
        results = in_turn({name: lambda n=name: decoded(n) for name in places}, self.options.repeat)
        bench.remove(cache)
        for name, runs in results.items():
            print("link    %4d MB/s  %-7s %2d tokens: %s s; %.3f GB of experts (raw) at %.1f MB/s" % (
                speed, name, tokens, spread([one[0] for one in runs]), runs[0][1] / 1e9,
                statistics.median(one[1] / one[0] for one in runs) / 1e6), flush=True)
        self.print_pairs("link %d" % speed, results, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder on the disk to be measured")
    parser.add_argument("--python", default=sys.executable, help="with NumPy, which makes the model")
    parser.add_argument("--what", nargs="+", default=["sizes", "expand", "disk", "link"],
                        choices=("sizes", "expand", "disk", "link"))
    parser.add_argument("--links", nargs="+", type=int, help="of the speeds %s only these" % [s for s, _ in LINKS])
    parser.add_argument("--experts", default="25%", help="for which decoding has slots")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--reshard", type=Path, default=bench.ROOT / "build" / "reshard" / "reshard")
    parser.add_argument("--dsrun", type=Path, default=bench.ROOT / "build" / "runtime" / "dsrun")
    parser.add_argument("--bench-io", type=Path, default=bench.ROOT / "build" / "tests" / "bench" / "bench_io")
    arguments = parser.parse_args()
    if shutil.which("tc") is None and "link" in arguments.what:
        sys.exit("tc (iproute2) is not on the path")
    measurement = Bench(arguments)
    measurement.prepare()
    print("\n".join(bench.facts(arguments.work)))
    print("zstd         " + bench.output("zstd", "--version").strip(" *\n"))
    print("model        %.2f GB, slots for %s of the experts, %d repetitions\n" % (
        sum(path.stat().st_size for path in measurement.source.glob("*.safetensors")) / 1e9, arguments.experts,
        arguments.repeat), flush=True)
    for part in ("sizes", "expand", "disk", "link"):  # the last one leaves the machine's network
        if part in arguments.what:
            getattr(measurement, part)()


if __name__ == "__main__":
    main()
