"""How DeepSeek-V4 stores weights: every code under every scale, read back bit for bit by a reader of this file's own; and its
trained FP4 experts made BF16, int4 and NVFP4, with what that loses."""

import json
import math
import random
import shutil
import struct
import sys
from pathlib import Path

import safetensors_io
import weight_formats
from common import EndToEnd, main
from test_v4_names import SMALL

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import v3_checkpoint  # noqa: E402
import v4_checkpoint  # noqa: E402

NAN_SCALE = 255
FP8_FINITE = 246  # the largest exponent under which 448 is a number of FP32: 448 * 2^119 < 2^128
ATTENTION, EXPERT = "layers.0.attn.wq_b", "layers.0.ffn.experts.0.w1"
CONFIG = {"model_type": "deepseek_v4", "expert_dtype": "fp4",
          "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}}


def e8m0(code):
    """OCP Microscaling Formats 1.0: 2^(code - 127), and NaN. No zero, no infinity."""
    return math.nan if code == NAN_SCALE else 2.0 ** (code - 127)


def fp8_meant(codes, rows, columns, scales):
    """Doubles, which hold each product exactly. Row r and column c have the scale of block (r / 128, c / 128)."""
    across = -(-columns // 128)
    return [weight_formats.E4M3[codes[r * columns + c]] * e8m0(scales[r // 128 * across + c // 128])
            for r in range(rows) for c in range(columns)]


def fp4_tensors(codes, grid, scales):
    """Of one expert's matrix: rows of codes, and its scales."""
    return {EXPERT + ".weight": ("I8", [grid[0], len(codes) // grid[0]], codes), EXPERT + ".scale": ("F8_E8M0", list(grid), scales)}


def fp4_meant(packed, rows, columns, scales):
    """The code of an even column is the low half of its byte."""
    across = -(-columns // 32)
    return [weight_formats.e2m1_value(packed[(r * columns + c) // 2] >> (4 if c % 2 else 0) & 15) * e8m0(scales[r * across + c // 32])
            for r in range(rows) for c in range(columns)]


def bits(values, dtype):
    """As the dtype stores them, to the nearest, ties to even; None for NaN, of which there are many."""
    out = []
    for value in values:
        if math.isnan(value):
            out.append(None)
            continue
        if abs(value) >= 2.0**128:  # beyond all numbers of both: what a multiplication gives
            value = math.copysign(math.inf, value)
        elif dtype == "BF16":
            value = math.copysign(weight_formats.to_bf16(value), value)
        raw = struct.pack("<f", value)
        out.append(raw[2:] if dtype == "BF16" else raw)
    return out


def stored_bits(raw, dtype):
    width = 2 if dtype == "BF16" else 4
    out = []
    for at in range(0, len(raw), width):
        one = raw[at:at + width]
        high = int.from_bytes(one, "little") << (16 if width == 2 else 0)
        out.append(None if high & 0x7f800000 == 0x7f800000 and high & 0x7fffff else one)
    return out


class StoredCase(EndToEnd):
    def source_of(self, tensors, name="source"):
        folder = self.scratch / name
        folder.mkdir()
        safetensors_io.write(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return folder

    def converted(self, source, *transforms):
        packed = self.scratch / "packed"
        shutil.rmtree(packed, ignore_errors=True)
        self.assert_ok(self.repack(source, packed, *(word for one in transforms for word in ("--transform", one))))
        self.assert_ok(self.run_program("verify", packed))
        self.assert_ok(self.run_program("verify", packed, "--source", source))
        return packed

    def assert_alike(self, found, wanted, what):
        """Long lists, whose difference unittest would take minutes to show."""
        self.assertEqual(len(found), len(wanted), what)
        wrong = next((i for i, (one, other) in enumerate(zip(found, wanted)) if one != other), None)
        if wrong is not None:
            self.fail("%s: value %d is %r, not %r" % (what, wrong, found[wrong], wanted[wrong]))

    def refused(self, source, transform, *words):
        self.assert_refused(self.repack(source, self.scratch / "refused", "--transform", transform), *words)
        shutil.rmtree(self.scratch / "refused", ignore_errors=True)


class Storage(StoredCase):
    def assert_read(self, name, codes, scales, meant, shape):
        """By both transforms that give values, in both types of them."""
        source = self.source_of({name + ".weight": codes, name + ".scale": scales})
        for dtype in ("F32", "BF16"):
            for kind in ("fp8-to-", "quantised-to-") if codes[0] == "F8_E4M3" else ("quantised-to-",):
                made = safetensors_io.read_checkpoint(self.converted(source, kind + dtype.lower()))
                self.assertEqual({one: value[:2] for one, value in made.items()}, {name + ".weight": (dtype, shape)})
                self.assert_alike(stored_bits(made[name + ".weight"][2], dtype), bits(meant, dtype), kind + dtype)
        shutil.rmtree(source)

    def test_every_code_of_fp8_under_every_scale(self):
        # A block for each exponent, and NaN's: two rows of 128 columns, which are all 256 codes.
        exponents = bytes(range(FP8_FINITE + 1)) + bytes([NAN_SCALE])
        columns = 128 * len(exponents)
        codes = bytes(range(128)) * len(exponents) + bytes(range(128, 256)) * len(exponents)
        meant = fp8_meant(codes, 2, columns, exponents)
        self.assertTrue(2.0**-136 in meant)  # below FP32's normal numbers
        self.assert_read(ATTENTION, ("F8_E4M3", [2, columns], codes), ("F8_E8M0", [1, len(exponents)], exponents), meant, [2, columns])

    def test_the_largest_scales_of_fp8_with_the_codes_that_they_leave_finite(self):
        exponents = bytes(range(FP8_FINITE + 1, NAN_SCALE))
        small = bytes(code for code in range(256) if abs(weight_formats.E4M3[code]) < 2)  # 2 * 2^127 is none of FP32's
        codes = (small + bytes(128 - len(small) % 128)) * len(exponents)
        per_block = len(codes) // len(exponents) // 128
        exponents = bytes(one for one in exponents for _ in range(per_block))
        meant = fp8_meant(codes, 1, len(codes), exponents)
        self.assert_read(ATTENTION, ("F8_E4M3", [1, len(codes)], codes), ("F8_E8M0", [1, len(exponents)], exponents), meant,
                         [1, len(codes)])

    def test_blocks_that_are_cut(self):
        choice = random.Random(5)
        for rows, columns in ((300, 260), (129, 1), (1, 129), (127, 130)):
            codes = choice.randbytes(rows * columns)
            scales = bytes(choice.randrange(100, 140) for _ in range(-(-rows // 128) * -(-columns // 128)))
            meant = fp8_meant(codes, rows, columns, scales)
            self.assert_read(ATTENTION, ("F8_E4M3", [rows, columns], codes),
                             ("F8_E8M0", [-(-rows // 128), -(-columns // 128)], scales), meant, [rows, columns])

    def test_every_byte_of_fp4_under_every_scale(self):
        exponents = bytes(range(NAN_SCALE))
        columns = 32 * len(exponents)  # 16 rows of 16 bytes: every byte in every group
        codes = b"".join(bytes(range(16 * row, 16 * row + 16)) * len(exponents) for row in range(16))
        meant = fp4_meant(codes, 16, columns, exponents * 16)
        self.assertEqual(max(meant), 6 * 2.0**127)  # no number of FP32, and so an infinity, as dsrun multiplies with it
        self.assert_read(EXPERT, ("I8", [16, columns // 2], codes), ("F8_E8M0", [16, len(exponents)], exponents * 16), meant,
                         [16, columns])

    def test_groups_of_fp4_that_are_cut(self):
        choice = random.Random(6)
        for rows, columns in ((3, 40), (5, 2), (2, 62)):
            codes = choice.randbytes(rows * columns // 2)
            scales = bytes(choice.randrange(110, 128) for _ in range(rows * -(-columns // 32)))
            meant = fp4_meant(codes, rows, columns, scales)
            self.assert_read(EXPERT, ("I8", [rows, columns // 2], codes), ("F8_E8M0", [rows, -(-columns // 32)], scales), meant,
                             [rows, columns])

    def test_what_no_number_of_fp32_is(self):
        """A NaN for a scale of FP4 is damage; of FP8, too, but there a NaN is a code as well and stays one."""
        fp4 = self.source_of(fp4_tensors(b"\x11" * 32, (1, 2), bytes([127, NAN_SCALE])))
        for transform in ("quantised-to-f32", "quantised-to-bf16"):
            self.refused(fp4, transform, EXPERT + ".scale", "value 1 is infinite or not a number")
        for transform in ("experts-to-int4", "experts-to-nvfp4"):
            self.refused(fp4, transform, EXPERT + ".weight", "an infinity or NaN")
        fp8 = self.source_of({ATTENTION + ".weight": ("F8_E4M3", [1, 1], b"\x7e"),
                              ATTENTION + ".scale": ("F8_E8M0", [1, 1], bytes([FP8_FINITE + 1]))}, "fp8")
        self.refused(fp8, "fp8-to-f32", ATTENTION, "too large for 32 bits", "selector")
        self.refused(fp8, "fp8-to-bf16", ATTENTION, "too large for 16 bits", "selector")

    def test_tables_of_experts_keep_every_bit(self):
        numbers = [0, 1, 255, 256, 383, -1, 2**63 - 1, -2**63, 2**32, 5, 6, 7]
        table = ("I64", [2, 6], struct.pack("<12q", *numbers))
        source = self.source_of({"layers.0.ffn.gate.tid2eid": table, **fp4_tensors(bytes(16), (1, 1), b"\x7f")})
        for transforms in ((), ("quantised-to-bf16",)):
            packed = self.converted(source, *transforms)
            raw = (packed / "model/layers/000/dense.safetensors").read_bytes()
            (length,) = struct.unpack("<Q", raw[:8])
            entry = json.loads(raw[8:8 + length])["layers.0.ffn.gate.tid2eid"]
            begin, end = entry["data_offsets"]
            self.assertEqual((entry["dtype"], entry["shape"]), ("I64", [2, 6]))
            self.assertEqual(list(struct.unpack("<12q", raw[8 + length:][begin:end])), numbers)


class FourBits(StoredCase):
    """Of FP4 as it was trained: its error is stated against that, whatever the model lost when it was trained in it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.payload = v3_checkpoint.RandomPayload(11)

    def small(self, name="source", **options):
        folder = self.scratch / name
        v4_checkpoint.write_checkpoint(folder, SMALL, self.payload, **options)
        return folder

    @staticmethod
    def experts_of(tensors):
        """{name without .weight: values} of routed experts."""
        found = {}
        for name, (dtype, shape, raw) in tensors.items():
            if ".experts." in name and dtype == "I8":
                module = name.removesuffix(".weight")
                found[module] = fp4_meant(raw, shape[0], shape[1] * 2, tensors[module + ".scale"][2])
        return found

    def assert_stated(self, packed, losses):
        """{tensor: (squared error, squared value)}"""
        stated = json.loads((packed / "manifest.json").read_text())["rounding_errors"]
        self.assertEqual(list(stated), ["routed_expert"])
        errors, values = (math.fsum(one[i] for one in losses.values()) for i in (0, 1))
        self.assertEqual(stated["routed_expert"]["tensors"], len(losses))
        self.assertAlmostEqual(stated["routed_expert"]["relative_rms"], math.sqrt(errors / values), delta=1e-12)
        worst = max(math.sqrt(error / value) for error, value in losses.values())
        self.assertAlmostEqual(stated["routed_expert"]["worst"]["relative_rms"], worst, delta=1e-12)
        return stated["routed_expert"]["relative_rms"]

    def assert_others_kept(self, source, made, meant):
        gone = {module + suffix for module in meant for suffix in (".weight", ".scale")}
        self.assertEqual([name for name in source if name not in gone and made.get(name) != source[name]], [])
        self.assertEqual(gone & set(made), set())

    def test_nvfp4_keeps_the_codes_and_loses_nothing(self):
        source = self.small()
        packed = self.converted(source, "experts-to-nvfp4")
        before, made = safetensors_io.read_checkpoint(source), safetensors_io.read_checkpoint(packed)
        meant = self.experts_of(before)
        self.assertEqual(len(meant), 8 * 4 * 3)
        self.assert_others_kept(before, made, meant)
        losses = {}
        for module, values in meant.items():
            _, (rows, half), raw = before[module + ".weight"]
            self.assertTrue(made[module + ".weight_packed"] == ("U8", [rows, half], raw), module)
            self.assertEqual(made[module + ".weight_global_scale"], ("F32", [1], struct.pack("<f", 256)))
            dtype, shape, scales = made[module + ".weight_scale"]
            self.assertEqual((dtype, shape), ("F8_E4M3", [rows, half // 8]))
            codes = [one for byte in raw for one in (byte & 15, byte >> 4)]
            got = [weight_formats.e2m1_value(code) * weight_formats.E4M3[scales[i // 16]] / 256 for i, code in enumerate(codes)]
            self.assert_alike(got, values, module)
            losses[module] = (0.0, math.fsum(value * value for value in values))
        self.assertEqual(self.assert_stated(packed, losses), 0)
        self.assertRegex(self.assert_ok(self.run_program("inspect", packed)).stdout, r"\n  routed_expert +96 +0\.000e\+00  ")
        config = json.loads((packed / "config.json").read_text())
        self.assertEqual(config["quantization_config"]["config_groups"]["group_0"]["format"], "nvfp4-pack-quantized")
        self.assertNotIn("expert_dtype", config)
        self.assertLess(len(config["quantization_config"]["ignore"]), 8 * 8)  # compressors; no experts

    def test_nvfp4_of_scales_that_it_does_not_hold(self):
        choice = random.Random(7)
        # Under 2^-18 and below the least codes vanish; under 2^-17 to 1 all stay; under 2 what is at most 3 does.
        codes = choice.randbytes(64 * 16)
        exponents = bytes(105 + row % 23 for row in range(64))
        packed = self.converted(self.source_of(fp4_tensors(codes, (64, 1), exponents)), "experts-to-nvfp4")
        made = safetensors_io.read_checkpoint(packed)
        raw, scales = made[EXPERT + ".weight_packed"][2], made[EXPERT + ".weight_scale"][2]
        error = square = 0.0
        meant = fp4_meant(codes, 64, 32, exponents)
        for row in range(64):
            got = [weight_formats.e2m1_value(raw[(row * 32 + i) // 2] >> (4 if i % 2 else 0) & 15)
                   * weight_formats.E4M3[scales[row * 2 + i // 16]] / 256 for i in range(32)]
            wanted = meant[row * 32:row * 32 + 32]
            if exponents[row] >= 110:
                self.assertEqual(got, wanted)
                self.assertEqual(raw[row * 16:row * 16 + 16], codes[row * 16:row * 16 + 16])
            else:
                self.assertLessEqual(max(abs(a - b) for a, b in zip(got, wanted)), 2.0**-19)
            error += math.fsum((a - b) ** 2 for a, b in zip(got, wanted))
            square += math.fsum(b * b for b in wanted)
        self.assertGreater(error, 0)
        self.assert_stated(packed, {EXPERT: (error, square)})
        two = bytes([128])
        fits = self.source_of(fp4_tensors(b"\x5d" * 16, (1, 1), two), "fits")
        made = safetensors_io.read_checkpoint(self.converted(fits, "experts-to-nvfp4"))
        self.assertEqual((made[EXPERT + ".weight_packed"][2], made[EXPERT + ".weight_scale"][2]), (b"\x7f" * 16, b"\x78" * 2))
        beyond = self.source_of(fp4_tensors(b"\x77" * 16, (1, 1), two), "beyond")
        self.refused(beyond, "experts-to-nvfp4", EXPERT, "12, more than the 10.5", "selector")

    def test_int4_states_what_it_loses(self):
        source = self.small()
        packed = self.converted(source, "experts-to-int4")
        before, made = safetensors_io.read_checkpoint(source), safetensors_io.read_checkpoint(packed)
        meant = self.experts_of(before)
        self.assert_others_kept(before, made, meant)
        losses = {}
        for module, values in meant.items():
            rows, half = before[module + ".weight"][1]
            self.assertEqual(made[module + ".weight_shape"], ("I64", [2], struct.pack("<2q", rows, 2 * half)))
            self.assertEqual(made[module + ".weight_packed"][:2], ("I32", [rows, half // 4]))
            scales = [weight_formats.bf16_value(code) for code in weight_formats.bf16_codes(made[module + ".weight_scale"][2])]
            codes = [one for byte in made[module + ".weight_packed"][2] for one in (byte & 15, byte >> 4)]
            got = [(code - 8) * scales[i // 32] for i, code in enumerate(codes)]
            for i, (one, wanted) in enumerate(zip(got, values)):  # no code but the nearest
                step = abs(scales[i // 32])
                self.assertTrue(abs(one - wanted) <= step / 2 * 1.0001 or abs(one) >= 6.9 * step)
            losses[module] = (math.fsum((a - b) ** 2 for a, b in zip(got, values)), math.fsum(b * b for b in values))
        stated = self.assert_stated(packed, losses)
        self.assertTrue(0.05 < stated < 0.1, stated)
        config = json.loads((packed / "config.json").read_text())
        self.assertEqual(config["quantization_config"]["config_groups"]["group_0"]["format"], "pack-quantized")
        self.assertNotIn("expert_dtype", config)

    def test_bf16_holds_them_exactly(self):
        source = self.small()
        packed = self.converted(source, "quantised-to-bf16")
        before, made = safetensors_io.read_checkpoint(source), safetensors_io.read_checkpoint(packed)
        for module, values in self.experts_of(before).items():
            self.assert_alike(weight_formats.bf16_values(made[module + ".weight"][2]), values, module)
            self.assertNotIn(module + ".scale", made)
        stated = json.loads((packed / "manifest.json").read_text())["rounding_errors"]
        self.assertEqual((stated["routed_expert"]["tensors"], stated["routed_expert"]["relative_rms"]), (96, 0))
        config = json.loads((packed / "config.json").read_text())
        self.assertEqual([key for key in ("expert_dtype", "quantization_config") if key in config], [])

    def test_fp8_experts_of_the_base_models(self):
        source = self.small(experts="fp8")
        packed = self.converted(source, "experts-to-int4")
        stated = json.loads((packed / "manifest.json").read_text())["rounding_errors"]
        self.assertEqual((list(stated), stated["routed_expert"]["tensors"]), (["routed_expert"], 96))
        made = safetensors_io.read_checkpoint(packed)
        self.assertIn("layers.3.ffn.experts.1.w2.weight_packed", made)
        self.assertNotIn("layers.3.ffn.experts.1.w2.scale", made)

    def test_any_other_is_refused_by_name(self):
        source = self.small()
        for transform in ("experts-to-int4", "experts-to-nvfp4"):
            self.refused(source, transform + " layers=0-3", "layers.4.ffn.experts.0.w1.weight", "stays FP4",
                         "convert all routed experts")
        self.refused(source, "quantised-to-bf16 role=routed_expert", "config.json", "still holds codes", "decode all weights")
        for grid in ([4, 1], [4, 4], [8], [2, 4]):
            bad = self.source_of({EXPERT + ".weight": ("I8", [4, 32], bytes(128)),
                                  EXPERT + ".scale": ("F8_E8M0", grid, bytes(math.prod(grid)))}, "bad")
            for transform in ("experts-to-int4", "experts-to-nvfp4"):
                self.refused(bad, transform, EXPERT + ".scale", "here [4,2]")
            shutil.rmtree(bad)
        int8 = self.source_of({EXPERT + ".weight": ("I8", [4, 32], bytes(128)),
                               EXPERT + ".weight_scale": ("F32", [4, 1], bytes(16))}, "int8")
        self.refused(int8, "experts-to-nvfp4", EXPERT + ".weight", "quantised already (I8)",
                     "Take the checkpoint that it was made from")
        cut = self.source_of(fp4_tensors(bytes(96), (4, 2), bytes(8)), "cut")
        self.refused(cut, "experts-to-nvfp4", EXPERT + ".weight", "48 columns", "groups of 32", "selector")

    def test_the_number_of_jobs_and_the_grouping_change_no_byte(self):
        source = self.small()
        for transform in ("experts-to-int4", "experts-to-nvfp4"):
            wanted = safetensors_io.read_checkpoint(self.converted(source, transform))
            for jobs, by in ((1, "expert"), (3, "layer"), (4, "shard:100KB")):
                out = self.scratch / "out"
                self.assert_ok(self.repack(source, out, "--transform", transform, "--jobs", jobs, by=by))
                self.assertTrue(safetensors_io.read_checkpoint(out) == wanted, (transform, jobs, by))
                shutil.rmtree(out)


if __name__ == "__main__":
    main()
