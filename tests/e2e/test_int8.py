"""dsrun on int8 with a scale for each row: the numbers are those of the same values as F32, written down by a converter
of the test's own (weight_formats.int8_rows, checkpoints.write_int8)."""

import json

import safetensors_io
from checkpoints import write_int8
from common import main
from logits_case import TOKENS, LogitsCase

# Sums of up to 136 products, a few times over; int8 takes its scale after the sum, F32 before.
ROUNDING_NMSE = 1e-11


class Int8(LogitsCase):
    def test_scales_that_are_powers_of_two_change_no_bit(self):
        """kv_b_proj is multiplied from both sides, by rows that differ in their scales: its sums round otherwise."""
        for variant in ("v2-lite", "glm-4.7-flash"):
            with self.subTest(variant):
                int8, f32 = write_int8(self.scratch / variant, variant, "F32", plain=("kv_b_proj",))
                for flags in ((), ("--dev", "chunk=7")):
                    self.assertEqual(self.logits(int8, *flags), self.logits(f32, *flags))

    def test_any_scales_mean_what_they_say(self):
        for scale in ("BF16", "F16", "F32"):
            with self.subTest(scale):
                int8, f32 = write_int8(self.scratch / scale, "v2.5", scale)
                self.assertLess(self.nmse(self.logits(int8), self.logits(f32)), ROUNDING_NMSE)

    def test_every_instruction_set_gives_the_same_bits(self):
        int8, _ = write_int8(self.scratch / "sets", "v2-lite", "BF16")
        wanted = self.logits(int8, "--dev", "cpu=scalar")
        self.assertEqual(self.logits(int8), wanted)

    def test_packing_by_expert_changes_no_bit(self):
        int8, _ = write_int8(self.scratch / "source", "v2-lite", "F16")
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(int8, packed))
        self.assertEqual(self.logits(packed), self.logits(int8))
        self.assertEqual(safetensors_io.read_checkpoint(packed), safetensors_io.read_checkpoint(int8))
        self.assert_ok(self.run_program("verify", packed, "--source", int8))

    def test_zero_points_that_are_all_zero_change_nothing(self):
        """As Quark writes them beside symmetric codes."""
        int8, _ = write_int8(self.scratch / "source", "v2-lite", "F16")
        wanted = self.logits(int8)
        tensors, _ = safetensors_io.parse((int8 / "model.safetensors").read_bytes())
        for name in [name for name, (dtype, _, _) in tensors.items() if dtype == "I8"]:
            rows = tensors[name][1][0]
            tensors[name + "_zero_point"] = ("I8", [rows], bytes(rows))
        (int8 / "model.safetensors").unlink()
        safetensors_io.write(int8 / "model.safetensors", tensors)
        self.assertEqual(self.logits(int8), wanted)
        self.assert_ok(self.repack(int8, self.scratch / "packed"))
        self.assertEqual(self.logits(self.scratch / "packed"), wanted)

    def test_what_is_not_known_is_refused_by_name(self):
        expert = "model.layers.1.mlp.experts.3.up_proj.weight"

        def missing(tensors, _):
            del tensors[expert + "_scale"]

        def grouped(tensors, _):
            dtype, shape, raw = tensors[expert + "_scale"]
            tensors[expert + "_scale"] = (dtype, [shape[0], 2], raw * 2)

        def asymmetric(tensors, _):
            for name in [name for name in tensors if name.endswith(".up_proj.weight") and ".experts." in name]:
                tensors[name + "_zero_point"] = ("I8", [6, 1], bytes(5) + b"\1")

        def config(_, quantisation):
            quantisation["config_groups"]["group_0"]["weights"]["symmetric"] = False

        for change, words in ((missing, (expert + "_scale", "missing")), (grouped, ("[6, 2]", expert)),
                              (asymmetric, (".up_proj.weight_scale", "zero point 5 beside it is not 0")), (config, ("symmetric",))):
            with self.subTest(change.__name__):
                int8, _ = write_int8(self.scratch / change.__name__, "v2-lite", "F16")
                tensors, _ = safetensors_io.parse((int8 / "model.safetensors").read_bytes())
                settings = json.loads((int8 / "config.json").read_text())
                change(tensors, settings["quantization_config"])
                safetensors_io.write(int8 / "model.safetensors", tensors)
                (int8 / "config.json").write_text(json.dumps(settings))
                self.assert_refused(self.dsrun(int8, "--tokens", "1,2,3", "-n", 2), *words, program="dsrun")


if __name__ == "__main__":
    main()
