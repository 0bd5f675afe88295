#!/usr/bin/env python3
"""How far each precision of a GPU or CPU, and each number type of the KV cache, is from the CPU's exact logits.

    tests/bench/compare_precision.py --dsrun build/runtime/dsrun --text FILE [--text FILE ...] DIR
    tests/bench/compare_precision.py --dsrun build/runtime/dsrun --random-ids 128 DIR    for a model without a tokenizer

The reference is `dsrun logits --device cpu` with an FP32 cache. Over all positions of all texts, one table row for each
precision and cache:
    NMSE          sum (ours - reference)^2 / sum reference^2 of the logits
    KL, nats      mean over positions of KL(reference || ours) of the softmax
    largest KL    of one position
    top-1         positions where both have the same largest logit
A row of the CPU itself with each cache tells what the cache alone does. The standard library is all it needs.
"""
import argparse
import array
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import safetensors_io  # noqa: E402

PRECISIONS = ("exact", "split", "bf16", "fp8")
CACHES = ("f32", "bf16", "f16", "fp8")


class Distance:
    """Between logits and their reference, over positions."""

    def __init__(self):
        self.wrong = self.power = self.divergence = self.largest = 0.0
        self.same = self.positions = 0

    def add(self, reference, ours):
        self.wrong += sum((a - b) ** 2 for a, b in zip(ours, reference))
        self.power += sum(b * b for b in reference)
        p, q = log_softmax(reference), log_softmax(ours)
        divergence = math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))
        self.divergence += divergence
        self.largest = max(self.largest, divergence)
        self.same += reference.index(max(reference)) == ours.index(max(ours))
        self.positions += 1

    def row(self):
        return "%.2e | %.2e | %.2e | %.2f %% of %d" % (
            self.wrong / self.power, self.divergence / self.positions, self.largest,
            100 * self.same / self.positions, self.positions)


def log_softmax(logits):
    most = max(logits)
    total = math.log(math.fsum(math.exp(value - most) for value in logits)) + most
    return [value - total for value in logits]


class Program:
    def __init__(self, args, scratch):
        self.dsrun, self.folder, self.chunk, self.scratch = args.dsrun, args.folder, args.chunk, scratch
        self.library = ("--dev", "cuda-library=%s" % args.cuda_library) if args.cuda_library else ()

    def run(self, *arguments):
        done = subprocess.run([str(word) for word in (self.dsrun, *arguments)], text=True, capture_output=True)
        if done.returncode != 0:
            sys.exit("compare_precision.py: %s failed:\n%s" % (arguments[0], done.stderr))
        return done.stdout

    def ids(self, text):
        return [token["id"] for token in json.loads(self.run("tokenize", self.folder, "-p", text, "--json"))]

    def logits(self, ids, *choice):
        """(rows of logits, what computed them)"""
        out, stats = Path(self.scratch) / "logits.safetensors", Path(self.scratch) / "stats.json"
        out.unlink(missing_ok=True)
        self.run("logits", self.folder, "--tokens", ",".join(map(str, ids)), "--out", out, "--ctx", len(ids),
                 "--stats", stats, *(("--dev", "chunk=%s" % self.chunk) if self.chunk else ()), *choice)
        _, shape, data = safetensors_io.parse(out.read_bytes())[0]["logits"]
        values = array.array("f")
        values.frombytes(data)
        rows = [values[i * shape[1]:(i + 1) * shape[1]].tolist() for i in range(shape[0])]
        if not all(math.isfinite(value) for row in rows for value in row):
            sys.exit("compare_precision.py: logits that are not finite numbers with %s" % " ".join(map(str, choice)))
        return rows, json.loads(stats.read_text())["device"]

    def on_gpu(self, device, precision, cache):
        return ("--device", device, "--precision", precision, "--kv-dtype", cache, *self.library)


def texts_of(args, program):
    """Ids of each text."""
    if args.random_ids:
        vocab = json.loads((args.folder / "config.json").read_text())["vocab_size"]
        numbers = random.Random(args.seed)
        return [[numbers.randrange(vocab) for _ in range(args.random_ids)]]
    texts = [path.read_text() for path in args.text] + args.prompt
    return [program.ids(text)[:args.positions] for text in texts]


def compare(program, texts, args):
    references = [program.logits(ids, "--device", "cpu")[0] for ids in texts]
    choices = [("cpu", cache, ("--device", "cpu", "--kv-dtype", cache)) for cache in args.cache if cache != "f32"]
    choices += [(precision, cache, program.on_gpu(args.device, precision, cache))
                for precision in args.precision for cache in args.cache
                if precision != "split" or cache == "bf16"]  # it takes no other
    print("| precision | cache | NMSE | KL, nats | largest KL | top-1 | device |\n|---|---|---|---|---|---|---|")
    for name, cache, choice in choices:
        distance, device = Distance(), ""
        for ids, reference in zip(texts, references):
            rows, device = program.logits(ids, *choice)
            for expected, ours in zip(reference, rows, strict=True):
                distance.add(expected, ours)
        print("| %s | %s | %s | %s |" % (name, cache, distance.row(), device), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dsrun", required=True)
    parser.add_argument("--cuda-library", help="the CUDA library to load, if not the program's own")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--text", action="append", default=[], type=Path, help="a file of text; may be given again")
    parser.add_argument("--prompt", action="append", default=[], help="a text; may be given again")
    parser.add_argument("--positions", type=int, default=512, help="of a text at most")
    parser.add_argument("--random-ids", type=int, default=0, help="so many random ids instead of texts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=0, help="tokens that go through the model at once (dsrun's default)")
    parser.add_argument("--precision", nargs="+", choices=(*PRECISIONS, "amx", "int8"), default=PRECISIONS)
    parser.add_argument("--cache", nargs="+", choices=CACHES, default=CACHES)
    args = parser.parse_args()
    if bool(args.random_ids) == bool(args.text or args.prompt):
        parser.error("either texts (--text, --prompt) or --random-ids")
    with tempfile.TemporaryDirectory() as scratch:
        program = Program(args, scratch)
        texts = texts_of(args, program)
        print("%s: %s positions" % (args.folder, " + ".join(str(len(ids)) for ids in texts)))
        compare(program, texts, args)


if __name__ == "__main__":
    main()
