#!/usr/bin/env python3
"""Damages the code on purpose, one small edit at a time, and looks whether the tests notice.

    tests/tools/mutation/mutate.py --count 20 --seed 1 reshard/link.cpp runtime/text

For each edit: the affected programs are built, the tests of the room run (its doctest program, then the fuzz corpora, then
the end-to-end cases named in ROOMS), and the file is put back. Prints one line an edit: killed by what, survived, or not
compiled. An edit that survives is a place to look at, not a verdict: some change nothing that can be seen.

Needs a finished release build in build/ (or --build). Works on the files in place: give it a tree of its own."""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# What looks at a folder: doctest programs, fuzz corpora, end-to-end cases (names of ctest). The first that fits is taken.
ROOMS = [
    ("runtime/text/regex", ["runtime/text/text_tests"], ["regex", "tokenizer"], ["e2e_prompt"]),
    ("runtime/text", ["runtime/text/text_tests"], ["tokenizer", "tiktoken", "regex", "chat"], ["e2e_prompt", "e2e_chat"]),
    ("runtime/storage", ["runtime/runtime_tests"], [], ["e2e_remote", "e2e_io", "e2e_absent_from"]),
    ("runtime", ["runtime/runtime_tests"], ["config", "routes"], ["e2e_dsrun", "e2e_family"]),
    ("format/source", ["format/format_tests"], ["http", "hub"], ["e2e_network", "e2e_bad_network", "e2e_hub", "e2e_hub_cache",
                                                                "fault_changes", "fault_servers"]),
    ("format/cache", ["format/format_tests", "runtime/runtime_tests"], ["cache_journal"], ["e2e_remote"]),
    ("format/compressed", ["format/format_tests"], ["frames"], ["e2e_stored_forms"]),
    ("format/part", ["format/format_tests"], [], ["e2e_absent_from", "e2e_parts"]),
    ("format", ["format/format_tests", "reshard/reshard_tests"], ["header", "index", "manifest", "checkpoint", "names", "layer_map"],
     ["e2e_bad_checkpoint", "e2e_repack", "e2e_grouping"]),
    ("reshard/publish", ["reshard/reshard_tests"], ["hub_answers"], ["e2e_publish", "e2e_publish_refusals"]),
    ("reshard/link", ["reshard/reshard_tests"], [], ["e2e_link"]),
    ("reshard/transform", ["reshard/reshard_tests"], [], ["e2e_transforms"]),
    ("reshard", ["reshard/reshard_tests", "faults/fault_tests"], ["plan", "recipe", "journal", "checksums"],
     ["e2e_repack", "e2e_grouping", "e2e_recipes", "e2e_verify", "e2e_unpack", "e2e_upstream", "e2e_diff", "e2e_resume", "e2e_parts",
      "e2e_link", "e2e_inspect_html", "e2e_stored_forms"]),
]

# (what, pattern, replacement); one match of a line is replaced.
EDITS = [("less", r" < ", " <= "), ("less or equal", r" <= ", " < "), ("more", r" > ", " >= "), ("more or equal", r" >= ", " > "),
         ("equal", r" == ", " != "), ("unequal", r" != ", " == "), ("and", r" && ", " || "), ("or", r" \|\| ", " && "),
         ("plus", r" \+ ", " - "), ("minus", r" - ", " + "), ("plus one", r" \+ 1\b", ""), ("minus one", r" - 1\b", ""),
         ("not", r"\(!(?=[a-z])", "("), ("a condition", r"\bif \((?=[a-z])", "if (!("), ("true", r"\btrue\b", "false"), ("false", r"\bfalse\b", "true"),
         ("max", r"std::max\b", "std::min"), ("min", r"std::min\b", "std::max"), ("a number", r"(?<![\w.])([2-9]|[1-9][0-9]+)(?![\w.])", "more"),
         ("a check", r"^ +TRY\(.*\);$", ""), ("a statement", r"^ +[a-z_]+(\.|->)?[a-z_]+\(.*\);$", ""), ("a jump", r"\bcontinue;", ";")]
LEFT_ALONE = re.compile(r"^\s*(//|#|\"|R\"|namespace|using|static_assert|constexpr char|\[\[nodiscard\]\] .*;$)|DSPACK_CHECK|fmt::format")


def edits_of(path):
    for number, line in enumerate(path.read_text().splitlines()):
        if LEFT_ALONE.search(line):
            continue
        code = line.split("//")[0]
        for what, pattern, replacement in EDITS:
            for found in re.finditer(pattern, code):
                yield number, what, found, replacement


def apply(line, what, found, replacement):
    if what == "a number":
        replacement = str(int(found.group()) + 1)
    if what == "a condition":  # closes where the opened one does
        depth, at = 1, found.end()
        while at < len(line) and depth:
            depth += {"(": 1, ")": -1}.get(line[at], 0)
            at += 1
        if depth:
            return None
        return line[:found.start()] + "if (!(" + line[found.end():at] + ")" + line[at:]
    return line[:found.start()] + replacement + line[found.end():]


def room_of(path):
    return next(room for room in ROOMS if path.startswith(room[0]))


def run(command, seconds, **options):
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds, **options).returncode
    except subprocess.TimeoutExpired:
        return "hung"


def judge(build, path):
    """What noticed; None: nothing; "" if it did not compile."""
    _, programs, corpora, cases = room_of(path)
    targets = [Path(name).name for name in programs] + ["fuzz_" + name for name in corpora]
    if run(["ninja", "-C", build, *targets], 900):
        return ""
    for program in programs:
        if run([build / "tests" / program, "-m"], 240, cwd=build / "tests" / Path(program).parent):
            return Path(program).name
    for name in corpora:
        if run([build / "tests/fuzz" / ("fuzz_" + name), ROOT / "tests/fuzz/corpus" / name], 120):
            return "fuzz_" + name
    if cases and run(["ninja", "-C", build, "reshard", "dsrun"], 900):
        return ""
    for case in cases:
        if run(["ctest", "--test-dir", build, "-R", "^%s$" % case], 900):
            return case
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", help="files, or folders of them")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    options = parser.parse_args()
    files = [file for place in options.places for file in
             (sorted((ROOT / place).rglob("*.cpp")) if (ROOT / place).is_dir() else [ROOT / place])]
    found = [(file, *edit) for file in files for edit in edits_of(file)]
    chance = random.Random(options.seed)
    chance.shuffle(found)
    counts = {"killed": 0, "survived": 0, "not compiled": 0}
    print("seed %d, %d edits possible" % (options.seed, len(found)), flush=True)
    for file, number, what, match, replacement in found:
        if counts["killed"] + counts["survived"] == options.count:
            break
        good = file.read_text()
        times = file.stat()
        lines = good.split("\n")
        changed = apply(lines[number], what, match, replacement)
        if changed is None or changed == lines[number]:
            continue
        name = file.relative_to(ROOT).as_posix()
        begin = time.monotonic()
        try:
            file.write_text("\n".join([*lines[:number], changed, *lines[number + 1:]]))
            by = judge(options.build, name)
        finally:
            file.write_text(good)
            os.utime(file, ns=(times.st_atime_ns, time.time_ns()))
        verdict = "survived" if by is None else "not compiled" if by == "" else "killed"
        counts[verdict] += 1
        if verdict != "not compiled":
            print("%-9s %s:%d %s: `%s` -> `%s`%s (%d s)" % (verdict, name, number + 1, what, lines[number].strip(), changed.strip(),
                                                         " by " + by if by else "", time.monotonic() - begin), flush=True)
    print(", ".join("%d %s" % (count, verdict) for verdict, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
