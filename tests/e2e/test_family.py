#!/usr/bin/env python3
"""dsrun on other members of the family: packed by expert, by token ids alone, and with what does not fit."""

import array
import json
import re
import shutil
import struct

import safetensors_io
from common import EndToEnd, flip_bit, main

PREFIX = "language_model."


class Family(EndToEnd):
    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def copy_variant(self, name):
        """A private copy without the goldens."""
        return shutil.copytree(self.data("family") / name, self.scratch / name,
                               ignore=shutil.ignore_patterns("golden.safetensors"))

    def golden(self, name, prompt="long"):
        """(token ids, FP32 logits)"""
        tensors, _ = safetensors_io.parse((self.data("family") / name / "golden.safetensors").read_bytes())
        tokens, logits = array.array("i"), array.array("f")
        tokens.frombytes(tensors[prompt + ".tokens"][2])
        logits.frombytes(tensors[prompt + ".logits"][2])
        return list(tokens), logits

    def logits(self, folder, tokens):
        path = self.scratch / "logits.safetensors"
        path.unlink(missing_ok=True)
        self.assert_ok(self.dsrun("logits", folder, "--tokens", ",".join(map(str, tokens)), "--out", path))
        return path.read_bytes()

    def wrap(self, folder):
        """As a language model within a model with pictures."""
        path = folder / "model.safetensors"
        tensors, _ = safetensors_io.parse(path.read_bytes())
        safetensors_io.write(path, {PREFIX + name: tensor for name, tensor in tensors.items()})
        config = folder / "config.json"
        config.write_text(json.dumps({"model_type": "kimi_k25", "text_config": json.loads(config.read_text())}))


class Packed(Family):
    def test_packing_by_expert_changes_no_bit(self):
        for name in ("v3", "v3.1-e8m0", "fp8-tensor", "kimi-k2"):
            with self.subTest(name):
                tokens, _ = self.golden(name)
                source = self.copy_variant(name)
                wanted = self.logits(source, tokens)
                if name == "kimi-k2":
                    self.wrap(source)
                packed = self.scratch / (name + "-packed")
                self.assert_ok(self.repack(source, packed))
                experts = len(list(packed.glob("model/layers/*/experts/*.safetensors")))
                self.assertEqual(experts, json.loads((self.data("family") / name / "config.json").read_text())["n_routed_experts"])
                self.assertEqual(self.logits(packed, tokens), wanted)
                self.assertEqual(self.logits(source, tokens), wanted)
                self.assertEqual(safetensors_io.read_checkpoint(packed), safetensors_io.read_checkpoint(source))
                self.assert_ok(self.run_program("verify", packed, "--source", source))


    def test_experts_in_fused_tensors_run_as_they_are_and_packed(self):
        tokens, _ = self.golden("mistral-small-4")
        source = self.copy_variant("mistral-small-4")
        wanted = self.logits(source, tokens)
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        self.assertEqual(self.logits(packed, tokens), wanted)
        self.assert_ok(self.run_program("verify", packed, "--source", source))
        # An expert whose part of the file was damaged is told of by the digest of what is stored.
        file = sorted(packed.glob("model/layers/001/experts/*.safetensors"))[3]
        flip_bit(file, file.stat().st_size - 1)
        prompt = ",".join(map(str, tokens))
        self.assert_refused(self.dsrun(packed, "--tokens", prompt, "--verify"), "SHA-256", "expert 3", program="dsrun")


    def test_fused_tensors_are_named_as_the_file_names_them(self):
        source = self.copy_variant("mistral-small-4")
        path, layer = source / "model.safetensors", "language_model.model.layers.1.mlp.experts."
        tensors, _ = safetensors_io.parse(path.read_bytes())
        lost = [({name: value for name, value in tensors.items() if name != layer + half},
                 "tensor " + layer + half + " is missing") for half in ("down_proj", "gate_up_proj")]
        for content, words in (*lost,
                               ({**tensors, layer + "down_proj_odd": tensors[layer + "down_proj_scale_inv"]},
                                "model.safetensors: " + layer + "down_proj_odd is a tensor that this program does not know")):
            path.unlink()
            safetensors_io.write(path, content)
            self.assert_refused(self.dsrun(source, "--tokens", "1,2"), words, program="dsrun")


class Pruned(Family):
    def test_132_of_384_experts_are_a_model_whose_other_experts_are_never_chosen(self):
        """As the published pruned models (REAP) are made: rows of the router and experts are left out, the rest stays."""
        kept, name = 132, "kimi-k2"
        whole, pruned = self.copy_variant(name), self.scratch / "pruned"
        shutil.copytree(whole, pruned)
        tensors, _ = safetensors_io.parse((whole / "model.safetensors").read_bytes())
        never, fewer = {}, {}
        for tensor, (dtype, shape, data) in tensors.items():
            expert = re.search(r"\.experts\.(\d+)\.", tensor)
            router = tensor.endswith((".gate.weight", ".e_score_correction_bias"))
            row = len(data) // shape[0]
            never[tensor] = (dtype, shape, data)
            if tensor.endswith("bias"):
                never[tensor] = (dtype, shape, data[:kept * row] + struct.pack("<f", -100) * (shape[0] - kept))
            if not expert or int(expert[1]) < kept:
                fewer[tensor] = (dtype, [kept, *shape[1:]], data[:kept * row]) if router else (dtype, shape, data)
        self.assertLess(len(fewer), len(never))
        for folder, content in ((whole, never), (pruned, fewer)):
            (folder / "model.safetensors").unlink()
            safetensors_io.write(folder / "model.safetensors", content)
        config = json.loads((pruned / "config.json").read_text())
        (pruned / "config.json").write_text(json.dumps({**config, "n_routed_experts": kept}))
        tokens, _ = self.golden(name)
        wanted = self.logits(whole, tokens)
        self.assertEqual(self.logits(pruned, tokens), wanted)
        self.assert_ok(self.repack(pruned, self.scratch / "packed"))
        self.assertEqual(self.logits(self.scratch / "packed", tokens), wanted)


class Modules(Family):
    def test_an_mtp_module_that_is_numbered_apart_is_the_layer_behind_the_last(self):
        name, behind, apart = "v3.2-sparse", "model.layers.3.", "mtp.layers.0."
        tokens, _ = self.golden(name)
        arguments = ("--tokens", ",".join(map(str, tokens[:30])), "-n", 8, "--mtp", 2)
        stats = self.scratch / "stats.json"
        wanted = self.assert_ok(self.dsrun(self.data("family") / name, *arguments, "--stats", stats)).stdout
        drafts = json.loads(stats.read_text())["mtp"]
        self.assertGreater(drafts["drafted"], 0)
        source, packed = self.copy_variant(name), self.scratch / "packed"
        tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
        (source / "model.safetensors").unlink()
        safetensors_io.write(source / "model.safetensors", {
            apart + tensor[len(behind):] if tensor.startswith(behind) else tensor: value for tensor, value in tensors.items()})
        self.assert_ok(self.repack(source, packed))
        for folder in (source, packed):
            self.assertEqual(self.assert_ok(self.dsrun(folder, *arguments, "--stats", stats)).stdout, wanted)
            self.assertEqual(json.loads(stats.read_text())["mtp"]["accepted"], drafts["accepted"])
            self.assertEqual(self.logits(folder, tokens), self.logits(self.data("family") / name, tokens))
        # One of its experts is missed as any other is.
        expert = packed / "model/mtp/000/experts/005.safetensors"
        expert.unlink()
        self.assert_refused(self.dsrun(packed, *arguments), "model/mtp/000/experts/005.safetensors", program="dsrun")


class NotANumber(Family):
    """Values that are no numbers: said with the tensor where they are looked at, else with the module that makes them."""

    def spoilt(self, *endings, value):
        """A copy of a BF16 model in which the first value of each tensor with such a name is another."""
        folder = self.copy_variant("moonlight")
        path = folder / "model.safetensors"
        tensors, _ = safetensors_io.parse(path.read_bytes())
        spoilt = {name: (dtype, shape, value[dtype] + data[len(value[dtype]):] if name.endswith(endings) else data)
                  for name, (dtype, shape, data) in tensors.items()}
        self.assertNotEqual(spoilt, tensors)
        path.unlink()
        safetensors_io.write(path, spoilt)
        return folder

    def assert_says(self, folder, *needles):
        self.assert_refused(self.dsrun(folder, "--tokens", "5,9,33", "-n", 4), *needles, program="dsrun")
        shutil.rmtree(folder)

    def test_a_vector_is_looked_at_when_it_is_read(self):
        nan = {"BF16": b"\xc0\x7f", "F32": b"\x00\x00\xc0\x7f"}
        for ending in ("layers.1.mlp.gate.e_score_correction_bias", "layers.0.input_layernorm.weight", "model.norm.weight"):
            with self.subTest(ending):
                self.assert_says(self.spoilt(ending, value=nan), ending, "value 0 is infinite or not a number")

    def test_the_module_that_makes_no_number_is_named(self):
        nan = {"BF16": b"\xc0\x7f", "F32": b"\x00\x00\xc0\x7f"}
        for ending, module in (("layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.o_proj"),
                               (".up_proj.weight", "model.layers.0.mlp.up_proj"), ("lm_head.weight", "lm_head"),
                               ("layers.1.mlp.shared_experts.down_proj.weight", "model.layers.1.mlp.shared_experts.down_proj")):
            with self.subTest(ending):
                self.assert_says(self.spoilt(ending, value=nan), module, "not a number", "weights")


class OtherConfig(Family):
    def test_a_file_is_read_in_place_of_config_json(self):
        folder = self.copy_variant("v3")
        config = folder / "config.json"
        good = config.read_text()
        wanted = self.assert_ok(self.dsrun(folder, "--tokens", "5,9,33", "-n", 4)).stdout
        config.write_text(json.dumps({**json.loads(good), "new_key_of_somebody": 3}))
        self.assert_refused(self.dsrun(folder, "--tokens", "5,9,33"), "new_key_of_somebody", program="dsrun")
        other = self.scratch / "mine.json"
        other.write_text(good)
        result = self.assert_ok(self.dsrun(folder, "--tokens", "5,9,33", "-n", 4, "--config", other))
        self.assertEqual(result.stdout, wanted)
        self.assert_ok(self.dsrun("plan", folder, "--config", other, "--config-only"))
        missing = self.scratch / "nothing.json"
        self.assert_refused(self.dsrun(folder, "--tokens", "5", "--config", missing), "--config", str(missing), program="dsrun")
        self.assertEqual(json.loads(config.read_text())["new_key_of_somebody"], 3)


class ByTokenIds(Family):
    def test_a_prompt_of_ids_is_answered_in_ids(self):
        for name in ("v2-lite", "kimi-k2"):
            tokens, logits = self.golden(name)
            vocab = len(logits) // len(tokens)
            row = logits[9 * vocab:10 * vocab]
            prompt = ",".join(map(str, tokens[:10]))
            result = self.assert_ok(self.dsrun(self.data("family") / name, "--tokens", prompt, "-n", 3))
            answer = [int(word) for word in result.stdout.split()]
            self.assertEqual((len(answer), answer[0]), (3, max(range(vocab), key=row.__getitem__)))
            self.assertEqual(result.stdout.count("\n"), 1)

    def test_text_without_a_tokenizer_says_what_can_be_done(self):
        folder = self.data("family") / "v3"
        self.assert_refused(self.dsrun(folder, "-p", "x"), "tokenizer.json", "--tokens", program="dsrun")
        self.assert_refused(self.dsrun(folder), "tokenizer.json", "--tokens", program="dsrun")
        self.assertEqual(self.dsrun(folder, "-p", "x", "--tokens", "1").code, 2)

    def test_a_tokenizer_that_is_not_known(self):
        source = self.copy_source()
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        tokenizer["model"]["type"] = "Unigram"
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
        self.assert_refused(self.dsrun(source, "-p", "x"), "Unigram", "--tokens", program="dsrun")
        self.assert_ok(self.dsrun(source, "--tokens", "0,5,17", "-n", 2))

    def test_ids_that_the_model_does_not_have(self):
        self.assert_refused(self.dsrun(self.data("family") / "v3", "--tokens", "1,64"), "64", "vocab_size", program="dsrun")

    def test_a_tokenizer_of_another_model(self):
        """Its ids go beyond the vocabulary."""
        source = self.copy_variant("v3")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(self.data() / name, source)
        for more in (["-p", "x"], ["-p", "x", "--raw"], []):
            self.assert_refused(self.dsrun(source, *more), "tokenizer.json", "1116", "64", "vocab_size", program="dsrun")


class BadInput(Family):
    def test_one_clear_line(self):
        def key(config, _):
            config["new_attention"] = True

        def rope(config, _):
            config["rope_scaling"]["type"] = "longrope"

        def gate(config, _):
            config["scoring_func"] = "sqrtsoftplus"

        def rope_key(config, _):
            config["rope_scaling"]["attn_temperature"] = 2

        def quantisation(config, _):
            config["quantization_config"]["quant_method"] = "quip"

        def missing(_, tensors):
            del tensors["model.layers.0.self_attn.kv_b_proj.weight"]

        def scale(_, tensors):
            dtype, _, data = tensors["model.layers.0.mlp.up_proj.weight_scale_inv"]
            tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = (dtype, [len(data) // 4], data)

        def shape(_, tensors):
            dtype, (rows, columns), data = tensors["lm_head.weight"]
            tensors["lm_head.weight"] = (dtype, [columns, rows], data)

        def bias(_, tensors):
            tensors["model.layers.1.self_attn.o_proj.bias"] = ("F32", [1], bytes(4))

        for change, *needles in ((key, "config.json", "new_attention"), (rope, "longrope"), (gate, "sqrtsoftplus"),
                                 (rope_key, "rope_scaling", "attn_temperature"), (quantisation, "quip"),
                                 (missing, "kv_b_proj.weight", "missing"), (scale, "up_proj.weight_scale_inv", "[4]"),
                                 (shape, "model.safetensors", "lm_head.weight", "[136, 64]", "[64, 136]"),
                                 (bias, "model.safetensors", "o_proj.bias")):
            with self.subTest(change.__name__):
                folder = self.copy_variant("v3")
                config = json.loads((folder / "config.json").read_text())
                tensors, _ = safetensors_io.parse((folder / "model.safetensors").read_bytes())
                change(config, tensors)
                (folder / "config.json").write_text(json.dumps(config))
                safetensors_io.write(folder / "model.safetensors", tensors)
                self.assert_refused(self.dsrun(folder, "--tokens", "1,2,3", "-n", 1), *needles, program="dsrun")
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
