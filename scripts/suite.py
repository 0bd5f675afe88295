#!/usr/bin/env python3
"""Runs the test suite of a build and says what it did; scripts/test calls this.

    scripts/suite.py PRESET [--again] [--dearest] [--costs] [-- ARGUMENT OF CTEST ...]

An entry of CTest whose inputs equal those of a green run in the same build folder is not run again, unless --again asks
for it. Its inputs: its command, its environment, the files that both name, those that tests/CMakeLists.txt lists for it, and
this machine (kernel, processor, packages, tools). An entry without a list runs every time, and so does what was skipped.
What was green before a run was interrupted or killed counts, so that the next one goes on.

--dearest prints the thirty dearest cases and compile units, --costs writes tests/costs.txt. Both need a run of everything.
"""

import argparse
import collections
import hashlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "tests" / "costs.txt"
SHOWN = 30
ENTRY = re.compile(r"^\d+/\d+ Test: (?P<name>.+)\nCommand: .*\n(?:.*\n)*?-{58}\n(?P<output>(?:.*\n)*?)<end of output>\n"
                   r"Test time = +(?P<wall>[\d.]+) sec\n-+\n(?P<result>.*)$", re.MULTILINE)
CASE = re.compile(r"^CASE (passed|failed|skipped) ([\d.]+) s (.*)$", re.MULTILINE)
REASON = re.compile(r"(?:DID NOT RUN: (?:__main__\.\S+: )?|(?<!')SKIPPED: ).*$", re.MULTILINE)
UNITTEST = re.compile(r"^(?:FAIL|ERROR): (\S+) \(", re.MULTILINE)  # in files whose main is unittest's own
BEGUN = re.compile(r"^CASE begun (.*)$", re.MULTILINE)


def build_folder(preset):
    return ROOT / ("build" if preset == "release" else "build-" + preset)


class Inputs:
    """Digests of what entries depend on."""

    def __init__(self, build):
        self.build = build
        self.known = {}
        self.machine = machine()
        listed = build / "tests" / "inputs.txt"
        lines = listed.read_text().splitlines() if listed.exists() else []
        self.listed = {name: paths for name, *paths in (line.split("\t") for line in lines)}
        header = build / "generated" / "dspack_commit.h"
        found = re.search(r'"(.*)"', header.read_text()) if header.exists() else None
        self.commit = found[1].encode() if found else b""

    def key(self, test):
        """None: nobody has listed what this entry depends on."""
        if test["name"] not in self.listed or "command" not in test:
            return None
        environment = next((each["value"] for each in test["properties"] if each["name"] == "ENVIRONMENT"), [])
        scripts = [script for word in test["command"] if word.endswith(".py") for script in imported(Path(word))]
        paths = [*test["command"], *map(str, scripts), *(setting.partition("=")[2] for setting in environment), *self.listed[test["name"]]]
        digests = [self.digest(path) for path in paths if path.startswith("/") and os.path.exists(path)]
        return sha256(json.dumps([self.machine, test["command"], environment, digests]).encode())

    def digest(self, path):
        if path not in self.known:
            self.known[path] = self.of_folder(path) if os.path.isdir(path) else sha256(self.without_commit(path))
        return self.known[path]

    def of_folder(self, folder):
        """Without test_*.py, of which key() takes those that matter."""
        files = [path for path in sorted(Path(folder).rglob("*"))
                 if path.is_file() and "__pycache__" not in path.parts and not path.match("test_*.py")]
        return sha256("".join("%s %s\n" % (path, sha256(path.read_bytes())) for path in files).encode())

    def without_commit(self, path):
        """A commit alone changes what --version says (dspack_commit.h), and the linker's build-id with it."""
        content = Path(path).read_bytes()
        if content.startswith(b"\x7fELF"):
            if self.commit:
                content = content.replace(self.commit, bytes(len(self.commit)))
            content = re.sub(rb"(\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0).{20}", rb"\1", content, count=1, flags=re.DOTALL)
        return content


def imported(script):
    """The files test_*.py that a script imports, from its folder or from the end-to-end tests, and those that they import."""
    names = re.findall(r"^(?:from|import) (test_\w+)", script.read_text(), re.MULTILINE)
    places = (script.parent, script.parent.parent / "e2e")
    found = [next(folder / (name + ".py") for folder in places if (folder / (name + ".py")).exists()) for name in names]
    return found + [other for each in found for other in imported(each)]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def machine():
    """What of this machine a result may depend on."""
    def content(path):
        return Path(path).read_bytes() if os.path.exists(path) else b""
    processor = [line for line in content("/proc/cpuinfo").decode().splitlines() if line.startswith(("model name", "flags"))]
    chosen = re.compile(r"^(DSPACK_|HF_|CUDA_|LC_|(LANG|PATH|TMPDIR|HOME)$|.*SAN_OPTIONS$|.*_proxy$)", re.IGNORECASE)
    packages = (ROOT / "build" / "python").glob("lib/*/site-packages/*.dist-info")
    return [platform.uname()[2:5], sys.version, os.cpu_count(), os.geteuid(), processor[:2], os.path.exists("/dev/nvidiactl"),
            sha256(content("/var/lib/dpkg/status")), sorted(path.name for path in packages),
            sorted(pair for pair in os.environ.items() if chosen.match(pair[0]))]


class Entry:
    """What a log of CTest holds of an entry."""

    def __init__(self, name, output, wall, result):
        self.name, self.wall = name, float(wall)
        self.is_passed, self.is_skipped = result.startswith("Test Pass"), "Skip" in result
        self.reasons = REASON.findall(output)  # why something did not run
        self.cases = [(case, what, float(seconds)) for what, seconds, case in CASE.findall(output)]
        ended = [case for case, _, _ in self.cases]
        self.failed = [case for case, what, _ in self.cases if what == "failed"]
        if not self.is_passed and not self.is_skipped:
            self.failed += [case for case in BEGUN.findall(output) if case not in ended]  # hung, or died
            self.failed += [] if self.cases else UNITTEST.findall(output)
        # Where cases are not named, only how long it took is known.
        self.processor = sum(seconds for _, _, seconds in self.cases) if self.cases else self.wall

    def count(self, what):
        if what == "failed":
            return len(self.failed) or int(not self.is_passed and not self.is_skipped)
        if self.cases:
            return sum(each == what for _, each, _ in self.cases)
        return int(what == "skipped" and self.is_skipped or what == "passed" and self.is_passed)


def run_ctest(command, each_minute):
    """Its exit status, and whether it was interrupted: CTest hears of Ctrl-C itself, and of SIGTERM by this."""
    ctest = subprocess.Popen(command, cwd=ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            try:
                return ctest.wait(timeout=60), False
            except subprocess.TimeoutExpired:
                each_minute()
    except KeyboardInterrupt:
        ctest.send_signal(signal.SIGINT)
        return ctest.wait(), True


def read_log(build, is_whole=True):
    """CTest names its log when it ends."""
    log = build / "Testing" / "Temporary" / ("LastTest.log" if is_whole else "LastTest.log.tmp")
    text = log.read_text(errors="replace") if log.exists() else ""
    return [Entry(*found.group("name", "output", "wall", "result")) for found in ENTRY.finditer(text)]


def alone(preset, test, case):
    """The command that runs a case, or the whole entry, and nothing else."""
    program = test["command"][0]
    if case and "python" not in os.path.basename(program):
        pattern = case.replace(",", "?").replace("*", "?")  # a comma would part two patterns
        return "%s --test-case=%s" % (os.path.relpath(program, ROOT), shlex.quote(pattern))
    chosen = "DSPACK_TEST_CASE=%s " % shlex.quote(case) if case else ""
    return "%sctest --preset %s -R '^%s$'" % (chosen, preset, re.escape(test["name"]).replace("\\-", "-"))


def compile_units(build):
    """[(seconds, what)] of ninja's log, the last of each."""
    found = {}
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        if output.endswith((".o", ".gch")):
            found[output] = (int(end) - int(begin)) / 1000
    return sorted(((seconds, re.sub(r"CMakeFiles/|\.dir\b", "", name)) for name, seconds in found.items()), reverse=True)


def print_dearest(build, entries):
    cases = sorted(((seconds, "%s: %s" % (entry.name, case)) for entry in entries for case, _, seconds in entry.cases),
                   reverse=True)
    whole = sum(entry.processor for entry in entries)
    print("\n== the dearest cases, in seconds of processor time, of %.0f in all" % whole)
    for seconds, name in cases[:SHOWN]:
        print("%8.1f  %s" % (seconds, name))
    print("\n== the dearest entries: seconds of processor time, seconds on the clock")
    for entry in sorted(entries, key=lambda each: -each.processor)[:SHOWN]:
        print("%8.1f %8.1f  %s" % (entry.processor, entry.wall, entry.name))
    units = compile_units(build)
    print("\n== the dearest compile units, in seconds on the clock, of %.0f in all" % sum(seconds for seconds, _ in units))
    for seconds, name in units[:SHOWN]:
        print("%8.1f  %s" % (seconds, name))


def write_costs(entries):
    lines = ["%s %.1f %.1f\n" % (entry.name, entry.processor, entry.wall) for entry in
             sorted(entries, key=lambda each: (-round(each.wall), each.name)) if max(entry.wall, entry.processor) >= 1]
    COSTS.write_text("# Written by scripts/test --costs: entry, seconds of processor time, seconds on the clock, of two cores.\n"
                     + "".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--again", action="store_true", help="also what was green with the same inputs")
    parser.add_argument("--dearest", action="store_true", help="print what cost most")
    parser.add_argument("--costs", action="store_true", help="write tests/costs.txt")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    options.arguments = sys.argv[at + 1:]
    build = build_folder(options.preset)
    ctest = ["ctest", "--preset", options.preset, *options.arguments]
    listed = subprocess.run([*ctest, "--show-only=json-v1"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    tests = {test["name"]: test for test in json.loads(listed.stdout)["tests"]}
    if not tests:
        sys.exit("no test is chosen by: %s" % shlex.join(options.arguments))

    memory = build / "Testing" / "green.json"
    green = json.loads(memory.read_text()) if memory.exists() else {}
    inputs = Inputs(build)
    keys = {name: inputs.key(test) for name, test in tests.items()}
    remembered = [] if options.again or "-E" in options.arguments else [
        name for name, key in keys.items() if key and green.get(name) == key]
    if remembered:
        ctest += ["-E", "^(%s)$" % "|".join(re.sub(r"([.+])", r"[\1]", name) for name in remembered)]

    def remember(entries):
        for entry in entries:
            green.pop(entry.name, None)
            if entry.is_passed and not entry.reasons and keys.get(entry.name):
                green[entry.name] = keys[entry.name]
        memory.parent.mkdir(exist_ok=True)
        written = memory.with_suffix(".new")
        written.write_text(json.dumps(green))
        written.replace(memory)

    begun = time.monotonic()
    entries, status, interrupted = [], 0, False
    if len(remembered) < len(tests):
        # Each minute, so that hours of work outlast a kill and a loss of power.
        status, interrupted = run_ctest([*ctest, "--parallel", "4", "--output-on-failure"],
                                        lambda: remember(read_log(build, is_whole=False)))
        entries = read_log(build, is_whole=not interrupted)
    remember(entries)
    if interrupted:
        sys.exit("interrupted after %d of %d entries; run again, it goes on" % (len(entries), len(tests) - len(remembered)))

    if options.costs:
        write_costs(entries)
    if options.dearest:
        print_dearest(build, entries)
    # A skip is not a pass: these are the reasons, each once.
    reasons = collections.Counter(re.sub(r"^DID NOT RUN: __main__\.\S+: ", "DID NOT RUN: ", reason)
                                  for entry in entries for reason in entry.reasons)
    if reasons:
        print("\n%s\n\n== the checks above did not run on this machine" % "\n".join(
            reason + (" (%d times)" % count if count > 1 else "") for reason, count in sorted(reasons.items())))
    print("\n== %d entries of %s, %.0f s: %s" % (
        len(entries), options.preset, time.monotonic() - begun,
        ", ".join("%d cases %s" % (sum(entry.count(what) for entry in entries), what) for what in ("passed", "failed", "skipped"))))
    if remembered:
        print("== %d entries were green before with the same inputs, and did not run (--again runs them)" % len(remembered))
    for entry in entries:
        if not entry.is_passed and not entry.is_skipped:
            for case in entry.failed or [""]:
                command = alone(options.preset, tests[entry.name], case if entry.cases else "")
                print("FAILED %s%s\n    %s" % (entry.name, case and ": " + case, command))
    sys.exit(1 if status else 0)


if __name__ == "__main__":
    main()
