#!/usr/bin/env python3
"""Damages the code on purpose, in many places, and looks whether the tests notice.

    tests/tools/mutation/mutate.py --count 100 --seed 1 reshard/verbs/link.cpp runtime/text
    tests/tools/mutation/mutate.py --count 20 --seed 1,2,3 format reshard runtime     # twenty of each seed, in one build

All edits are compiled into one build, each behind a number, and DSPACK_MUTANT chooses the one that is in force: so a run of
the tests is all that an edit costs. Edited are whole statements on a line of their own and conditions, one edit a line; what
does not compile is dropped, after which the same build is tried again. For each edit the tests of its room run (doctest
programs, then fuzz corpora, then the end-to-end cases named in ROOMS). Prints one line an edit: killed by what, or survived.
An edit that survives is a place to look at, not a verdict: some change nothing that can be seen.

Needs a finished release build in build/ (or --build), with all that tests load. Works on the files in place, and leaves them edited: give it a tree of
its own."""

import argparse
import concurrent.futures
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
    ("runtime/text", ["runtime/text/text_tests", "runtime/runtime_tests"],
     ["tokenizer", "tiktoken", "regex", "chat", "jinja", "templates", "reply", "json_schema"],
     ["e2e_prompt", "e2e_chat", "e2e_encoded_chats", "e2e_serve_calls", "e2e_structured"]),
    ("runtime/access", ["runtime/runtime_tests"], [], ["e2e_remote", "e2e_io", "e2e_absent_from"]),
    ("runtime/bench", ["runtime/runtime_tests"], [], ["e2e_bench"]),
    ("runtime/budget", ["runtime/runtime_tests"], [], ["e2e_budget", "e2e_plan"]),
    ("runtime/cli", ["runtime/runtime_tests"], [], ["e2e_usage", "e2e_prompt", "e2e_chat", "e2e_terminal", "e2e_plan"]),
    ("runtime/generate", ["runtime/runtime_tests", "runtime/runtime_threads_tests"], ["kv_file"],
     ["e2e_decoding", "e2e_prefix_cache", "e2e_saved_chat", "e2e_structured", "e2e_seeds", "e2e_serve_company"]),
    ("runtime/replay", ["runtime/runtime_tests"], ["routes"], ["e2e_replay_page"]),
    ("runtime/serve", ["runtime/serve_tests", "runtime/runtime_tests"], ["requests", "http"],
     ["e2e_serve", "e2e_serve_requests", "e2e_serve_calls", "e2e_serve_fields", "e2e_structured", "e2e_serve_start", "e2e_serve_company",
      "e2e_serve_load", "e2e_evaluators", "e2e_serve_clients", "e2e_web_page"]),
    ("runtime/validation", ["runtime/runtime_tests"], [], ["e2e_validation"]),
    ("runtime", ["runtime/runtime_tests"], ["config", "routes"], ["e2e_dsrun", "e2e_family", "e2e_sparse_attention"]),
    ("kernels", ["kernels/kernels_tests"], [], ["e2e_family"]),
    ("format/cli", ["format/format_tests"], [], ["e2e_usage", "e2e_progress", "e2e_cache_verb"]),
    ("format/weights", ["format/format_tests", "runtime/runtime_tests"], ["checkpoint"], ["e2e_family", "e2e_four_bit", "e2e_int8"]),
    ("format/hub", ["format/format_tests"], ["hub", "hub_answers"], ["e2e_hub", "e2e_hub_cache", "e2e_publish",
                                                                 "e2e_publish_refusals", "e2e_hostile_hub"]),
    ("format/http", ["format/format_tests"], ["http", "hub_answers"], ["e2e_network", "e2e_bad_network", "e2e_publish",
                                                                      "fault_changes", "fault_servers"]),
    ("format/source", ["format/format_tests"], ["http", "hub"], ["e2e_network", "e2e_hub"]),
    ("format/cache", ["format/format_tests", "runtime/runtime_tests"], ["cache_journal"], ["e2e_remote"]),
    ("format/compressed", ["format/format_tests"], ["frames"], ["e2e_stored_forms"]),
    ("format/part", ["format/format_tests"], [], ["e2e_absent_from", "e2e_parts"]),
    ("format", ["format/format_tests", "reshard/reshard_tests"], ["header", "index", "manifest", "checkpoint", "names", "layer_map"],
     ["e2e_bad_checkpoint", "e2e_repack", "e2e_grouping"]),
    ("reshard/cli", ["reshard/reshard_tests"], [], ["e2e_usage", "e2e_repack", "e2e_recipe_reading"]),
    ("reshard/publish", ["reshard/reshard_tests"], [], ["e2e_publish", "e2e_publish_refusals"]),
    ("reshard/verbs/link", ["reshard/reshard_tests"], [], ["e2e_link"]),
    ("reshard/verbs/repair", ["reshard/reshard_tests"], [], ["e2e_repair"]),
    ("reshard/plan/transform", ["reshard/reshard_tests"], [], ["e2e_transforms"]),
    ("reshard/run/converter", ["reshard/reshard_tests"], [], ["e2e_transforms"]),
    ("reshard", ["reshard/reshard_tests", "faults/fault_tests"], ["plan", "recipe", "journal", "checksums"],
     ["e2e_repack", "e2e_grouping", "e2e_recipes", "e2e_verify", "e2e_unpack", "e2e_upstream", "e2e_diff", "e2e_resume", "e2e_parts",
      "e2e_link", "e2e_inspect_html", "e2e_stored_forms", "fault_kills"]),
]

# (what, pattern, replacement); one match of a line is replaced.
EDITS = [("less", r" < ", " <= "), ("less or equal", r" <= ", " < "), ("more", r" > ", " >= "), ("more or equal", r" >= ", " > "),
         ("equal", r" == ", " != "), ("unequal", r" != ", " == "), ("and", r" && ", " || "), ("or", r" \|\| ", " && "),
         ("plus", r" \+ ", " - "), ("minus", r" - ", " + "), ("plus one", r" \+ 1\b", ""), ("minus one", r" - 1\b", ""),
         ("not", r"\(!(?=[a-z])", "("), ("a condition", r"\bif \((?=[a-z])", "if (!("), ("true", r"\btrue\b", "false"), ("false", r"\bfalse\b", "true"),
         ("max", r"std::max\b", "std::min"), ("min", r"std::min\b", "std::max"), ("a number", r"(?<![\w.])([2-9]|[1-9][0-9]+)(?![\w.])", "more"),
         ("a check", r"^ +TRY\(.*\);$", ""), ("a statement", r"^ +[a-z_]+(\.|->)?[a-z_]+\(.*\);$", ""), ("a jump", r"\bcontinue;", ";")]
LEFT_ALONE = re.compile(r"^\s*(//|#|\"|R\"|namespace|using|static_assert|constexpr char|\[\[nodiscard\]\] .*;$)|DSPACK_CHECK|fmt::format")


# Put before the first line of an edited file, of which several may be compiled as one.
SWITCH = ("#ifndef DSPACK_MUTANT\n#define DSPACK_MUTANT\n#include <cstdlib>\n"
          "inline const int dspack_mutant = std::getenv(\"DSPACK_MUTANT\") ? std::atoi(std::getenv(\"DSPACK_MUTANT\")) : 0;\n#endif\n")
# A statement that declares nothing, so that it may stand in a block of its own.
STATEMENT = re.compile(r"^\s*(return\b.*|(\+\+|--)?[a-z_][\w.>\[\]()*-]*\s*(=|\+=|-=|\|=)\s.*|TRY\(.*\)|[a-z_]\w*((\.|->|::)\w+)*\(.*\)"
                       r"|(if|while) \(.*\) (return|continue|break)\b.*|continue|break|(\+\+|--)[\w.>-]+);$")
CONDITION = re.compile(r"^(\s*(?:\} else )?(?:if|while) \()(.*)(\) \{)$")
BEGINS_ANEW = re.compile(r"([;{}:)]|else|^)\s*(//.*)?$")  # how the line before a statement ends


def edits_of(path):
    """(line, what, the line as edited) of each place that can be switched."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        before = lines[number - 1].rstrip() if number else ""
        if LEFT_ALONE.search(line) or not BEGINS_ANEW.search(before) or before.endswith("\\"):
            continue
        code = line.split("//")[0].rstrip()
        if not (STATEMENT.match(code) or CONDITION.match(code)) or code.count("(") != code.count(")") or code.count("{") > code.count("}") + 1:
            continue
        for what, pattern, replacement in EDITS:
            for found in re.finditer(pattern, code):
                changed = apply(code, what, found, replacement)
                if changed is not None and changed != code:
                    yield number, what, changed


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


def switched(line, changed, number):
    """Both forms of a line."""
    code = line.split("//")[0].rstrip()
    condition, other = CONDITION.match(code), CONDITION.match(changed)
    if condition and other:
        if ";" in condition[2] or "=" in re.sub(r"[<>=!]=", "", condition[2]):
            return None  # declares something
        return "%sdspack_mutant == %d ? static_cast<bool>(%s) : static_cast<bool>(%s)%s" % (
            condition[1], number, other[2], condition[2], condition[3])
    if condition or code.endswith("{"):
        return None
    return "{ if (dspack_mutant == %d) { %s } else { %s } }" % (number, changed.strip(), code.strip())


class Mutants:
    """Edits in force by number, and the files that they are in."""

    def __init__(self, chosen):
        self.chosen = chosen  # number -> (path, line, what, changed)
        self.sound = {path: path.read_text() for path, *_ in chosen.values()}

    def write(self):
        for path, text in self.sound.items():
            lines = text.splitlines()
            for number, (where, line, _, changed) in self.chosen.items():
                if where == path:
                    lines[line] = switched(lines[line], changed, number)
            # With #line, so that the numbers of lines stay.
            path.write_text(SWITCH + '#line 1 "%s"\n' % path + "\n".join(lines) + "\n")

    def build(self, build, targets):
        """Drops what the compiler refuses, until it refuses nothing."""
        for _ in range(12):
            self.write()
            result = subprocess.run(["ninja", "-C", build, "-k", "0", *targets], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if result.returncode == 0:
                return
            wrong = {(Path(name).resolve(), int(line) - 1)
                     for name, line in re.findall(r"^(\S+?):(\d+):\d+: error", result.stdout, re.MULTILINE)}
            # An error of a function (nothing is returned, a name is not used) may stand some lines away.
            near = {(path, line + by) for path, line in wrong for by in (0, -1, 1, -2, 2, -3, 3)}
            refused = [number for number, (path, line, *_) in self.chosen.items() if (path, line) in wrong] or [
                number for number, (path, line, *_) in self.chosen.items() if (path, line) in near]
            if not refused:
                sys.exit("does not build, and no edit is near what is wrong:\n" + result.stdout[-4000:])
            for number in refused:
                del self.chosen[number]
        sys.exit("does not build after twelve attempts")


def room_of(path):
    """A row of ROOMS, with the programs that have their tests of threads."""
    room, programs, corpora, cases = next(room for room in ROOMS if path.startswith(room[0]))
    threads = [name.replace("_tests", "_threads_tests") for name in programs if name.endswith(("/runtime_tests", "/reshard_tests"))]
    return room, programs + threads, corpora, cases


def run(command, seconds, **options):
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds, **options).returncode
    except subprocess.TimeoutExpired:
        return "hung"


def judge(build, name, environment):
    """What noticed; None: nothing."""
    _, programs, corpora, cases = room_of(name)
    for program in programs:
        if run([build / "tests" / program, "-m", "--abort-after=1"], 900, cwd=build / "tests" / Path(program).parent, env=environment):
            return Path(program).name
    for corpus in corpora:
        if run([build / "tests/fuzz" / ("fuzz_" + corpus), ROOT / "tests/fuzz/corpus" / corpus], 120, env=environment):
            return "fuzz_" + corpus
    for case in cases:
        if run(["ctest", "--test-dir", build, "-R", "^%s$" % case], 900, env=environment):
            return case
    return None


def choose(files, seed, count):
    """Up to `count` edits, one a line, as this seed draws them."""
    found = {}
    chance = random.Random(seed)
    possible = [(file, *edit) for file in files for edit in edits_of(file)]
    chance.shuffle(possible)
    for file, line, what, changed in possible:
        if (file, line) not in found and switched(file.read_text().splitlines()[line], changed, 1):
            found[file, line] = (file, line, what, changed)
        if len(found) == count:
            break
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", help="files, or folders of them")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)), help="or several, with commas between")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    options = parser.parse_args()
    for room, programs, corpora, _ in ROOMS:
        places = [ROOT / room, (ROOT / room).with_suffix(".cpp"), *(ROOT / "tests/fuzz/corpus" / corpus for corpus in corpora)]
        if not (places[0].exists() or places[1].exists()) or not all(place.exists() for place in places[2:]):
            sys.exit("ROOMS has %s with %s, which is not there any more" % (room, ", ".join(corpora) or "no corpus"))
    files = [file for place in options.places for file in
             (sorted((ROOT / place).rglob("*.cpp")) if (ROOT / place).is_dir() else [ROOT / place])]
    files = [file for file in files if "cuda" not in file.parts]  # emulated: its tests take too long for every edit
    drawn = {}
    for seed in options.seed.split(","):
        drawn.update({place: edit for place, edit in choose(files, int(seed), options.count).items() if place not in drawn})
    mutants = Mutants(dict(enumerate(drawn.values(), start=1)))
    print("seeds %s, %d edits" % (options.seed, len(drawn)), flush=True)
    rooms = [room_of(file.relative_to(ROOT).as_posix()) for file, *_ in mutants.chosen.values()]
    targets = sorted({Path(name).name for room in rooms for name in room[1]} | {"fuzz_" + name for room in rooms for name in room[2]})
    mutants.build(options.build, ["reshard", "dsrun", *targets])
    counts = {"killed": 0, "survived": 0}

    def judged(number, file, line, what, changed):
        name = file.relative_to(ROOT).as_posix()
        begin = time.monotonic()
        by = judge(options.build, name, {**os.environ, "DSPACK_MUTANT": str(number)})
        verdict = "killed" if by else "survived"
        counts[verdict] += 1
        print("%-9s %s:%d %s: `%s` -> `%s`%s (%d s)" % (
            verdict, name, line + 1, what, mutants.sound[file].splitlines()[line].strip(), changed.strip(), " by " + by if by else "",
            time.monotonic() - begin), flush=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        for each in [workers.submit(judged, number, *edit) for number, edit in mutants.chosen.items()]:
            each.result()
    print(", ".join("%d %s" % (count, verdict) for verdict, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
