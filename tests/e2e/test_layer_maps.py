"""Layer maps: repeated layers compute what physical copies of them would, and cost their KV cache alone."""

import json
import re
import shutil

import safetensors_io
from checkpoints import packed_tiny
from common import EndToEnd, main, seeded_random, tree

TOKENS = ",".join(map(str, [0, *range(100, 130)]))
QUESTION = "What is the capital of Spain?"
LAYERS, DENSE = 5, 1  # of tiny-v3; layer 0 is dense, and layer 5 is the MTP module
# The documentation of ratio_repeat, whose lists these are: layers, pairs, the sequence.
PUBLISHED = [(7, "(0,.5),(.3,.8),(.5,1)", [0, 1, 2, 3, 2, 3, 4, 5, 3, 4, 5, 6]),
             (10, "(0,.3),(.2,.4),(.4,.5),(.4,1)", [0, 1, 2, 3, 2, 3, 4, 4, 5, 4, 5, 6, 7, 8, 9])]


def as_text(layers):
    return ",".join(map(str, layers))


class Maps(EndToEnd):
    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def logits(self, folder, *arguments):
        """The file of logits, and the statistics."""
        out, stats = self.scratch / "logits.safetensors", self.scratch / "stats.json"
        self.assert_ok(self.dsrun("logits", folder, "--tokens", TOKENS, "--out", out, "--stats", stats, *arguments))
        return out.read_bytes(), json.loads(stats.read_text())

    def copied(self, layers, name="copied", **config):
        """tiny-v3 with its layers copied in this order, as a checkpoint without an MTP module."""
        folder = self.scratch / name
        folder.mkdir()
        tensors, source = {}, safetensors_io.read_checkpoint(self.data())
        for key, value in source.items():
            found = re.match(r"model\.layers\.(\d+)\.(.*)", key)
            if not found:
                tensors[key] = value
                continue
            for place in (i for i, layer in enumerate(layers) if layer == int(found[1])):
                tensors["model.layers.%d.%s" % (place, found[2])] = value
        safetensors_io.write(folder / "model.safetensors", tensors)
        fields = json.loads((self.data() / "config.json").read_text())
        fields.update(num_hidden_layers=len(layers), num_nextn_predict_layers=0,
                      first_k_dense_replace=sum(layer < DENSE for layer in layers))
        (folder / "config.json").write_text(json.dumps({**fields, **config}))
        for companion in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(self.data() / companion, folder)
        return folder

    def pack(self, name="packed", source=None, **recipe):
        path = self.scratch / (name + ".recipe.json")
        path.write_text(json.dumps({"by": "expert", **recipe}))
        self.assert_ok(self.run_program(source or self.data(), "--recipe", path, "--out", self.scratch / name))
        return self.scratch / name


class Copies(Maps):
    def assert_equals_copies(self, layers, **config):
        wanted, _ = self.logits(self.copied(layers, as_text(layers), **config))
        # In pieces too: the second piece reads what each repetition of a layer has cached of the first.
        for folder, more in ((self.data(), []), (packed_tiny(), ["--dev", "chunk=7"])):
            got, stats = self.logits(folder, "--layers", as_text(layers), *more)
            self.assertEqual(got, wanted, layers)
            self.assertEqual(stats["layer_map"], layers)
        shutil.rmtree(self.scratch / as_text(layers))

    def test_logits_are_those_of_copied_layers(self):
        for layers in ([0, 1, 2, 3, 2, 3, 4], [0, 0, 1, 2, 3, 4], [0, 1, 1, 1, 2, 3, 4], [0, 4, 3, 2, 1], [0, 1, 4], [0]):
            self.assert_equals_copies(layers)
        # Dense layers between others: every second layer is dense there.
        self.assert_equals_copies([0, 0, 1, 0, 2], first_k_dense_replace=2, moe_layer_freq=2)

    def test_logits_of_random_maps(self):
        random = seeded_random()
        for _ in range(4):
            routed = [random.randrange(DENSE, LAYERS) for _ in range(random.randrange(1, 10))]
            self.assert_equals_copies([0] * random.randrange(1, 3) + routed)

    def test_the_whole_sequence_changes_nothing(self):
        plain, stats = self.logits(packed_tiny())
        self.assertEqual(stats["layer_map"], list(range(LAYERS)))
        self.assertEqual(self.logits(packed_tiny(), "--layers", "0-4")[0], plain)
        self.assertEqual(self.logits(packed_tiny(), "--layers", "(0,1)")[0], plain)
        self.assertNotEqual(self.logits(packed_tiny(), "--layers", "0-3,3-4")[0], plain)

    def test_answers_are_those_of_copied_layers(self):
        for layers in ("0-2,2-4", "0-3,3-4"):
            copy = self.copied([0, 1, 2, 2, 3, 4] if layers == "0-2,2-4" else [0, 1, 2, 3, 3, 4], layers)
            wanted = self.assert_ok(self.dsrun(copy, "-p", QUESTION, "-n", 24)).stdout
            self.assertEqual(self.assert_ok(self.dsrun(packed_tiny(), "-p", QUESTION, "-n", 24, "--layers", layers)).stdout,
                             wanted)


class Published(Maps):
    def test_both_examples(self):
        for count, pairs, wanted in PUBLISHED:
            # A model of so many layers, the numbers of which are all that matters.
            model = self.copied([0] + [1 + i % (LAYERS - 1) for i in range(count - 1)], str(count))
            logits, stats = self.logits(model, "--layers", pairs)
            self.assertEqual(stats["layer_map"], wanted)
            self.assertEqual(self.logits(model, "--layers", as_text(wanted))[0], logits)


class Costs(Maps):
    def test_memory_grows_by_the_kv_cache_alone(self):
        plain = self.logits(packed_tiny())[1]
        for layers in ("0-3,2-4", "0-4,1-4,1-4,1-4"):
            mapped = self.logits(packed_tiny(), "--layers", layers)[1]
            before, after = plain["memory_bytes"], mapped["memory_bytes"]
            self.assertEqual(after["weights"], before["weights"])
            self.assertEqual(after["scratch"], before["scratch"])
            self.assertEqual(after["kv_cache"] * LAYERS, before["kv_cache"] * len(mapped["layer_map"]))
            # The router may pick other experts; each of them counts once, however often its layer comes.
            each = before["experts"] // plain["experts"]["read"]
            self.assertEqual(after["experts"], each * mapped["experts"]["read"])
            self.assertEqual(mapped["experts"]["misses"], mapped["experts"]["read"])
            self.assertEqual(mapped["bytes_read"]["experts"] * plain["experts"]["read"],
                             plain["bytes_read"]["experts"] * mapped["experts"]["read"])
            self.assertEqual(mapped["bytes_read"]["always_needed"], plain["bytes_read"]["always_needed"])
            self.assertEqual({layer["layer"] for layer in mapped["experts"]["layers"]}, {1, 2, 3, 4})
            self.assertEqual(mapped["experts"]["present"], plain["experts"]["present"])

    def test_layers_that_are_left_out_are_not_read(self):
        plain, mapped = (self.logits(packed_tiny(), "--layers", layers)[1] for layers in ("0-4", "0,2,4"))
        self.assertLess(mapped["memory_bytes"]["weights"], plain["memory_bytes"]["weights"])
        self.assertEqual({layer["layer"] for layer in mapped["experts"]["layers"]}, {2, 4})
        self.assertEqual(mapped["experts"]["present"], plain["experts"]["present"] // 2)


class Recipes(Maps):
    def test_the_recipe_is_obeyed_and_the_flag_wins(self):
        plain, wanted = self.logits(self.data())[0], self.logits(self.data(), "--layers", "0-3,2-4")[0]
        for number, recipe in enumerate(({"layer_map": "0-3, 2-4"}, {"layer_map": [0, 1, 2, 3, 2, 3, 4]},
                                         {"ratio_repeat": "(0,.6),(.4,1)"})):
            packed = self.pack(str(number), **recipe)
            self.assertEqual(self.logits(packed)[0], wanted, recipe)
            manifest = json.loads((packed / "manifest.json").read_text())
            self.assertEqual(manifest["layer_map"], [0, 1, 2, 3, 2, 3, 4])
            self.assertEqual(manifest["requires"], ["layer_map"])
            self.assertEqual(manifest["recipe"], {"by": "expert", "layer_map": "0-3,2-4"})
        self.assert_same_tree(self.scratch / "0", self.scratch / "1")
        self.assert_same_tree(self.scratch / "0", self.scratch / "2")
        self.assertEqual(self.logits(packed, "--layers", "0-4")[0], plain)
        self.assertEqual(self.logits(packed, "--layers", "(0,1)")[0], plain)

    def test_only_what_runs_differs(self):
        packed, usual = self.pack(layer_map="0-3,2-4"), packed_tiny()
        a, b = tree(packed), tree(usual)
        self.assertEqual(sorted(a), sorted(b))
        self.assertEqual({path for path in a if a[path] != b[path]}, {"manifest.json", "README.md"})
        self.assertIn("0-3,2-4", (packed / "README.md").read_text())

    def test_what_the_other_verbs_say(self):
        packed = self.pack(layer_map="0-3,2-4")
        self.assertIn("layer map: 0-3,2-4 (7 in all)\n", self.assert_ok(self.run_program("inspect", packed)).stdout)
        self.assertNotIn("layer map", self.assert_ok(self.run_program("inspect", packed_tiny())).stdout)
        self.assert_ok(self.run_program("verify", packed, "--source", self.data()))
        self.assert_ok(self.run_program("unpack", packed, "--exact", "--out", self.scratch / "again"))
        self.assertEqual(tree(self.data()), tree(self.scratch / "again"))
        result = self.run_program("diff", packed, packed_tiny())
        self.assertEqual(result.code, 1)
        self.assertIn("layer maps: 0-3,2-4 in A, each layer once in B\n", result.stdout)
        result = self.run_program("diff", "--json", packed, packed_tiny())
        self.assertEqual(json.loads(result.stdout),
                         {"kind": "layer_map", "detail": "0-3,2-4 in A, each layer once in B"})
        self.assert_ok(self.run_program("diff", "--tensors-only", packed, packed_tiny()))
        self.assert_ok(self.run_program("diff", packed, self.pack("other", layer_map="0-3,2-4")))

    def test_a_dry_run_shows_the_layers(self):
        path = self.scratch / "recipe.json"
        path.write_text('{"by":"layer","ratio_repeat":"(0,.6),(.4,1)"}')
        said = self.assert_ok(self.run_program(self.data(), "--recipe", path, "--dry-run")).stdout
        self.assertIn("layers   0-3,2-4 (7 in all)\n", said)

    def test_another_map_is_another_repository(self):
        packed = self.pack(layer_map="0-3,2-4")
        before = tree(packed)
        self.assert_refused(self.repack(self.data(), packed), "another recipe")
        self.assertEqual(tree(packed), before)


class BadInput(Maps):
    def test_flags_that_are_none_are_wrong_usage(self):
        for arguments in (["--layers", ""], ["--layers", "3-1"], ["--layers", "0-"], ["--layers", "all"],
                          ["--layers", "0-65535"], ["--layers", "99999999999"], ["--layers", "("],
                          ["--layers", "()"], ["--layers", "(0,2)"], ["--layers", "(-1,1)"],
                          ["--layers", "(0,1),1"], ["--layers", "(0,1e0)"],
                          ["--layers", "0", "--layers", "(0,1)"]):
            result = self.dsrun(self.data(), "-p", "x", *arguments)
            self.assertEqual((result.code, result.stdout), (2, ""), str(result))
            self.assertRegex(result.stderr, r"^dsrun: [^\n]+\n$")

    def test_layers_that_the_model_lacks(self):
        for layers, named in (("0-5", "layer 5"), ("0-4,70,60", "layer 70")):
            self.assert_refused(self.dsrun(self.data(), "-p", "x", "--layers", layers), named, "0 to 4", program="dsrun")
        self.assert_refused(self.dsrun(self.data(), "-p", "x", "--layers", ",".join(["(0,1)"] * 1000)), "4096",
                            program="dsrun")

    def test_recipes_that_do_not_fit(self):
        out = self.scratch / "out"
        for recipe, needle in (({"layer_map": "0-5"}, "layer 5"), ({"layer_map": []}, "layer_map"),
                               ({"layer_map": [-1]}, "layer_map"), ({"layer_map": "x"}, "layer_map"),
                               ({"ratio_repeat": "(0,2)"}, "ratio_repeat"), ({"ratio_repeat": [[0, 1]]}, "ratio_repeat"),
                               ({"layer_map": "0", "ratio_repeat": "(0,1)"}, "exclude each other")):
            path = self.scratch / "recipe.json"
            path.write_text(json.dumps({"by": "expert", **recipe}))
            self.assert_refused(self.run_program(self.data(), "--recipe", path, "--out", out), needle)
            self.assert_absent(out)
        path.write_text('{"by":"expert","layer_map":"2"}')
        source = self.copy_source()
        for config, needle in (("{}", "num_hidden_layers"), ("[]", "config.json"), ("", "config.json"),
                               ('{"num_hidden_layers":0}', "out of range"),
                               ('{"num_hidden_layers":9,"text_config":{"num_hidden_layers":2}}', "0 to 1"),
                               (None, "config.json")):
            (source / "config.json").unlink() if config is None else (source / "config.json").write_text(config)
            self.assert_refused(self.run_program(source, "--recipe", path, "--out", out), needle)
            self.assert_absent(out)

    def test_a_manifest_that_does_not_fit_the_model(self):
        packed = self.pack(layer_map="0-4,4")
        config = json.loads((packed / "config.json").read_text())
        (packed / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
        self.assert_refused(self.dsrun(packed, "-p", "x"), "layer 4", "manifest.json", "0 to 3", program="dsrun")


if __name__ == "__main__":
    main()
