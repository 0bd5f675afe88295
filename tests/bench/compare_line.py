#!/usr/bin/env python3
"""reshard against curl and aria2c over a long line: the same files, from the same server, to the same disk, in turn.

    tests/bench/compare_line.py --work /fast/disk/scratch [--source FOLDER | --size 4.9] [--shards 4] [--by expert layer]
        [--round-trip 0.08] [--rate 12.5] [--total-rate 0] [--jobs 16] [--repeat 3]

The server is nginx on this machine; between it and the programs is tests/support/delay_proxy.py, which delays every byte by
half of --round-trip and bounds each connection to --rate million bytes a second. With --round-trip 0 there is no proxy. The
peers are `curl -Z --parallel-max CONNECTIONS` (a connection a file) and `aria2c` with CONNECTIONS for each of --files
files; they neither digest nor arrange nor check what they get. reshard is run as a user runs it, without --jobs,
unless that is given. Every run is printed; then for each program the median, its ratio to the peers', the largest resident
memory, the bytes of files that it read (reshard: what it wrote and read back) and how many connections it made.

What --work holds is deleted between runs; a source that was made stays there for the next time.
"""

import argparse
import contextlib
import shutil
import statistics
import sys

import bench_support as bench

sys.path.insert(0, str(bench.ROOT / "tests" / "support"))
from delay_proxy import DelayProxy  # noqa: E402

EXPERT_BYTES = 44_050_944  # of layer 3 of DeepSeek-V3


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench.add_options(parser)
    parser.set_defaults(jobs=None, experts=None)
    parser.add_argument("--size", type=float, default=1.0, help="GB of the checkpoint that is made, unless --experts")
    parser.add_argument("--shards", type=int, default=4, help="of the checkpoint that is made")
    parser.add_argument("--by", nargs="+", default=["expert"], help="groupings: expert, expert:8, layer, ...")
    parser.add_argument("--round-trip", type=float, default=0.08, help="seconds; 0: no proxy")
    parser.add_argument("--rate", type=float, default=12.5, help="million bytes a second and connection; 0: no bound")
    parser.add_argument("--total-rate", type=float, default=0, help="of all connections together; 0: no bound")
    parser.add_argument("--before", type=bench.Path, help="another build of reshard, to compare with")
    parser.add_argument("--connections", type=int, default=16, help="of the peers; aria2c: for each file, 16 at most")
    parser.add_argument("--files", type=int, default=1, help="that aria2c fetches at a time")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="empty the page cache before every run (root)")
    arguments = parser.parse_args()
    if arguments.experts is None:
        arguments.experts = max(1, round(arguments.size * 1e9 / EXPERT_BYTES))
    return arguments


class Line:
    """Where the programs find the server, and how many connections there have been: None without a proxy."""

    def __init__(self, url, proxy=None):
        self.url, self.proxy = url, proxy

    @property
    def connections(self):
        return self.proxy.connections if self.proxy else None


@contextlib.contextmanager
def line_to(server, arguments):
    if not arguments.round_trip:
        yield Line(server.url)
        return
    with DelayProxy(arguments.port, arguments.round_trip, arguments.rate * 1e6 or None,
                    arguments.total_rate * 1e6 or None) as proxy:
        yield Line("http://127.0.0.1:%d" % proxy.port, proxy)


def commands(arguments, line, names, packed, plain):
    jobs = ["--jobs", arguments.jobs] if arguments.jobs else []
    programs = {"reshard": arguments.reshard, **({"before": arguments.before} if arguments.before else {})}
    found = {"%s --by %s" % (name, by): [program, line.url + "/", "--by", by, "--out", packed, *jobs]
             for by in arguments.by for name, program in programs.items()}
    found["curl"] = bench.curl_command(line.url, names, plain, arguments.connections)
    if shutil.which("aria2c"):
        found["aria2c"] = bench.aria2_command(line.url, names, plain, arguments.connections,
                                              arguments.work / "aria2-list", arguments.files)
    else:
        print("aria2c is not installed: compared with curl alone")
    return found


def print_summary(runs, made, size):
    print()
    median = {name: statistics.median([run.seconds for run in of]) for name, of in runs.items()}
    peers = [name for name in ("curl", "aria2c") if name in runs]
    for name, of in runs.items():
        ratios = "".join("  %.2f of %s" % (median[name] / median[peer], peer) for peer in peers if peer != name)
        print("%-22s %7.2f s (%.2f to %.2f) %7.1f MB/s  %4.0f MB resident  %5.2f GB of files read%s%s" % (
            name, median[name], min(run.seconds for run in of), max(run.seconds for run in of), size / median[name] / 1e6,
            max(run.rss_bytes for run in of) / 1e6, max(run.read_bytes for run in of) / 1e9,
            "  %d connections" % max(made[name]) if made[name] else "", ratios))


def main():
    arguments = parse_arguments()
    packed, plain = bench.output_folders(arguments.work, "packed", "plain")
    source, names, size = bench.prepare(arguments, arguments.shards)
    print("\n".join(bench.facts(arguments.work)))
    print("source       %d shards, %.2f GB; %d repetitions%s" % (
        len(names), size / 1e9, arguments.repeat, ", page cache emptied" if arguments.cold else ""))
    print("line         " + ("no delay" if not arguments.round_trip else "round trip %.0f ms, %s a connection, %s in all" % (
        arguments.round_trip * 1e3, *("%.1f MB/s" % rate if rate else "no bound"
                                      for rate in (arguments.rate, arguments.total_rate)))))
    with bench.Server(source, arguments.port) as server, line_to(server, arguments) as line:
        compared = commands(arguments, line, names, packed, plain)
        runs, made = {name: [] for name in compared}, {name: [] for name in compared}
        for number in range(1, arguments.repeat + 1):
            for name, command in compared.items():
                if arguments.cold:
                    bench.empty_page_cache()
                before = line.connections
                run = bench.measure([command], [packed, plain])
                runs[name].append(run)
                if before is not None:
                    made[name].append(line.connections - before)
                print("%2d  %-22s %s" % (number, name, run), flush=True)
                bench.remove(packed, plain)
    print_summary(runs, made, size)


if __name__ == "__main__":
    main()
