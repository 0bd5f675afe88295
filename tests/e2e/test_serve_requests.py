"""dsrun serve: answers that continue a message; what ends an answer; what agents send, and look for in errors."""

import json
import os
import shutil
import subprocess
import unittest

from common import main
from test_serve import QUESTIONS, Serving, chat, events

PARIS = "The capital of France is Paris."
HAS_XGRAMMAR = "structured output by xgrammar" in subprocess.run([os.environ["DSPACK_DSRUN"], "--version"], capture_output=True, text=True,
                                                                 check=True).stdout
ASK = [{"role": "user", "content": QUESTIONS[0]}]
BEGUN = ASK + [{"role": "assistant", "content": "The capital of"}]
# It reads all that a request can tell a template, and asks as the tiny model's own.
TEMPLATE = ("{{ bos_token }}{{ tools | tojson if tools }}{{ reasoning_effort }}{% for m in messages %}"
            "{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}"
            "{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<｜Assistant｜>{{ '<think>' if thinking }}{% endif %}")


class Templated(Serving):
    def start_templated(self, *arguments):
        folder = shutil.copytree(self.data(), self.scratch / "templated")
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        self.start_server(*arguments, folder=folder)

    def text_of(self, path, body):
        """Of an answer, whole or streamed: reasoning and content."""
        status, _, text = self.ask(path, body)
        self.assertEqual(status, 200, text)
        if not body.get("stream"):
            answer = json.loads(text)
            if "choices" in answer:
                message = answer["choices"][0].get("message")
                if message is None:
                    return "", answer["choices"][0]["text"]
                return message.get("reasoning_content") or "", message["content"] or ""
            blocks = answer["content"]
            return ("".join(block.get("thinking", "") for block in blocks),
                    "".join(block.get("text", "") for block in blocks))
        reasoning = content = ""
        for _, data in events(text):
            part = {} if data == "[DONE]" else json.loads(data)
            for choice in part.get("choices", []):
                reasoning += choice["delta"].get("reasoning_content") or ""
                content += choice["delta"].get("content") or ""
            if part.get("type") == "content_block_delta":
                reasoning += part["delta"].get("thinking", "")
                content += part["delta"].get("text", "")
        return reasoning, content


class Continued(Templated):
    def test_a_last_message_is_continued(self):
        """In each API, streamed and whole, with a built-in template and with a repository's own."""
        for start in (self.start_server, self.start_templated,
                      lambda: self.start_server("--chat-template", "deepseek-v3.1")):
            start()
            prefix = ASK + [{**BEGUN[1], "prefix": True}]
            for path, body in (("/v1/messages", {"messages": BEGUN, "max_tokens": 20}),
                               ("/v1/messages", {"messages": ASK + [{"role": "assistant", "content": [
                                   {"type": "text", "text": "The capital of"}]}], "max_tokens": 20}),
                               ("/v1/chat/completions", {"messages": BEGUN, "continue_final_message": True}),
                               ("/v1/chat/completions", {"messages": prefix})):
                for stream in (False, True):
                    with self.subTest(body=body, stream=stream):
                        self.assertEqual(self.text_of(path, {**body, "temperature": 0, "stream": stream}),
                                         ("", " France is Paris."))
            # The answer that is not continued begins anew.
            self.assertEqual(self.ask("/v1/chat/completions", {"messages": BEGUN, "max_tokens": 4})[0], 200)
            text = self.answer("/apply-template", {"messages": BEGUN, "continue_final_message": True})["prompt"]
            self.assertTrue(text.endswith("The capital of"), text)
            closed = self.answer("/apply-template", {"messages": BEGUN, "add_generation_prompt": False})["prompt"]
            self.assertTrue(closed.startswith(text) and closed != text, closed)
            counted = self.answer("/v1/messages/count_tokens", {"messages": BEGUN})["input_tokens"]
            self.assertEqual(counted, len(self.answer("/tokenize", {"content": text})["tokens"]))
            self.assert_ok_after_stop()

    def test_what_an_answer_begins_with_says_whether_it_reasons(self):
        self.start_templated()
        for said, reasons in (("<think>The capital of", True), ("<think>So.</think>The capital of", False),
                              ("The capital of", False)):
            for path in ("/v1/messages", "/v1/chat/completions"):
                for stream in (False, True):
                    body = {"messages": ASK + [{"role": "assistant", "content": said, "prefix": True}], "max_tokens": 5,
                            "temperature": 0, "stream": stream}
                    if path == "/v1/messages":
                        del body["messages"][-1]["prefix"]
                    reasoning, content = self.text_of(path, body)
                    with self.subTest(said=said, path=path, stream=stream):
                        self.assertEqual((bool(reasoning), bool(content)), (reasons, not reasons))

    def test_what_cannot_be_continued_is_refused(self):
        self.start_server()
        call = {"role": "assistant", "content": "x", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
        for body, word in (({"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}, "both"),
                           ({"messages": ASK, "continue_final_message": True}, "assistant"),
                           ({"messages": ASK + [call], "continue_final_message": True}, "calls")):
            status, _, text = self.ask("/v1/chat/completions", body)
            self.assertEqual(status, 400, text)
            self.assertIn(word, text)

    def test_adaptive_thinking_thinks(self):
        for arguments in ((), ("--thinking", "on")):
            self.start_server("--chat-template", "deepseek-v3.1", *arguments)
            for stream in (False, True):
                body = {"messages": ASK, "max_tokens": 8, "temperature": 0, "stream": stream}
                texts = {kind: self.text_of(path, {**body, "thinking": {"type": kind}})
                         for path in ("/v1/messages", "/v1/chat/completions") for kind in ("enabled", "disabled", "adaptive")}
                self.assertEqual(texts["adaptive"], texts["enabled"])
                self.assertNotEqual(texts["adaptive"], texts["disabled"])
                self.assertTrue(texts["adaptive"][0])
            self.assert_ok_after_stop()


class Ends(Templated):
    def test_which_tokens_end_an_answer(self):
        self.start_server("--parallel", "2")
        whole = self.answer("/v1/chat/completions", chat(QUESTIONS[0]))
        count = whole["usage"]["completion_tokens"]
        ids = self.answer("/tokenize", {"content": PARIS})["tokens"]
        stopped = self.answer("/v1/chat/completions", chat(QUESTIONS[0], stop_token_ids=[ids[3]]))
        self.assertEqual(stopped["choices"][0]["finish_reason"], "stop")
        text = stopped["choices"][0]["message"]["content"]
        self.assertTrue(PARIS.startswith(text) and text != PARIS, text)
        for fields, least in (({"min_tokens": count + 4}, count + 4), ({"ignore_eos": True, "max_tokens": 24}, 24)):
            for temperature in (0, 1):
                for n in (1, 2):
                    got = self.answer("/v1/chat/completions", chat(QUESTIONS[0], **fields, temperature=temperature, n=n))
                    self.assertGreaterEqual(got["usage"]["completion_tokens"], n * least)
        # Neither texts nor tokens end it before.
        body = chat(QUESTIONS[0], stop=["capital"], stop_token_ids=[ids[-1]], min_tokens=count)
        got = self.answer("/v1/chat/completions", body)
        self.assertIn("capital", got["choices"][0]["message"]["content"])
        self.assertGreaterEqual(got["usage"]["completion_tokens"], count)
        self.assertEqual(self.answer("/v1/chat/completions", dict(body, min_tokens=0))["choices"][0]["message"]["content"],
                         "The ")

    def test_drafts_keep_to_the_least_length(self):
        texts = []
        for arguments in ((), ("--mtp", "2")):
            self.start_server(*arguments)
            answers = [self.answer("/v1/chat/completions", chat(question, min_tokens=20)) for question in QUESTIONS]
            self.assertTrue(all(answer["usage"]["completion_tokens"] >= 20 for answer in answers), answers)
            texts.append([answer["choices"] for answer in answers])
            self.assert_ok_after_stop()
        self.assertEqual(*texts)

    @unittest.skipUnless(HAS_XGRAMMAR, "no xgrammar")
    def test_a_form_says_where_an_answer_ends(self):
        self.start_server()
        form = {"type": "json_object"}
        for fields, word in (({"min_tokens": 3}, "min_tokens"), ({"ignore_eos": True}, "ignore_eos"),
                             ({"messages": BEGUN, "continue_final_message": True}, "form")):
            status, _, text = self.ask("/v1/chat/completions", dict(chat(QUESTIONS[0], response_format=form), **fields))
            self.assertEqual(status, 400, text)
            self.assertIn(word, text)


class Agents(Templated):
    def test_a_full_context_has_its_code(self):
        self.start_server("--ctx", "64")
        long = "x " * 400
        for stream in (False, True):
            for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
                               ("/v1/completions", {"prompt": long}), ("/v1/responses", {"input": long}),
                               ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": long}]})):
                status, _, text = self.ask(path, dict(body, stream=stream))
                self.assertEqual(status, 400, text)
                error = json.loads(text)["error"]
                self.assertRegex(error["message"], "^prompt is too long: [0-9]+ tokens > 64 maximum")
                if path != "/v1/messages":
                    self.assertEqual(error["code"], "context_length_exceeded")
        count = self.answer("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": long}]})
        self.assertGreater(count["input_tokens"], 64)
        # Other mistakes have none.
        self.assertIsNone(json.loads(self.ask("/v1/completions", {"prompt": "x", "n": 0})[2])["error"]["code"])

    def test_a_stream_of_messages_begins_with_its_tokens(self):
        self.start_server()
        body = {"messages": ASK, "max_tokens": 4, "temperature": 0, "stream": True}
        count = self.answer("/v1/messages/count_tokens", {"messages": ASK})["input_tokens"]
        for _ in range(2):
            parts = {name: json.loads(data) for name, data in events(self.ask("/v1/messages", body)[2])}
            usage = parts["message_start"]["message"]["usage"]
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], count)
            usage = parts["message_delta"]["usage"]
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], count)

    def test_paths_and_methods(self):
        self.start_server("--model-name", "org/a model", "--api-key", "secret")
        key = {"Authorization": "Bearer secret"}
        for path in ("/v1/models/org%2Fa%20model", "/v1/models/org/a%20model", "/v1/models/org%2fa%20model"):
            status, _, text = self.ask(path, headers=key)
            self.assertEqual((status, json.loads(text)["id"]), (200, "org/a model"))
        for path in ("/v1/models/org", "/v1/models/org%2", "/v1/models/%", "/v1/models/org%252Fa%20model"):
            self.assertEqual(self.ask(path, headers=key)[0], 404)
        for method, path, allow in (("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/completions", "POST"),
                                    ("GET", "/v1/messages", "POST"), ("POST", "/v1/models", "GET, HEAD"),
                                    ("PUT", "/health", "GET, HEAD"), ("POST", "/machine", "GET")):
            status, headers, text = self.ask(path, method=method, headers=key)
            self.assertEqual((status, headers.get("Allow")), (405, allow), text)
            self.assertIn("error", json.loads(text))
        for method in ("GET", "POST", "PUT"):
            self.assertEqual(self.ask("/v1/nothing", method=method, headers=key)[0], 404)
        version = json.loads(self.ask("/version", headers=key)[2])["version"]
        told = self.assert_ok(self.run_program("--version", program="DSPACK_DSRUN")).stdout
        self.assertIn(version, told)
        self.assertEqual(self.ask("/v1/health"), self.ask("/health"))
        self.assertEqual(self.ask("/v1/health")[0], 200)

    def test_what_agents_send_is_read(self):
        self.start_server()
        limits = {"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807, "default": 2 ** 70}
        function = {"name": "pay", "parameters": {"type": "object", "properties": {"micros": limits}}}
        for path, body in (
                ("/v1/chat/completions", {"messages": ASK, "tools": [{"type": "function", "function": function}]}),
                ("/v1/chat/completions", {"messages": ASK, "max_tokens": -1, "top_k": -1, "seed": -1, "top_logprobs": 0}),
                ("/v1/chat/completions", {"messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": [], "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": None}}]},
                    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]}] + ASK}),
                ("/v1/responses", {"input": ASK, "tools": [{"type": "function", **function}, {"type": "web_search"},
                                                           {"type": "custom", "name": "apply_patch"}]}),
                ("/v1/responses", {"input": ASK + [
                    {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "output_text", "text": "a"}]}] + ASK}),
                ("/v1/messages", {"messages": ASK, "max_tokens": 99, "seed": 2 ** 80, "tools": [
                    {"type": "web_search_20250305", "name": "web_search"},
                    {"name": "pay", "input_schema": function["parameters"]}]})):
            for stream in (False, True):
                status, _, text = self.ask(path, dict(body, stream=stream, temperature=0))
                self.assertEqual(status, 200, text)
                self.assertNotIn('"error":{', text)


if __name__ == "__main__":
    main()
