"""Sparse attention: small members of the family whose prompts are longer than what is attended to, as dsrun runs them."""

import array
import json
import shutil

import safetensors_io
from common import main
from logits_case import LogitsCase

VARIANTS = ("v3.2-sparse", "glm-5", "glm-5.2")
WITH_MTP = ("v3.2-sparse", "glm-5.2")
MOST_NMSE = 1e-8


class Sparse(LogitsCase):
    def folder(self, name):
        return self.data("family") / name

    def golden(self, name):
        """(token ids, FP32 logits) of the long prompt, from transformers."""
        tensors, _ = safetensors_io.parse((self.folder(name) / "golden.safetensors").read_bytes())
        tokens, logits = array.array("i"), array.array("f")
        tokens.frombytes(tensors["long.tokens"][2])
        logits.frombytes(tensors["long.logits"][2])
        return ",".join(map(str, tokens)), logits

    def copy_variant(self, name):
        """A private copy without the goldens."""
        return shutil.copytree(self.folder(name), self.scratch / name, ignore=shutil.ignore_patterns("golden.safetensors"))

    def logits_of(self, folder, tokens, *arguments):
        path = self.scratch / "logits.safetensors"
        path.unlink(missing_ok=True)
        self.assert_ok(self.dsrun("logits", folder, "--tokens", tokens, "--out", path, *arguments))
        values = array.array("f")
        values.frombytes(safetensors_io.parse(path.read_bytes())[0]["logits"][2])
        return values


class Runs(Sparse):
    def test_logits_are_transformers_in_every_grouping(self):
        for name in VARIANTS:
            tokens, wanted = self.golden(name)
            got = self.logits_of(self.folder(name), tokens)
            self.assertLessEqual(self.nmse(got, wanted), MOST_NMSE, name)
            source = self.copy_variant(name)
            for by in ("expert", "layer"):
                with self.subTest(name, by=by):
                    packed = self.scratch / (name + "-by-" + by)
                    self.assert_ok(self.repack(source, packed, by=by))
                    self.assert_ok(self.run_program("verify", packed, "--source", source))
                    self.assertEqual(self.logits_of(packed, tokens), got)
                    self.assertEqual(safetensors_io.read_checkpoint(packed), safetensors_io.read_checkpoint(source))

    def test_threads_and_instruction_sets_choose_the_same(self):
        """Equal logits do not follow where positions differ: their effect is as large as the logits."""
        for name in VARIANTS:
            tokens, wanted = self.golden(name)
            for flags in (("--threads", "1"), ("--threads", "3"), ("--dev", "cpu=scalar"), ("--experts", "8")):
                with self.subTest(name, flags=flags):
                    self.assertLessEqual(self.nmse(self.logits_of(self.folder(name), tokens, *flags), wanted), MOST_NMSE)

    def test_an_answer_hangs_on_no_draft(self):
        for name in WITH_MTP:
            tokens, _ = self.golden(name)
            said = {mtp: self.assert_ok(self.dsrun(self.folder(name), "--tokens", tokens, "-n", 40, "--mtp", mtp)).stdout
                    for mtp in ("off", "1", "2", "3")}
            self.assertEqual(len(set(said.values())), 1, said)
            self.assertGreater(len(said["off"].split()), 0)

    def test_keys_of_every_type(self):
        """Rounded keys may choose other positions; with them, too, an answer hangs on no draft."""
        for name in WITH_MTP:
            tokens, _ = self.golden(name)
            for dtype in ("f32", "bf16", "f16", "fp8"):
                said = {self.assert_ok(self.dsrun(self.folder(name), "--tokens", tokens, "-n", 40, "--mtp", mtp,
                                                  "--index-dtype", dtype)).stdout for mtp in ("off", "1", "2", "3")}
                with self.subTest(name, dtype=dtype):
                    self.assertEqual(len(said), 1, said)
                    print(f"{name}, index keys in {dtype}: {said.pop().split()[:12]}")

    def test_a_context_beyond_memory(self):
        tokens, _ = self.golden("v3.2-sparse")
        folder = self.copy_variant("v3.2-sparse")
        config = json.loads((folder / "config.json").read_text())
        config["max_position_embeddings"] = 1 << 26
        (folder / "config.json").write_text(json.dumps(config))
        self.assert_refused(self.dsrun(folder, "--tokens", tokens, "-n", 1, "--ctx", 1 << 26, "--ram", "1GB"), "--ctx",
                            program="dsrun")

    def test_layer_maps(self):
        """A layer that shares a choice cannot come first; whoever comes later takes the last one's."""
        tokens, _ = self.golden("glm-5.2")
        self.assert_refused(self.dsrun(self.folder("glm-5.2"), "--tokens", tokens, "-n", 1, "--layers", "3-7"),
                            "layer 3 cannot come first", "shared", program="dsrun")
        for layers in ("0-7,3-7", "0-2,2,3-7", "6,7"):
            self.assert_ok(self.dsrun(self.folder("glm-5.2"), "--tokens", tokens, "-n", 4, "--layers", layers))

    def test_it_goes_beyond_index_topk_one_token_at_a_time(self):
        """A prompt within index_topk, and an answer that leaves it, are one pass over both."""
        for name in VARIANTS:
            tokens = self.golden(name)[0].split(",")[:10]
            answer = self.assert_ok(self.dsrun(self.folder(name), "--tokens", ",".join(tokens), "-n", 50, "--precision", "exact")).stdout.split()
            config = json.loads((self.folder(name) / "config.json").read_text())
            if len(answer) < 50:  # an end token came
                continue
            self.assertGreater(len(tokens) + len(answer), 2 * config["index_topk"])
            values = self.logits_of(self.folder(name), ",".join(tokens + answer))
            vocab = config["vocab_size"]
            rows = [values[at:at + vocab] for at in range(0, len(values), vocab)]
            likeliest = [str(max(range(vocab), key=row.__getitem__)) for row in rows[len(tokens) - 1:-1]]
            self.assertEqual(likeliest, answer, name)


class BadInput(Sparse):
    """One line that names the file and the key or tensor."""

    def refused(self, name, change, *needles):
        folder = self.copy_variant(name)
        config = json.loads((folder / "config.json").read_text())
        tensors, _ = safetensors_io.parse((folder / "model.safetensors").read_bytes())
        change(config, tensors)
        (folder / "config.json").write_text(json.dumps(config))
        safetensors_io.write(folder / "model.safetensors", tensors)
        self.assert_refused(self.dsrun(folder, "--tokens", "1,2,3", "-n", 1), *needles, program="dsrun")
        shutil.rmtree(folder)

    def test_sizes(self):
        for key, value in (("index_topk", 0), ("index_topk", -1), ("index_topk", 1 << 40), ("index_n_heads", 0),
                           ("index_n_heads", 1 << 20), ("index_head_dim", 8), ("index_head_dim", 1 << 30),
                           ("index_topk", "24"), ("index_n_heads", None)):
            with self.subTest(key, value=value):
                self.refused("v3.2-sparse", lambda config, _, key=key, value=value: config.update({key: value}),
                             "config.json", key)

    def test_keys_that_are_not_there(self):
        for key in ("index_topk", "index_n_heads", "index_head_dim"):
            with self.subTest(key):
                self.refused("glm-5", lambda config, _, key=key: config.pop(key), "config.json", key)

    def test_tensors_that_are_not_there_or_have_another_shape(self):
        for part in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight"):
            name = "model.layers.1.self_attn.indexer." + part

            def halved(_, tensors, name=name):
                dtype, shape, data = tensors[name]
                tensors[name] = (dtype, [shape[0] // 2, *shape[1:]], data[:len(data) // 2])

            with self.subTest(part):
                self.refused("glm-5", lambda _, tensors, name=name: tensors.pop(name), name, "missing")
                self.refused("glm-5", halved, name)

    def test_an_indexer_where_the_layer_shares(self):
        """It would not be read; nothing says which of the two is wrong."""
        def more(_, tensors):
            for part in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight"):
                tensors["model.layers.3.self_attn.indexer." + part] = tensors["model.layers.2.self_attn.indexer." + part]

        self.refused("glm-5.2", more, "model.layers.3.self_attn.indexer.")

    def test_choices_that_contradict_the_layers(self):
        full = ["full"] * 8
        for changes, *needles in (
                ({"indexer_types": full[:7]}, "indexer_types", "8"),
                ({"indexer_types": full + ["full"]}, "indexer_types", "8"),
                ({"indexer_types": ["shared"] + full[1:]}, "indexer_types"),
                ({"indexer_types": full[:7] + ["half"]}, "indexer_types"),
                ({"indexer_types": None, "index_topk_pattern": "FFFSSSF"}, "index_topk_pattern", "8"),
                ({"indexer_types": None, "index_topk_pattern": "FFFSSSFX"}, "index_topk_pattern"),
                ({"indexer_types": None, "index_topk_pattern": "SFFSSSFS"}, "index_topk_pattern"),
                ({"indexer_types": None, "index_topk_freq": 0}, "index_topk_freq"),
                ({"indexer_types": None, "index_topk_freq": 4, "index_skip_topk_offset": -1}, "index_skip_topk_offset")):
            with self.subTest(str(changes)):
                self.refused("glm-5.2", lambda config, _, changes=changes: config.update(changes), "config.json", *needles)


if __name__ == "__main__":
    main()
