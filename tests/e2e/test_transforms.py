"""What transforms make of weights, byte for byte against weight_formats.py; what the manifest and config.json say of it;
that every verb knows of it, and that dsrun still answers."""

import json
import math
import shutil
import struct

import safetensors_io
import weight_formats
from checkpoints import bf16_tiny, converted_tiny, packed_tiny, write_small
from common import flip_bit, main, seeded_random
from transforming import ANSWER, FP8, QUANTISED, SUMS, TransformCase, dequantised, quantised


class Bytes(TransformCase):
    def test_fp8_to_bf16_and_f32(self):
        source = safetensors_io.read_checkpoint(self.data())
        for dtype, transform in (("BF16", "fp8-to-bf16"), ("F32", "fp8-to-f32")):
            with self.subTest(dtype=dtype):
                packed = converted_tiny(transform)
                wanted, losses = dequantised(source, dtype)
                self.assertEqual(len(losses), 1008)
                self.assert_tensors(packed, wanted)
                self.assert_errors(packed, losses)
                self.assert_verified(packed, self.data())
                self.assertNotIn("quantization_config", json.loads((packed / "config.json").read_text()))
                self.assertEqual((packed / "config.source.json").read_bytes(), (self.data() / "config.json").read_bytes())

    def test_bf16_to_fp8(self):
        packed = converted_tiny("bf16-to-fp8")
        wanted, losses = quantised(safetensors_io.read_checkpoint(bf16_tiny()))
        self.assertEqual(len(losses), 1008)
        self.assert_tensors(packed, wanted)
        self.assert_errors(packed, losses)
        self.assert_verified(packed, bf16_tiny())
        original = json.loads((self.data() / "config.json").read_text())
        self.assertEqual(json.loads((packed / "config.json").read_text()), original)  # as it was before BF16

    def test_any_bf16_value(self):
        """Blocks of zeros, of subnormals, of the largest values, of all of these, ragged ones; seven shapes."""
        random = seeded_random()
        tensors = {}
        for number, shape in enumerate(([128, 128], [129, 257], [1, 1], [300, 5], [2, 400], [256, 256], [131, 131])):
            codes = []
            for index in range(shape[0] * shape[1]):
                kind = (index // shape[1] // 128 + index % shape[1] // 128 + number) % 5
                sign = random.randrange(2) << 15
                magnitude = (0, random.randrange(0x80), random.randrange(0x7f00, 0x7f80), random.randrange(0x7f80),
                             random.randrange(0x3a00, 0x3d00))[kind]
                codes.append(sign | magnitude)
            raw = struct.pack("<%dH" % len(codes), *codes)
            tensors["model.layers.0.self_attn.p%d.weight" % number] = ("BF16", shape, raw)
        source = write_small(self.scratch / "source", [tensors, {"model.norm.weight": ("BF16", [2], b"1234")}])
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed, "--transform", "bf16-to-fp8", by="layer"))
        wanted, losses = quantised({**tensors, "model.norm.weight": ("BF16", [2], b"1234")})
        self.assert_tensors(packed, wanted)
        self.assert_errors(packed, losses)
        self.assert_verified(packed, source)

    def test_any_fp8_value_with_any_scale(self):
        random = seeded_random()
        numbers = [code for code in range(256) if code & 0x7f != 0x7f]
        shards = [{}, {"model.norm.weight": ("BF16", [2], b"1234")}]
        for number, shape in enumerate(([128, 128], [129, 257], [1, 1], [300, 5], [0, 200], [200, 0], [131, 131])):
            name = "model.layers.0.self_attn.p%d.weight" % number
            grid = [-(-size // 128) for size in shape]
            scales = [struct.unpack("<f", struct.pack("<I", random.randrange(240) << 23 | random.randrange(1 << 23)
                                                      | random.randrange(8) // 7 << 31))[0]
                      for _ in range(grid[0] * grid[1])]
            raw = bytes(random.choice(numbers) for _ in range(shape[0] * shape[1]))
            shards[number % 2][name] = (FP8, shape, raw)
            shards[1][name + "_scale_inv"] = ("F32", grid, struct.pack("<%df" % len(scales), *scales))
        source = write_small(self.scratch / "source", shards)
        for dtype, transform in (("BF16", "fp8-to-bf16"), ("F32", "fp8-to-f32")):
            packed = self.scratch / dtype
            self.assert_ok(self.repack(source, packed, "--transform", transform, by="layer"))
            wanted, losses = dequantised({**shards[0], **shards[1]}, dtype)
            self.assert_tensors(packed, wanted)
            self.assert_errors(packed, losses)
            self.assert_verified(packed, source)

    def test_scales_to_e8m0_where_that_loses_nothing(self):
        """Layers 0 to 3 get scales that are powers of two, but for one tensor with one scale that is none."""
        odd = "model.layers.2.mlp.experts.7.up_proj.weight_scale_inv"

        def change(name, dtype, shape, raw):
            if not name.endswith("_scale_inv") or int(name.split(".")[2]) > 3:
                return raw
            powers = [2.0 ** round(math.log2(value)) for value in weight_formats.f32_values(raw)]
            if name == odd:
                powers[-1] *= 1.5
            return struct.pack("<%df" % len(powers), *powers)

        source = self.copy_with(change)
        tensors = safetensors_io.read_checkpoint(source)
        wanted = dict(tensors)
        for name, (_, shape, raw) in tensors.items():
            codes = weight_formats.e8m0_codes(raw) if name.endswith("_scale_inv") else None
            if codes is not None:
                wanted[name] = ("F8_E8M0", shape, codes)
        exact = [name for name in wanted if wanted[name][0] == "F8_E8M0"]
        self.assertEqual(len(exact), 3 * (3 * 64 + 8) + 8 - 1)
        self.assertNotIn(odd, exact)
        packed, plain = self.scratch / "packed", self.scratch / "plain"
        self.assert_ok(self.repack(source, packed, "--transform", "scales-to-e8m0"))
        self.assert_ok(self.repack(source, plain))
        self.assert_tensors(packed, wanted)
        self.assert_verified(packed, source)
        self.assertNotIn("rounding_errors", self.manifest(packed))
        self.assertNotIn("scale_fmt", json.loads((packed / "config.json").read_text())["quantization_config"])
        self.assertEqual(self.ask(packed), self.ask(plain))
        logits = []
        for folder in (source, plain, packed):
            out = self.scratch / ("logits-%s" % folder.name)
            self.assert_ok(self.run_program("logits", folder, "--tokens", "0,5,17,200,9", "--out", out,
                                            program="DSPACK_DSRUN"))
            logits.append(out.read_bytes())
        self.assertEqual(logits[0], logits[2])
        self.assertEqual(logits[1], logits[2])
        # Made BF16, the two kinds of scales give the same.
        flat = self.scratch / "flat"
        self.assert_ok(self.run_program("unpack", packed, "--out", flat))
        for folder, out in ((source, "a"), (flat, "b")):
            self.assert_ok(self.repack(folder, self.scratch / out, "--transform", "fp8-to-bf16", by="layer"))
        self.assertIn(" 0 differ", self.assert_ok(self.run_program("diff", self.scratch / "a", self.scratch / "b")).stdout)


class WhatIsSaidOfThem(TransformCase):
    def test_the_manifest_tells_the_recipe_and_every_shard_was_read_whole(self):
        plain = self.manifest(packed_tiny())
        for transform in ("fp8-to-bf16", "fp8-to-f32"):
            manifest = self.manifest(converted_tiny(transform))
            self.assertEqual(manifest["recipe"], {"by": "expert", "transform": [{"kind": transform}]})
            self.assertEqual(manifest["source"], plain["source"])
            self.assertNotIn("of", manifest["coverage"])
            self.assertEqual(manifest["coverage"]["experts"], 320)
            self.assertEqual(manifest["coverage"]["tensors"], 2059 - 1008)
        card = (converted_tiny("fp8-to-bf16") / "README.md").read_text()
        self.assertIn("what the recipe below makes of the source's: 1051 tensors", card)
        self.assertIn("fp8-to-bf16", card)

    def test_inspect_shows_the_recipe_and_what_rounding_cost(self):
        text = self.assert_ok(self.run_program("inspect", converted_tiny("fp8-to-bf16"))).stdout
        errors = self.manifest(converted_tiny("fp8-to-bf16"))["rounding_errors"]
        self.assertIn('recipe: {"by":"expert","transform":[{"kind":"fp8-to-bf16"}]}\n', text)
        for name, of_role in errors.items():
            self.assertRegex(text, r"\n  %s +%d +%.3e  %.3e %s\n" % (
                name, of_role["tensors"], of_role["relative_rms"], of_role["worst"]["relative_rms"],
                of_role["worst"]["name"]))
        self.assertNotIn("F8_E4M3", text)
        self.assertNotIn("recipe:", self.assert_ok(self.run_program("inspect", packed_tiny())).stdout)

    def test_the_source_can_not_be_rebuilt_and_that_is_said(self):
        packed = converted_tiny("fp8-to-bf16")
        out = self.scratch / "out"
        self.assert_refused(self.run_program("unpack", packed, "--exact", "--out", out), "leaves out or converts weights",
                            "fp8-to-bf16")
        self.assert_absent(out)
        sums = self.scratch / "SHA256SUMS"
        sums.write_text("%s  %s\n" % ("0" * 64, "x"))
        for arguments in (["--sha256", sums], ["--upstream"], ["--upstream", self.data()]):
            self.assert_refused(self.run_program("verify", packed, *arguments), "leaves out or converts weights", "--source")

    def test_ordinary_shards_of_the_result(self):
        folder = bf16_tiny()
        self.assertEqual(len(list(folder.glob("*.safetensors"))), 4)
        config = json.loads((folder / "config.json").read_text())
        self.assertNotIn("quantization_config", config)
        self.assert_absent(folder / "config.source.json")
        self.assertIn("1051 tensors equal, 0 differ",
                      self.run_program("diff", folder, converted_tiny("fp8-to-bf16")).stdout)
        self.assertEqual(self.ask(folder), ANSWER)
        packed = self.scratch / "again"
        self.assert_ok(self.repack(folder, packed))
        self.assert_absent(packed / "config.source.json")

    def test_diff_names_what_was_converted(self):
        result = self.run_program("diff", self.data(), converted_tiny("fp8-to-f32"))
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("43 tensors equal, 2016 differ", result.stdout)

    def test_verify_finds_a_flipped_bit_and_another_source(self):
        packed = shutil.copytree(converted_tiny("fp8-to-bf16"), self.scratch / "packed")
        path = "model/layers/003/experts/017.safetensors"
        flip_bit(packed / path, -1)
        result = self.run_program("verify", packed, "--source", self.data())
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("%s: tensor \"model.layers.3.mlp.experts.17." % path, result.stdout)
        self.assertIn("differs from the source at its byte", result.stdout)
        # One value of one scale, of which each value of its block is made.
        name = "model.layers.4.self_attn.o_proj.weight"

        def change(tensor, dtype, shape, raw):
            return raw[:-1] + bytes([raw[-1] ^ 1]) if tensor == name + "_scale_inv" else raw

        other = self.copy_with(change)
        result = self.run_program("verify", converted_tiny("fp8-to-bf16"), "--source", other)
        self.assertEqual(result.code, 1, str(result))
        findings = [line for line in result.stdout.split("\n") if "tensor \"" in line]
        self.assertEqual(len(findings), 1, str(result))
        self.assertIn(name + "\" differs", findings[0])

    def test_dsrun_answers_with_every_form(self):
        for transform in ("fp8-to-bf16", "fp8-to-f32", "bf16-to-fp8"):
            self.assertEqual(self.ask(converted_tiny(transform)), ANSWER, transform)
            self.assertEqual(self.ask(converted_tiny(transform), "--mtp", 1), ANSWER, transform)


class Combined(TransformCase):
    def assert_dtypes(self, packed, expected):
        for name, (dtype, _, _) in safetensors_io.read_checkpoint(packed).items():
            if name.endswith(".weight") and any(part in name for part in QUANTISED) and "norm" not in name:
                self.assertEqual(dtype, expected(name), name)

    def test_by_role_layer_and_expert(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--transform", "fp8-to-bf16 role=attention role=shared_expert",
                                   "--transform", "fp8-to-f32 layers=2-3 experts=0-7"))

        def expected(name):
            if "self_attn" in name or "shared_experts" in name:
                return "BF16"
            layer = int(name.split(".")[2])
            few = layer in (2, 3) and ".experts." in name and int(name.split(".")[5]) < 8
            return "F32" if few else FP8

        self.assert_dtypes(packed, expected)
        self.assert_verified(packed, self.data())
        self.assertEqual(sorted(self.manifest(packed)["rounding_errors"]), ["attention", "routed_expert", "shared_expert"])
        self.assertEqual(self.ask(packed), ANSWER)
        config = json.loads((packed / "config.json").read_text())["quantization_config"]
        kept = config["modules_to_not_convert"]
        self.assertIn("model.layers.0.self_attn.o_proj", kept)
        self.assertIn("model.layers.5.mlp.shared_experts.up_proj", kept)
        self.assertIn("model.layers.2.mlp.experts.7.down_proj", kept)  # experts of one layer are not alike
        self.assertNotIn("model.layers.0.mlp.up_proj", kept)
        self.assertEqual(config["weight_block_size"], [128, 128])

    def test_every_grouping_holds_the_same_tensors(self):
        wanted = safetensors_io.read_checkpoint(converted_tiny("fp8-to-bf16"))
        errors = self.manifest(converted_tiny("fp8-to-bf16"))["rounding_errors"]
        for by in ("expert:8", "layer", "shard:1MB"):
            packed = converted_tiny("fp8-to-bf16", by)
            self.assert_tensors(packed, wanted)
            self.assert_verified(packed, self.data())
            for name, of_role in self.manifest(packed)["rounding_errors"].items():
                self.assertAlmostEqual(of_role["relative_rms"] / errors[name]["relative_rms"], 1, delta=SUMS)
                self.assertEqual(of_role["worst"], errors[name]["worst"])

    def test_a_part_is_converted(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--include", "layers=3", "--transform", "fp8-to-bf16 role=router",
                                   "--transform", "fp8-to-f32", "--exclude", "name=*_scale_inv"))
        wanted, losses = dequantised({name: value for name, value in safetensors_io.read_checkpoint(self.data()).items()
                                      if ".layers.3." in name}, "F32")
        self.assert_tensors(packed, wanted)
        self.assert_errors(packed, losses)
        self.assert_verified(packed, self.data())
        self.assertIn("of", self.manifest(packed)["coverage"])

    def test_the_number_of_jobs_changes_nothing(self):
        for transform in ("fp8-to-bf16", "bf16-to-fp8"):
            source = bf16_tiny() if transform == "bf16-to-fp8" else self.data()
            for jobs in (1, 7):
                out = self.scratch / ("%s-%d" % (transform, jobs))
                self.assert_ok(self.repack(source, out, "--transform", transform, "--jobs", jobs))
                self.assert_same_tree(out, converted_tiny(transform))


if __name__ == "__main__":
    main()
