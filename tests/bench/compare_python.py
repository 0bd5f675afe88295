#!/usr/bin/env python3
"""reshard against what is done today: huggingface_hub.snapshot_download, then a split by expert with safetensors.

    tests/bench/compare_python.py --work /fast/disk/scratch --python VENV/bin/python [--source FOLDER] [--jobs 4]

VENV holds huggingface_hub, safetensors and torch (which has the FP8 types). nginx plays the Hub on this machine, for both:
HF_ENDPOINT points at it; Xet, telemetry and progress bars are off. The peer downloads to a folder with JOBS workers, then
runs peer_resave.py, whose code is that of a careful user; --download curl takes `curl -Z` in the place of snapshot_download.
Both end with sync. Printed: seconds, largest resident memory of one process (children included; pages of mapped files
count), most bytes that the outputs took on the disk at once (looked at every 0.2 s), and the ratios. Needs twice the
source's size on the disk; the source that was made stays in --work for the next time.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import bench_support as bench

DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], local_dir=sys.argv[2], max_workers=int(sys.argv[3]))
"""
VERSIONS = """
import huggingface_hub, platform, safetensors, torch
print("Python", platform.python_version(), "huggingface_hub", huggingface_hub.__version__, "safetensors",
      safetensors.__version__, "torch", torch.__version__)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench.add_options(parser)
    parser.add_argument("--python", default=sys.executable, help="with huggingface_hub, safetensors and torch")
    parser.add_argument("--download", choices=("hub", "curl"), default="hub")
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    folders = packed, plain, split = bench.output_folders(arguments.work, "packed", "plain", "split")
    versions = subprocess.run([arguments.python, "-c", VERSIONS], stdout=subprocess.PIPE, check=False)
    if versions.returncode != 0:
        sys.exit("%s lacks huggingface_hub, safetensors or torch: name another by --python" % arguments.python)
    source, names, size = bench.prepare(arguments)
    print("\n".join(bench.facts(arguments.work)))
    print("peer         " + versions.stdout.decode().strip())
    print("source       %d shards, %.2f GB; %d at a time\n" % (len(names), size / 1e9, arguments.jobs))
    bench.print_limits(arguments.work, size)

    runs = {"reshard": [], "peer": []}
    with bench.Server(source, arguments.port) as server:
        files = [path.name for path in source.iterdir() if path.is_file()]
        if arguments.download == "hub":
            download = [arguments.python, "-c", DOWNLOAD, bench.REPOSITORY, plain, arguments.jobs]
        else:
            download = bench.curl_command(server.url, files, plain, arguments.jobs)
        resave = [arguments.python, Path(__file__).resolve().parent / "peer_resave.py", plain, split]
        commands = {"reshard": [[arguments.reshard, bench.REPOSITORY, "--by", "expert", "--out", packed, "--jobs",
                                 arguments.jobs]],
                    "peer": [download, resave]}
        environment = {"HF_ENDPOINT": server.hub, "HF_HOME": str(server.state), "HF_HUB_DISABLE_XET": "1",
                       "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        for number in range(1, arguments.repeat + 1):
            for name, command in commands.items():
                run = bench.measure(command, folders, environment)
                runs[name].append(run)
                print("%2d  %-8s %s" % (number, name, run), flush=True)
                bench.remove(*folders)

    print("\nmedians, peer / reshard:")
    for what in ("seconds", "rss_bytes", "disk_bytes"):
        ours, theirs = (statistics.median([getattr(run, what) for run in runs[name]]) for name in ("reshard", "peer"))
        print("  %-11s %.2f" % (what, theirs / ours))


if __name__ == "__main__":
    main()
