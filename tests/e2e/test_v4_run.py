"""DeepSeek-V4 as users run it: packed in each grouping it gives the bits of its source, which are the reference's; packed in
other forms it is as far off as those lose; drafts of both kinds change no text; recorded routes are replayed."""

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

    def check_drafts(self, variant, numbers, hidden):
        """Text with so many drafts is that without, from source and packed folder; returns the packed one and what was asked."""
        source = self.data("family") / variant
        tokens = ",".join(map(str, self.golden(variant)[0][:120]))
        packed = self.scratch / variant
        self.assert_ok(self.repack(source, packed))
        ask = ("--tokens", tokens, "-n", 24, "--ctx", 512)
        plain = self.assert_ok(self.dsrun(source, *ask)).stdout
        for folder in (source, packed):
            for drafts in numbers:
                stats = self.scratch / "stats.json"
                said = self.assert_ok(self.dsrun(folder, *ask, "--mtp", drafts, "--stats", stats)).stdout
                self.assertEqual(said, plain)
                drafted = json.loads(stats.read_text())["mtp"]
                self.assertEqual(drafted["hidden"], hidden)
                # The last passes draft no more than may still be said.
                self.assertGreaterEqual(drafted["drafted"], drafts * drafted["drafting_passes"] - sum(range(drafts)))
                self.assertGreater(drafted["drafting_passes"], 0)
                self.assertGreaterEqual(drafted["caught_up_positions"], 120)  # within the window and the room to cut
                self.assertGreater(drafted["bytes_read"]["experts"], 0)
        self.assertEqual(self.assert_ok(self.dsrun(packed, *ask, "--mtp", "auto")).stdout, plain)
        return packed, ask

    def test_drafts_of_april(self):
        for variant in ("v4", "v4-pro"):
            packed, ask = self.check_drafts(variant, (1, 4), "streams")
            self.assert_refused(self.dsrun(packed, *ask, "--mtp", 1, "--dev", "mtp-hidden=pre-norm"),
                                "this model's drafts are made from residual streams", program="dsrun")

    def test_drafts_in_blocks(self):
        packed, ask = self.check_drafts("v4-dspark", (1, 5), "means of streams")
        self.assert_refused(self.dsrun(packed, *ask, "--mtp", 6), "this model drafts 5 tokens at once", program="dsrun")
        self.assert_refused(self.dsrun(packed, *ask, "--mtp", 1, "--dev", "mtp-hidden=pre-norm"),
                            "this model's drafts are made from residual streams", program="dsrun")
        # Of the layers that the stages read (1 to 3) one is left out.
        self.assert_refused(self.dsrun(packed, *ask, "--layers", "0-2", "--mtp", 1), "layers that --layers leaves out", program="dsrun")
        shorter = self.dsrun(packed, *ask, "--layers", "0-2")
        self.assertEqual(self.assert_ok(self.dsrun(packed, *ask, "--layers", "0-2", "--mtp", "auto")).stdout,
                         self.assert_ok(shorter).stdout)
        # What no memory has room for is read again.
        few = self.dsrun(packed, *ask, "--experts", 12, "--mtp", 5)
        self.assertEqual(self.assert_ok(few).stdout, self.assert_ok(self.dsrun(packed, *ask)).stdout)

    def test_modules_must_be_whole(self):
        for variant, lost, said in (("v4", "mtp.0.h_proj.weight", "h_proj.weight is missing"),
                                    ("v4", "mtp.0.hc_head_fn", "hc_head_fn is missing"),
                                    ("v4", "mtp.0.ffn.experts.3.w1.weight", "ffn.experts.3.w1.weight is missing"),
                                    ("v4-dspark", "mtp.0.main_norm.weight", "main_norm.weight is missing"),
                                    ("v4-dspark", "mtp.1.attn.wkv.weight", "attn.wkv.weight is missing"),
                                    ("v4-dspark", "mtp.1.ffn.experts.3.w1.weight", "ffn.experts.3.w1.weight is missing"),
                                    ("v4-dspark", "mtp.2.markov_head.markov_w1.weight", "markov_w1.weight is missing"),
                                    ("v4-dspark", "mtp.2.confidence_head.proj.weight", "confidence_head.proj.weight is missing")):
            source = self.scratch / lost
            shutil.copytree(self.data("family") / variant, source)
            tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
            for name in (lost, lost.replace(".weight", ".scale")):
                tensors.pop(name, None)
            safetensors_io.write(source / "model.safetensors", tensors)
            result = self.dsrun(source, "--tokens", "1,2,3", "-n", 2, "--mtp", 1)
            self.assertEqual(result.code, 1, str(result))
            self.assertIn(said, result.stderr)

    def test_what_cannot_be_asked(self):
        self.assert_refused(self.dsrun(self.data("family") / "v4", "--tokens", "1,2,3", "--kv-dtype", "fp8"),
                            "can be f32, bf16 or f16", program="dsrun")
        # Keys longer than a GPU's attention takes, which the CPU's does; a supposed GPU suffices.
        longer = self.scratch / "longer"
        longer.mkdir()
        config = json.loads((self.data("family") / "v4" / "config.json").read_text())
        (longer / "config.json").write_text(json.dumps({**config, "head_dim": 1024}))
        plan = ("plan", longer, "--config-only")
        self.assert_refused(self.dsrun(*plan, "--gpu-memory", "24GB"), "keys of 1024 values", "up to 512", "--device cpu",
                            program="dsrun")
        self.assert_ok(self.dsrun(*plan, "--device", "cpu"))
        # Without its stages a model runs, and does not draft.
        source = self.scratch / "lost"
        shutil.copytree(self.data("family") / "v4-dspark", source)
        tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
        safetensors_io.write(source / "model.safetensors",
                             {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")})
        ask = ("--tokens", "1,2,3", "-n", 4)
        self.assert_refused(self.dsrun(source, *ask, "--mtp", 2), "lacks the MTP module (the tensors of mtp.0)", program="dsrun")
        self.assertEqual(self.assert_ok(self.dsrun(source, *ask, "--mtp", "auto")).stdout,
                         self.assert_ok(self.dsrun(self.data("family") / "v4-dspark", *ask)).stdout)


if __name__ == "__main__":
    main()
