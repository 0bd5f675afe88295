"""Recipes that take a part: what is in the result and what the manifest says of it; the multi-token-prediction module left
out; mistakes in recipes and flags."""

import hashlib
import json
import shutil

from checkpoints import packed_tiny
from common import main
from selecting import ANSWER, TINY, RecipeCase, in_layers, ranges_of


class Parts(RecipeCase):
    def test_layers_in_every_grouping(self):
        for by in ("expert", "expert:8", "layer", "shard:1MB"):
            out = self.scratch / by
            self.assert_ok(self.repack(self.data(), out, "--include", "layers=2-3", by=by))
            self.assert_holds(out, self.data(), in_layers(2, 3))
            self.assert_verified(out, self.data())
            self.assertEqual(self.manifest(out)["recipe"], {"by": by.replace("1MB", "1000000"),
                                                            "include": [{"layers": "2-3"}]})

    def test_the_manifest_says_what_it_is_a_part_of_and_what_was_read(self):
        self.assert_ok(self.repack(self.data(), self.out, "--include", "layers=2-3"))
        manifest = self.manifest()
        whole = self.manifest(packed_tiny())
        self.assertEqual(manifest["coverage"]["of"], whole["coverage"])
        self.assertEqual((manifest["coverage"]["layers"], manifest["coverage"]["experts"]), (2, 128))
        self.assertEqual(manifest["coverage"]["tensors"], 812)
        self.assertEqual(manifest["coverage"]["payload_bytes"], 2 * 2542768)
        for shard, name in zip(manifest["source"], TINY):
            ranges = ranges_of(self.data() / name, in_layers(2, 3))
            read = sum(end - begin for begin, end in ranges)
            size = (self.data() / name).stat().st_size
            if read == size - len(self.shard_header(name)):
                self.assertEqual(shard, next(s for s in whole["source"] if s["path"] == name))
            else:
                self.assertEqual(shard, {"path": name, "size": size, "read": read})
        self.assertIn({"path": TINY[0], "size": 3050778, "read": 0}, manifest["source"])
        self.assertIn("part of a source of 2059 tensors, 14.9 MB (14936912 bytes), 6 layers, 320 routed experts\n",
                      self.run_program("inspect", self.out).stdout)
        self.assertIn("Other loaders need the whole model", (self.out / "README.md").read_text())
        self.assertEqual((self.out / "config.json").read_bytes(), (self.data() / "config.json").read_bytes())

    def shard_header(self, name):
        data = (self.data() / name).read_bytes()
        return data[:8 + int.from_bytes(data[:8], "little")]

    def test_experts_roles_and_names(self):
        def expert(name):
            return int(name.split(".experts.")[1].split(".")[0]) if ".mlp.experts." in name else None

        cases = [(["--include", "experts=0-3,63"], lambda n: expert(n) in (0, 1, 2, 3, 63)),
                 (["--include", "layers=4 experts=7"], lambda n: expert(n) == 7 and in_layers(4)(n)),
                 (["--include", "role=routed_expert"], lambda n: expert(n) is not None),
                 (["--exclude", "role=routed_expert"], lambda n: expert(n) is None),
                 (["--include", "name=*.layers.0.*", "--include", "role=head"],
                  lambda n: in_layers(0)(n) or n in ("model.norm.weight", "lm_head.weight")),
                 (["--include", "layers=1-2", "--exclude", "experts=0-62", "--exclude", "role=attention"],
                  lambda n: in_layers(1, 2)(n) and expert(n) in (None, 63) and ".self_attn." not in n),
                 (["--include", "role=router role=norm"], lambda n: ".mlp.gate." in n or "layers" in n and "layernorm" in n
                  and "self_attn" not in n)]
        for number, (arguments, wanted) in enumerate(cases):
            with self.subTest(arguments=arguments):
                out = self.scratch / str(number)
                self.assert_ok(self.repack(self.data(), out, *arguments, by="layer"))
                self.assert_holds(out, self.data(), wanted)
                self.assert_verified(out, self.data())

    def test_a_recipe_file_says_the_same_as_flags(self):
        recipe = self.scratch / "recipe.json"
        recipe.write_text(json.dumps({"by": "layer", "include": [{"layers": "2-3"}, {"role": ["head"]}],
                                      "exclude": {"experts": 5}, "transform": ["fp8-to-bf16 role=attention"],
                                      "drop_mtp": True}))
        self.assert_ok(self.run_program(self.data(), "--recipe", recipe, "--out", self.out))
        flags = self.scratch / "flags"
        self.assert_ok(self.repack(self.data(), flags, "--include", "layers=3,2", "--include", "role=head", "--exclude",
                                   "experts=5", "--transform", "fp8-to-bf16 role=attention", "--drop-mtp", by="layer"))
        self.assert_same_tree(self.out, flags)

    def test_what_fits_nothing_is_told_and_a_recipe_that_takes_nothing_is_refused(self):
        result = self.assert_ok(self.repack(self.data(), self.out, "--include", "layers=2,90", "--include", "layers=7",
                                            "--exclude", "role=other"))
        self.assertIn('warning: include {"layers":"7"} matches no tensor', result.stderr)
        self.assertIn('warning: exclude {"role":["other"]} matches no tensor', result.stderr)
        empty = self.scratch / "empty"
        self.assert_refused(self.repack(self.data(), empty, "--include", "layers=7"), "leaves out every tensor", "inspect")
        self.assert_refused(self.repack(self.data(), empty, "--exclude", "name=*_scale_inv"), "without its scale")
        self.assert_absent(empty)

    def test_a_part_is_not_taken_for_the_whole(self):
        self.assert_ok(self.repack(self.data(), self.out, "--include", "layers=2"))
        self.assert_refused(self.repack(self.data(), self.out), "another recipe")
        self.assert_refused(self.run_program("unpack", self.out, "--exact", "--out", self.scratch / "x"), "leaves out")
        self.assert_refused(self.run_program("verify", self.out, "--upstream"), "leaves out")
        result = self.run_program("diff", self.data(), self.out)
        self.assertEqual(result.code, 1)
        self.assertIn("406 tensors equal, 1653 differ", result.stdout)
        shards = self.scratch / "shards"
        self.assert_ok(self.run_program("unpack", self.out, "--out", shards))
        self.assertIn("406 tensors equal, 0 differ", self.assert_ok(self.run_program("diff", self.out, shards)).stdout)

    def test_a_selection_that_takes_all_is_the_whole(self):
        self.assert_ok(self.repack(self.data(), self.out, "--include", "name=*"))
        self.assertNotIn("of", self.manifest()["coverage"])
        self.assert_ok(self.run_program("unpack", self.out, "--exact", "--out", self.scratch / "exact"))

    def test_ten_thousand_selectors(self):
        recipe = self.scratch / "recipe.json"
        recipe.write_text(json.dumps({"by": "layer", "include": [{"layers": str(i % 3), "experts": str(i % 64)}
                                                                 for i in range(10_000)]}))
        self.assert_ok(self.run_program(self.data(), "--recipe", recipe, "--out", self.out))
        self.assert_holds(self.out, self.data(), lambda n: ".mlp.experts." in n and in_layers(1, 2)(n))


class WithoutMtp(RecipeCase):
    def test_the_module_is_left_out_and_the_text_stays(self):
        self.assert_ok(self.repack(self.data(), self.out, "--drop-mtp"))
        self.assert_holds(self.out, self.data(), lambda name: not in_layers(5)(name))
        self.assert_verified(self.out, self.data())
        manifest = self.manifest()
        self.assertNotIn("of", manifest["coverage"])  # it is all of the model that it is
        self.assertEqual((manifest["coverage"]["layers"], manifest["coverage"]["experts"]), (5, 256))
        self.assertEqual(manifest["recipe"], {"by": "expert", "drop_mtp": True})
        config = json.loads((self.out / "config.json").read_text())
        before = (self.data() / "config.json").read_text()
        self.assertEqual((self.out / "config.source.json").read_text(), before)
        self.assertEqual(config, {**json.loads(before), "num_nextn_predict_layers": 0})
        for more in ([], ["--mtp", "off"], ["--mtp", "auto"], ["--raw", "-n", "30"]):
            said = [self.assert_ok(self.ask(folder, *more)).stdout for folder in (packed_tiny(), self.out)]
            self.assertEqual(said[0], said[1])
        self.assert_refused(self.ask(self.out, "--mtp", 1), "MTP", program="dsrun")
        self.assert_refused(self.run_program("unpack", self.out, "--exact", "--out", self.scratch / "x"), "drop_mtp")
        flat = self.scratch / "flat"
        self.assert_ok(self.run_program("unpack", self.out, "--out", flat))
        self.assertEqual((flat / "config.json").read_bytes(), (self.out / "config.json").read_bytes())
        self.assertEqual(self.assert_ok(self.ask(flat)).stdout, ANSWER)

    def test_with_a_transform_and_a_layer_map(self):
        recipe = self.scratch / "recipe.json"
        recipe.write_text(json.dumps({"by": "layer", "drop_mtp": True, "transform": "fp8-to-bf16", "layer_map": "0-2,1-4"}))
        self.assert_ok(self.run_program(self.data(), "--recipe", recipe, "--out", self.out))
        self.assert_verified(self.out, self.data())
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual(config["num_nextn_predict_layers"], 0)
        self.assertNotIn("quantization_config", config)
        self.assertEqual(self.manifest()["layer_map"], [0, 1, 2, 1, 2, 3, 4])
        self.assert_ok(self.ask(self.out, "-n", 5))

    def test_a_config_that_contradicts_the_names_is_refused(self):
        source = self.copy_source()
        config = json.loads((source / "config.json").read_text())
        for layers, needle in ((4, "layer 4 has no tensor that only an MTP module has"),
                               (6, "layer 5 has tensors of an MTP module"), (0, "out of range"), (-1, "num_hidden_layers"),
                               ("5", "num_hidden_layers"), (1 << 40, "out of range")):
            (source / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
            self.assert_refused(self.repack(source, self.out, "--drop-mtp"), needle)
        (source / "config.json").unlink()
        self.assert_refused(self.repack(source, self.out, "--drop-mtp"), "config.json")
        self.assert_absent(self.out)

    def test_a_model_without_one(self):
        self.assert_ok(self.repack(self.data(), self.out, "--drop-mtp"))
        again = self.scratch / "again"
        flat = self.scratch / "flat"
        self.assert_ok(self.run_program("unpack", self.out, "--out", flat))
        result = self.assert_ok(self.repack(flat, again, "--drop-mtp"))
        self.assertIn("warning: drop_mtp leaves out nothing", result.stderr)


class Mistakes(RecipeCase):
    def test_wrong_flags_are_status_2_before_anything_is_asked_of_a_server(self):
        server = self.serve(self.data())
        for arguments, needle in ((["--include", ""], "is empty"), (["--include", "layers"], "key=value"),
                                  (["--include", "layers=3-"], "is no number"), (["--include", "role=expert"], "is no role"),
                                  (["--exclude", "layer=3"], "unknown key"), (["--exclude"], "--exclude"),
                                  (["--transform", "fp16"], "is no transform"), (["--transform"], "--transform"),
                                  (["--transform", "fp8-to-bf16 layers"], "key=value"),
                                  (["--recipe", "x"], "exclude"), (["--drop-mtp=perhaps"], "drop-mtp")):
            with self.subTest(arguments=arguments):
                result = self.repack(server.url, self.out, *arguments)
                self.assertEqual(result.code, 2, str(result))
                self.assertEqual(result.stdout, "")
                self.assertIn(needle, result.stderr)
        for flags in (["--include", "layers=3"], ["--exclude", "layers=3"], ["--transform", "fp8-to-f32"], ["--drop-mtp"]):
            result = self.run_program(server.url, "--recipe", "x", "--out", self.out, *flags)
            self.assertEqual(result.code, 2, str(result))
            result = self.run_program(server.url, "--out", self.out, *flags)  # neither --by nor --recipe
            self.assertEqual(result.code, 2, str(result))
        self.assertEqual(server.requests(), [])
        self.assert_absent(self.out)

    def test_a_wrong_recipe_file_is_named_with_what_is_wrong(self):
        recipe = self.scratch / "recipe.json"
        for text, needle in (("", "not valid JSON"), ("[]", "is a JSON object"), ("{}", '"by"'), ('{"by":"x"}', "is no grouping"),
                             ('{"by":"layer","By":1}', "unknown key"), ('{"by":"layer","by":"layer"}', "duplicate"),
                             ('{"by":"layer","include":[]}', '"include"'), ('{"by":"layer","include":3}', '"include"'),
                             ('{"by":"layer","exclude":{"layers":"a"}}', '"exclude": "layers"'),
                             ('{"by":"layer","transform":"x"}', '"transform"'), ('{"by":"layer","drop_mtp":1}', '"drop_mtp"'),
                             ('{"by":"layer","include":{"layers":99999999999999999999}}', '"include"'),
                             ("[" * 100_000, "nested"), ('{"by":"layer","include":[' + "[" * 60 + "]" * 60 + "]}", "selector")):
            with self.subTest(text=text[:60]):
                recipe.write_text(text)
                self.assert_refused(self.run_program(self.data(), "--recipe", recipe, "--out", self.out), recipe, needle)
        recipe.write_text('{"by":"layer"' + " " * (1 << 20) + "}")
        self.assert_refused(self.run_program(self.data(), "--recipe", recipe, "--out", self.out), recipe)
        self.assert_refused(self.run_program(self.data(), "--recipe", self.scratch / "no", "--out", self.out), "no")
        self.assert_refused(self.run_program(self.data(), "--recipe", self.scratch, "--out", self.out), self.scratch)
        self.assert_absent(self.out)

    def test_help_names_everything(self):
        text = self.assert_ok(self.run_program("--help")).stdout
        for word in ("--recipe", "--include", "--exclude", "--transform", "--drop-mtp", "fp8-to-bf16", "fp8-to-f32",
                     "bf16-to-fp8", "scales-to-e8m0", "layers=3-5", "docs/recipes.md"):
            self.assertIn(word, text)

    def test_a_manifest_with_an_unknown_recipe_is_not_judged(self):
        packed = shutil.copytree(packed_tiny(), self.out)
        manifest = json.loads((packed / "manifest.json").read_text())
        manifest["recipe"]["something"] = 1
        manifest["seal"] = ""
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        manifest["seal"] = hashlib.sha256(text.encode()).hexdigest()
        (packed / "manifest.json").write_text(json.dumps(manifest, sort_keys=True, separators=(",", ":"),
                                                         ensure_ascii=False) + "\n")
        result = self.run_program("verify", packed, "--source", self.data())
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("every digest fits", result.stdout)
        self.assertRegex(result.stderr, r'manifest\.json: unknown key "something"')


if __name__ == "__main__":
    main()
