#!/usr/bin/env python3
"""The expert store against fio: the same files, block size and depth, in turn; and over loopback HTTP against curl.

    tests/bench/compare_fio.py --work /fast/disk/scratch [--packed FOLDER] [--what direct buffered http] [--repeat 5]

bench_io brings random experts into slots as dsrun does, 8 at a time, without computing. fio reads as many
random files whole, one after the other: direct with libaio, buffered with a thread for each read (libaio is not asynchronous
there); curl fetches whole files. Every run of a repetition reads other experts. The page cache is emptied before every run
from the disk (root); over HTTP the server has the files in it. Prints every run, then medians and their ratios. The packed
folder that is made stays in --work for the next time: 16.6 GB for the default of 376 experts, twice that while it is made.
Needs fio, nginx and curl.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import bench_support as bench

sys.path.insert(0, str(bench.ROOT / "tests" / "tools"))
import v3_checkpoint  # noqa: E402

BLOCK = 4 << 20
DEPTH = 8
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")


def prepare(arguments):
    """Folder with a file for each expert of layer 3 of DeepSeek-V3, random bytes."""
    if arguments.packed:
        return arguments.packed
    arguments.work.mkdir(parents=True, exist_ok=True)
    packed, source = arguments.work / ("packed-%d" % arguments.experts), arguments.work / "source"
    if not (packed / "manifest.json").exists():
        config = {**v3_checkpoint.V3, "n_routed_experts": arguments.experts}
        shards = v3_checkpoint.make_shards(config, {3}, count=4)
        v3_checkpoint.write_checkpoint(source, config, shards, v3_checkpoint.RandomPayload(0))
        subprocess.run([arguments.reshard, source, "--by", "expert", "--out", packed], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(source)
    return packed


def expert_files(packed):
    return sorted((Path(packed) / "model" / "layers" / "003" / "experts").glob("*.safetensors"))


class Disk:
    """Runs that read from the disk. fio's list of file names is bounded, so that they get short links."""

    def __init__(self, arguments, packed):
        self.arguments, self.packed = arguments, packed
        self.links = arguments.work / "links"
        shutil.rmtree(self.links, ignore_errors=True)
        self.links.mkdir(parents=True)
        files = expert_files(packed)
        self.size = sum(path.stat().st_size for path in files)
        for number, path in enumerate(files):
            (self.links / ("%03d" % number)).symlink_to(path.resolve())
        self.names = ["%03d" % number for number in range(len(files))]

    def ours(self, method, seed):
        bench.empty_page_cache()
        output = subprocess.run([self.arguments.bench_io, self.packed, method, str(self.arguments.read), str(seed),
                                 str(self.arguments.at_once), "0", str(DEPTH)],
                                check=True, stdout=subprocess.PIPE).stdout
        line = json.loads(output)
        return line["bytes_per_second"], line["processor_seconds"]

    def fio(self, method, seed):
        bench.empty_page_cache()
        names = random.Random(seed).sample(self.names, self.arguments.read)
        common = ["--readonly", "--allow_file_create=0", "--rw=read", "--file_service_type=sequential", "--bs=%d" % BLOCK,
                  "--direct=%d" % (method == "direct"), "--group_reporting", "--output-format=json", "--thread"]
        if method == "direct":
            jobs = [["--name=run", "--ioengine=libaio", "--iodepth=%d" % DEPTH, "--mem=shmhuge",
                     "--filename=" + ":".join(names)]]
        else:
            jobs = [["--name=run%d" % number, "--ioengine=psync", "--filename=" + ":".join(names[number::DEPTH])]
                    for number in range(DEPTH)]
        HUGE_PAGES.write_text("64")  # as slots have; with ordinary pages a direct read falls into many small ones
        output = subprocess.run(["fio", *common, *(word for job in jobs for word in job)], cwd=self.links, check=True,
                                stdout=subprocess.PIPE).stdout
        HUGE_PAGES.write_text("0")
        job = json.loads(output)["jobs"][0]
        seconds = job["read"]["runtime"] / 1000
        return job["read"]["io_bytes"] / seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds * len(jobs)


def warm(paths):
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def curl(server, packed, paths, connections):
    urls = [server.url + "/" + path.relative_to(packed).as_posix() for path in paths]
    before = os.times()
    started = time.monotonic()
    # A process for each connection: -Z has one thread for all, and one core's speed.
    lists = [urls[i::connections] for i in range(connections)]
    processes = [subprocess.Popen(["curl", "-sSf"] + [word for url in part for word in ("-o", os.devnull, url)])
                 for part in lists if part]
    if any(process.wait() != 0 for process in processes):
        sys.exit("curl failed")
    seconds = time.monotonic() - started
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return sum(path.stat().st_size for path in paths) / seconds, processor


def report(what, peer, runs):
    speeds = {name: [run[0] for run in of] for name, of in runs.items()}
    medians = {name: statistics.median(of) for name, of in speeds.items()}
    for name, of in runs.items():
        print("%-9s %-5s median %7.0f MB/s (%.0f to %.0f); processor seconds a run %.2f" % (
            what, name, medians[name] / 1e6, min(speeds[name]) / 1e6, max(speeds[name]) / 1e6,
            statistics.median([run[1] for run in of])))
    pairs = [ours / other for ours, other in zip(speeds["ours"], speeds[peer])]
    print("%-9s ratio of medians %.3f (wanted: at least 0.95); pairs: %s, median %.3f\n" % (
        what, medians["ours"] / medians[peer], " ".join("%.2f" % ratio for ratio in pairs), statistics.median(pairs)),
        flush=True)


def in_turn(what, peer, functions, repeat):
    """Runs each function `repeat` times with a new seed; who begins changes every time."""
    runs = {name: [] for name in functions}
    for number in range(repeat):
        order = list(functions) if number % 2 == 0 else list(functions)[::-1]
        for name in order:
            run = functions[name](number + 1)
            runs[name].append(run)
            print("%2d  %-9s %-5s %7.0f MB/s" % (number + 1, what, name, run[0] / 1e6), flush=True)
    report(what, peer, runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder on the disk to be measured")
    parser.add_argument("--packed", type=Path, help="a packed repository with such experts (default: one is made)")
    parser.add_argument("--experts", type=int, default=376, help="of the repository that is made, 44 MB each")
    parser.add_argument("--what", nargs="+", default=["direct", "buffered", "http"],
                        choices=("direct", "buffered", "http"))
    parser.add_argument("--read", type=int, default=96, help="experts read by each run")
    parser.add_argument("--at-once", type=int, default=8, help="experts requested together")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--port", type=int, default=18091, help="for nginx")
    parser.add_argument("--reshard", type=Path, default=bench.ROOT / "build" / "reshard" / "reshard")
    parser.add_argument("--bench-io", type=Path, default=bench.ROOT / "build" / "tests" / "bench" / "bench_io")
    arguments = parser.parse_args()
    packed = prepare(arguments)
    disk = Disk(arguments, packed)
    print("\n".join(bench.facts(arguments.work)))
    print("fio          " + bench.output("fio", "--version").strip())
    print("files        %d experts, %.2f GB; %d a run, %d at once, blocks of %d bytes, depth %d\n" % (
        len(expert_files(packed)), disk.size / 1e9, arguments.read, arguments.at_once, BLOCK, DEPTH), flush=True)
    for method in ("direct", "buffered"):
        if method in arguments.what:
            in_turn(method, "fio", {"ours": lambda seed, m=method: disk.ours(m, seed),
                                    "fio": lambda seed, m=method: disk.fio(m, seed)}, arguments.repeat)
    if "http" in arguments.what:
        compare_http(arguments, packed)
    shutil.rmtree(disk.links)


def compare_http(arguments, packed):
    """The server has in the page cache what both read."""
    chosen = expert_files(packed)[:arguments.read]
    with bench.Server(packed, arguments.port) as server:
        def ours(_):
            output = subprocess.run([arguments.bench_io, server.url + "/", "auto", str(arguments.read), "1",
                                     str(arguments.at_once), str(BLOCK), str(DEPTH)],
                                    check=True, stdout=subprocess.PIPE).stdout
            line = json.loads(output)
            return line["bytes_per_second"], line["processor_seconds"]

        ours(0)
        warm(chosen)
        in_turn("http", "curl", {"ours": ours, "curl": lambda _: curl(server, packed, chosen, DEPTH)}, arguments.repeat)


if __name__ == "__main__":
    main()
