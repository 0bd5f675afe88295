#!/usr/bin/env python3
"""reshard against a plain download: the same files, from the same server, to the same disk, in turn, both synced.

    tests/bench/compare_curl.py --work /fast/disk/scratch [--source FOLDER] [--by layer] [--jobs 4] [--repeat 5]

The peer is `curl -Z --parallel-max JOBS`, which neither digests nor arranges nor checks what it gets. nginx with sendfile
serves on this machine and takes its share of the cores. Every run is printed; then medians, their ratio, and the limits:
SHA-256 on one core and writing to the disk, measured in the same run. Outputs are deleted between runs. Needs room for one
output (and for the source, if it is made); the source that was made stays in --work for the next time.
"""

import argparse
import statistics

import bench_support as bench


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench.add_options(parser)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--by", default="expert", help="the grouping")
    parser.add_argument("--cold", action="store_true",
                        help="empty the page cache before every run (root): for a source that does not fit in memory, of "
                             "which the run before would leave more or less behind")
    arguments = parser.parse_args()
    packed, plain = bench.output_folders(arguments.work, "packed", "plain")
    source, names, size = bench.prepare(arguments)
    print("\n".join(bench.facts(arguments.work)))
    print("source       %d shards, %.2f GB; %d at a time, %d repetitions%s\n" % (
        len(names), size / 1e9, arguments.jobs, arguments.repeat, ", page cache emptied" if arguments.cold else ""))
    bench.print_limits(arguments.work, size)

    runs = {"reshard": [], "curl": []}
    with bench.Server(source, arguments.port) as server:
        commands = {
            "reshard": [arguments.reshard, server.url + "/", "--by", arguments.by, "--out", packed, "--jobs",
                        arguments.jobs],
            "curl": bench.curl_command(server.url, names, plain, arguments.jobs)}
        for number in range(1, arguments.repeat + 1):
            for name, command in commands.items():
                if arguments.cold:
                    bench.empty_page_cache()
                run = bench.measure([command], [packed, plain])
                runs[name].append(run)
                print("%2d  %-8s %s" % (number, name, run), flush=True)
                bench.remove(packed, plain)

    print()
    seconds = {name: statistics.median([run.seconds for run in of]) for name, of in runs.items()}
    for name, of in runs.items():
        print("%-8s median %.2f s (%.2f to %.2f), %.2f GB/s" % (
            name, seconds[name], min(run.seconds for run in of), max(run.seconds for run in of),
            size / seconds[name] / 1e9))
    print("ratio    %.2f (reshard / curl)" % (seconds["reshard"] / seconds["curl"]))
    print("memory   %.0f MB resident at most (reshard)" % (max(run.rss_bytes for run in runs["reshard"]) / 1e6))


if __name__ == "__main__":
    main()
