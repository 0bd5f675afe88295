"""experts-to-int4: what it changes and what not, that its codes mean what it says, and what it refuses."""

import array
import json
import shutil
import struct

import safetensors_io
import weight_formats
from checkpoints import bf16_tiny, converted_tiny, write_four_bit, write_small
from common import main
from transforming import FP8, TransformCase

EXPERT = "model.layers.3.mlp.experts.1.up_proj.weight"
TOKENS = "0,5,17,200,9,44,3"


def values_of(tensors, module):
    """What the int4 tensors of a module mean, and the relative error of FP32 `meant` against that."""
    rows, columns = struct.unpack("<2q", tensors[module + ".weight_shape"][2])
    codes = tensors[module + ".weight_packed"][2]
    scales = [weight_formats.bf16_value(code) for code in weight_formats.bf16_codes(tensors[module + ".weight_scale"][2])]
    return [((codes[i // 2] >> (i % 2 * 4) & 15) - 8) * scales[i // 32] for i in range(rows * columns)]


def fp8_values(tensors, name):
    _, (rows, columns), raw = tensors[name]
    scales = weight_formats.f32_values(tensors[name + "_scale_inv"][2])
    per_row = -(-columns // 128)
    return [weight_formats.to_f32(weight_formats.E4M3[code] * scales[i // columns // 128 * per_row + i % columns // 128])
            for i, code in enumerate(raw)]


class Int4(TransformCase):
    def logits(self, folder):
        path = self.scratch / "logits.safetensors"
        path.unlink(missing_ok=True)
        self.assert_ok(self.run_program("logits", folder, "--tokens", TOKENS, "--out", path, program="DSPACK_DSRUN"))
        values = array.array("f")
        values.frombytes(safetensors_io.parse(path.read_bytes())[0]["logits"][2])
        return values

    def test_routed_experts_alone_are_changed(self):
        packed = converted_tiny("experts-to-int4")
        source, made = safetensors_io.read_checkpoint(self.data()), safetensors_io.read_checkpoint(packed)
        experts = {name for name in source if ".experts." in name}
        self.assertEqual({name: made[name] for name in source if name not in experts},
                         {name: source[name] for name in source if name not in experts})
        self.assertEqual(len(made) - (len(source) - len(experts)), 3 * 960)
        for name in sorted(experts):
            if not name.endswith(".weight"):
                continue
            rows, columns = source[name][1]
            self.assertEqual(made[name + "_packed"][:2], ("I32", [rows, columns // 8]))
            self.assertEqual(made[name + "_scale"][:2], ("BF16", [rows, columns // 32]))
            self.assertEqual(made[name + "_shape"], ("I64", [2], struct.pack("<2q", rows, columns)))
        self.assert_verified(packed, self.data())
        stated = self.manifest(packed)["rounding_errors"]
        self.assertEqual(list(stated), ["routed_expert"])
        self.assertEqual(stated["routed_expert"]["tensors"], 960)
        self.assertTrue(0.05 < stated["routed_expert"]["relative_rms"] < 0.1, stated)
        config = json.loads((packed / "config.json").read_text())["quantization_config"]
        self.assertEqual((config["quant_method"], config["format"]), ("compressed-tensors", "mixed-precision"))
        self.assertEqual(config["config_groups"]["group_0"]["weights"]["group_size"], 32)
        self.assertEqual(config["config_groups"]["group_1"]["weights"]["block_structure"], [128, 128])
        self.assertTrue(self.ask(packed).strip())

    def test_the_codes_mean_what_the_manifest_says(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--include", "layers=3 experts=0-3", "--transform",
                                   "experts-to-int4"))
        source, made = safetensors_io.read_checkpoint(self.data()), safetensors_io.read_checkpoint(packed)
        losses = {}
        for name in [name.removesuffix("_packed") for name in made if name.endswith("_packed")]:
            loss = losses[name + "_packed"] = weight_formats.Loss()
            for stored, meant in zip(values_of(made, name.removesuffix(".weight")), fp8_values(source, name)):
                loss.add(stored, meant, 1)
            self.assertLess(loss.relative_rms(), 0.12)
        self.assertEqual(len(losses), 12)
        self.assert_errors(packed, losses)

    def test_logits_are_those_of_the_same_values_as_f32(self):
        packed, flat = self.scratch / "packed", self.scratch / "flat"
        self.assert_ok(self.repack(bf16_tiny(), packed, "--transform", "experts-to-int4 layers=2"))
        self.assert_ok(self.run_program("unpack", packed, "--out", flat))
        config = json.loads((flat / "config.json").read_text())
        groups = config["quantization_config"]["config_groups"]
        self.assertEqual((config["quantization_config"]["format"], list(groups)), ("pack-quantized", ["group_0"]))
        self.assertIn(EXPERT.removesuffix(".weight"), config["quantization_config"]["ignore"])
        for path in sorted(flat.glob("*.safetensors")):
            tensors = safetensors_io.parse(path.read_bytes())[0]
            meant = {}
            for name, value in tensors.items():
                if name.endswith(".weight_packed"):
                    module = name.removesuffix(".weight_packed")
                    numbers = array.array("f", values_of(tensors, module))
                    meant[module + ".weight"] = ("F32", [value[1][0], value[1][1] * 8], numbers.tobytes())
                elif not name.endswith(("proj.weight_scale", "proj.weight_shape")):
                    meant[name] = value
            safetensors_io.write(path, meant)
        del config["quantization_config"]
        (flat / "config.json").write_text(json.dumps(config))
        self.assert_absent(flat / "model.safetensors.index.json")  # one file is all
        got, wanted = self.logits(packed), self.logits(flat)
        error = sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
        self.assertLess(error, 1e-11)

    def test_the_number_of_jobs_changes_nothing(self):
        for jobs in (1, 4):
            out = self.scratch / str(jobs)
            self.assert_ok(self.repack(self.data(), out, "--transform", "experts-to-int4", "--jobs", jobs))
            self.assert_same_tree(out, converted_tiny("experts-to-int4"))
            shutil.rmtree(out)

    def test_what_cannot_become_int4(self):
        def refused(source, *words, transform="experts-to-int4"):
            out = self.scratch / "out"
            self.assert_refused(self.repack(source, out, "--transform", transform), *words)
            shutil.rmtree(out, ignore_errors=True)

        for transform, *words in (("experts-to-int4", "weight_packed", "quantised already"),
                                  ("fp8-to-f32", ".experts.", "F32", "BF16 and FP8")):
            flat = self.scratch / transform
            self.assert_ok(self.run_program("unpack", converted_tiny(transform), "--out", flat))
            refused(flat, *words)
        coded, _ = write_four_bit(self.scratch / "nvfp4", "v2-lite", "nvfp4")
        refused(coded, "U8", "quantised already")
        # 48 columns; a NaN; FP8 without a scale.
        odd = write_small(self.scratch / "odd", [{EXPERT: ("BF16", [4, 48], bytes(4 * 48 * 2))}, {}])
        refused(odd, EXPERT, "48 columns", "groups of 32")
        nan = write_small(self.scratch / "nan", [{EXPERT: ("BF16", [2, 32], b"\xc0\x7f" * 64)}, {}])
        refused(nan, EXPERT, "NaN")
        bare = write_small(self.scratch / "bare", [{EXPERT: (FP8, [2, 32], bytes(64))}, {}])
        refused(bare, EXPERT, "weight_scale_inv")


if __name__ == "__main__":
    main()
