"""--precision bf16 on a CPU: near the exact numbers, and the same whatever computes them."""

import json

from common import main
from logits_case import LogitsCase
from transforming import ANSWER, QUESTION

CPU = ("--device", "cpu", "--precision", "bf16")


class Precision(LogitsCase):
    def test_logits_are_near_the_exact_ones_and_hang_on_nothing_else(self):
        exact, rounded = self.logits(self.data(), "--device", "cpu"), self.logits(self.data(), *CPU)
        self.assertNotEqual(rounded, exact)
        # Each input of a product is off by 2^-9 at most, over six layers.
        self.assertLess(self.nmse(rounded, exact), 1e-3)
        for flags in (("--threads", "1"), ("--threads", "3"), ("--dev", "chunk=1"), ("--dev", "chunk=5"),
                      ("--dev", "cpu=scalar"), ("--experts", "16")):
            with self.subTest(flags=flags):
                self.assertEqual(self.logits(self.data(), *CPU, *flags), rounded)

    def test_it_answers_and_names_its_mode(self):
        stats = self.scratch / "stats.json"
        for mtp in ("off", "1"):
            said = self.assert_ok(self.dsrun(self.data(), "-p", QUESTION, "--mtp", mtp, "--stats", stats, *CPU)).stdout
            self.assertEqual(said, ANSWER)
            self.assertEqual(json.loads(stats.read_text())["precision"], "bf16")


if __name__ == "__main__":
    main()
