"""Checkpoints that lack one tensor, one expert, one scale, one shard or one file: what dsrun, serve and plan, packing
and verifying say of them, and that it is said before the first token."""

import json
import shutil

import safetensors_io
from checkpoints import packed_tiny
from common import main
from sealing import link_tree
from test_serve import QUESTIONS, Serving, chat

VARIANT = "v3.2-sparse"  # sparse attention, FP8 in blocks, an MTP module
LAYER, MTP = "model.layers.1.", "model.layers.3."
EXPERT = LAYER + "mlp.experts.5."
SHARDS = ["model-%05d-of-00003.safetensors" % number for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"
TOKENS = ("--tokens", "1,2,3", "-n", 2)
REMEDY = "; fetch it from where the repository is from"
SERVE = ("--port", 0, "--device", "cpu")


def is_missing(name):
    return "tensor %s is missing from the checkpoint; the download may be incomplete%s" % (name, REMEDY)


def lacks_scale(name, shard):
    return ("%s: %s is FP8 but its scale %s_scale_inv is missing; fetch the file that holds it" %
            (SHARDS[shard], name, name))


# What is taken away (the beginning of names), what dsrun, serve and plan say, and what reshard warns of where it packs.
LOST = {
    "an attention tensor": (LAYER + "self_attn.kv_b_proj.", is_missing(LAYER + "self_attn.kv_b_proj.weight"), ""),
    "a tensor of the indexer": (LAYER + "self_attn.indexer.k_norm.bias",
                                is_missing(LAYER + "self_attn.indexer.k_norm.bias"), ""),
    "a norm": (LAYER + "post_attention_layernorm.weight", is_missing(LAYER + "post_attention_layernorm.weight"), ""),
    "the last norm": ("model.norm.weight", is_missing("model.norm.weight"), ""),
    "a router": (LAYER + "mlp.gate.weight", is_missing(LAYER + "mlp.gate.weight"), ""),
    "a router's bias": (LAYER + "mlp.gate.e_score_correction_bias",
                        is_missing(LAYER + "mlp.gate.e_score_correction_bias"), ""),
    "a shared expert's matrix": (LAYER + "mlp.shared_experts.up_proj.",
                                 is_missing(LAYER + "mlp.shared_experts.up_proj.weight"), ""),
    "an expert's matrix": (EXPERT + "up_proj.", "layer 1, expert 5: " + is_missing(EXPERT + "up_proj.weight"),
                           EXPERT + "up_proj.weight is missing, which the other experts of layer 1 have"),
    "an expert": (EXPERT, "layer 1, expert 5: " + is_missing(EXPERT + "gate_proj.weight"), "layer 1 has no expert 5, though it has 15 of 16"),
    "a layer's last expert": (LAYER + "mlp.experts.15.",
                              "layer 1, expert 15: " + is_missing(LAYER + "mlp.experts.15.gate_proj.weight"),
                              "layer 1 has no expert 15, though it has 15 of 16"),
    "the head": ("lm_head.weight", is_missing("lm_head.weight"), ""),
    "a tensor of the MTP module": (MTP + "eh_proj.weight", is_missing(MTP + "eh_proj.weight"), ""),
    "an expert of the MTP module": (MTP + "mlp.experts.5.",
                                    "layer 3, expert 5: " + is_missing(MTP + "mlp.experts.5.gate_proj.weight"),
                                    "layer 3 has no expert 5, though it has 15 of 16"),
}
# FP8 without its scale is not packed either.
LOST_SCALES = {"an expert's scale": (EXPERT + "up_proj.weight", 1),
               "a scale of attention": (LAYER + "self_attn.o_proj.weight", 0)}


class Missing(Serving):
    def setUp(self):
        super().setUp()
        source = self.data("family") / VARIANT
        self.tensors, _ = safetensors_io.parse((source / "model.safetensors").read_bytes())
        self.config = (source / "config.json").read_text()

    @staticmethod
    def shard_of(name):
        return SHARDS[2 if name.startswith(MTP) else 1 if ".experts." in name else 0]

    def write(self, name="source", without=None, indexed=False):
        """A folder with three shards and an index, without the tensors whose names begin so; `indexed`: the index names
        them still."""
        folder = self.scratch / name
        folder.mkdir()
        (folder / "config.json").write_text(self.config)
        shards = {}
        for tensor, value in self.tensors.items():
            if without is None or not tensor.startswith(without):
                shards.setdefault(self.shard_of(tensor), {})[tensor] = value
        for shard, tensors in shards.items():
            safetensors_io.write(folder / shard, tensors)
        names = self.tensors if indexed else [tensor for tensors in shards.values() for tensor in tensors]
        safetensors_io.write_index(folder, {tensor: self.shard_of(tensor) for tensor in names})
        return folder

    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def assert_not_run(self, folder, *needles):
        """Neither an answer nor a server nor a plan, for a reason in one line, which is the same."""
        for arguments in ((folder, *TOKENS), ("serve", folder, *SERVE), ("plan", folder)):
            self.assert_refused(self.dsrun(*arguments), *needles, program="dsrun")


class MissingTensors(Missing):
    def test_said_before_the_first_token_and_packed(self):
        whole = self.write("whole")
        for what, (lost, said, warned) in LOST.items():
            with self.subTest(what):
                source, packed = self.write(what, without=lost), self.scratch / ("packed, without " + what)
                self.assert_not_run(source, said)
                result = self.assert_ok(self.repack(source, packed))
                if warned:
                    self.assertRegex(result.stderr, r"\Awarning: [^\n]*the checkpoint may be incomplete[^\n]*\n\Z")
                    self.assertIn(warned, result.stderr)
                self.assert_refused(self.dsrun(packed, *TOKENS), said, program="dsrun")
                # The packed copy is a faithful one; only the whole source tells what it lacks.
                self.assert_ok(self.run_program("verify", packed, "--source", source))
                compared = self.run_program("verify", packed, "--source", whole)
                gone = sorted(name for name in self.tensors if name.startswith(lost))
                self.assertEqual((compared.code, compared.stdout.splitlines()[1:]), (
                    1, ['tensor "%s" of the source is missing' % name for name in gone]), str(compared))

    def test_an_embedding(self):
        source = self.write(without="model.embed_tokens.")
        self.assert_not_run(source, is_missing("model.embed_tokens.weight"))

    def test_a_scale(self):
        for what, (weight, shard) in LOST_SCALES.items():
            with self.subTest(what):
                source, packed = self.write(what, without=weight + "_scale_inv"), self.scratch / "packed"
                self.assert_not_run(source, lacks_scale(weight, shard))
                self.assert_refused(self.repack(source, packed), SHARDS[shard], weight + "_scale_inv", "is missing")
                self.assert_absent(packed)

    def test_an_mtp_module_as_a_whole_is_needed_by_drafts_alone(self):
        source, packed = self.write(without=MTP), self.scratch / "packed"
        answer = self.assert_ok(self.dsrun(self.write("whole"), *TOKENS)).stdout
        self.assert_ok(self.repack(source, packed))
        for folder in (source, packed):
            self.assertEqual(self.assert_ok(self.dsrun(folder, *TOKENS)).stdout, answer)
            self.assert_refused(self.dsrun(folder, *TOKENS, "--mtp", 1), folder, "lacks the MTP module",
                                "the tensors of model.layers.3", "fetch them, or leave out --mtp", program="dsrun")

    def test_a_tensor_that_the_index_names_still(self):
        lost = LAYER + "post_attention_layernorm.weight"
        source, packed = self.write(without=lost, indexed=True), self.scratch / "packed"
        said = '%s: tensor "%s" should be in %s, which does not hold it; fetch ' % (source / INDEX, lost, SHARDS[0])
        self.assert_not_run(source, said)
        self.assert_refused(self.repack(source, packed), said)
        self.assert_absent(packed)


class MissingFiles(Missing):
    def test_a_shard(self):
        source, packed = self.write(), self.scratch / "packed"
        for shard in SHARDS:
            with self.subTest(shard):
                content = (source / shard).read_bytes()
                (source / shard).unlink()
                said = INDEX + " names a shard that is missing: %s: " % (source / shard)
                self.assert_not_run(source, said, REMEDY)
                self.assert_refused(self.repack(source, packed), said, REMEDY)
                self.assert_absent(packed)
                (source / shard).write_bytes(content)

    def test_the_index_and_config_json(self):
        source, packed = self.write(), self.scratch / "packed"
        (source / INDEX).rename(self.scratch / INDEX)
        said = "%s: %s is missing, though %s is there%s" % (source, INDEX, SHARDS[0], REMEDY)
        self.assert_not_run(source, said)
        self.assert_refused(self.repack(source, packed), said)
        self.assert_absent(packed)
        (self.scratch / INDEX).rename(source / INDEX)
        (source / "config.json").unlink()
        self.assert_not_run(source, source, "has no config.json", "name the folder that holds config.json")

    def test_a_file_of_a_packed_repository(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.write(), packed))
        for name in ("model/embed.safetensors", "model/head.safetensors", "model/layers/001/dense.safetensors",
                     "model/layers/001/experts/005.safetensors", "config.json"):
            with self.subTest(name):
                content = (packed / name).read_bytes()
                (packed / name).unlink()
                said = ["has no config.json"] if name == "config.json" else [
                    "that manifest.json names is missing, the first is %s; " % name, "reshard repair"]
                self.assert_not_run(packed, *said)
                verified = self.run_program("verify", packed)
                self.assertEqual(verified.code, 1, str(verified))
                self.assertTrue(verified.stdout.startswith(name + ": "), str(verified))
                self.assertIn("reshard repair %s fetches lost or damaged files again" % packed, verified.stderr)
                (packed / name).write_bytes(content)
        # One of the two lists of tensors is enough.
        answer = self.assert_ok(self.dsrun(packed, *TOKENS)).stdout
        for name in (INDEX, "manifest.json"):
            folder = shutil.copytree(packed, self.scratch / ("without " + name))
            (folder / name).unlink()
            self.assertEqual(self.assert_ok(self.dsrun(folder, *TOKENS)).stdout, answer)
        self.assert_refused(self.run_program("verify", folder), folder, "it has no manifest.json")


class MissingWhileServing(Missing):
    def test_what_the_origin_of_a_server_does_not_have_is_never_the_clients_404(self):
        """The experts of a layer are not looked for before they are needed, over a network."""
        folder = link_tree(packed_tiny(), self.scratch / "packed")
        experts, lost = folder / "model/layers/002/experts", self.scratch / "lost"
        lost.mkdir()
        for path in experts.iterdir():
            shutil.move(path, lost / path.name)
        origin = self.serve(folder)
        self.start_server("--cache", self.scratch / "cache", folder=origin.url)
        messages = chat(QUESTIONS[0])
        for path, body in (("/v1/chat/completions", messages), ("/v1/chat/completions", dict(messages, stream=True)),
                           ("/v1/completions", {"prompt": "Once", "max_tokens": 2}), ("/v1/messages", messages),
                           ("/v1/responses", {"input": QUESTIONS[0], "max_output_tokens": 16})):
            status, _, text = self.ask(path, body)
            self.assertEqual(status, 500, text)
            self.assertIn("the answer could not be computed; the server's log says why", text)
        status, _, text = self.ask("/health")
        self.assertEqual((status, json.loads(text)["status"]), (503, "error"), text)
        for path in lost.iterdir():
            shutil.move(path, experts / path.name)
        # What had been asked for ahead may still fail for this one.
        self.wait_for(lambda: self.ask("/v1/chat/completions", messages)[0] == 200)
        status, _, text = self.ask("/health")
        self.assertEqual((status, json.loads(text)), (200, {"status": "ok"}))
        self.assert_ok_after_stop(
            r"dsrun: layer 2, expert (\d+): \S+/model/layers/002/experts/0*\1\.safetensors: not found \(HTTP 404\)"
            "[^\n]*; fetch it from where the repository is from")


if __name__ == "__main__":
    main()
