"""--precision bf16 and amx on a CPU: near the exact numbers, and the same whatever computes them."""

import json
import re

from common import main
from logits_case import LogitsCase
from transforming import ANSWER, QUESTION

CPU = ("--device", "cpu", "--precision", "bf16")
AMX = ("--device", "cpu", "--precision", "amx")


class Precision(LogitsCase):
    def test_logits_are_near_the_exact_ones_and_hang_on_nothing_else(self):
        self.check_near_and_constant(CPU, ("--dev", "cpu=scalar"))

    def test_amx_is_another_order_of_sums_where_there_are_tiles(self):
        # The system may withhold the tiles of a processor that has them, so the program is asked.
        if re.search(r"^instruction sets .*uses amx$", self.dsrun("--version").stdout, re.MULTILINE):
            self.check_near_and_constant(AMX, ("--dev", "cpu=amx"))
            self.assertNotEqual(self.logits(self.data(), *AMX), self.logits(self.data(), *CPU))
        else:
            self.check_refused(*AMX)
        self.check_refused(*AMX, "--dev", "cpu=scalar")

    def check_refused(self, *flags):
        out = self.scratch / "logits.safetensors"
        out.unlink(missing_ok=True)
        result = self.dsrun("logits", self.data(), "--tokens", "1,2", "--out", out, *flags)
        self.assert_refused(result, "precision amx needs AMX tiles", "bf16 is nearest to it", program="dsrun")
        self.assert_absent(out)

    def check_near_and_constant(self, mode, same):
        exact, rounded = self.logits(self.data(), "--device", "cpu"), self.logits(self.data(), *mode)
        self.assertNotEqual(rounded, exact)
        # Each input of a product is off by 2^-9 at most, over six layers.
        self.assertLess(self.nmse(rounded, exact), 1e-3)
        for flags in (("--threads", "1"), ("--threads", "3"), ("--dev", "chunk=1"), ("--dev", "chunk=5"),
                      ("--experts", "16"), same):
            with self.subTest(flags=flags):
                self.assertEqual(self.logits(self.data(), *mode, *flags), rounded)

    def test_it_answers_and_names_its_mode(self):
        stats = self.scratch / "stats.json"
        for mtp in ("off", "1"):
            said = self.assert_ok(self.dsrun(self.data(), "-p", QUESTION, "--mtp", mtp, "--stats", stats, *CPU)).stdout
            self.assertEqual(said, ANSWER)
            self.assertEqual(json.loads(stats.read_text())["precision"], "bf16")


if __name__ == "__main__":
    main()
