"""DeepSeek-V4 as users run it: packed in each grouping it gives the bits of its source, which are the reference's; packed in
other forms it is as far off as those lose; stages that draft are left alone; recorded routes are replayed."""

import array
import json
import shutil
from pathlib import Path

import safetensors_io
from common import EndToEnd, main

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

# Largest NMSE of the logits against float64: what is stored exactly, and what is not.
EXACT = 1e-10


class RunV4(EndToEnd):
    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def golden(self, variant):
        tensors, _ = safetensors_io.parse((self.data("family") / variant / "golden.safetensors").read_bytes())
        return array.array("i", tensors["long.tokens"][2]), array.array("f", tensors["long.logits"][2])

    def logits(self, folder, tokens):
        out = self.scratch / "logits.safetensors"
        self.assert_ok(self.dsrun("logits", folder, "--ctx", 512, "--tokens", ",".join(map(str, tokens)), "--out", out))
        tensors, _ = safetensors_io.parse(out.read_bytes())
        out.unlink()
        return tensors["logits"][2]

    def error(self, stored, wanted):
        got = array.array("f", stored)
        self.assertEqual(len(got), len(wanted))
        return sum((a - b) ** 2 for a, b in zip(got, wanted)) / sum(b * b for b in wanted)

    def test_packed(self):
        for variant in ("v4", "v4-pro"):
            source = self.data("family") / variant
            tokens, wanted = self.golden(variant)
            plain = self.logits(source, tokens)
            self.assertLessEqual(self.error(plain, wanted), EXACT)
            for grouping in ("expert", "expert:3", "layer"):
                packed = self.scratch / (variant + grouping.replace(":", "-"))
                self.assert_ok(self.repack(source, packed, by=grouping))
                self.assertEqual(self.logits(packed, tokens), plain, grouping)
            # What no memory has room for is read again, and routes are recorded.
            trace = self.scratch / (variant + ".trace")
            few = self.dsrun(self.scratch / (variant + "expert"), "--tokens", ",".join(map(str, tokens[:40])), "-n", 8, "--ctx", 512,
                             "--experts", 12, "--trace", trace)
            all_of_them = self.dsrun(source, "--tokens", ",".join(map(str, tokens[:40])), "-n", 8, "--ctx", 512)
            self.assertEqual(self.assert_ok(few).stdout, self.assert_ok(all_of_them).stdout)
            replayed = self.assert_ok(self.dsrun("replay", trace, "--slots", 12)).stdout
            self.assertIn("40 prompt tokens, 7 decoded tokens", replayed)
            self.assertIn("known before", replayed)
            layers = json.loads(trace.read_text().split("\n")[0])["layers"]
            by_token = json.loads((source / "config.json").read_text())["num_hash_layers"]
            self.assertEqual([layer["layer"] for layer in layers if layer.get("by_token")], list(range(by_token)))

    def test_packed_in_other_forms(self):
        tokens, wanted = self.golden("v4")
        for recipe in ("bf16", "nvfp4-experts"):
            packed = self.scratch / recipe
            self.assert_ok(self.run_program(self.data("family") / "v4", "--recipe", RECIPES / (recipe + ".json"), "--out",
                                            packed))
            self.assertLessEqual(self.error(self.logits(packed, tokens), wanted), EXACT, recipe)

    def test_drafts_of_april(self):
        for variant in ("v4", "v4-pro"):
            source = self.data("family") / variant
            tokens = ",".join(map(str, self.golden(variant)[0][:120]))
            packed = self.scratch / variant
            self.assert_ok(self.repack(source, packed))
            ask = ("--tokens", tokens, "-n", 24, "--ctx", 512)
            plain = self.assert_ok(self.dsrun(source, *ask)).stdout
            for folder in (source, packed):
                for drafts in (1, 4):
                    stats = self.scratch / "stats.json"
                    said = self.assert_ok(self.dsrun(folder, *ask, "--mtp", drafts, "--stats", stats)).stdout
                    self.assertEqual(said, plain)
                    drafted = json.loads(stats.read_text())["mtp"]
                    self.assertEqual(drafted["hidden"], "streams")
                    # The last passes draft no more than may still be said.
                    self.assertGreaterEqual(drafted["drafted"], drafts * drafted["drafting_passes"] - sum(range(drafts)))
                    self.assertGreater(drafted["drafting_passes"], 0)
                    self.assertGreaterEqual(drafted["caught_up_positions"], 120)  # within the window and the room to cut
                    self.assertGreater(drafted["bytes_read"]["experts"], 0)
            self.assert_refused(self.dsrun(packed, *ask, "--mtp", 1, "--dev", "mtp-hidden=pre-norm"),
                                "this model's module reads residual streams", program="dsrun")

    def test_an_april_module_must_be_whole(self):
        for lost, said in (("mtp.0.h_proj.weight", "h_proj.weight is missing"), ("mtp.0.hc_head_fn", "hc_head_fn is missing"),
                           ("mtp.0.ffn.experts.3.w1.weight", "ffn.experts.3.w1.weight is missing")):
            source = self.scratch / lost
            shutil.copytree(self.data("family") / "v4", source)
            tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
            for name in [lost] + ([lost.replace(".weight", ".scale")] if lost.endswith(".weight") else []):
                del tensors[name]
            safetensors_io.write(source / "model.safetensors", tensors)
            result = self.dsrun(source, "--tokens", "1,2,3", "-n", 2, "--mtp", 1)
            self.assertEqual(result.code, 1, str(result))
            self.assertIn(said, result.stderr)

    def test_stages_that_draft_are_left_alone(self):
        source = self.scratch / "drafting"
        shutil.copytree(self.data("family") / "v4", source)
        tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
        tensors["mtp.0.main_norm.weight"] = tensors["norm.weight"]
        safetensors_io.write(source / "model.safetensors", tensors)
        config = json.loads((source / "config.json").read_text())
        config.update(dspark_block_size=5, dspark_noise_token_id=3, dspark_markov_rank=8)
        (source / "config.json").write_text(json.dumps(config))
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        for folder in (source, packed):
            self.assert_refused(self.dsrun(folder, "--tokens", "1,2,3", "--mtp", 2),
                                "drafts in blocks (DSpark: dspark_block_size in config.json, tensors mtp.N), which is not run yet",
                                program="dsrun")
            self.assert_refused(self.dsrun(folder, "--tokens", "1,2,3", "--kv-dtype", "fp8"), "can be f32, bf16 or f16",
                                program="dsrun")
        plain = self.assert_ok(self.dsrun(self.data("family") / "v4", "--tokens", "1,2,3", "-n", 4)).stdout
        for folder in (source, packed):
            self.assertEqual(self.assert_ok(self.dsrun(folder, "--tokens", "1,2,3", "-n", 4, "--mtp", "auto")).stdout, plain)


if __name__ == "__main__":
    main()
