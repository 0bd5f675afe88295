"""What transforms make of weights, byte for byte against weight_formats.py; what the manifest and config.json say of it;
that every verb knows of it, and that dsrun still answers."""

import json
import math
import shutil
import struct

import safetensors_io
import weight_formats
from checkpoints import SHARDS, bf16_tiny, converted_tiny, packed_tiny, write_small
from common import EndToEnd, flip_bit, main, seeded_random, tree

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
FP8 = "F8_E4M3"
QUANTISED = ("self_attn.", "mlp.gate_proj.", "mlp.up_proj.", "mlp.down_proj.", "mlp.shared_experts.", "mlp.experts.")
SUMS = 1e-12  # of rounding in the program's FP64 sums


def role(name):
    """As the manifest names it."""
    for part, known in (("self_attn.", "attention"), ("shared_experts.", "shared_expert"), (".experts.", "routed_expert"),
                        ("mlp.", "dense_mlp")):
        if part in name:
            return known
    raise ValueError(name)


def scales_of(tensors, name):
    return weight_formats.f32_values(tensors[name + "_scale_inv"][2])


def dequantised(tensors, dtype):
    """(all tensors that should come of FP8 tensors, {name: loss})"""
    made, losses = {}, {}
    for name, (kind, shape, raw) in tensors.items():
        if kind == FP8:
            data, losses[name] = weight_formats.dequantised(raw, shape, scales_of(tensors, name), dtype)
            made[name] = (dtype, shape, data)
        elif not name.endswith("_scale_inv"):
            made[name] = (kind, shape, raw)
    return made, losses


def quantised(tensors):
    made, losses = {}, {}
    for name, (kind, shape, raw) in tensors.items():
        made[name] = (kind, shape, raw)
        if kind == "BF16" and len(shape) == 2 and name.endswith(".weight") and any(p in name for p in QUANTISED):
            data, scales, losses[name] = weight_formats.quantised(raw, shape)
            made[name] = (FP8, shape, data)
            made[name + "_scale_inv"] = ("F32", [-(-size // weight_formats.BLOCK) for size in shape], scales)
    return made, losses


class Transforms(EndToEnd):
    def manifest(self, packed):
        return json.loads((packed / "manifest.json").read_text())

    def ask(self, folder, *arguments):
        return self.assert_ok(self.run_program(folder, "-p", QUESTION, *arguments, program="DSPACK_DSRUN")).stdout

    def assert_tensors(self, packed, wanted):
        found = safetensors_io.read_checkpoint(packed)
        self.assertEqual(sorted(set(found) ^ set(wanted)), [])
        self.assertEqual([name for name in wanted if found[name][:2] != wanted[name][:2]], [], "dtypes and shapes")
        self.assertEqual([name for name in wanted if found[name][2] != wanted[name][2]], [], "bytes")

    def assert_errors(self, packed, losses):
        """The manifest's figures are those of the tensors that were rounded, by role."""
        stated = self.manifest(packed)["rounding_errors"]
        roles = {}
        for name, loss in losses.items():
            roles.setdefault(role(name), {})[name] = loss
        self.assertEqual(sorted(stated), sorted(roles))
        for name, of_role in roles.items():
            total = weight_formats.Loss()
            for loss in of_role.values():
                total.join(loss)
            errors = {tensor: loss.relative_rms() for tensor, loss in of_role.items()}
            worst = max(errors.values())
            self.assertEqual(stated[name]["tensors"], len(of_role))
            self.assertAlmostEqual(stated[name]["relative_rms"] / total.relative_rms(), 1, delta=SUMS)
            self.assertAlmostEqual(stated[name]["worst"]["relative_rms"] / worst, 1, delta=SUMS)
            self.assertAlmostEqual(errors[stated[name]["worst"]["name"]] / worst, 1, delta=SUMS)

    def assert_verified(self, packed, source):
        self.assert_ok(self.run_program("verify", packed))
        said = self.assert_ok(self.run_program("verify", packed, "--source", source)).stdout
        self.assertIn("equal to what its recipe makes of the source", said)

    def copy_with(self, change):
        """A copy of the small checkpoint in which change(name, dtype, shape, raw) gives each tensor's bytes."""
        source = self.copy_source("changed")
        for path in sorted(source.glob("*.safetensors")):
            tensors = safetensors_io.parse(path.read_bytes())[0]
            safetensors_io.write(path, {name: (*value[:2], change(name, *value)) for name, value in tensors.items()})
        return source


class Bytes(Transforms):
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


class WhatIsSaidOfThem(Transforms):
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


class Combined(Transforms):
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


class OffTheHub(Transforms):
    def test_a_thousand_scales_take_a_few_resolutions(self):
        """The Hub answers few requests a minute for where a file lies; ranges of it, then, are free."""
        hub = self.serve_hub()
        hub.add("o/n", self.data())
        out = self.scratch / "packed"
        self.assert_ok(self.repack("o/n", out, "--transform", "fp8-to-bf16", "--jobs", 3, env={"HF_ENDPOINT": hub.url}))
        self.assert_tensors(out, safetensors_io.read_checkpoint(converted_tiny("fp8-to-bf16")))
        stored = [request for request in hub.requests("GET") if request.host != "hub"]
        self.assertGreater(len(stored), 1008)
        self.assertLess(len(hub.requests("GET", "*.safetensors", "hub")), 30)


class Interrupted(Transforms):
    """A transform needs scales of other shards, and leaves figures that no file holds: both outlive a kill."""

    def test_killed_at_every_shard_and_within(self):
        for transform in ("fp8-to-bf16", "bf16-to-fp8"):
            folder = bf16_tiny() if transform == "bf16-to-fp8" else self.data()
            names = sorted(path.name for path in folder.glob("*.safetensors"))
            out = self.scratch / transform
            for name in names:
                server = self.serve(folder)
                # Past the probe, and past the scales: what is slow is the shard itself.
                slow = server.add_fault(name, "slow", min_bytes=1_000_000, rate=300_000)
                process = self.start(server.url, "--by", "expert", "--transform", transform, "--out", out, "--jobs", 1)
                self.wait_until(lambda: slow.struck, "shard " + name)
                process.kill()
                self.finish(process)
                self.assert_unfinished(out)
            server.clear_faults()
            result = self.assert_ok(self.repack(server.url, out, "--transform", transform))
            self.assertIn("resuming: %d of %d" % (len(names) - 1, len(names)), result.stderr)
            self.assert_same_tree(out, converted_tiny(transform))

    def test_scales_that_were_read_differently_twice_are_refused(self):
        tensors = [{}, {}]
        name = "model.layers.0.self_attn.o_proj.weight"
        tensors[0][name] = (FP8, [640, 1000], bytes(640_000))
        tensors[1]["before"] = ("U8", [300_000], bytes(300_000))
        tensors[1][name + "_scale_inv"] = ("F32", [5, 8], struct.pack("<40f", *range(40)))
        source = write_small(self.scratch / "source", tensors)
        raw = (source / SHARDS[1]).read_bytes()
        server = self.serve(source)
        server.add_fault(SHARDS[1], "corrupt", times=1, at=len(raw) - 1)  # on its way to be used, or to be digested
        out = self.scratch / "packed"
        self.assert_refused(self.repack(server.url, out, "--transform", "fp8-to-bf16", by="layer"),
                            name + "_scale_inv", "read differently twice")
        self.assert_absent(out / "manifest.json")


class Refused(Transforms):
    def source_of(self, tensors, config=None):
        number = len(list(self.scratch.glob("source-*")))
        source = write_small(self.scratch / ("source-%d" % number),
                             [tensors, {"model.norm.weight": ("BF16", [2], b"1234")}])
        (source / "config.json").write_text(json.dumps(config or {}))
        return source

    def assert_refused_transform(self, source, transform, *needles, began=False):
        out = self.scratch / "packed"
        self.assert_refused(self.repack(source, out, "--transform", transform, by="layer"), *needles)
        self.assert_absent(out / "manifest.json")
        if not began:
            self.assert_absent(out)
        shutil.rmtree(out, ignore_errors=True)

    def test_what_no_number_format_holds(self):
        name = "model.layers.0.self_attn.o_proj.weight"
        for code in (0x7f80, 0xff80, 0x7fc1):
            with self.subTest(code=code):
                source = self.source_of({name: ("BF16", [2, 3], struct.pack("<6H", 0, 1, 2, 3, code, 5))})
                self.assert_refused_transform(source, "bf16-to-fp8", name, "infinity or NaN", "selector", began=True)
        source = self.source_of({name: (FP8, [1, 2], b"\x38\x7e"),
                                 name + "_scale_inv": ("F32", [1, 1], struct.pack("<f", 2.0**120))})
        self.assert_refused_transform(source, "fp8-to-bf16", name, "rows from 0", "too large for 16 bits", began=True)

    def test_scales_that_do_not_fit(self):
        name = "model.layers.0.self_attn.o_proj.weight"
        for dtype, shape, size in (("F32", [1, 2], 8), ("F32", [1], 4), ("F32", [2, 1], 8), ("BF16", [1, 1], 2)):
            with self.subTest(dtype=dtype, shape=shape):
                source = self.source_of({name: (FP8, [1, 2], b"ab"), name + "_scale_inv": (dtype, shape, bytes(size))})
                self.assert_refused_transform(source, "fp8-to-bf16", name + "_scale_inv", "blocks of 128 x 128")

    def test_a_config_that_describes_something_else(self):
        name = "model.layers.0.self_attn.o_proj.weight"
        tensors = {name: (FP8, [1, 2], b"ab"), name + "_scale_inv": ("F32", [1, 1], b"\0\0\x80\x3f")}
        for described, needle in (({"quant_method": "gptq"}, "quant_method"),
                                  ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size")):
            with self.subTest(needle=needle):
                source = self.source_of(tensors, {"quantization_config": described})
                self.assert_refused_transform(source, "fp8-to-bf16", "config.json", needle)
        source = self.source_of(tensors)
        for text in ("[]", "{", "", "{\"a\":1,\"a\":2}", "[" * 100_000, "{\"a\":\"" + "x" * (17 << 20) + "\"}"):
            (source / "config.json").write_text(text)
            self.assert_refused_transform(source, "fp8-to-bf16", "config.json")
        (source / "config.json").unlink()
        self.assert_refused_transform(source, "fp8-to-bf16", "config.json")

    def test_the_name_for_the_source_s_config_is_taken(self):
        source = self.copy_source()
        (source / "config.source.json").write_text("{}")
        self.assert_refused(self.repack(source, self.scratch / "packed", "--transform", "fp8-to-bf16"),
                            "config.source.json", "move the file away")
        self.assert_ok(self.repack(source, self.scratch / "packed"))  # without a change it is a file like any other
        self.assertEqual(tree(self.scratch / "packed")["config.source.json"], tree(source)["config.source.json"])


if __name__ == "__main__":
    main()
