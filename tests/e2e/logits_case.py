"""Logits of small models, and how far two of them are apart: what the tests of stored forms share."""

import array

import safetensors_io
from common import EndToEnd

TOKENS = [(7 * i * i + 3 * i) % 60 for i in range(40)]


class LogitsCase(EndToEnd):
    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def logits(self, folder, *arguments):
        path = self.scratch / "logits.safetensors"
        path.unlink(missing_ok=True)
        self.assert_ok(self.dsrun("logits", folder, "--tokens", ",".join(map(str, TOKENS)), "--out", path, *arguments))
        values = array.array("f")
        values.frombytes(safetensors_io.parse(path.read_bytes())[0]["logits"][2])
        return values

    def nmse(self, values, wanted):
        self.assertEqual(len(values), len(wanted))
        return sum((a - b) ** 2 for a, b in zip(values, wanted)) / sum(b * b for b in wanted)
