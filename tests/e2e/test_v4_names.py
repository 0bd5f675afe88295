"""reshard on DeepSeek-V4: all names of the releases against their published digest, planned without their bytes, and every kind
of tensor packed, verified and unpacked."""

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import safetensors_io
import weight_formats
from common import EndToEnd, exact_size, main, tree
from inspecting import InspectCase, header_places

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import v3_checkpoint  # noqa: E402
import v4_checkpoint  # noqa: E402

# Files, tensors, bytes of tensors, layers with the stages, routed experts; and of Flash the digest of the released index:
# SHA-256 over its sorted lines ["name","shard"].
RELEASES = {"flash": (48, 72_317, 166_878_536_440, 46, 46 * 256), "pro": (66, 149_782, 892_727_580_904, 64, 64 * 384)}
FLASH_INDEX = "189e5e292be34b1378ac96dafd0e6255d582aaae28a1558a21f0d629938d5c8c"
SMALL = {**v4_checkpoint.FLASH, "hidden_size": 128, "moe_intermediate_size": 64, "n_routed_experts": 4, "num_attention_heads": 4,
         "head_dim": 64, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 32,
         "num_hidden_layers": 5, "compress_ratios": [0, 0, 4, 128, 4, 0, 0, 0], "vocab_size": 300, "num_experts_per_tok": 2,
         "dspark_target_layer_ids": [2, 3, 4], "dspark_markov_rank": 8}


class Releases(EndToEnd):
    def whole(self, model):
        source = self.scratch / model
        try:
            v4_checkpoint.write_checkpoint(source, v4_checkpoint.FLASH if model == "flash" else v4_checkpoint.PRO)
        except OSError as error:
            self.skipTest("this file system makes no sparse files of 14 GB: %s" % error)
        if sum(path.stat().st_blocks * 512 for path in source.glob("*.safetensors")) > 1 << 30:
            self.skipTest("this file system keeps zeros: no sparse files")
        return source

    def check(self, model):
        source = self.whole(model)
        files, tensors, size, layers, experts = RELEASES[model]
        inspected = self.assert_ok(self.run_program("inspect", source)).stdout
        self.assertIn("%d files, %d tensors, %s, %d layers, %d routed experts" % (files, tensors, exact_size(size), layers, experts),
                      inspected)
        self.assertIn("\n  %d tensors in I8 are FP4, two numbers a byte, with scales in F8_E8M0\n" % (3 * experts), inspected)
        planned = self.assert_ok(self.repack(source, self.scratch / "packed", "--dry-run")).stdout
        # One file an expert, one a layer, embedding and head.
        self.assertIn(" in %d weight files\n" % (experts + layers + 2), planned)
        self.assert_absent(self.scratch / "packed")
        return source

    def test_all_of_flash(self):
        source = self.check("flash")
        weight_map = json.loads((source / v3_checkpoint.INDEX).read_text())["weight_map"]
        lines = "".join(json.dumps(pair, separators=(",", ":")) + "\n" for pair in sorted(weight_map.items()))
        self.assertEqual(hashlib.sha256(lines.encode()).hexdigest(), FLASH_INDEX)
        self.assertEqual((source / v3_checkpoint.INDEX).stat().st_size, 5_602_871)  # as released

    def test_all_of_pro(self):
        self.check("pro")


class Packing(EndToEnd):
    def test_every_kind_of_tensor_is_packed_verified_and_unpacked(self):
        source, packed, back = self.scratch / "source", self.scratch / "packed", self.scratch / "back"
        shards = v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(1))
        self.assertEqual({tensor.dtype for shard in shards for tensor in shard}, {"F8_E4M3", "F8_E8M0", "I8", "BF16", "F32", "I64"})
        inspected = self.assert_ok(self.run_program("inspect", source)).stdout
        roles = {role: int(count) for role, count in re.findall(r"^  ([a-z_]+) +(\d+) +\d+$", inspected, re.M)}
        self.assertEqual(roles["routed_expert"], 8 * 4 * 6)
        self.assertEqual(roles["router"], 8 * 2)
        self.assertEqual(roles["head"], 5)
        self.assertEqual(roles["mtp"], 3 + 4 + 3)  # main_proj and its norm; the end of the last stage; its two heads
        self.assertEqual(roles["residual"], 8 * 2 * 3)  # what mixes the streams
        self.assertNotIn("other", roles)
        self.assertIn(" 8 layers, 32 routed experts\n", inspected)
        self.assertRegex(inspected, r"\n  mtp\.2 +60 +224101 +4 +52224\n")
        self.assert_ok(self.repack(source, packed))
        self.assert_ok(self.run_program("verify", packed, "--source", source))
        self.assert_ok(self.run_program("unpack", "--exact", packed, "--out", back))
        for path in sorted(source.iterdir()):
            self.assertEqual((back / path.name).read_bytes(), path.read_bytes(), path.name)
        victim = sorted(packed.rglob("*.safetensors"))[5]
        with open(victim, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.assertEqual(self.run_program("verify", packed).code, 1)
        self.assert_ok(self.run_program("repair", packed, "--source", source))
        self.assert_ok(self.run_program("verify", packed))

    def test_every_grouping_gives_the_same_tensors(self):
        source = self.scratch / "source"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(2))
        whole = safetensors_io.read_checkpoint(source)
        for by in ("expert", "expert:3", "layer", "shard:64KB"):
            packed, back = self.scratch / "packed", self.scratch / "back"
            self.assert_ok(self.repack(source, packed, by=by))
            self.assertTrue(safetensors_io.read_checkpoint(packed) == whole, by)
            self.assert_ok(self.run_program("verify", packed, "--source", source))
            self.assertIn("466 tensors equal, 0 differ", self.assert_ok(self.run_program("diff", source, packed)).stdout)
            self.assert_ok(self.run_program("unpack", "--exact", packed, "--out", back))
            self.assertEqual(tree(back), tree(source))
            if by != "shard:64KB":  # one file has all of a layer that its every token needs, its table and mixing included
                dense = safetensors_io.parse((packed / "model/layers/001/dense.safetensors").read_bytes())[0]
                self.assertEqual(set(dense), {name for name in whole if re.match(r"layers\.1\.(?!ffn\.experts)", name)})
                self.assertIn("layers.1.ffn.gate.tid2eid", dense)
                self.assertIn("layers.1.hc_attn_fn", dense)
                head = safetensors_io.parse((packed / "model/head.safetensors").read_bytes())[0]
                self.assertEqual(set(head), {"head.weight", "norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"})
                stage = safetensors_io.parse((packed / "model/mtp/002/dense.safetensors").read_bytes())[0]
                self.assertIn("mtp.2.markov_head.markov_w1.weight", stage)
            shutil.rmtree(packed)
            shutil.rmtree(back)

    def test_a_part_reads_and_holds_its_part_alone(self):
        source, packed = self.scratch / "source", self.scratch / "packed"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(3))
        whole = safetensors_io.read_checkpoint(source)
        for selector, pattern in (("layers=2 experts=0-1", r"layers\.2\.ffn\.experts\.[01]\."), ("name=mtp.1.*", r"mtp\.1\."),
                                  ("role=residual", r".*\.hc_(attn|ffn)_"), ("role=router", r".*\.ffn\.gate\.")):
            self.assert_ok(self.repack(source, packed, "--include", selector))
            self.assertTrue(safetensors_io.read_checkpoint(packed) ==
                            {name: value for name, value in whole.items() if re.match(pattern, name)}, selector)
            said = self.assert_ok(self.run_program("verify", packed, "--source", source)).stdout
            self.assertIn("equal to what its recipe makes of the source", said)
            self.assertIn("part of a source of 466 tensors", self.assert_ok(self.run_program("inspect", packed)).stdout)
            shutil.rmtree(packed)
        self.assert_refused(self.repack(source, packed, "--exclude", "name=*.experts.1.w1.scale"), "FP4",
                            "layers.0.ffn.experts.1.w1.weight", "both or neither")
        self.assert_absent(packed)

    def test_the_stages_that_draft_can_be_left_out(self):
        source, packed = self.scratch / "source", self.scratch / "packed"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(1))
        recipe = Path(__file__).resolve().parents[2] / "recipes" / "without-mtp.json"
        self.assert_ok(self.run_program("--recipe", recipe, "--out", packed, source))
        self.assert_ok(self.run_program("verify", packed))
        self.assertIn(" 5 layers, %d routed experts" % (5 * 4), self.assert_ok(self.run_program("inspect", packed)).stdout)
        config = json.loads((packed / "config.json").read_text())
        self.assertEqual((config["num_nextn_predict_layers"], config["compress_ratios"]), (0, [0, 0, 4, 128, 4]))
        self.assertEqual([key for key in config if key.startswith("dspark_")], [])
        self.assertEqual({key for key in SMALL if key not in config}, {key for key in SMALL if key.startswith("dspark_")})


class Pages(InspectCase):
    def test_the_page_has_every_name_and_where_it_lies(self):
        source, packed = self.scratch / "v4", self.scratch / "packed"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(8))
        self.assert_ok(self.repack(source, packed))
        for place in (source, packed):
            page = self.page(place)
            self.assertEqual({name: (dtype, shape, size) for name, dtype, shape, size, _ in page.tensors()},
                             {name: (dtype, shape, len(raw)) for name, (dtype, shape, raw)
                              in safetensors_io.read_checkpoint(source).items()})
            self.assertEqual(page.places("before"), header_places(source))
            self.assertEqual(page.places("after"), header_places(packed))
            # Experts are alike, those of the stages too: six kinds of tensors in layers, and six in each stage.
            experts = page.catalogue["roles"].index("routed_expert")
            kinds = [kind for kind in page.catalogue["kinds"] if kind[2] == experts]
            self.assertEqual((len(kinds), {len(kind[0]) for kind in kinds}), (12, {3}))


class Repacks(EndToEnd):
    """What others have made of the releases: experts stored otherwise, under the same names."""

    def test_nvfp4_experts(self):
        source, packed, back = self.scratch / "source", self.scratch / "packed", self.scratch / "back"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(4), "nvfp4")
        inspected = self.assert_ok(self.run_program("inspect", source)).stdout
        self.assertIn("\n  %d tensors in I8 are FP4, two numbers a byte, with scales in F8_E8M0\n"
                      "  %d tensors in U8 are FP4, two numbers a byte, with scales in F8_E4M3\n" % (3 * 4 * 3, 5 * 4 * 3), inspected)
        self.assertRegex(inspected, r"\n  routed_expert +%d " % (5 * 4 * 3 * 4 + 3 * 4 * 3 * 2))
        self.assertNotIn("  other ", inspected)
        self.assert_ok(self.repack(source, packed))
        expert = safetensors_io.parse((packed / "model/layers/003/experts/002.safetensors").read_bytes())[0]
        self.assertEqual({name.split(".w", 1)[1][2:] for name in expert},
                         {"weight", "weight_scale", "weight_scale_2", "input_scale"})
        self.assert_ok(self.run_program("verify", packed, "--source", source))
        self.assert_ok(self.run_program("unpack", "--exact", packed, "--out", back))
        self.assertEqual(tree(back), tree(source))

    def test_nvfp4_experts_are_decoded_to_what_they_mean(self):
        source, packed = self.scratch / "source", self.scratch / "packed"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(5), "nvfp4")
        self.assert_ok(self.repack(source, packed, "--transform", "quantised-to-f32"))
        coded, made = safetensors_io.read_checkpoint(source), safetensors_io.read_checkpoint(packed)
        name = "layers.4.ffn.experts.3.w2."
        self.assertEqual(made[name + "weight"][:2], ("F32", [128, 64]))
        self.assertEqual([other for other in made if other.startswith(name) and other != name + "weight"], [])
        (over_all,) = weight_formats.f32_values(coded[name + "weight_scale_2"][2])
        scales = [weight_formats.to_f32(weight_formats.E4M3[code] * over_all) for code in coded[name + "weight_scale"][2]]
        codes = [half for byte in coded[name + "weight"][2] for half in (byte & 15, byte >> 4)]
        wanted = [weight_formats.to_f32(weight_formats.e2m1_value(code) * scales[i // 16]) for i, code in enumerate(codes)]
        self.assertTrue(weight_formats.f32_values(made[name + "weight"][2]) == wanted)
        self.assertEqual(self.manifest_config(packed).get("expert_dtype"), None)

    def test_they_are_not_quantised_again(self):
        source, packed = self.scratch / "source", self.scratch / "packed"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(6), "nvfp4")
        for transform in ("experts-to-int4", "experts-to-nvfp4"):
            self.assert_refused(self.repack(source, packed, "--transform", transform), "layers.0.ffn.experts.0.w1.weight",
                                "quantised already (U8)", "Take the checkpoint that it was made from")
        self.assert_absent(packed)

    @staticmethod
    def manifest_config(packed):
        return json.loads((packed / "config.json").read_text())


if __name__ == "__main__":
    main()
