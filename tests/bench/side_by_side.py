#!/usr/bin/env python3
"""dsrun beside llama.cpp and ik_llama.cpp on the CPU, as one table after the other: in memory, with less memory than the
model, from a cold disk, and as servers; FP8, integers and FP4; every precision.

    side_by_side.py --work WORK --llama LLAMA_CPP --ik IK_LLAMA_CPP --python VENV/bin/python3
    side_by_side.py --work WORK --llama LLAMA_CPP --only memory,clients --rounds 1

LLAMA_CPP and IK_LLAMA_CPP are the peers' source folders, with or without a build in LLAMA_CPP/build; what is missing is
built there (ik_llama.cpp's kernels for flash attention take an hour on two cores; --ik-without-flash leaves them out).
--python names a Python that has what llama.cpp's converter needs: torch, transformers, numpy. Without --ik its rows are
left out. Models are made in WORK once (v3slice: 5.7 GB and five forms of it, 30 GB in all) and stay there.

Parts, in the order of --only's default:

    memory    decoding and prompts of --prompts tokens, everything in memory, page cache warm
    limits    50, 25 and 12.5 % of the model's bytes as memory (compare_llama.py --limit; needs root)
    cold      files outside the page cache: the time to the first token
    clients   1, 4 and 16 clients (compare_server.py)

Each part runs its candidates in turn, --rounds times, and prints medians with least and most, then ratios of pairs. The
read and FMA rates of the machine at that time come first: figures of different parts belong to different minutes. The
tables are those of compare_llama.py, whose --help says what each column means."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parent / "tools"
SLICE = ["--payload", "random", "--shard-bytes", "2000000000", "--experts", "32", "--set", "num_hidden_layers=4",
         "--set", "first_k_dense_replace=1", "--set", "num_nextn_predict_layers=0", "--set", "vocab_size=8192"]
# Ours by form, and the transforms that make it of FP8.
FORMS = {"fp8": (), "int4": ("experts-to-int4",), "int4+int8": ("experts-to-int4", "weights-to-int8"),
         "int4 all": ("weights-to-int4",), "nvfp4": ("experts-to-nvfp4",)}
# Theirs: llama-quantize's arguments, of Q8_0. "q4_0+q8_0" has the bits of our int4 beside eight bits.
GGUFS = {"q8_0": None, "q4_0+q8_0": ("--tensor-type", "exps=q4_0", "Q8_0"), "q4_k_m": ("Q4_K_M",)}
PRECISIONS = {"fp8": ("exact", "bf16"), "int4": ("exact", "int8"), "int4+int8": ("exact", "int8"),
              "int4 all": ("exact", "int8"), "nvfp4": ("exact", "bf16")}
# What is compared: forms of about as many bits.
GROUPS = {"eight bits": (("fp8",), ("q8_0",)),
          "four bits": (("int4", "int4+int8", "int4 all", "nvfp4"), ("q4_0+q8_0", "q4_k_m"))}
if "amx_bf16" in Path("/proc/cpuinfo").read_text():
    PRECISIONS["fp8"] += ("amx",)
LIMITS = ("50%", "25%", "12.5%")


def run(*command, **options):
    command = [str(word) for word in command]
    print("$ " + " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, **options)


# ik_llama.cpp 8337e4cd without its flash attention lacks two functions: the first declines, so that attention takes its
# other path, and the second is the memory that the first would need.
NO_FLASH = """extern "C" bool iqk_flash_attn_noalibi() { return false; }
extern "C" unsigned long iqk_fa_work_buffer_size(const void*, int) { return 0; }
"""


class Peer:
    """A library of llama.cpp's kind, and our program over it."""

    def __init__(self, name, source, work, flags):
        self.name, self.source, self.program = name, Path(source).resolve(), work / ("peer_" + name)
        build = self.source / "build"
        if not list(build.rglob("libllama.a")):
            run("cmake", "-S", self.source, "-B", build, "-D", "CMAKE_BUILD_TYPE=Release", "-D", "BUILD_SHARED_LIBS=OFF",
                "-D", "GGML_NATIVE=ON", "-D", "LLAMA_CURL=OFF", *flags)
            run("cmake", "--build", build, "--target", "llama", "--parallel", os.cpu_count())
        if not self.program.exists():
            libraries = sorted(str(path) for part in ("src", "ggml") for path in (build / part).rglob("lib*.a"))
            if flags:
                (work / "no_flash.cpp").write_text(NO_FLASH)
                libraries.append(str(work / "no_flash.cpp"))
            run("g++", "-std=c++20", "-O2", "-I", self.source / "include", "-I", self.source / "ggml" / "include",
                HERE / "peer_llama.cpp", "-o", self.program, *libraries, *(one for one in libraries if one.endswith(".a")), "-fopenmp", "-lpthread", "-ldl")

    def tool(self, name):
        path = self.source / "build" / "bin" / name
        if not path.exists():
            run("cmake", "--build", self.source / "build", "--target", name, "--parallel", os.cpu_count())
        return path


class Models:
    """Made once, in the folder `work`."""

    def __init__(self, arguments, llama):
        self.work, self.arguments, self.llama = arguments.work, arguments, llama
        self.source = self.work / "v3slice"
        if not self.source.exists():
            run(sys.executable, TOOLS / "v3_checkpoint.py", self.source, *SLICE)

    def ours(self, form):
        folder = self.work / ("packed-" + form.replace(" ", "-"))
        if not (folder / "manifest.json").exists():
            flags = [word for transform in FORMS[form] for word in ("--transform", transform)]
            run(self.arguments.reshard, self.source, "--by", "expert", *flags, "--out", folder)
        return folder

    def theirs(self, form):
        path = self.work / ("v3slice-%s.gguf" % form)
        made = path.with_suffix(".part")
        if path.exists():
            return path
        if GGUFS[form] is None:
            run(self.arguments.python, HERE / "peer_convert.py", self.llama.source, self.source, "--outfile", made,
                "--outtype", form)
        else:
            *flags, kind = GGUFS[form]
            run(self.llama.tool("llama-quantize"), "--allow-requantize", *flags, self.theirs("q8_0"), made, kind)
        made.rename(path)
        return path


class Tables:
    def __init__(self, arguments, peers, models):
        self.arguments, self.peers, self.models = arguments, peers, models

    def candidates(self, group, first_precision_only=False):
        forms, ggufs = GROUPS[group]
        for form in forms:
            for precision in PRECISIONS[form][-1:] if first_precision_only else PRECISIONS[form]:
                yield "%s %s=%s %s --precision %s" % (form, precision, self.arguments.dsrun,
                                                      self.models.ours(form), precision)
        for peer in self.peers:
            for form in ggufs:
                # With AMX llama.cpp's own layout cannot multiply latent attention (peer_llama.cpp).
                yield "%s %s=%s %s --repack %s" % (peer.name, form, peer.program, self.models.theirs(form),
                                                   "on" if peer.name == "ik" else "off")

    def rates(self):
        """The machine's limits at this time."""
        said = subprocess.run([self.arguments.dsrun, "bench", self.models.ours("fp8"), "-p", "1", "-n", "1", "-r", "1",
                               "--device", "cpu", "--threads", str(self.arguments.threads), "-o", "json"],
                              capture_output=True, text=True, check=True).stdout
        limits = json.loads(said)["limits"]
        print("machine: memory reads %.1f GB/s, %.0f GFLOP/s of FMA" % (limits["memory_bytes_per_second"] / 1e9,
                                                                        limits["exact_operations_per_second"] / 1e9))

    def compare(self, title, candidates, *flags):
        print("\n## %s\n" % title, flush=True)
        self.rates()
        sys.stdout.flush()
        run(sys.executable, HERE / "compare_llama.py", "--rounds", self.arguments.rounds, "--threads",
            self.arguments.threads, *flags, *candidates)

    def memory(self):
        for group in GROUPS:
            for prompt in self.arguments.prompts.split(","):
                self.compare("%s in memory, prompt of %s" % (group, prompt), self.candidates(group), "--prompt", prompt)

    def limits(self):
        for group in GROUPS:
            for limit in LIMITS:
                self.compare("%s in %s of its bytes" % (group, limit), self.candidates(group, True), "--prompt", 8,
                             "--predict", 17, "--limit", limit)

    def cold(self):
        for group in GROUPS:
            self.compare("%s from a cold disk" % group, self.candidates(group, True), "--cold", "--predict", 2)

    def clients(self):
        server = self.peers[0].tool("llama-server")
        for group, (forms, ggufs) in GROUPS.items():
            print("\n## %s, clients\n" % group, flush=True)
            self.rates()
            run(sys.executable, HERE / "compare_server.py", "--dsrun", self.arguments.dsrun, "--folder",
                self.models.ours(forms[0]), "--llama-server", server, "--gguf", self.models.theirs(ggufs[0]), "--clients",
                "1,4,16", "--rounds", self.arguments.rounds, "--questions", 16, "--threads", self.arguments.threads,
                "--options", "--precision " + PRECISIONS[forms[0]][-1], "--llama-options=--no-repack")


def main():
    parts = ("memory", "limits", "cold", "clients")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for models and programs")
    parser.add_argument("--llama", required=True, help="llama.cpp's source folder")
    parser.add_argument("--ik", help="ik_llama.cpp's source folder")
    parser.add_argument("--ik-without-flash", action="store_true", help="build it without flash attention")
    parser.add_argument("--python", default=sys.executable, help="for llama.cpp's converter (default: this one)")
    parser.add_argument("--dsrun", default="build/runtime/dsrun")
    parser.add_argument("--reshard", default="build/reshard/reshard")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", default="16,64,512", help="lengths in memory (default: 16,64,512)")
    parser.add_argument("--only", default=",".join(parts), help="parts (default: all)")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := [part for part in chosen if part not in parts]:
        parser.error("--only: no part %s; there are %s" % (unknown[0], ", ".join(parts)))
    arguments.work.mkdir(parents=True, exist_ok=True)
    peers = [Peer("llama", arguments.llama, arguments.work, [])]
    if arguments.ik:
        flags = ["-D", "GGML_IQK_FLASH_ATTENTION=OFF"] if arguments.ik_without_flash else []
        peers.append(Peer("ik", arguments.ik, arguments.work, flags))
    tables = Tables(arguments, peers, Models(arguments, peers[0]))
    for part in chosen:
        getattr(tables, part)()


if __name__ == "__main__":
    main()
