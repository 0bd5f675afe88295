"""What the end-to-end part of the fault suite shares: the two forms, the rows of the table, and the judgement over an
unfinished output.

DSPACK_TESTS=long runs the long form. The rest of the environment is that of tests/e2e/common.py."""

import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
from checkpoints import write_big  # noqa: E402
from common import EndToEnd, seeded_random, tree  # noqa: E402

LONG = os.environ.get("DSPACK_TESTS") == "long"
SIDE_BY_SIDE = 9  # runs against bad servers: most of their time is pauses
SHOWN = int(os.environ.get("DSPACK_SHOWN", "5"))  # failures printed a case; the rest says the same


class Tally:
    """One row of the table: how often a case was repeated and how often it failed."""

    def __init__(self, name):
        self.name, self.repetitions, self.failures = name, 0, 0

    @contextlib.contextmanager
    def repetition(self, what):
        """Counts the block; a failed assertion in it is printed and counted, and the case goes on."""
        self.repetitions += 1
        try:
            yield
        except AssertionError as failure:
            self.failures += 1
            if self.failures <= SHOWN:
                print("FAILED: %s: %s: %s" % (self.name, what, failure), flush=True)


class FaultCase(EndToEnd):
    @contextlib.contextmanager
    def tally(self, name):
        tally = Tally(name)
        try:
            yield tally
        finally:
            print("FAULTS: %s | %d | %d" % (name, tally.repetitions, tally.failures), flush=True)
        self.assertEqual(tally.failures, 0, name)
        self.assertGreater(tally.repetitions, 0, name)

    def assert_nothing_wrong_sealed(self, out, whole):
        """Every file under its final name is that of the undisturbed run; with a manifest, all of them are there."""
        if not out.exists():
            return
        found, wanted = tree(out), tree(whole)
        weights = {path: digest for path, digest in found.items() if path.startswith("model/")}
        self.assertEqual([path for path in weights if weights[path] != wanted.get(path)], [], "sealed and wrong")
        if "manifest.json" in found:
            self.assertEqual([path for path in wanted if found.get(path) != wanted[path]], [], "not what is promised")

    def assert_stopped_clearly(self, result):
        """Exit status 1 and, behind notes of progress, one line that begins with the program's name."""
        self.assertEqual(result.code, 1, str(result))
        lines = [line for line in result.stderr.splitlines() if line.startswith("reshard: ")]
        self.assertEqual(len(lines), 1, str(result))
        self.assertTrue(result.stderr.endswith(lines[0] + "\n"), str(result))
        return lines[0]


class ServerCase(FaultCase):
    """Cases against servers of their own; the source is two shards of 300 kB."""

    def setUp(self):
        super().setUp()
        self.source = write_big(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))
        self.random = seeded_random()

    def side_by_side(self, count, start):
        """Yields what `start(number)` returned, in batches that run at the same time."""
        for first in range(0, count, SIDE_BY_SIDE):
            yield from [start(number) for number in range(first, min(count, first + SIDE_BY_SIDE))]

    def assert_completed(self, server, out, whole, again):
        """Once the server behaves, the run that was stopped or disturbed goes on to the undisturbed one's result. `again` gives
        the outcome of the same command."""
        self.assert_nothing_wrong_sealed(out, whole)
        server.clear_faults()
        self.assert_ok(again())
        self.assert_same_tree(out, whole)

    def begin(self, name, number, faulty):
        """A run against a server of its own with these faults: (description, server, output, process)."""
        server = self.serve(self.source, random_seed=self.random.random())
        armed = [server.add_fault(pattern, kind, **options) for pattern, kind, options in faulty]
        out = self.scratch / ("%s-%d" % (name, number))
        jobs = self.random.choice((1, 4))
        process = self.start(server.url, "--by", "expert", "--out", out, "--jobs", jobs)
        return "%s, --jobs %d" % (faulty, jobs), server, armed, out, process
