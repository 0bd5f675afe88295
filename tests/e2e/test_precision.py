"""--precision bf16, int8 and amx on a CPU: near the exact numbers, and the same whatever computes them."""

import json
import re

from checkpoints import write_four_bit
from common import main
from logits_case import LogitsCase
from transforming import ANSWER, QUESTION

CPU = ("--device", "cpu", "--precision", "bf16")
AMX = ("--device", "cpu", "--precision", "amx")
INT8 = ("--device", "cpu", "--precision", "int8")


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

    def test_int8_of_integer_weights(self):
        for form in ("int4", "awq"):
            with self.subTest(form):
                folder, _ = write_four_bit(self.scratch / form, "v2-lite", form)
                # Random weights: where the router's scores nearly tie, other experts are chosen.
                self.check_near_and_constant(INT8, ("--dev", "cpu=scalar"), folder, 2e-2)
                self.assertNotEqual(self.logits(folder, *INT8), self.logits(folder, *CPU))

    def test_int8_is_bf16_where_weights_are_no_integers(self):
        self.assertEqual(self.logits(self.data(), *INT8), self.logits(self.data(), *CPU))
        result = self.dsrun(self.data(), "-p", QUESTION, "--precision", "int8", "--device", "cuda")
        self.assertEqual(result.code, 2, str(result))
        self.assertIn("--precision int8: only a CPU has it", result.stderr)

    def check_refused(self, *flags):
        out = self.scratch / "logits.safetensors"
        out.unlink(missing_ok=True)
        result = self.dsrun("logits", self.data(), "--tokens", "1,2", "--out", out, *flags)
        self.assert_refused(result, "precision amx needs AMX tiles", "bf16 is nearest to it", program="dsrun")
        self.assert_absent(out)

    def check_near_and_constant(self, mode, same, folder=None, limit=1e-3):
        folder = folder or self.data()
        exact, rounded = self.logits(folder, "--device", "cpu"), self.logits(folder, *mode)
        self.assertNotEqual(rounded, exact)
        # Each input of a product is off by 2^-9 of itself at most, or by 2^-8 of its group's largest, over six layers.
        self.assertLess(self.nmse(rounded, exact), limit)
        for flags in (("--threads", "1"), ("--threads", "3"), ("--dev", "chunk=1"), ("--dev", "chunk=5"),
                      ("--experts", "16"), same):
            with self.subTest(flags=flags):
                self.assertEqual(self.logits(folder, *mode, *flags), rounded)

    def test_it_answers_and_names_its_mode(self):
        stats = self.scratch / "stats.json"
        for mtp in ("off", "1"):
            said = self.assert_ok(self.dsrun(self.data(), "-p", QUESTION, "--mtp", mtp, "--stats", stats, *CPU)).stdout
            self.assertEqual(said, ANSWER)
            said = json.loads(stats.read_text())
            self.assertEqual((said["precision"], said["rounding"]), ("bf16", "inputs within 0.2 %"))


if __name__ == "__main__":
    main()
