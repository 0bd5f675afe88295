"""What all end-to-end tests share: the programs, scratch folders, comparison of trees, and a main that fails loudly.

Environment (set by CTest): DSPACK_RESHARD, DSPACK_DSRUN: the programs; DSPACK_TEST_DATA: tests/data; DSPACK_TEST_SEED
repeats the random choices of an earlier run. Every test has a scratch folder below $TMPDIR, removed when it ends.
"""

import concurrent.futures
import functools
import hashlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from hub_server import HubServer  # noqa: E402,F401
from range_server import RangeServer  # noqa: E402,F401  (re-exported to the tests)

SKIPPED = 77  # the exit status that CTest takes for "did not run"
INDEX = "model.safetensors.index.json"
MESSAGE_BYTES = 400  # a message is shorter, however long what it quotes is; our own figures may take more
# What no message, report or JSON of the programs holds: control characters, marks that turn the direction of writing,
# separators of lines and paragraphs, and (of U+FFFD) bytes that were no UTF-8.
UNPRINTABLE = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffd]"
# For commands that read over a network: pauses before a request is repeated take a twentieth of what they are said to.
# In all cases but the few that hold pauses against the clock.
QUICK = ("--dev", "pause=0.05")
TIMEOUT_SECONDS = 600  # ends what hangs: under the thread sanitizer, `dsrun plan` takes 80 s of processor time


def path_from_environment(name):
    value = os.environ.get(name)
    if not value:
        sys.exit("%s is not set; run these tests through ctest" % name)
    return str(Path(value).resolve())


@functools.lru_cache(maxsize=None)
def is_sanitized(program="DSPACK_RESHARD"):
    """Whether a program was built with a sanitizer: its shadow of the memory, and its handlers of signals, are then not
    the program's own, and no limit on memory fits them."""
    content = Path(path_from_environment(program)).read_bytes()
    return any(mark in content for mark in (b"__asan_init", b"__tsan_init"))


class Result:
    def __init__(self, command, code, stdout, stderr):
        self.command, self.code = command, code
        self.stdout_bytes = stdout
        self.stdout = stdout.decode("utf-8", "replace")
        self.stderr = stderr.decode("utf-8", "replace")

    def __str__(self):
        return "%s\n  exit status %s\n  stdout: %s\n  stderr: %s" % (
            " ".join(map(str, self.command)), self.code, self.stdout[-2000:], self.stderr[-2000:])


def clean_environment(home, extra=None):
    """No proxy, no token and no settings of the person who runs the tests. (DSPACK_MUTANT: tests/tools/mutation.)"""
    keep = {key: os.environ[key] for key in ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                                             "TSAN_OPTIONS", "LSAN_OPTIONS", "DSPACK_MUTANT") if key in os.environ}
    return {**keep, "HOME": str(home), "HF_HOME": str(home), **(extra or {})}


def limit(which, amount):
    """For `before`: a limit of the operating system; a file that grows too large is an error, not a signal."""
    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(which, (amount, amount))
    return apply


class EndToEnd(unittest.TestCase):
    """Base of all cases: `self.scratch` is an empty folder; helpers start the program and judge what it did."""
    maxDiff = 4000

    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="dspack-e2e-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)

    @staticmethod
    def data(name="tiny-v3"):
        return Path(path_from_environment("DSPACK_TEST_DATA")) / name

    def copy_source(self, name="source"):
        """A private copy of the small checkpoint, times included, to be damaged."""
        return Path(shutil.copytree(self.data(), self.scratch / name))

    def serve(self, folder, **options):
        server = RangeServer(folder, **options)
        server.__enter__()
        self.addCleanup(server.__exit__)
        return server

    def serve_hub(self, **options):
        """A server that speaks the Hub's protocol."""
        hub = HubServer(**options)
        hub.__enter__()
        self.addCleanup(hub.__exit__)
        return hub

    def together(self, *cases):
        """Runs cases (a class, made with the name of a method) at the same time, each in a scratch folder of its own:
        for those that wait for most of their time. Which one failed or was skipped is told."""
        results = [unittest.TestResult() for _ in cases]
        with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
            running = [pool.submit(case.run, result) for case, result in zip(cases, results)]
        for case, result, one in zip(cases, results, running):
            one.result()
            with self.subTest(case.id()):
                if not result.wasSuccessful():
                    print("CASE failed 0.000 s %s" % case.id().replace("__main__.", "", 1), flush=True)
                    self.fail("\n".join(told for _, told in result.errors + result.failures))
                for _, reason in result.skipped:
                    self.skipTest(reason)
                self.assertEqual(result.testsRun, 1)

    # Running ----------------------------------------------------------------------------------------------------

    def start(self, *arguments, env=None, program="DSPACK_RESHARD", before=None, cwd=None, stdin=subprocess.DEVNULL,
              **options):
        command = [path_from_environment(program), *map(str, arguments)]
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=clean_environment(self.scratch, env), preexec_fn=before, cwd=cwd, **options)
        process.command = command
        self.addCleanup(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()

    def finish(self, process, timeout=TIMEOUT_SECONDS):
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            self.fail("still running after %d s: %s" % (
                timeout, Result(process.command, "none", stdout or b"", stderr or b"")))
        return Result(process.command, process.returncode, stdout or b"", stderr or b"")

    def run_program(self, *arguments, timeout=TIMEOUT_SECONDS, **options):
        return self.finish(self.start(*arguments, **options), timeout)

    def repack(self, source, out, *arguments, by="expert", **options):
        return self.run_program(source, "--by", by, "--out", out, *arguments, **options)

    # Judging ----------------------------------------------------------------------------------------------------

    def assert_ok(self, result):
        self.assertEqual(result.code, 0, str(result))
        return result

    def assert_refused(self, result, *needles, program="reshard", notes=()):
        """Exit status 1, nothing on stdout, one line on stderr that holds every needle. Lines before it must begin as
        `notes` say."""
        self.assertEqual(result.code, 1, str(result))
        self.assertEqual(result.stdout, "", str(result))
        self.assertTrue(result.stderr.endswith("\n"), str(result))
        *before, line = result.stderr[:-1].split("\n")
        self.assertEqual(len(before), len(notes), "more than the one line: " + str(result))
        for text, note in zip(before, notes):
            self.assertTrue(text.startswith(note), str(result))
        self.assertTrue(line.startswith(program + ": "), str(result))
        self.assertNotRegex(line, UNPRINTABLE, "control characters: " + str(result))
        self.assertLess(len(line.encode()), MESSAGE_BYTES + 130, str(result))
        for needle in needles:
            self.assertIn(str(needle), line, str(result))

    def assert_absent(self, path):
        if os.path.lexists(path):
            found = sorted(str(entry) for entry in Path(path).rglob("*"))
            self.fail("%s was left behind with %s" % (path, found[:20]))

    def assert_same_tree(self, one, other):
        a, b = tree(one), tree(other)
        self.assertEqual(sorted(set(a) ^ set(b)), [], "only in one of %s and %s" % (one, other))
        self.assertEqual([path for path in a if a[path] != b[path]], [], "differ between %s and %s" % (one, other))
        self.assertIn("manifest.json", a)

    def assert_unfinished(self, out):
        """Streaming had begun: something to go on with is there, and nothing that looks complete."""
        self.assertTrue((out / ".reshard" / "journal").is_file(), "%s has no journal" % out)
        self.assert_absent(out / "manifest.json")

    def wait_until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail("waited %d s in vain for: %s" % (seconds, what))
            time.sleep(0.005)


def exact_size(count):
    """As the programs print sizes whose exact number matters."""
    value, unit = float(count), 0
    while value >= 999.5:
        value /= 1000
        unit += 1
    words = "%.*f %s" % (2 if value < 9.995 else 1 if value < 99.95 else 0, value, ("B", "kB", "MB", "GB", "TB")[unit])
    return "%d bytes" % count if count < 1000 else "%s (%d bytes)" % (words, count)


def tree(folder):
    """{relative path: digest of the content}, folders included."""
    folder = Path(folder)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            for path in sorted(folder.rglob("*"))}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(address):
    """Whether somebody listens on "host:port"."""
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def flip_bit(path, offset, bit=0):
    """One bit of a file, as a bad disk would; a negative offset counts from the end. Size and name stay."""
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        at = file.tell()
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def seeded_random():
    """A generator whose seed is printed, so that a failure can be repeated."""
    seed = int(os.environ.get("DSPACK_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print("random choices: DSPACK_TEST_SEED=%d" % seed, flush=True)
    return random.Random(seed)


def processor_seconds():
    """Of this process and of its children that have ended."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF,
                                                                                    resource.RUSAGE_CHILDREN)))


class CaseLog(unittest.TextTestResult):
    """Names each case, its result and its processor time, as tests/support/doctest_main.cpp does."""

    def startTest(self, test):
        super().startTest(test)
        self.name = test.id().replace("__main__.", "", 1)
        self.result = "passed"
        self.begun = processor_seconds()
        print("CASE begun %s" % self.name, flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.result = "skipped"

    def addError(self, test, err):
        super().addError(test, err)
        self.result = "failed"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.result = "failed"

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        self.result = "failed" if err else self.result

    def stopTest(self, test):
        super().stopTest(test)
        print("CASE %s %.3f s %s" % (self.result, processor_seconds() - self.begun, self.name), flush=True)


def main():
    """Runs the cases of the calling file, or the one that DSPACK_TEST_CASE names (Class.test_method). Skipped ones are
    listed last and never pass for successes."""
    chosen = os.environ.get("DSPACK_TEST_CASE")
    program = unittest.main(module="__main__", argv=[sys.argv[0], chosen] if chosen else None, exit=False, verbosity=2,
                            testRunner=unittest.TextTestRunner(verbosity=2, resultclass=CaseLog))
    skipped = program.result.skipped
    for case, reason in skipped:
        print("DID NOT RUN: %s: %s" % (case.id(), reason), flush=True)
    if not program.result.wasSuccessful() or program.result.testsRun == 0:
        sys.exit(1)
    sys.exit(SKIPPED if len(skipped) == program.result.testsRun else 0)
