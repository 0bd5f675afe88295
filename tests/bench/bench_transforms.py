#!/usr/bin/env python3
"""What transforms cost: in accuracy and for the model's predictions on the small trained checkpoint, in time on matrices
of DeepSeek-V3's shapes. docs/recipes.md has a part of what it prints.

    tests/bench/bench_transforms.py --reshard build/reshard/reshard --dsrun build/runtime/dsrun --work DIR [--repeat 5]

Errors are those that the manifest records. Predictions are compared with those of the checkpoint that a transform was
given and of the first one, token by token of a text in windows of 64 (KL divergence in nats, agreement on the likeliest
token), and by perplexity, whose windows begin 8 tokens apart. Times are of whole runs with one job, in turn with one that
converts nothing; medians. DIR should be in memory (/dev/shm) if the disk is not what is to be measured: 3 GB. Standard
library only.
"""

import argparse
import json
import math
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import safetensors_io  # noqa: E402

TINY = ROOT / "tests" / "data" / "tiny-v3"
TEXT = ROOT / "tests" / "data" / "tiny-v3-golden" / "perplexity.txt"
WINDOW = 64  # tokens: original_max_position_embeddings of the small checkpoint
MIXED = "fp8-to-bf16 role=attention role=dense_mlp role=shared_expert"
# The rows of the small model's other matrices of attention are not filled by groups of 32.
THROUGHOUT = ("experts-to-int4", "weights-to-int8 role=shared_expert role=dense_mlp role=head",
              "weights-to-int8 name=*.q_?_proj.weight name=*.kv_a_proj_with_mqa.weight")
SHAPES = ["--set", "num_hidden_layers=1", "--experts", "4", "--set", "vocab_size=1024",
          "--set", "first_k_dense_replace=0", "--set", "num_nextn_predict_layers=0"]  # of DeepSeek-V3 otherwise: 437 MB


class Programs:
    def __init__(self, arguments):
        self.reshard, self.dsrun, self.work = arguments.reshard, arguments.dsrun, Path(arguments.work)
        self.mxfp4 = arguments.mxfp4

    def run(self, *command):
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode not in (0, 1) or (done.returncode == 1 and "compare" not in command):
            sys.exit("failed: %s\n%s" % (" ".join(map(str, command)), done.stderr))
        return done.stdout

    def pack(self, source, name, *transforms):
        """The folder, and the seconds that it took."""
        out = self.work / name
        flags = [flag for transform in transforms for flag in ("--transform", transform)]
        began = time.monotonic()
        self.run(self.reshard, source, "--by", "expert", "--jobs", 1, "--out", out, *flags)
        return out, time.monotonic() - began

    def perplexity(self, folder):
        said = self.run(self.dsrun, "eval", folder, "--text", TEXT, "--ctx", WINDOW, "--stride", 8)
        return re.match(r"perplexity ([\d.]+)", said)[1]

    def record(self, folder, name):
        """Recordings of the text's windows."""
        ids = [str(token["id"]) for token in json.loads(
            self.run(self.dsrun, "tokenize", folder, "-p", TEXT.read_text(), "--json"))]
        paths = []
        for begin in range(0, len(ids), WINDOW):
            paths.append(self.work / ("%s-%d.safetensors" % (name, begin)))
            self.run(self.dsrun, "record", folder, "--tokens", ",".join(ids[begin:begin + WINDOW]),
                     "--modules", "lm_head", "--out", paths[-1])
        return paths

    def compare(self, folder, references):
        """(mean KL divergence, largest, share of tokens with the same likeliest one)"""
        report = self.work / "report.json"
        rows, total, largest, same = 0, 0.0, 0.0, 0
        for reference in references:
            self.run(self.dsrun, "compare", folder, "--reference", reference, "--json", report)
            logits = json.loads(report.read_text())["logits"]
            rows += logits["rows"]
            total += logits["kl_mean"] * logits["rows"]
            largest = max(largest, logits["kl_max"])
            same += logits["top1_agreement"]
        return total / rows, largest, same / rows


def with_scales_of_powers(source, out):
    """A copy in which every scale is the nearest power of two."""
    shutil.copytree(source, out)
    for path in sorted(out.glob("*.safetensors")):
        tensors = safetensors_io.parse(path.read_bytes())[0]
        for name, (dtype, shape, raw) in tensors.items():
            if name.endswith("_scale_inv"):
                values = struct.unpack("<%df" % (len(raw) // 4), raw)
                powers = [2.0 ** round(math.log2(value)) for value in values]
                tensors[name] = (dtype, shape, struct.pack("<%df" % len(powers), *powers))
        safetensors_io.write(path, tensors)
    return out


def payload_bytes(folder):
    """Of a packed repository, or of a folder of safetensors files."""
    if (folder / "manifest.json").exists():
        return manifest(folder)["coverage"]["payload_bytes"]
    return sum(len(value[2]) for value in safetensors_io.read_checkpoint(folder).values())


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def print_errors(rows):
    print("| transform | role | tensors | relative RMS | worst tensor | its relative RMS |\n|---|---|---|---|---|---|")
    for title, folder in rows:
        for role, errors in manifest(folder).get("rounding_errors", {}).items():
            print("| %s | %s | %d | %.3e | `%s` | %.3e |" % (title, role, errors["tensors"], errors["relative_rms"],
                                                          errors["worst"]["name"], errors["worst"]["relative_rms"]))


def accuracy(programs):
    """Tables of errors and predictions."""
    work = programs.work
    plain, _ = programs.pack(TINY, "plain")
    bf16, _ = programs.pack(TINY, "bf16", "fp8-to-bf16")
    f32, _ = programs.pack(TINY, "f32", "fp8-to-f32")
    mixed, _ = programs.pack(TINY, "mixed", MIXED)
    programs.run(programs.reshard, "unpack", bf16, "--out", work / "bf16-shards")
    fp8, _ = programs.pack(work / "bf16-shards", "fp8", "bf16-to-fp8")
    powers = with_scales_of_powers(TINY, work / "powers")
    e8m0, _ = programs.pack(powers, "e8m0", "scales-to-e8m0")
    int4, _ = programs.pack(TINY, "int4", "experts-to-int4")
    nvfp4, _ = programs.pack(TINY, "nvfp4", "experts-to-nvfp4")
    throughout, _ = programs.pack(TINY, "throughout", *THROUGHOUT)
    rows = [("fp8-to-bf16", bf16, plain), ("experts-to-int4", int4, plain), ("experts-to-nvfp4", nvfp4, plain),
            ("; ".join(THROUGHOUT), throughout, plain),
            ("fp8-to-f32", f32, plain), (MIXED, mixed, plain),
            ("bf16-to-fp8, of the first", fp8, bf16), ("scales-to-e8m0, of a copy with such scales", e8m0, powers)]
    print_errors([(title, folder) for title, folder, _ in rows])
    if programs.mxfp4:
        rows.append(("MXFP4 experts", programs.mxfp4, plain))
    print("\n| transform | bytes of tensors | perplexity | KL mean | KL largest | same likeliest token |")
    print("|---|---|---|---|---|---|")
    print("| none | %d | %s | | | |" % (manifest(plain)["coverage"]["payload_bytes"], programs.perplexity(plain)))
    first = programs.record(plain, "first")
    for number, (title, folder, source) in enumerate(rows):
        references = [("", programs.record(source, str(number)))]
        if source not in (plain, powers):
            references.append((" (to none)", first))
        for what, reference in references:
            mean, largest, same = programs.compare(folder, reference)
            print("| %s%s | %d | %s | %.2e | %.2e | %.2f %% |" % (
                title, what, payload_bytes(folder), programs.perplexity(folder), mean, largest,
                100 * same))


def speed(programs, repeat):
    """Table of times."""
    fp8, bf16 = programs.work / "v3-fp8", programs.work / "v3-bf16"
    maker = [sys.executable, ROOT / "tests" / "tools" / "v3_checkpoint.py"]
    programs.run(*maker, fp8, *SHAPES, "--payload", "random")
    programs.run(*maker, bf16, *SHAPES, "--payload", "random", "--set", "quantization_config=null")
    cases = [(fp8, []), (fp8, ["fp8-to-bf16"]), (fp8, ["fp8-to-f32"]), (fp8, ["experts-to-int4"]),
             (fp8, ["experts-to-nvfp4"]), (bf16, []), (bf16, ["bf16-to-fp8"]), (bf16, ["experts-to-int4"]),
             (bf16, ["experts-to-nvfp4"])]
    seconds = [[] for _ in cases]
    for _ in range(repeat):
        for times, (source, transforms) in zip(seconds, cases):
            out, taken = programs.pack(source, "timed", *transforms)
            times.append(taken)
            shutil.rmtree(out)
    print("\n| source | transform | seconds | MB/s of the source | of the plain copy's speed |\n|---|---|---|---|---|")
    for times, (source, transforms) in zip(seconds, cases):
        size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
        taken = statistics.median(times)
        plain = statistics.median(seconds[cases.index((source, []))])
        print("| %s, %.0f MB | %s | %.2f (%.2f to %.2f) | %.0f | %.2f |" % (
            "FP8" if source == fp8 else "BF16", size / 1e6, transforms[0] if transforms else "none", taken, min(times),
            max(times), size / taken / 1e6, plain / taken))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reshard", required=True)
    parser.add_argument("--dsrun", required=True)
    parser.add_argument("--work", required=True, help="a folder that does not exist yet; removed at the end")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--mxfp4", type=Path, help="a copy of tests/data/tiny-v3 with such experts "
                        "(tests/tools/weight_formats/mxfp4_experts.py), for the tables of predictions")
    arguments = parser.parse_args()
    programs = Programs(arguments)
    if programs.work.exists():
        sys.exit("%s is in the way: remove it, or name another --work" % programs.work)
    programs.work.mkdir(parents=True)
    try:
        accuracy(programs)
        speed(programs, arguments.repeat)
    finally:
        shutil.rmtree(programs.work)


if __name__ == "__main__":
    main()
