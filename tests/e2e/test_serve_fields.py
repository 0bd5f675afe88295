"""dsrun serve: every field that requests are known to have does what its table says, which docs/serve.md prints."""

import importlib.util
import json
import pathlib

from common import main
from test_serve import QUESTIONS, chat, events
from test_serve_requests import ASK, BEGUN, HAS_XGRAMMAR, PARIS, Templated

ROOT = pathlib.Path(__file__).parents[2]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIELDS = script("serve_fields")


class Table(Templated):
    """Each field of the table, asked for."""

    def seen(self, path, body):
        """What a client can tell one answer from another by."""
        status, headers, text = self.ask(path, body)
        if status != 200:
            return status, json.loads(text)["error"]["message"]
        kind = headers["Content-Type"].split(";")[0]
        if kind != "application/json":
            parts = [json.loads(data) for _, data in events(text) if data != "[DONE]"]
            return kind, sum("usage" in part for part in parts)
        answer = json.loads(text)
        usage = answer["usage"]
        tokens = [usage.get(name, 0) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens",
                                                  "completion_tokens", "output_tokens")]
        if path == "/v1/messages":
            tokens = [tokens[1] + tokens[2], tokens[4]]
        said = [{key: value for key, value in each.items() if key not in ("id", "created_at")}
                for each in answer.get("choices") or answer.get("output") or answer.get("content")]
        return answer["model"], tokens, said

    def obeyed(self, api):
        """Of each field: what the request has without it, and with it."""
        drawn = {"temperature": 4, "seed": 1, "ignore_eos": True, self.LENGTH[api]: 24}
        long = {"ignore_eos": True, self.LENGTH[api]: 40}  # the tiny model repeats itself
        text = self.answer("/apply-template", {"messages": ASK})["prompt"]
        ids = self.answer("/tokenize", {"content": PARIS})["tokens"]
        form = {"type": "json_schema", "schema": SCHEMA}
        tool = {"chat": TOOL, "responses": {"type": "function", **TOOL["function"]},
                "messages": {"name": "f", "input_schema": {"type": "object"}}}.get(api)
        return {
            "messages": ({}, ASK + ASK), "system": ({}, "x"), "instructions": ({}, "x"), "input": ({}, "x"),
            "prompt": ({}, text + "x"), "model": ({}, "other"), "echo": ({}, True), "n": ({}, 2), "n_cmpl": ({}, 2),
            "continue_final_message": ({"messages": BEGUN}, True), "add_generation_prompt": ({}, False),
            "max_tokens": ({}, 3), "max_completion_tokens": ({}, 3), "n_predict": ({}, 3), "max_output_tokens": ({}, 3),
            "stop": ({}, ["capital"]), "stop_sequences": ({}, ["capital"]), "stop_token_ids": ({}, [ids[3]]),
            "min_tokens": ({}, 14), "ignore_eos": ({self.LENGTH[api]: 15}, True),
            "temperature": ({"seed": 1}, 20), "top_p": (drawn, 0.01), "top_k": (drawn, 1), "min_p": (drawn, 1),
            "repetition_penalty": ({}, 20), "repeat_penalty": ({}, 20), "presence_penalty": (long, 2),
            "frequency_penalty": (long, 2), "logit_bias": ({}, {str(ids[3]): -100}), "seed": (drawn, 2),
            "stream": ({}, True), "stream_options": ({"stream": True}, {"include_usage": True}),
            "logprobs": ({}, True if api == "chat" else 2), "top_logprobs": ({"logprobs": True}, 2),
            "tools": ({}, [tool]), "tool_choice": ({"tools": [tool]}, {"type": "none"} if api == "messages" else "none"),
            "chat_template_kwargs": ({}, {"thinking": True}), "enable_thinking": ({}, True),
            "reasoning_effort": ({}, "high"), "reasoning": ({}, {"effort": "high"}), "thinking": ({}, {"type": "adaptive"}),
            "response_format": ({}, {"type": "json_object"}), "text": ({}, {"format": form}), "json_schema": ({}, SCHEMA),
            "guided_json": ({}, json.dumps(SCHEMA)), "structured_outputs": ({}, {"json": SCHEMA}),
            "output_config": ({}, {"format": form}), "output_format": ({}, form)}

    LENGTH = {"chat": "max_tokens", "completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
    FORMS = ("response_format", "text", "json_schema", "guided_json", "structured_outputs", "output_config", "output_format")

    def test_every_field_does_what_its_table_says(self):
        self.start_templated("--threads", "1")
        description = self.answer_of_get("/openapi.json")
        least = {"chat": {"messages": ASK}, "responses": {"input": QUESTIONS[0]}, "messages": {"messages": ASK},
                 "completions": {"prompt": self.answer("/apply-template", {"messages": ASK})["prompt"]}}
        for api, path in FIELDS.APIS.items():
            base = {"temperature": 0, **least[api]}
            without = {"{}": self.seen(path, base)}
            self.assertIn(PARIS, str(without["{}"]))
            obeyed = self.obeyed(api)
            fields = FIELDS.properties(description, path)
            harmless = {name: field["examples"][0] for name, field in fields.items() if field["x-treatment"] == "harmless"}
            self.assertEqual(self.seen(path, {**base, **harmless}), without["{}"])
            for name, field in fields.items():
                with self.subTest(api=api, field=name, treatment=field["x-treatment"]):
                    example = field["examples"][0]
                    if field["x-treatment"] == "harmless":
                        continue  # all at once, above
                    if field["x-treatment"] == "refused":
                        more = {"repeat_penalty": 2} if name == "repeat_last_n" else {}
                        status, said = self.seen(path, {**base, **more, name: example})
                        self.assertEqual(status, 400)
                        self.assertTrue(said.startswith('"%s" is not supported' % name), said)
                    elif name == "parallel_tool_calls":  # test_structured.py counts the calls
                        self.assertEqual(self.seen(path, {**base, name: 1})[0], 400)
                    else:
                        more, value = obeyed[name]
                        key = json.dumps(more)
                        if key not in without:
                            without[key] = self.seen(path, {**base, **more})
                        with_it = self.seen(path, {**base, **more, name: value})
                        if name in self.FORMS and not HAS_XGRAMMAR:
                            self.assertEqual(with_it[0], 400)
                            self.assertIn("xgrammar", with_it[1])
                            continue
                        self.assertNotEqual(with_it[0], 400, with_it)
                        self.assertNotEqual(with_it, without[key])

    def answer_of_get(self, path):
        status, _, text = self.ask(path)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def test_the_documentation_is_that_of_the_server(self):
        self.start_server()
        document = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
        self.assertIn(FIELDS.BEGIN, document)
        self.assertEqual(FIELDS.replaced(document, self.answer_of_get("/openapi.json")), document,
                         "curl -s localhost:8080/openapi.json | scripts/serve_fields.py docs/serve.md")

    def test_what_is_not_known_is_said_once(self):
        self.start_server()
        for _ in range(3):
            self.answer("/v1/chat/completions", chat("x", max_tokens=1, **{"frobnicate\n\x1b[1m": 1}))
            self.answer("/v1/responses", {"input": "x", "max_output_tokens": 1, "tools": [{"type": "web_search"}]})
        self.process.terminate()
        result = self.finish(self.process, 60)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 2, result.stderr)
        self.assertIn("frobnicate", lines[0])
        self.assertNotIn("\x1b", result.stderr)
        self.assertIn("web_search", lines[1])


if __name__ == "__main__":
    main()
