"""How dsrun reads weights from a disk: every way gives the same text; what a disk has spoilt is found with --verify."""

import json
import shutil

from checkpoints import packed_tiny
from common import EndToEnd, flip_bit, main

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"


class Io(EndToEnd):
    def ask(self, folder, *arguments, **options):
        return self.run_program(folder, "-p", QUESTION, *arguments, program="DSPACK_DSRUN", **options)

    def stats_of(self, folder, *arguments):
        path = self.scratch / "stats.json"
        result = self.assert_ok(self.ask(folder, "--stats", path, *arguments))
        return result.stdout, json.loads(path.read_text())

    def test_every_way_of_reading_gives_the_same_text(self):
        # The ordinary folder lies with the sources, on a disk; the packed one where scratch files are, perhaps in memory.
        for folder in (self.data(), packed_tiny()):
            for method in ("auto", "direct", "buffered", "mmap"):
                result = self.ask(folder, "--dev", "io=%s" % method, "--stats", self.scratch / "stats.json")
                if method == "direct" and result.code != 0:
                    self.assert_refused(result, "direct", program="dsrun")  # an old system's files in memory
                    continue
                self.assertEqual(self.assert_ok(result).stdout, ANSWER)
                io = json.loads((self.scratch / "stats.json").read_text())["io"]
                self.assertEqual(io["method"], "buffered" if method == "auto" else method)
                self.assertTrue(io["reason"])

    def test_weights_are_used_in_place(self):
        """All of them, or some that take turns in a few slots; checked against their digests, too; with drafts."""
        for folder in (self.data(), packed_tiny()):
            for more in ((), ("--experts", "16"), ("--mtp", "1"), ("--verify",), ("--threads", "3", "-n", "40")):
                with self.subTest(folder=folder, more=more):
                    said, stats = self.stats_of(folder, "--dev", "io=in-place", *more)
                    self.assertEqual(said, ANSWER)
                    self.assertTrue(stats["experts"]["in_place"])
        _, stats = self.stats_of(packed_tiny())
        self.assertFalse(stats["experts"]["in_place"])
        self.assert_answers_as_before_from_compressed_files()

    def assert_answers_as_before_from_compressed_files(self):
        """What cannot be mapped is read."""
        folder = self.scratch / "compressed"
        self.assert_ok(self.run_program(self.data(), "--by", "expert", "--out", folder, "--compress", "zstd"))
        said, _ = self.stats_of(folder, "--dev", "io=in-place")
        self.assertEqual(said, ANSWER)

    def test_a_spoilt_expert_is_found_with_verify(self):
        folder = shutil.copytree(packed_tiny(), self.scratch / "packed")
        said, stats = self.stats_of(folder, "--verify")
        self.assertEqual(said, ANSWER)
        spoilt = stats["experts"]["layers"][0]["opened_files"][0]
        flip_bit(folder / spoilt, -100)
        self.assert_refused(self.ask(folder, "--verify"), spoilt, "SHA-256", program="dsrun")

    def test_an_expert_file_that_is_shorter_is_refused_in_every_way(self):
        folder = shutil.copytree(packed_tiny(), self.scratch / "packed")
        _, stats = self.stats_of(folder)
        short = folder / stats["experts"]["layers"][0]["opened_files"][0]
        short.write_bytes(short.read_bytes()[:-1])
        for method in ("auto", "buffered", "mmap", "in-place"):
            self.assert_refused(self.ask(folder, "--dev", "io=%s" % method), short, "bytes instead of", program="dsrun")

    def test_a_way_that_is_none(self):
        result = self.ask(packed_tiny(), "--dev", "io=o_direct")
        self.assertEqual(result.code, 2)
        self.assertIn("auto, direct, buffered, mmap and in-place", result.stderr)


if __name__ == "__main__":
    main()
