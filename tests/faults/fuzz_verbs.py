#!/usr/bin/env python3
"""Damages whole folders, and gives them to the verbs of both programs: fuzzing above the parsers (tests/fuzz has those).

    scripts/fuzz-verbs [SECONDS]

A scenario is a sound folder and the verbs that read it: an ordinary checkpoint, packed repositories in several forms, an
unfinished repack, the cache of a distant model, routes, a recording, a conversation, a recipe. Of a copy one to three files
are damaged: bits, cuts, numbers at the places where formats keep lengths; of JSON values, keys and whole branches. What is
sealed or checked by digests line by line is sealed again, so that damage gets past that. Each verb must end as
hostile/judge.py demands, with exit status 0, 1 or 2.

The environment is that of tests/e2e/common.py; DSPACK_TEST_SEED repeats a run. Findings are printed and their folders kept
below $TMPDIR/dspack-findings. SECONDS counts the processor time of the programs; the default is 60."""

import hashlib
import json
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import faults  # noqa: E402,F401  (puts the other folders in the path)
from checkpoints import write_big, write_small  # noqa: E402
from common import EndToEnd, RangeServer, seeded_random  # noqa: E402
from hostile import judge  # noqa: E402
from hostile.cases import DSRUN, NUMBERS, PATHS, RESHARD, compact, places, value_at  # noqa: E402
from hostile.packed import sealed  # noqa: E402

VALUES = [*NUMBERS.values(), *PATHS.values(), 0, 1, 2, 7, 2**31, 2**32, 0.5, 1e308, [], {}, "x" * 300, "\x1b[2J", "\u202e", "\u009b",
          "U8", "F32", "F4", "zstd", "layer_map", "{layer}", "{expert[9]}", [[]], [0] * 50, {"a": {}}]
SENSITIVE = b"\x00\xff\x7f\x80\"{}[],:\\/."
MOST_BYTES = 4_000_000  # a larger file is damaged in its first bytes alone


class Scenario:
    """A sound folder, and what is run in a damaged copy: `commands(folder)` -> [(program, arguments)]."""

    def __init__(self, name, folder, commands, spare=()):
        self.name, self.folder, self.commands, self.spare = name, folder, commands, spare

    def copy(self, target):
        shutil.copytree(self.folder, target, copy_function=os.link, symlinks=True)
        return [path for path in sorted(target.rglob("*")) if path.is_file() and path.name not in self.spare]


def generate(where, *more):
    return (DSRUN, [where, "--tokens", "0,5", "-n", "1", "--ctx", "16", "--device", "cpu", "--threads", "1", *more])


def verbs_of_packed(at):
    packed = at / "packed"
    return [(RESHARD, ["verify", packed]), (RESHARD, ["inspect", packed]), (RESHARD, ["inspect", packed, "--json"]),
            (RESHARD, ["inspect", packed, "--html", at / "page.html"]), (RESHARD, ["verify", packed, "--source", at / "source"]),
            (RESHARD, ["unpack", packed, "--exact", "--out", at / "exact"]), (RESHARD, ["unpack", packed, "--out", at / "shards"]),
            (RESHARD, ["link", packed, "--out", at / "flat"]), (RESHARD, ["diff", packed, at / "source"]),
            (RESHARD, ["publish", packed, "--repo", "a/b", "--dry-run"]), generate(packed), (DSRUN, ["plan", packed])]


def verbs_of_source(at):
    source = at / "source"
    return [(RESHARD, [source, "--by", "expert", "--out", at / "out"]), (RESHARD, ["inspect", source]),
            (RESHARD, [source, "--by", "layer", "--out", at / "layers", "--dedupe", "--transform", "fp8-to-bf16"]),
            (RESHARD, [source, "--by", "shard:20KB", "--out", at / "few", "--compress", "zstd"]), generate(source)]


class Lab(EndToEnd):
    """Makes the scenarios; not a test of its own."""

    def runTest(self):
        pass

    def scenarios(self):
        small = write_small(self.scratch / "small" / "source")
        yield Scenario("source", small.parent, verbs_of_source)
        for name, options in {"expert": ["--by", "expert"], "layer": ["--by", "layer"], "zstd": ["--by", "expert", "--compress", "zstd"],
                              "dedupe": ["--by", "shard:20KB", "--dedupe"], "bf16": ["--by", "layer", "--transform", "fp8-to-bf16"],
                              "map": ["--by", "expert", "--include", "layers=1"]}.items():
            folder = self.scratch / name
            shutil.copytree(small, folder / "source", copy_function=os.link)
            self.assert_ok(self.run_program(small, *options, "--out", folder / "packed"))
            yield Scenario(name, folder, verbs_of_packed)
        yield self.unfinished(write_big(self.scratch / "big"))
        yield from self.models()

    def unfinished(self, source):
        folder = self.scratch / "unfinished"
        folder.mkdir()
        server = self.serve(source)
        server.add_fault("*00002*", "truncate", min_bytes=100_000)
        self.run_program(server.url, "--by", "expert", "--out", folder / "out", "--dev", "retries=0")
        self.assert_unfinished(folder / "out")
        server.clear_faults()
        return Scenario("unfinished", folder, lambda at: [
            (RESHARD, [server.url + "/", "--by", "expert", "--out", at / "out", "--dev", "retries=0"]), (RESHARD, ["seal", at / "out"])])

    def models(self):
        model = self.copy_source("model/model")
        (model.parent / "talk.json").write_text(json.dumps([{"role": "user", "content": "Hello"}]))
        self.assert_ok(self.run_program(model, "--tokens", "0,5", "-n", "4", "--trace", model.parent / "routes.jsonl", program=DSRUN))
        self.assert_ok(self.run_program("record", model, "--tokens", "0,5", "--out", model.parent / "run.safetensors", "--modules",
                                        "model.norm", program=DSRUN))
        yield Scenario("model", model.parent, lambda at: [
            generate(at / "model"), (DSRUN, ["tokenize", at / "model", "-p", "Hello, 123 world"]), (DSRUN, ["plan", at / "model"]),
            (DSRUN, ["tokenize", at / "model", "--chat", at / "talk.json", "--text"]), (DSRUN, ["replay", at / "routes.jsonl", "--slots", "20%"]),
            (DSRUN, ["compare", at / "model", "--reference", at / "run.safetensors"])], spare=("README.md",))
        server = self.serve(model)
        cache = self.scratch / "cached" / "cache"
        self.assert_ok(self.run_program(server.url, "--tokens", "0,5", "-n", "1", "--cache", cache, program=DSRUN))
        yield Scenario("cache", cache.parent, lambda at: [generate(server.url, "--cache", at / "cache")])


def rewrite(path, content):
    """Writes a file that may be a link to the sound one."""
    path.unlink()
    path.write_bytes(content)


def damage(path, chance):
    content = path.read_bytes()
    text = None
    if path.suffix in (".json", ".jsonl") or path.name == "journal":
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            pass
    if text and chance.random() < 0.8:
        rewrite(path, damage_text(path, text, chance))
    else:
        rewrite(path, damage_bytes(content, chance))


def damage_text(path, text, chance):
    if path.name == "manifest.json":
        return sealed(damage_json(json.loads(text), chance))
    if path.name == "journal" or path.suffix == ".jsonl":
        lines = text.splitlines()
        at = chance.randrange(len(lines))
        record = lines[at][17:] if path.name == "journal" else lines[at]
        record = compact(damage_json(json.loads(record), chance))
        lines[at] = "%s %s" % (digest(record), record) if path.name == "journal" else record
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    return compact(damage_json(json.loads(text), chance)).encode("utf-8", "surrogatepass")


def digest(record):
    return hashlib.sha256(record.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def copied(value):
    """So that no list of VALUES changes, and none comes to hold itself."""
    return json.loads(json.dumps(value))


def damage_json(document, chance):
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        found = [place for place in places(document) if place]
        if not found:
            return copied(chance.choice(VALUES))
        place = chance.choice(found)
        holder, key = value_at(document, place[:-1]), place[-1]
        kind = chance.random()
        if kind < 0.6:
            holder[key] = copied(chance.choice(VALUES))
        elif kind < 0.75:
            del holder[key]
        elif kind < 0.9:  # a value from elsewhere
            holder[key] = copied(value_at(document, chance.choice(found)))
        elif isinstance(holder, list):
            holder.insert(key, copied(holder[key]))
        else:
            holder[chance.choice(("x", "path", "a" * 100, "\x1b"))] = copied(holder[key])
    return document


def damage_bytes(content, chance):
    kind = chance.random()
    if not content or kind < 0.1:
        return content[:chance.randrange(len(content) + 1)] if content else b"\0"
    content = bytearray(content)
    reach = len(content) if len(content) < MOST_BYTES and chance.random() < 0.5 else min(len(content), 4096)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        at = chance.randrange(reach)
        kind = chance.random()
        if kind < 0.4:
            content[at] ^= 1 << chance.randrange(8)
        elif kind < 0.7:
            content[at] = chance.choice(SENSITIVE)
        elif kind < 0.85:
            number = struct.pack("<Q", chance.choice((0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, len(content))))
            content[at:at + 8] = number
        elif kind < 0.93:
            del content[at:at + chance.randrange(1, 64)]
        else:
            content[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 64)))
        reach = min(reach, len(content))
        if not reach:
            break
    return bytes(content)


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fuzz(lab, seconds, chance, keep):
    scenarios = list(lab.scenarios())
    counts = {scenario.name: 0 for scenario in scenarios}
    findings = 0
    begin, shown = processor_seconds(), time.monotonic()
    while processor_seconds() - begin < seconds:
        scenario = chance.choice(scenarios)
        seed = chance.randrange(2**48)
        own = random.Random(seed)
        with tempfile.TemporaryDirectory(dir=lab.scratch) as folder:
            at = Path(folder) / "at"
            files = scenario.copy(at)
            for path in own.sample(files, min(len(files), own.choice((1, 1, 1, 2, 3)))):
                damage(path, own)
            commands = scenario.commands(at)
            for program, arguments in own.sample(commands, min(3, len(commands))):
                outcome = judge.run(program, arguments, lab.scratch)
                counts[scenario.name] += 1
                wrong = judge.faults(outcome, (0, 1, 2), most_lines=2)
                if wrong:
                    findings += 1
                    print("FINDING %s-%d: %s\n  %s" % (scenario.name, seed, "; ".join(wrong), outcome), flush=True)
                    if findings <= 20:
                        shutil.copytree(at, keep / ("%s-%d" % (scenario.name, seed)), symlinks=True, dirs_exist_ok=True)
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print("%d s of %d, %d runs, %d findings" % (processor_seconds() - begin, seconds, sum(counts.values()), findings), flush=True)
    print("%-12s %8s" % ("scenario", "runs"))
    for name, count in counts.items():
        print("%-12s %8d" % (name, count))
    print("%d runs, %d s of processor time, %d findings" % (sum(counts.values()), processor_seconds() - begin, findings))
    return findings


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    keep = Path(tempfile.gettempdir()) / "dspack-findings"
    keep.mkdir(exist_ok=True)
    lab = Lab()
    lab.setUp()
    try:
        sys.exit(1 if fuzz(lab, seconds, seeded_random(), keep) else 0)
    finally:
        lab.doCleanups()


if __name__ == "__main__":
    main()
