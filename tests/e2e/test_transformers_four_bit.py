"""transformers and compressed-tensors open what experts-to-int4 and experts-to-nvfp4 make, and compute the logits that
dsrun computes."""

import array

import safetensors_io
from common import EndToEnd, main
from with_transformers import TOOLS, need_transformers, run_python

TOKENS = "0,5,17,200,9,44,3"
# transformers gives the experts in BF16: 9 bits of 24.
AS_LOADED_NMSE, EXACT_NMSE = 1e-4, 1e-10


def floats(raw):
    values = array.array("f")
    values.frombytes(raw)
    return values


class FourBit(EndToEnd):
    def test_the_same_logits(self):
        for form in ("int4", "nvfp4"):
            with self.subTest(form):
                self.compare(form)

    def compare(self, form):
        packed, flat = self.scratch / ("packed-" + form), self.scratch / ("flat-" + form)
        self.assert_ok(self.repack(self.data(), packed, "--transform", "experts-to-" + form, "--transform",
                                   "fp8-to-bf16 role=attention role=dense_mlp role=shared_expert"))
        self.assert_ok(self.run_program("unpack", packed, "--out", flat))
        ours, theirs = self.scratch / "ours.safetensors", self.scratch / "theirs.safetensors"
        self.assert_ok(self.run_program("logits", packed, "--tokens", TOKENS, "--out", ours, program="DSPACK_DSRUN"))
        self.assert_ok(run_python(self, [TOOLS / "four_bit_logits.py", flat, TOKENS, theirs]))
        got = floats(safetensors_io.parse(ours.read_bytes())[0]["logits"][2])
        tensors = safetensors_io.parse(theirs.read_bytes())[0]
        self.assertEqual(sorted(tensors), ["as_loaded", "logits"] if form == "int4" else ["logits"])
        for name, most in (("as_loaded", AS_LOADED_NMSE), ("logits", EXACT_NMSE)):
            if name not in tensors:
                continue  # transformers leaves out a scale: four_bit_logits.py
            wanted = floats(tensors[name][2])
            self.assertEqual(len(got), len(wanted))
            error = sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
            print("%s, %s: NMSE %.1e" % (form, name, error), flush=True)
            self.assertLess(error, most)


if __name__ == "__main__":
    need_transformers()
    main()
