"""transformers opens what was published, through the server that speaks the Hub's protocol: the same model as the source's
folder, parameter by parameter, and the text of the goldens."""

import array
import json
import re

import safetensors_io
from checkpoints import converted_tiny, packed_tiny
from common import INDEX, main
from publishing import REPO, TOKEN, PublishCase
from with_transformers import differences, need_transformers, opened, run_python

GOLDEN = PublishCase.data("tiny-v3-golden")
PROMPT = json.loads((GOLDEN / "prompts.json").read_text(encoding="utf-8"))["prompts"][0]
ASK = ("--tokens", ",".join(map(str, PROMPT["token_ids"])), "--new", "12")
# On the machine that made them transformers' logits equal two other implementations to 1e-5 (tests/tools/tiny_v3); ten times
# that is left to processors that add in another order. The largest is 22.
LOGITS_TOLERANCE = 1e-4


class Opened(PublishCase):
    def setUp(self):
        super().setUp()
        self.hub = self.new_hub()

    def assert_golden(self, report):
        self.assertEqual(report["greedy"], PROMPT["continuation_ids"])
        _, shape, raw = safetensors_io.parse((GOLDEN / "logits.safetensors").read_bytes())[0][PROMPT["name"]]
        golden, width = array.array("f", raw), shape[1]
        for row, logits in enumerate(report["logits"]):
            worst = max(abs(a - b) for a, b in zip(logits, golden[row * width:(row + 1) * width]))
            self.assertLess(worst, LOGITS_TOLERANCE, "row %d" % row)

    def assert_the_sources(self, reports):
        """All of them are what transformers makes of the source, and that is the model of the goldens."""
        source = reports.pop(str(self.data()))
        self.assertEqual((source["model"], source["missing"], source["mismatched"]), ("DeepseekV3ForCausalLM", [], []))
        self.assertTrue(all("layers.5." in name for name in source["unexpected"]), "more than the MTP module is left aside")
        self.assert_golden(source)
        for place, report in reports.items():
            self.assertEqual(differences(source, report), [], place)

    def opened(self, *places, token=TOKEN):
        return opened(self, places, *ASK, env=self.environment(self.hub, token))

    def test_by_expert_and_by_layer_from_private_repositories(self):
        self.assert_ok(self.publish(self.hub, None, "--private"))
        self.assert_ok(self.publish(self.hub, packed_tiny("layer"), "--private", repo="me/by-layer"))
        since = len(self.hub.requests())
        self.assert_the_sources(self.opened(self.data(), REPO, "me/by-layer"))
        asked = self.hub.requests()[since:]
        named = {entry.path.rpartition("/resolve/")[2].partition("/")[2] for entry in asked
                 if entry.path.startswith(REPO + "/resolve/") and entry.path.endswith(".safetensors")
                 and entry.status == 302}  # it first asks for a model.safetensors, of which there is none
        index = json.loads((self.folder / INDEX).read_text())["weight_map"]
        self.assertEqual(named, set(index.values()), "each weight file is fetched")
        self.assertGreater(len([entry for entry in asked if entry.host == "storage"]), 100)

    def test_a_branch_and_a_pull_request(self):
        self.assert_ok(self.publish(self.hub))
        self.assert_ok(self.publish(self.hub, packed_tiny("layer"), "--revision", "by-layer"))
        self.assert_ok(self.publish(self.hub, packed_tiny("shard:2MB"), "--create-pr"))
        commit = self.hub.branches(REPO)["main"]
        self.assert_the_sources(self.opened(self.data(), *(REPO + "@" + revision for revision in (
            "by-layer", "refs/pr/1", commit)), token=None))

    def test_with_the_words_of_the_card(self):
        """The card's Python, as it stands there, on the same weights in BF16."""
        folder = converted_tiny("fp8-to-bf16", "layer")
        self.assert_ok(self.publish(self.hub, folder))
        code, = re.findall(r"```python\n(.*?)```", self.hub.read(REPO, "README.md").decode(), re.S)
        self.assertEqual(code.count('"ORG/NAME"'), 2)
        script = self.scratch / "card.py"
        script.write_text(code.replace("ORG/NAME", REPO) + "\n" + "\n".join((
            'chat = [{"role": "user", "content": %r}]' % PROMPT["user"],
            'ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)',
            'print(tokenizer.decode(model.generate(**ids, max_new_tokens=12, do_sample=False)[0]))')))
        result = self.assert_ok(run_python(self, [script], self.environment(self.hub, None)))
        self.assertEqual(result.stdout, PROMPT["text"] + PROMPT["continuation_text"] + "\n")

    def test_what_is_half_published_is_not_taken_for_whole(self):
        fault = self.hub.add_fault("POST", "api/models/*/commit/*", "403", skip=3)
        self.assertEqual(self.publish(self.hub).code, 1)
        self.assertGreater(fault.struck, 0)
        self.assertIn("config.json", self.hub.files(REPO))
        script = self.scratch / "open.py"
        script.write_text("import transformers\ntransformers.AutoModelForCausalLM.from_pretrained(%r)\n" % REPO)
        result = run_python(self, [script], self.environment(self.hub, None))
        self.assertNotEqual(result.code, 0)
        self.assertIn("does not appear to have a file named", result.stderr)


if __name__ == "__main__":
    need_transformers()
    main()
