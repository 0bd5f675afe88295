"""quantised-to-bf16 and quantised-to-f32: every form that dsrun reads becomes the values that the test's own converters
say (checkpoints.FOUR_BIT), and what describes codes goes with them."""

import json
import math
import shutil
import subprocess

import safetensors_io
import weight_formats
from checkpoints import FOUR_BIT, converted_tiny, write_four_bit
from common import main
from transforming import TransformCase

TO_F32, TO_BF16 = "quantised-to-f32", "quantised-to-bf16"
# Their tensors alone do not tell the matrix's shape: it is in the bytes of one, or depends on what config.json omits.
REFUSED = {"nf4": "quant_state", "nf4-nested": "quant_state", "int4-f16": "num_bits", "int8-zeros": "num_bits"}


def rounded(tensors):
    """(F32 matrices as BF16, {name: loss})"""
    made, losses = {}, {}
    for name, (dtype, shape, raw) in tensors.items():
        made[name] = (dtype, shape, raw)
        if dtype != "F32" or len(shape) != 2:
            continue
        losses[name] = weight_formats.Loss()
        stored = b""
        for value in weight_formats.f32_values(raw):
            near = weight_formats.to_bf16(value)
            losses[name].add(near, value, 1)
            stored += weight_formats.f32_bytes(near, math.copysign(1, value) < 0)[2:]
        made[name] = ("BF16", shape, stored)
    return made, losses


class Decoding(TransformCase):
    def test_every_form_becomes_its_values(self):
        for form in FOUR_BIT:
            with self.subTest(form):
                # Rows of packed integers fill words: how many columns they had is in the bytes of weight_shape.
                packs = form.startswith("int")
                coded, f32 = write_four_bit(self.scratch / form, "v2.5", form,
                                            only=lambda name: not packs or "down_proj" not in name)
                if form in REFUSED:
                    self.assert_refused(self.repack(coded, self.scratch / "out", "--transform", TO_F32), REFUSED[form])
                    self.assert_absent(self.scratch / "out")
                    continue
                wanted = safetensors_io.read_checkpoint(f32)
                for transform in (TO_F32, TO_BF16):
                    packed = self.scratch / form / transform
                    self.assert_ok(self.repack(coded, packed, "--transform", transform))
                    made, losses = rounded(wanted) if transform == TO_BF16 else (wanted, None)
                    self.assertEqual(safetensors_io.read_checkpoint(packed), made)
                    self.assertNotIn("quantization_config", json.loads((packed / "config.json").read_text()))
                    self.assert_verified(packed, coded)
                    if losses and form.startswith("mxfp4"):  # BF16 holds each of its values
                        self.assertEqual({said["relative_rms"] for said in self.manifest(packed)["rounding_errors"].values()},
                                         {0})
                    elif losses:
                        self.assert_errors(packed, losses)

    def test_experts_alone_and_a_part_of_them(self):
        coded, f32 = write_four_bit(self.scratch, "v2-lite", "nvfp4", only=lambda name: ".experts." in name)
        (coded / "hf_quant_config.json").write_text('{"quantization":{"quant_algo":"NVFP4"}}')
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(coded, packed, "--transform", TO_F32))
        self.assertEqual(safetensors_io.read_checkpoint(packed), safetensors_io.read_checkpoint(f32))
        # Loaders would take what is said there for what the weights are.
        self.assert_absent(packed / "hf_quant_config.json")
        self.assertEqual((packed / "hf_quant_config.source.json").read_bytes(),
                         (coded / "hf_quant_config.json").read_bytes())
        self.assert_verified(packed, coded)
        self.assert_ok(self.run_program("unpack", packed, "--out", self.scratch / "flat"))
        self.assert_absent(self.scratch / "flat" / "hf_quant_config.json")
        self.assert_absent(self.scratch / "flat" / "hf_quant_config.source.json")
        result = self.repack(coded, self.scratch / "out", "--transform", TO_F32 + " layers=1")
        self.assert_refused(result, "quantization_config", "still holds codes", "decode all")

    def test_bytes_that_mean_nothing(self):
        for form, part, raw, *words in (("int4", "weight_scale", b"\xc0\x7f", "weight_scale", "not a number"),
                                        ("int4", "weight_shape", bytes(8), "weight_packed", "weight_shape"),
                                        ("nvfp4", "weight_scale_2", bytes(4), "weight_scale_2", "above 0"),
                                        ("gptq-ordered", "g_idx", b"\xff\xff\xff\xff", "qweight", "group -1")):
            with self.subTest(form=form, part=part):
                coded, _ = write_four_bit(self.scratch / (form + part), "v2-lite", form,
                                          only=lambda name: "down_proj" not in name)
                tensors, _ = safetensors_io.parse((coded / "model.safetensors").read_bytes())
                name = "model.layers.1.mlp.experts.3.up_proj." + part
                dtype, shape, old = tensors[name]
                tensors[name] = (dtype, shape, raw + old[len(raw):])
                safetensors_io.write(coded / "model.safetensors", tensors)
                self.assert_refused(self.repack(coded, self.scratch / (form + part) / "out", "--transform", TO_F32), *words)

    def test_int4_beside_fp8_killed_and_started_again(self):
        flat, out, wanted = self.scratch / "flat", self.scratch / "out", self.scratch / "wanted"
        self.assert_ok(self.run_program("unpack", converted_tiny("experts-to-int4"), "--out", flat))
        command = (flat, "--by", "expert", "--transform", TO_BF16, "--out", out)
        self.assert_ok(self.run_program(*command, "--jobs", "4"))
        out.rename(wanted)
        kills = 0
        for delay in range(1, 200, 3):
            process = self.start(*command, "--jobs", "1")
            try:
                process.wait(timeout=0.02 * delay)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        self.assert_ok(self.run_program(*command, "--jobs", "1"))
        self.assertGreater(kills, 0)
        self.assert_same_tree(out, wanted)
        dtypes = {dtype for dtype, _, _ in safetensors_io.read_checkpoint(out).values()}
        self.assertEqual(dtypes, {"BF16", "F32"})
        got, meant = self.logits(out), self.logits(flat)
        error = sum((a - b) ** 2 for a, b in zip(got, meant)) / sum(b * b for b in meant)
        self.assertLess(error, 1e-4)  # BF16 has 8 bits: 2^-9 relative, over some layers
        shutil.rmtree(flat)


if __name__ == "__main__":
    main()
