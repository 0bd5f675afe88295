"""weights-to-int4, weights-to-int8, experts-to-int4 and experts-to-nvfp4: what they change and what not, that their codes
mean what they say, and what they refuse."""

import array
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import safetensors_io
import weight_formats
from checkpoints import bf16_tiny, converted_tiny, write_four_bit, write_small
from common import main
from transforming import FP8, TransformCase

GENERATOR = Path(__file__).resolve().parent.parent / "tools" / "v3_checkpoint.py"
EXPERT = "model.layers.3.mlp.experts.1.up_proj.weight"


def nibbles(raw):
    return [half for byte in raw for half in (byte & 15, byte >> 4)]


def fp8_values(tensors, name):
    _, (rows, columns), raw = tensors[name]
    scales = weight_formats.f32_values(tensors[name + "_scale_inv"][2])
    per_row = -(-columns // 128)
    return [weight_formats.to_f32(weight_formats.E4M3[code] * scales[i // columns // 128 * per_row + i % columns // 128])
            for i, code in enumerate(raw)]


class FourBit:
    """The cases of one form. TRANSFORM, FORMAT (compressed-tensors' name), GROUP (columns that share a scale), parts_of()
    and values_of() are those of the class."""

    def test_routed_experts_alone_are_changed(self):
        packed = converted_tiny(self.TRANSFORM)
        source, made = safetensors_io.read_checkpoint(self.data()), safetensors_io.read_checkpoint(packed)
        experts = {name for name in source if ".experts." in name}
        self.assertEqual({name: made[name] for name in source if name not in experts},
                         {name: source[name] for name in source if name not in experts})
        self.assertEqual(len(made) - (len(source) - len(experts)), 3 * 960)
        for name in sorted(experts):
            if not name.endswith(".weight"):
                continue
            rows, columns = source[name][1]
            for suffix, (dtype, shape, data) in self.parts_of(rows, columns).items():
                self.assertEqual(made[name + suffix][:2], (dtype, shape))
                self.assertIn(data, (None, made[name + suffix][2]))
        self.assert_verified(packed, self.data())
        stated = self.manifest(packed)["rounding_errors"]
        self.assertEqual(list(stated), ["routed_expert"])
        self.assertEqual(stated["routed_expert"]["tensors"], 960)
        self.assertTrue(0.05 < stated["routed_expert"]["relative_rms"] < 0.1, stated)
        config = json.loads((packed / "config.json").read_text())["quantization_config"]
        self.assertEqual((config["quant_method"], config["format"]), ("compressed-tensors", "mixed-precision"))
        self.assertEqual(config["config_groups"]["group_0"]["format"], self.FORMAT)
        self.assertEqual(config["config_groups"]["group_0"]["weights"]["group_size"], self.GROUP)
        self.assertEqual(config["config_groups"]["group_1"]["weights"]["block_structure"], [128, 128])
        self.assertTrue(self.ask(packed).strip())

    def test_the_codes_mean_what_the_manifest_says(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--include", "layers=3 experts=0-3", "--transform",
                                   self.TRANSFORM))
        source, made = safetensors_io.read_checkpoint(self.data()), safetensors_io.read_checkpoint(packed)
        losses = {}
        for name in [name.removesuffix("_packed") for name in made if name.endswith("_packed")]:
            loss = losses[name + "_packed"] = weight_formats.Loss()
            for stored, meant in zip(self.values_of(made, name), fp8_values(source, name)):
                loss.add(stored, meant, 1)
            self.assertLess(loss.relative_rms(), 0.12)
        self.assertEqual(len(losses), 12)
        self.assert_errors(packed, losses)

    def test_logits_are_those_of_the_same_values_as_f32(self):
        packed, flat = self.scratch / "packed", self.scratch / "flat"
        self.assert_ok(self.repack(bf16_tiny(), packed, "--transform", self.TRANSFORM + " layers=2"))
        self.assert_ok(self.run_program("unpack", packed, "--out", flat))
        config = json.loads((flat / "config.json").read_text())
        groups = config["quantization_config"]["config_groups"]
        self.assertEqual((config["quantization_config"]["format"], list(groups)), (self.FORMAT, ["group_0"]))
        self.assertIn(EXPERT.removesuffix(".weight"), config["quantization_config"]["ignore"])
        for path in sorted(flat.glob("*.safetensors")):
            tensors = safetensors_io.parse(path.read_bytes())[0]
            meant = {}
            for name, value in tensors.items():
                if name.endswith(".weight_packed"):
                    weight = name.removesuffix("_packed")
                    numbers = array.array("f", self.values_of(tensors, weight))
                    meant[weight] = ("F32", [value[1][0], len(numbers) // value[1][0]], numbers.tobytes())
                elif not name.endswith(("proj.weight_scale", "proj.weight_shape", "proj.weight_global_scale")):
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
            self.assert_ok(self.repack(self.data(), out, "--transform", self.TRANSFORM, "--jobs", jobs))
            self.assert_same_tree(out, converted_tiny(self.TRANSFORM))
            shutil.rmtree(out)

    def test_killed_and_started_again(self):
        out = self.scratch / "out"
        command = (self.data(), "--by", "layer", "--transform", self.TRANSFORM, "--jobs", "1", "--out", out)
        self.assert_ok(self.run_program(*command))
        wanted = self.scratch / "wanted"
        out.rename(wanted)
        kills = 0
        for delay in range(1, 200, 3):
            process = self.start(*command)
            try:
                process.wait(timeout=0.01 * delay)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        self.assert_ok(self.run_program(*command))
        self.assertGreater(kills, 0)
        self.assert_same_tree(out, wanted)

    def test_what_cannot_get_four_bits(self):
        def refused(source, *words, transform=self.TRANSFORM):
            out = self.scratch / "out"
            self.assert_refused(self.repack(source, out, "--transform", transform), *words)
            shutil.rmtree(out, ignore_errors=True)

        for transform, *words in ((self.TRANSFORM, "weight_packed", "quantised already"),
                                  ("fp8-to-f32", ".experts.", "F32", "BF16 and FP8")):
            flat = self.scratch / transform
            self.assert_ok(self.run_program("unpack", converted_tiny(transform), "--out", flat))
            refused(flat, *words)
        coded, _ = write_four_bit(self.scratch / "nvfp4", "v2-lite", "nvfp4")
        refused(coded, "U8", "quantised already")
        # A column too many; a NaN; FP8 without a scale.
        columns = self.GROUP + self.GROUP // 2
        odd = write_small(self.scratch / "odd", [{EXPERT: ("BF16", [4, columns], bytes(4 * columns * 2))}, {}])
        refused(odd, EXPERT, "%d columns" % columns, "groups of %d" % self.GROUP)
        nan = write_small(self.scratch / "nan", [{EXPERT: ("BF16", [2, 32], b"\xc0\x7f" * 64)}, {}])
        refused(nan, EXPERT, "NaN")
        bare = write_small(self.scratch / "bare", [{EXPERT: (FP8, [2, 32], bytes(64))}, {}])
        refused(bare, EXPERT, "weight_scale_inv")


class Int4(FourBit, TransformCase):
    TRANSFORM, FORMAT, GROUP = "experts-to-int4", "pack-quantized", 32

    @staticmethod
    def parts_of(rows, columns):
        return {"_packed": ("I32", [rows, columns // 8], None), "_scale": ("BF16", [rows, columns // 32], None),
                "_shape": ("I64", [2], struct.pack("<2q", rows, columns))}

    @staticmethod
    def values_of(tensors, weight):
        scales = [weight_formats.bf16_value(code) for code in weight_formats.bf16_codes(tensors[weight + "_scale"][2])]
        return [(code - 8) * scales[i // 32] for i, code in enumerate(nibbles(tensors[weight + "_packed"][2]))]


class Nvfp4(FourBit, TransformCase):
    TRANSFORM, FORMAT, GROUP = "experts-to-nvfp4", "nvfp4-pack-quantized", 16

    @staticmethod
    def parts_of(rows, columns):
        return {"_packed": ("U8", [rows, columns // 2], None), "_scale": (FP8, [rows, columns // 16], None),
                "_global_scale": ("F32", [1], struct.pack("<f", 256))}

    @staticmethod
    def values_of(tensors, weight):
        (over,) = weight_formats.f32_values(tensors[weight + "_global_scale"][2])
        scales = [weight_formats.E4M3[code] / over for code in tensors[weight + "_scale"][2]]
        return [weight_formats.e2m1_value(code) * scales[i // 16]
                for i, code in enumerate(nibbles(tensors[weight + "_packed"][2]))]

    def test_values_that_are_too_large(self):
        large = write_small(self.scratch / "large", [{EXPERT: ("BF16", [2, 32], b"\x30\x41" * 64)}, {}])  # 11
        self.assert_refused(self.repack(large, self.scratch / "out", "--transform", self.TRANSFORM), EXPERT, "10.5",
                            "selector")

    def test_two_forms_of_experts_in_one_recipe(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--transform", "experts-to-int4 layers=1", "--transform",
                                   "experts-to-nvfp4 layers=2"))
        self.assert_verified(packed, self.data())
        groups = json.loads((packed / "config.json").read_text())["quantization_config"]["config_groups"]
        # Each kind of matrix has three forms, so that only names tell them apart.
        self.assertEqual([len(group["targets"]) for group in groups.values()], [192, 192, 1])
        self.assertIn("model.layers.2.mlp.experts.0.up_proj", groups["group_1"]["targets"])
        self.assertTrue(self.ask(packed).strip())


class Throughout(TransformCase):
    """Both widths of integers in one model. Groups of 32 do not fill the rows of two matrices of the small model's
    attention, which stay FP8."""

    EIGHT = "role=head name=*.q_a_proj.weight name=*.q_b_proj.weight name=*.kv_a_proj_with_mqa.weight"
    ROLES = "role=routed_expert role=shared_expert role=dense_mlp"

    def pack(self, source, out):
        heads, names = self.EIGHT.split(" ", 1)
        self.assert_ok(self.repack(source, out, "--transform", "weights-to-int4 " + self.ROLES, "--transform",
                                   "weights-to-int8 " + heads, "--transform", "weights-to-int8 " + names))
        return out

    @staticmethod
    def values_of(tensors, weight):
        rows, columns = struct.unpack("<2q", tensors[weight + "_shape"][2])
        packed, scales = (tensors[weight + suffix][2] for suffix in ("_packed", "_scale"))
        codes = packed if len(packed) == rows * columns else nibbles(packed)
        assert len(codes) == rows * columns
        zero = 128 if codes is packed else 8
        scales = [weight_formats.bf16_value(code) for code in weight_formats.bf16_codes(scales)]
        return [(code - zero) * scales[i // 32] for i, code in enumerate(codes)]

    def test_what_is_made_and_said(self):
        packed = self.pack(self.data(), self.scratch / "packed")
        self.assert_verified(packed, self.data())
        source, made = safetensors_io.read_checkpoint(self.data()), safetensors_io.read_checkpoint(packed)
        changed = {name.removesuffix("_packed") for name in made if name.endswith(".weight_packed")}
        self.assertEqual({name.rsplit(".", 2)[-2] for name in changed},
                         {"up_proj", "gate_proj", "down_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "lm_head"})
        losses = {}
        for weight in changed:
            dtype, shape, raw = source[weight]
            word = 8 if "mlp." in weight else 4
            self.assertEqual(made[weight + "_packed"][:2], ("I32", [shape[0], shape[1] // word]))
            self.assertEqual(made[weight + "_scale"][:2], ("BF16", [shape[0], shape[1] // 32]))
            if ".experts." in weight and ".3.mlp.experts.1." not in weight:
                continue
            meant = (fp8_values(source, weight) if dtype == FP8 else
                     [weight_formats.bf16_value(code) for code in weight_formats.bf16_codes(raw)])
            losses[weight] = weight_formats.Loss()
            for stored, value in zip(self.values_of(made, weight), meant):
                losses[weight].add(stored, value, 1)
            self.assertLess(losses[weight].relative_rms(), 0.12 if word == 8 else 0.008)
        kept = [name for name in source if name.removesuffix("_scale_inv") not in changed]
        self.assertEqual({name: made[name] for name in kept}, {name: source[name] for name in kept})
        stated = self.manifest(packed)["rounding_errors"]
        self.assertEqual(list(stated), ["attention", "dense_mlp", "head", "routed_expert", "shared_expert"])
        self.assertAlmostEqual(stated["head"]["relative_rms"] / losses["lm_head.weight"].relative_rms(), 1, delta=1e-12)
        config = json.loads((packed / "config.json").read_text())["quantization_config"]
        self.assertEqual((config["format"], list(config["config_groups"])),
                         ("mixed-precision", ["group_0", "group_1", "group_2"]))
        for weight in changed:  # as compressed-tensors finds a module's group
            matching = [group["weights"]["num_bits"] for group in config["config_groups"].values()
                        if any(target.startswith("re:") and re.match(target[3:], weight.removesuffix(".weight"))
                               for target in group["targets"])]
            self.assertEqual(matching, [4 if "mlp." in weight else 8], weight)
        self.assertEqual(config["config_groups"]["group_2"]["targets"], ["Linear"])
        self.assertEqual(config["ignore"], [])
        self.assertTrue(self.ask(packed).strip())
        self.assert_ok(self.run_program("unpack", packed, "--out", self.scratch / "flat"))
        decoded = self.scratch / "decoded"
        self.assert_ok(self.repack(self.scratch / "flat", decoded, "--transform", "quantised-to-f32"))
        values = safetensors_io.read_checkpoint(decoded)
        for weight in losses:
            self.assertEqual(values[weight][2], array.array("f", self.values_of(made, weight)).tobytes(), weight)
        got, wanted = self.logits(packed), self.logits(decoded)
        error = sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
        self.assertLess(error, 1e-11)

    def test_every_matrix_in_integers(self):
        """Attention's keys and values are absorbed from them, too. One precision rounds activations to eight bits."""
        source = self.scratch / "source"
        subprocess.run([sys.executable, GENERATOR, source, "--payload", "random", "--experts", "8", *(
            "--set=%s=%d" % item for item in (
                ("num_hidden_layers", 2), ("first_k_dense_replace", 1), ("num_nextn_predict_layers", 0),
                ("vocab_size", 256), ("hidden_size", 128), ("intermediate_size", 192), ("moe_intermediate_size", 64),
                ("num_attention_heads", 4), ("num_key_value_heads", 4), ("q_lora_rank", 96), ("kv_lora_rank", 96),
                ("qk_nope_head_dim", 32), ("qk_rope_head_dim", 16), ("v_head_dim", 32), ("num_experts_per_tok", 4),
                ("n_group", 2), ("topk_group", 2)))], check=True, stdout=subprocess.DEVNULL)
        for form, bits in (("weights-to-int4", 4), ("weights-to-int8", 8)):
            packed, flat, decoded = (self.scratch / (name + form) for name in ("packed", "flat", "decoded"))
            self.assert_ok(self.repack(source, packed, "--transform", form))
            config = json.loads((packed / "config.json").read_text())["quantization_config"]
            self.assertEqual((config["format"], len(config["config_groups"])), ("pack-quantized", 1))
            self.assertEqual(config["config_groups"]["group_0"]["weights"]["num_bits"], bits)
            self.assert_ok(self.run_program("unpack", packed, "--out", flat))
            self.assert_ok(self.repack(flat, decoded, "--transform", "quantised-to-f32"))
            wanted = self.logits(decoded)
            for precision, most in (("exact", 1e-11), ("int8", 1e-3)):
                got = self.logits(packed, "--device", "cpu", "--precision", precision)
                error = sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)
                self.assertLess(error, most, (form, precision))
                self.assertGreater(error, 0)

    def test_rows_that_groups_do_not_fill(self):
        self.assert_refused(self.repack(self.data(), self.scratch / "out", "--transform", "weights-to-int8"),
                            "80 columns", "groups of 32", "selector")
        self.assert_absent(self.scratch / "out")


if __name__ == "__main__":
    main()
