"""Running within a memory budget: the same text, a process that stays below its limit, and refusals with the number."""

import json
import re
import unittest

from checkpoints import compressed_tiny, packed_tiny
from common import EndToEnd, is_sanitized, main

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
EXPERTS = 256
FLOOR = 6  # top_k of the small model, and two on their way
# Sanitizers keep freed memory and shadow the rest; what a process takes then is theirs, not the plan's.
SANITIZED = is_sanitized("DSPACK_DSRUN")


class Budgets(EndToEnd):
    def ask(self, *arguments, folder=None):
        stats = self.scratch / "stats.json"
        result = self.run_program(folder or packed_tiny(), "-p", QUESTION, "--ctx", 256, "--stats", stats, *arguments,
                                  program="DSPACK_DSRUN")
        self.stats = json.loads(stats.read_text()) if result.code == 0 else None
        return result

    def assert_answers(self, *arguments, **options):
        self.assertEqual(self.assert_ok(self.ask(*arguments, **options)).stdout, ANSWER)
        return self.stats

    def assert_refuses(self, *arguments, needles):
        self.assert_refused(self.ask(*arguments), *needles, program="dsrun")

    def floor_bytes(self, folder=None):
        """What the program says that it needs at least, the most of some runs: it is some pages more or less from run to
        run, up to a megabyte on some systems, and several under a sanitizer."""
        messages = [self.ask("--ram", "1MB", folder=folder).stderr for _ in range(4)]
        return max(int(re.search(r"at least (\d+) bytes", message).group(1)) for message in messages)

    def test_the_text_does_not_depend_on_the_number_of_slots(self):
        for share, slots in (("100%", 256), ("50%", 128), ("25%", 64), ("12%", 30), ("6", FLOOR)):
            with self.subTest(share=share):
                stats = self.assert_answers("--experts", share)
                self.assertEqual(stats["experts"]["slots"], slots)
                self.assertLessEqual(stats["memory_bytes"]["experts"], stats["memory_plan"]["bytes"]["slots"])
                if slots < 64:
                    self.assertGreater(stats["experts"]["misses"], stats["experts"]["read"], "nothing was read again")

    def test_the_process_stays_within_its_memory(self):
        least = self.floor_bytes()
        for more in (8_000_000, 12_000_000) if SANITIZED else (1_000_000, 4_000_000, 12_000_000):
            with self.subTest(more=more):
                stats = self.assert_answers("--ram", least + more)
                plan = stats["memory_plan"]
                self.assertLessEqual(plan["total"], plan["limit"])
                self.assertEqual(plan["limit"], least + more)
                self.assertEqual(plan["total"], sum(plan["bytes"].values()))
                if not SANITIZED:
                    self.assertLessEqual(stats["memory_bytes"]["process_peak"], plan["limit"])

    def test_reading_compressed_files_is_in_the_plan(self):
        plain = self.assert_answers()["memory_plan"]["bytes"]
        self.assertEqual(plain["decompression"], 0)
        for by in ("expert", "layer"):
            folder = compressed_tiny(by)
            least = self.floor_bytes(folder)
            for more, io in ((8_000_000, "auto"),) if SANITIZED else ((1_000_000, "auto"), (1_000_000, "direct"),
                                                                      (4_000_000, "auto"), (12_000_000, "mmap")):
                with self.subTest(by=by, more=more, io=io):
                    stats = self.assert_answers("--ram", least + more, "--dev", "io=%s" % io, folder=folder)
                    plan = stats["memory_plan"]
                    self.assertGreater(plan["bytes"]["decompression"], 0)
                    self.assertEqual(plan["total"], sum(plan["bytes"].values()))
                    self.assertLessEqual(plan["total"], least + more)
                    if not SANITIZED:
                        self.assertLessEqual(stats["memory_bytes"]["process_peak"], plan["limit"])

    def run_with_streamed_layers(self):
        """A process is some hundred kB larger or smaller from run to run and all layers take 1 MB, so the memory that is
        enough for the floor and not for the layers has to be met."""
        memory = self.floor_bytes()
        for _ in range(80):
            result = self.ask("--ram", memory)
            if result.code != 0:
                self.assertIn("too little", result.stderr, str(result))
                memory += 50_000
            elif self.stats["memory_plan"]["streamed_layers"]:
                return result
            else:
                memory -= 350_000
        self.fail("what the program says that it needs at least is not enough, or always more than enough")

    @unittest.skipIf(SANITIZED, "SKIPPED: a sanitized process differs from run to run by more than all layers take")
    def test_layers_that_do_not_fit_are_read_in_every_pass(self):
        everything = self.assert_answers()
        self.assertEqual(everything["memory_plan"]["streamed_layers"], [])
        self.assertEqual(self.run_with_streamed_layers().stdout, ANSWER)
        plan = self.stats["memory_plan"]
        passes = self.stats["decode"]["tokens"] + 1
        self.assertGreaterEqual(self.stats["bytes_read"]["always_needed"],
                                everything["bytes_read"]["always_needed"] + (passes - 1) * plan["streamed_bytes"] * 0.9)

    def test_below_the_floor_it_says_what_would_do(self):
        self.assert_refuses("--ram", "1MB", needles=("--ram 1.00 MB is too little", "needs at least", "--ctx"))
        self.assert_refuses("--experts", FLOOR - 1, needles=("allow at least %d" % FLOOR,))
        # All experts take 10 MB more than the floor.
        self.assert_refuses("--experts", "100%", "--ram", self.floor_bytes() + 5_000_000,
                            needles=("contradict each other", "room for"))

    def test_a_value_that_is_none_is_wrong_usage(self):
        for flag, value in (("--ram", "0%"), ("--ram", "1.5"), ("--ram", "x"), ("--experts", "0"),
                            ("--experts", "101%"), ("--kv-dtype", "fp4")):
            with self.subTest(flag=flag, value=value):
                result = self.ask(flag, value)
                self.assertEqual(result.code, 2, str(result))
                self.assertIn(flag, result.stderr)

    def test_a_smaller_cache_takes_half_the_memory_and_says_the_same(self):
        exact = self.assert_answers()["memory_bytes"]["kv_cache"]
        for dtype in ("bf16", "f16"):
            with self.subTest(dtype=dtype):
                self.assertEqual(self.assert_answers("--kv-dtype", dtype)["memory_bytes"]["kv_cache"] * 2, exact)

    def test_an_fp8_cache_takes_what_its_rows_take_and_says_the_same(self):
        # 80 codes, a scale in 16 bytes, 16 rotary values of BF16, where FP32 has 96 values.
        exact = self.assert_answers()["memory_bytes"]["kv_cache"]
        self.assertEqual(self.assert_answers("--kv-dtype", "fp8")["memory_bytes"]["kv_cache"] * 384, exact * 128)


if __name__ == "__main__":
    main()
