"""Proving an output right: recordings of transformers' modules are matched, a planted error is found and named, a text's
perplexity is transformers'."""

import array
import json
import resource
import shutil
import struct

import safetensors_io
from checkpoints import packed_tiny
from common import EndToEnd, flip_bit, limit, main

INDEX_FILE = "model.safetensors.index.json"
FIRST = json.loads((EndToEnd.data("tiny-v3-golden") / "prompts.json").read_text(encoding="utf-8"))["prompts"][0]
TOKENS = ",".join(map(str, FIRST["logits_tokens"]))


class Validation(EndToEnd):
    def dsrun(self, *arguments, **options):
        return self.run_program(*arguments, program="DSPACK_DSRUN", **options)

    def golden(self, name):
        return self.data("tiny-v3-golden") / name

    def record(self, folder, *arguments, name="recorded.safetensors"):
        path = self.scratch / name
        result = self.assert_ok(self.dsrun("record", folder, "--tokens", TOKENS, "--out", path, *arguments))
        self.assertEqual((result.stdout, result.stderr), ("", ""))
        return path

    def compare(self, folder, reference, *arguments, code=0):
        """(what was printed, what was written as JSON)"""
        report = self.scratch / "report.json"
        result = self.dsrun("compare", folder, "--reference", reference, "--json", report, *arguments)
        self.assertEqual((result.code, result.stderr), (code, ""), str(result))
        return result.stdout, json.loads(report.read_text())

    def assert_dsrun_refuses(self, result, *needles):
        self.assert_refused(result, *needles, program="dsrun")


class TransformersModules(Validation):
    """tests/tools/tiny_v3/activations.py recorded these."""

    def errors(self, report):
        return {entry["module"]: entry["output"]["relative_error"] for entry in report["modules"] if "output" in entry}

    def test_every_recorded_module_agrees(self):
        for folder in (self.data(), packed_tiny()):
            said, report = self.compare(folder, self.golden("modules.safetensors"))
            self.assertIn("modules agree\n", said)
            errors = self.errors(report)
            # Sums of FP32 in another order differ by less; any mistake in a module by far more.
            self.assertLess(max(errors.values()), 5e-6)
            for part in ("self_attn", "self_attn.kv_a_layernorm", "self_attn.q_b_proj", "mlp.gate", "mlp.gate (routing)",
                         "mlp.experts", "mlp.shared_experts.up_proj", "mlp"):
                self.assertIn("model.layers.3." + part, errors)
            self.assertGreater(sum(".mlp.experts." in name for name in errors), 20)
            self.assertEqual((report["logits"]["top1_agreement"], report["logits"]["rows"]), (4, 4))
            self.assertLess(report["logits"]["kl_max"], 1e-10)
            left = {entry["name"]: entry["reason"] for entry in report["only_in_recording"]}
            self.assertIn("absorbed form", left["model.layers.3.self_attn.kv_b_proj.output"])
            self.assertIn("no such module", left["model.rotary_emb.output.0"])
            here = {entry["name"] for entry in report["only_computed_here"]}
            self.assertIn("model.layers.2.self_attn.o_proj", here)

    def test_nothing_adds_up_where_inputs_are_given(self):
        _, report = self.compare(self.data(), self.golden("modules.safetensors"), "--dev", "inject", "--tolerance", "1e-6")
        self.assertLess(max(self.errors(report).values()), 1e-6)

    def test_the_other_naming_in_bf16(self):
        path = self.golden("modules-bf16.safetensors")
        tokens = ",".join(map(str, FIRST["logits_tokens"][:4]))
        said, report = self.compare(self.data(), path, "--tokens", tokens)
        self.assertEqual({entry["module"] for entry in report["modules"]},
                         {"model.layers.1.self_attn", "model.layers.1.mlp.gate (routing)", "model.layers.1", "lm_head"})
        self.assertEqual(report["only_in_recording"], [])
        self.assertIn("top-1 agreement 4 of 4", said)
        self.compare(self.data(), path, "--tokens", tokens, "--tolerance", "1e-4", code=1)  # rounding to BF16 is 1e-3
        self.assert_dsrun_refuses(self.dsrun("compare", self.data(), "--reference", path), path, "--tokens")

    def test_plain_logits(self):
        tensors, _ = safetensors_io.parse(self.golden("logits.safetensors").read_bytes())
        path = self.scratch / "logits.safetensors"
        for name in ("logits", "lm_head.output"):
            safetensors_io.write(path, {name: tensors[FIRST["name"]]})
            said, report = self.compare(packed_tiny(), path, "--tokens", TOKENS)
            self.assertEqual([entry["module"] for entry in report["modules"]], ["lm_head"])
            self.assertIn("all 1 modules agree", said)


class PlantedErrors(Validation):
    """The recording is of the sound checkpoint; the one that is compared has an error in a single tensor."""

    def change(self, tensor, edit):
        """A copy of the checkpoint in which `edit` has changed the tensor's bytes."""
        folder = self.scratch / "wrong"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.data(), folder)
        path = folder / json.loads((folder / INDEX_FILE).read_text())["weight_map"][tensor]
        tensors, _ = safetensors_io.parse(path.read_bytes())
        dtype, shape, raw = tensors[tensor]
        safetensors_io.write(path, {**tensors, tensor: (dtype, shape, edit(raw))})
        return folder

    def assert_named(self, folder, reference, module, *arguments):
        said, report = self.compare(folder, reference, *arguments, code=1)
        self.assertEqual(report["first_departure"], module)
        self.assertRegex(said, r"first to depart: %s: .*; its input agrees" % module.replace(".", r"\."))
        self.assertFalse(report["within_tolerance"])
        return report

    def test_the_module_is_named(self):
        recorded = self.record(self.data())
        _, sound = self.compare(packed_tiny(), recorded)
        self.assertEqual({entry["output"]["relative_error"] for entry in sound["modules"]}, {0})
        routed = [entry["module"] for entry in sound["modules"] if entry["module"].startswith("model.layers.2.mlp.experts.")]
        expert = routed[0].split(".")[5]
        bf16 = lambda value: struct.pack("<f", value)[2:]
        for tensor, edit in (
                ("model.layers.3.self_attn.kv_a_layernorm.weight", lambda raw: bf16(1.5) + raw[2:]),
                ("model.layers.2.mlp.experts.%s.down_proj.weight" % expert, lambda raw: bytes(b ^ 0x80 for b in raw[:192]) + raw[192:]),
                ("model.layers.1.self_attn.q_b_proj.weight", lambda raw: raw[:96] + bytes(96) + raw[192:]),
                ("model.layers.0.mlp.up_proj.weight_scale_inv", lambda raw: struct.pack("<f", 2 * struct.unpack("<f", raw[:4])[0]) + raw[4:]),
                ("model.norm.weight", lambda raw: bf16(0) + raw[2:]),
                ("lm_head.weight", lambda raw: raw[:2 * 192] + bytes(2 * 192) + raw[4 * 192:])):
            with self.subTest(tensor):
                self.assert_named(self.change(tensor, edit), recorded, tensor.rsplit(".", 1)[0])

    def test_a_routers_bias_shows_in_its_choice(self):
        recorded = self.record(self.data())
        folder = self.change("model.layers.2.mlp.gate.e_score_correction_bias",
                             lambda raw: struct.pack("<f", struct.unpack("<f", raw[:4])[0] + 1) + raw[4:])
        said, report = self.compare(folder, recorded, code=1)
        self.assertEqual(report["first_departure"], "model.layers.2.mlp.gate (routing)")
        gate = next(entry for entry in report["modules"] if entry["module"] == "model.layers.2.mlp.gate")
        self.assertFalse(gate["departs"], "its logits are as before")
        self.assertIn("tokens chose other experts", said)
        self.assertIn("other rows", said)

    def test_given_the_recorded_inputs_nothing_else_departs(self):
        recorded = self.record(self.data())
        name = "model.layers.1.self_attn.q_a_layernorm"
        folder = self.change(name + ".weight", lambda raw: bytes(2) + raw[2:])
        free = self.assert_named(folder, recorded, name)
        given = self.assert_named(folder, recorded, name, "--dev", "inject")
        departing = [[entry["module"] for entry in report["modules"] if entry["departs"]] for report in (free, given)]
        self.assertGreater(len(departing[0]), 20)
        self.assertEqual(departing[1], [name])

    def test_an_error_in_what_the_absorbed_form_does_not_compute(self):
        recorded = self.record(self.data())
        folder = self.change("model.layers.4.self_attn.kv_b_proj.weight", lambda raw: bytes(80) + raw[80:])
        # There is no such module: the next one that reads what came of it is named.
        said, report = self.compare(folder, recorded, code=1)
        self.assertEqual(report["first_departure"], "model.layers.4.self_attn.o_proj")
        self.assertIn("its input departs as well", said)
        self.assertIn("within model.layers.4.self_attn, after model.layers.4.self_attn.q_b_proj, which agrees,", said)
        self.assertEqual(report["arises_within"], "model.layers.4.self_attn")


class Recordings(Validation):
    def test_they_are_safetensors_files_that_say_what_they_are(self):
        path = self.record(packed_tiny(), "--modules", "model.layers.1.*,lm_head")
        raw = path.read_bytes()
        tensors, start = safetensors_io.parse(raw)
        metadata = json.loads(raw[8:start])["__metadata__"]
        self.assertEqual((metadata["format"], metadata["model_type"], metadata["attention"]),
                         ("pt", "deepseek_v3", "absorbed"))
        self.assertRegex(metadata["program"], "^dsrun [0-9]")
        self.assertEqual(array.array("q", tensors["input_ids"][2]).tolist(), FIRST["logits_tokens"])
        rows = len(FIRST["logits_tokens"])
        self.assertEqual(tensors["lm_head.output"][:2], ("F32", [1, rows, 1152]))
        self.assertEqual(tensors["model.layers.1.mlp.gate.output.0"][:2], ("F32", [rows, 64]))
        self.assertEqual(tensors["model.layers.1.mlp.gate.output.2"][:2], ("I64", [rows, 4]))
        self.assertNotIn("model.layers.2.self_attn.output.0", tensors)
        self.assertEqual([entry.name for entry in self.scratch.iterdir()], [path.name])

    def test_two_runs_write_the_same_file(self):
        one = self.record(packed_tiny(), "--threads", 1, name="1").read_bytes()
        other = self.record(packed_tiny(), "--threads", 1, name="2").read_bytes()
        self.assertEqual(one, other)

    def test_of_every_member_of_the_family_another_run_is_the_same(self):
        members = sorted(path.parent for path in self.data("family").glob("*/config.json") if list(path.parent.glob("*.safetensors")))
        self.assertGreater(len(members), 10)
        path = self.scratch / "r"
        for folder in members:
            with self.subTest(folder.name):
                self.assert_ok(self.dsrun("record", folder, "--tokens", "1,5,17,30,44,9", "--out", path))
                _, report = self.compare(folder, path)
                self.assertEqual({entry["output"]["relative_error"] for entry in report["modules"]}, {0})

    def test_a_prompt_can_be_text(self):
        path = self.scratch / "r"
        for more, wanted in ((["-p", FIRST["user"]], FIRST["token_ids"]), (["--raw", "-p", "Hi"], None)):
            self.assert_ok(self.dsrun("record", self.data(), "--out", path, "--modules", "lm_head", *more))
            ids = array.array("q", safetensors_io.parse(path.read_bytes())[0]["input_ids"][2]).tolist()
            if wanted:
                self.assertEqual(ids, wanted)
            self.compare(self.data(), path, *more)

    def test_a_disk_that_fills_up_ends_it_and_leaves_nothing(self):
        for verb in ("record", "logits"):
            out = self.scratch / "x"
            for room in (0, 5000, 30000):
                result = self.dsrun(verb, self.data(), "--tokens", TOKENS, "--out", out, before=limit(resource.RLIMIT_FSIZE, room))
                self.assert_dsrun_refuses(result, "x.tmp")
                self.assertEqual(list(self.scratch.iterdir()), [])

    def test_bad_input_is_one_line(self):
        recorded = self.record(self.data(), "--modules", "lm_head")
        compare = lambda *arguments: self.dsrun("compare", self.data(), "--reference", *arguments)
        self.assert_dsrun_refuses(compare(self.scratch / "none"), "none")
        self.assert_dsrun_refuses(compare(recorded, "--tokens", "1,2"), recorded, "other tokens")
        self.assert_dsrun_refuses(compare(self.data() / "config.json"), "config.json")
        self.assert_dsrun_refuses(compare(self.data() / "model-00001-of-000005.safetensors", "--tokens", "1"), "none of its")
        flip_bit(recorded, 3)
        self.assert_dsrun_refuses(compare(recorded), recorded)
        out = self.scratch / "x"
        for arguments, needle in ((["--tokens", "1152"], "1152"), (["--tokens", "0", "--modules", "x"], "--modules"),
                                  (["--tokens", ",".join(["5"] * 1025)], "1024"),
                                  (["--tokens", "1,2,3", "--ctx", "2"], "--ctx")):
            self.assert_dsrun_refuses(self.dsrun("record", self.data(), "--out", out, *arguments), needle)
            self.assert_absent(out)
        self.assert_dsrun_refuses(self.dsrun("record", self.data(), "--tokens", "1", "--out", self.scratch / "no" / "x"), "no/x")
        for arguments in (["record", self.data()], ["compare", self.data()], ["eval", self.data()],
                          ["record", self.data(), "--out", out], ["compare", self.data(), "--reference", out, "--tolerance", "x"]):
            self.assertEqual(self.dsrun(*arguments).code, 2)


class Perplexity(Validation):
    def test_it_is_that_of_transformers(self):
        text = self.golden("perplexity.txt")
        report = self.scratch / "report.json"
        cases = json.loads(self.golden("perplexity.json").read_text())["cases"]
        self.assertGreater(len(cases), 3)
        for case in cases:
            more = [] if case["stride"] == case["ctx"] - 1 else ["--stride", case["stride"]]
            result = self.assert_ok(self.dsrun("eval", packed_tiny(), "--text", text, "--ctx", case["ctx"], "--json", report, *more))
            got = json.loads(report.read_text())
            self.assertEqual(got["scored_tokens"], case["scored_tokens"])
            for key in ("perplexity", "perplexity_standard_error", "mean_nll", "mean_nll_standard_error"):
                self.assertLess(abs(got[key] - case[key]), 1e-5 * case[key], (key, case))
            self.assertTrue(result.stdout.startswith("perplexity %.4f +- %.4f (" % (got["perplexity"], got["perplexity_standard_error"])))

    def test_bad_input_is_one_line(self):
        text = self.golden("perplexity.txt")
        empty = self.scratch / "empty.txt"
        empty.write_text("")
        for arguments, needle in ((["--text", self.scratch / "none"], "none"), (["--text", empty], "no token"),
                                  (["--text", text, "--ctx", 1], "--ctx"),
                                  (["--text", text, "--ctx", 64, "--stride", 64], "--stride 64"),
                                  (["--text", text, "--ctx", 2000], "1024")):
            self.assert_dsrun_refuses(self.dsrun("eval", self.data(), *arguments), needle)


if __name__ == "__main__":
    main()
