"""transformers and compressed-tensors open what experts-to-int4, experts-to-nvfp4 and weights-to-int8 make, and compute the
logits that dsrun computes."""

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
                self.compare(form, "experts-to-" + form)
        with self.subTest("int4 and int8"):
            # Groups of 32 do not fill the rows of attention's two other matrices.
            self.compare("int4", "experts-to-int4", "weights-to-int8 role=shared_expert role=dense_mlp role=head",
                         "weights-to-int8 name=*.q_?_proj.weight name=*.kv_a_proj_with_mqa.weight")

    def compare(self, form, *transforms):
        packed, flat = (self.scratch / ("%s-%s-%d" % (kind, form, len(transforms))) for kind in ("packed", "flat"))
        transforms += ("fp8-to-bf16 role=attention role=dense_mlp role=shared_expert",)
        self.assert_ok(self.repack(self.data(), packed, *(word for one in transforms for word in ("--transform", one))))
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
            print("%s, %s: NMSE %.1e" % (packed.name, name, error), flush=True)
            self.assertLess(error, most)


if __name__ == "__main__":
    need_transformers()
    main()
