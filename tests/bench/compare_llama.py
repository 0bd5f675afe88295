#!/usr/bin/env python3
"""dsrun against llama.cpp and ik_llama.cpp on the CPU: same shapes, same token ids, same threads, rounds in turn.

    compare_llama.py --prompt 64 --predict 33 --rounds 3 \\
        'exact=build/runtime/dsrun MODELS/v3slice' 'bf16=build/runtime/dsrun MODELS/v3slice --precision bf16' \\
        'llama q8_0=peer_llama MODELS/v3slice-q8_0.gguf --repack off' \\
        'ik q8_0 -rtr=peer_ik MODELS/v3slice-q8_0.gguf --repack on'
    compare_llama.py ... --cold                  # files leave the page cache before each run
    compare_llama.py ... --limit 50%             # memory for each run: a share of the first model's files, or bytes

A candidate is NAME=PROGRAM MODEL [FLAGS]: a folder is run by dsrun, a .gguf file by peer_llama (peer_llama.cpp, whose
header has the commands that build it against either peer). In the tables:

    bits      bytes of the model's files * 8 / its parameters (those of the .gguf: its tensors are the folder's)
    GB/token  weights that a decoded token uses: all but the embedding, and of the experts the chosen share
    GB/s      tokens/s * GB/token: what decode gets of the memory's read rate
    first     seconds from the start of the process to its first token, loading included
    peak GB   most memory: resident, mapped pages included; with --limit that of the group, its page cache included
    disk GB   what the process made the disk read, in all
    GB read/t while it decoded, a token; of dsrun its reads of experts, whether or not the page cache had them
    others    cores that other processes kept busy during the run: figures count where that is small; see --quiet
    ratios    medians of pairs of one round, dsrun over peer; above 1 dsrun is faster

A limit is a memory control group (v1 or v2; it needs root), which counts the page cache too; dsrun gets --share of it
as --ram. Before each limited or --cold run the model's own files leave the page cache; before others they are read.
Prefill includes what is loaded on first use. The KV cache is each program's default (dsrun F32, the peers F16). Where
the machine does other things too, ratios of pairs are what to trust, and with peers whose threads spin (OpenMP) not
even they: others that take a core slow those down more than dsrun.

The models have random weights and the right shapes; loc's routes are as local as those of trained models, and it speaks
a text of known tokens. TOOLS is tests/tools; P is the source folder of llama.cpp, built with its tool llama-quantize:

    TOOLS/v3_checkpoint.py MODELS/v3slice --payload random --shard-bytes 2000000000 --experts 32 \\
        --set num_hidden_layers=4 --set first_k_dense_replace=1 --set num_nextn_predict_layers=0 --set vocab_size=8192
    TOOLS/v3_checkpoint.py MODELS/v2lite --payload random --shard-bytes 2000000000 --set num_hidden_layers=27 \\
        --set first_k_dense_replace=1 --set num_nextn_predict_layers=0 --set n_routed_experts=16 \\
        --set 'architectures=["DeepseekV2ForCausalLM"]' --set 'model_type="deepseek_v2"' --set hidden_size=2048 \\
        --set intermediate_size=10944 --set moe_intermediate_size=1408 --set n_shared_experts=2 \\
        --set num_experts_per_tok=6 --set num_attention_heads=16 --set num_key_value_heads=16 --set q_lora_rank=null \\
        --set n_group=1 --set topk_group=1 --set 'topk_method="greedy"' --set 'scoring_func="softmax"' \\
        --set norm_topk_prob=false --set routed_scaling_factor=1.0 --set vocab_size=102400
    TOOLS/locality_model/generate.py MODELS/loc --set num_hidden_layers=5       # needs NumPy
    reshard MODELS/v3slice --by expert --out MODELS/v3slice-packed
    peer_convert.py P MODELS/v3slice --outfile MODELS/v3slice-q8_0.gguf --outtype q8_0     # there is no tokenizer
    llama-quantize --allow-requantize MODELS/v3slice-q8_0.gguf MODELS/v3slice-q4_k_m.gguf Q4_K_M

v3slice: 4 layers of V3's shapes, 32 experts, FP8, 5.7 GB; v2lite: V2-Lite's shapes, 27 layers (by which llama.cpp knows
the model), 16 experts, FP8, 5.3 GB; loc: 4 layers of 64 of V3's experts, 11.8 GB. The converter undoes FP8 by itself.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_support as bench
from gguf_weights import Weights

QUIET_SECONDS, QUIET_CORES = 2, 0.15  # a window in which others use so little counts as quiet


class Candidate:
    def __init__(self, text):
        self.name, _, command = text.partition("=")
        words = shlex.split(command)
        if len(words) < 2:
            sys.exit("'%s': a candidate is NAME=PROGRAM MODEL [FLAGS]" % text)
        self.program, self.model, self.flags = words[0], Path(words[1]), words[2:]
        if not os.access(self.program, os.X_OK):
            sys.exit("%s: no such program: build it, or name where it lies" % self.program)
        if not self.model.exists():
            sys.exit("%s: no such model: the end of --help has the commands that make them" % self.model)
        self.is_dsrun = self.model.is_dir()
        self.files = [path for path in self.model.rglob("*") if path.is_file()] if self.is_dsrun else [self.model]
        self.bytes = sum(path.stat().st_size for path in self.files)
        self.weights = None if self.is_dsrun else Weights(self.model)
        self.runs = []

    def command(self, args, stats):
        command = [self.program, self.model, "--tokens", args.ids, "-n", args.predict, "--ctx", args.ctx,
                   "--threads", args.threads, *self.flags]
        if self.is_dsrun:
            command += ["--device", "cpu", "--stats", stats]
            if args.limit:
                command += ["--ram", int(args.limit * args.share)]
        return [str(word) for word in command]

    def prepare(self, evict):
        """Files into the page cache, or out of it."""
        for path in self.files:
            with open(path, "rb", buffering=0) as file:
                if evict:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.read(8 << 20):
                        pass


class Group:
    """A memory control group of a run. v2 where the controller is there, else v1."""

    def __init__(self, limit):
        name, unified = "compare_llama_%d" % os.getpid(), Path("/sys/fs/cgroup")
        if (unified / "cgroup.controllers").exists():
            self.folder, self.peak = unified / name, "memory.peak"
            limits = {"memory.max": limit, "memory.swap.max": 0}
        else:
            self.folder, self.peak = unified / "memory" / name, "memory.max_usage_in_bytes"
            limits = {"memory.limit_in_bytes": limit}
        try:
            self.folder.mkdir()
            for key, value in limits.items():
                (self.folder / key).write_text(str(value))
        except OSError as error:
            sys.exit("%s: no memory control group can be made (%s): run as root where the memory controller is "
                     "enabled, or leave --limit out" % (self.folder, error.strerror))

    def enter(self, command):
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def leave(self):
        peak = int((self.folder / self.peak).read_text())
        self.folder.rmdir()
        return peak


def busy_seconds():
    """That all cores together have worked since the machine started."""
    user, nice, system, _, _, interrupts, soft, *_ = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    return sum(map(int, (user, nice, system, interrupts, soft))) / os.sysconf("SC_CLK_TCK")


def await_quiet(seconds):
    """Until others have left the machine alone for two seconds, but no longer than `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy_seconds()
        time.sleep(QUIET_SECONDS)
        if busy_seconds() - before < QUIET_CORES * QUIET_SECONDS:
            return


def watch(command):
    """Figures of the process, and what it printed."""
    with tempfile.TemporaryFile() as errors:
        started, busy = time.monotonic(), busy_seconds()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        output = os.read(process.stdout.fileno(), 1 << 16)
        first = time.monotonic() - started
        output += process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its counts are there until it is waited for
        io = Path("/proc/%d/io" % process.pid).read_text()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit("failed (%d): %s\n%s" % (process.returncode, shlex.join(command)[:400],
                                              errors.read().decode(errors="replace")[-2000:]))
    others = (busy_seconds() - busy - usage.ru_utime - usage.ru_stime) / (time.monotonic() - started)
    return {"first": first, "disk": int(re.search(r"^read_bytes: (\d+)", io, re.MULTILINE)[1]),
            "peak": usage.ru_maxrss * 1024, "others": max(others, 0)}, output


def run(candidate, args):
    """Figures of one run, by name."""
    candidate.prepare(args.cold or args.limit)
    await_quiet(args.quiet)
    with tempfile.TemporaryDirectory() as scratch:
        stats = Path(scratch) / "stats.json"
        command = candidate.command(args, stats)
        group = Group(args.limit) if args.limit else None
        try:
            out, output = watch(group.enter(command) if group else command)
        finally:
            peak = group.leave() if group else None
        out["peak"] = peak or out["peak"]
        if candidate.is_dsrun:
            told = json.loads(stats.read_text())
            plan = told["memory_plan"]["bytes"]
            out.update(prefill=told["prefill"]["tokens_per_second"], decode=told["decode"]["tokens_per_second"],
                       decode_disk=told["experts"]["decode"]["disk"]["bytes"],
                       token_bytes=plan["layers"] + plan["head"] + told["memory_plan"]["token_bytes"],
                       tokens=[int(word) for word in output.split()])
        else:
            told = json.loads(output)
            out.update(first=told["first_token_seconds"], prefill=told["prefill_per_second"],
                       decode=told["decode_per_second"], decode_disk=told["read_bytes_decode"],
                       token_bytes=candidate.weights.token_bytes, tokens=told["tokens"])
    if len(out["tokens"]) != args.predict:
        sys.exit("%s: answered %d of %d tokens, since the model ended its text: choose another --prompt" % (
            candidate.model, len(out["tokens"]), args.predict))
    return out


# Tables ----------------------------------------------------------------------------------------------------------

def spread(values, form="%.1f"):
    middle = form % statistics.median(values)
    return middle if len(values) == 1 else "%s (%s-%s)" % (middle, form % min(values), form % max(values))


def print_candidates(candidates, parameters, args):
    form = "%-16s %5s %9s %20s %20s %6s %20s %8s %8s %10s %6s"
    print(form % ("", "bits", "GB/token", "prefill/s", "decode/s", "GB/s", "first, s", "peak GB", "disk GB",
                  "GB read/t", "others"))
    for candidate in candidates:
        runs = candidate.runs
        of = {key: [one[key] for one in runs] for key in runs[0]}
        token_gb = of["token_bytes"][0] / 1e9
        print(form % (candidate.name, "%.2f" % (candidate.bytes * 8 / parameters) if parameters else "-",
                      "%.2f" % token_gb, spread(of["prefill"]), spread(of["decode"], "%.2f"),
                      "%.1f" % (statistics.median(of["decode"]) * token_gb), spread(of["first"]),
                      "%.2f" % (max(of["peak"]) / 1e9), "%.2f" % (statistics.median(of["disk"]) / 1e9),
                      "%.2f" % (statistics.median(of["decode_disk"]) / (args.predict - 1) / 1e9),
                      "%.1f" % statistics.median(of["others"])))


def print_ratios(candidates):
    print("\n%-34s %20s %20s %20s  %s" % ("ratios of pairs", "prefill", "decode", "first token", "same tokens"))
    for ours in (one for one in candidates if one.is_dsrun):
        for peer in (one for one in candidates if not one.is_dsrun):
            pairs = list(zip(ours.runs, peer.runs))
            same = sum(a == b for a, b in zip(ours.runs[0]["tokens"], peer.runs[0]["tokens"]))
            print("%-34s %20s %20s %20s  %d of %d" % (
                "%s / %s" % (ours.name, peer.name),
                *(spread([a[key] / b[key] for a, b in pairs], "%.2f") for key in ("prefill", "decode")),
                spread([b["first"] / a["first"] for a, b in pairs], "%.2f"), same, len(ours.runs[0]["tokens"])))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", nargs="+", metavar="NAME=PROGRAM MODEL [FLAGS]")
    parser.add_argument("--prompt", default="64", help="length of the prompt, which is 0,1,2,..., or its token ids")
    parser.add_argument("--predict", type=int, default=33, help="tokens of the answer; the first comes from the "
                        "prompt, so one less is timed as decode")
    parser.add_argument("--ctx", type=int, help="positions to keep room for (default: what is needed, in steps of 256)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each candidate (default: one per core)")
    parser.add_argument("--rounds", type=int, default=3, help="each runs every candidate once, in turn (default: 3)")
    parser.add_argument("--quiet", type=float, default=0, metavar="SECONDS", help="before each run, wait so long at "
                        "most for others to leave the machine alone")
    parser.add_argument("--limit", help="memory of each run: bytes, or N%% of the bytes of the first candidate's model")
    parser.add_argument("--share", type=float, default=0.98, help="of --limit that dsrun gets as --ram (default: 0.98)")
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--warm", action="store_true", help="files lie in the page cache (default without --limit)")
    cache.add_argument("--cold", action="store_true", help="files are taken out of the page cache before each run")
    args = parser.parse_args()
    length = int(args.prompt) if "," not in args.prompt else args.prompt.count(",") + 1
    args.ids = args.prompt if "," in args.prompt else ",".join(map(str, range(length)))
    args.ctx = args.ctx or -(-(length + args.predict) // 256) * 256
    if args.predict < 2:
        parser.error("--predict: at least 2, since the first token belongs to the prompt")
    if args.limit and args.warm:
        parser.error("--limit with --warm: what lies in the page cache already would not count against the limit")
    return args


def main():
    args = parse()
    candidates = [Candidate(text) for text in args.candidates]
    if args.limit:
        share = re.fullmatch(r"([\d.]+)%", args.limit)
        args.limit = int(candidates[0].bytes * float(share[1]) / 100) if share else int(args.limit)
    parameters = next((one.weights.parameters for one in candidates if one.weights), None)
    print("\n".join(bench.facts(candidates[0].model)))
    cache = "page cache %s" % ("cold" if args.cold else "warm")
    memory = "%.2f GB of memory" % (args.limit / 1e9) if args.limit else cache
    print("run          %d tokens of prompt, %d predicted, %d positions, %d threads, %d rounds, %s" % (
        args.ids.count(",") + 1, args.predict, args.ctx, args.threads, args.rounds, memory))
    for one in candidates:
        print("%-12s %s %s %s: %.2f GB" % (one.name, one.program, one.model, " ".join(one.flags), one.bytes / 1e9))
    print(flush=True)
    for number in range(args.rounds):
        for one in candidates:
            one.runs.append(run(one, args))
            print("round %d  %-16s prefill %.1f/s, decode %.2f/s, first %.1f s, others %.2f cores" % (
                number + 1, one.name, *(one.runs[-1][key] for key in ("prefill", "decode", "first", "others"))),
                file=sys.stderr, flush=True)
    print_candidates(candidates, parameters, args)
    print_ratios(candidates)


if __name__ == "__main__":
    main()
