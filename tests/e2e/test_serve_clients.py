"""dsrun serve as the official clients of OpenAI and Anthropic see it: answers, streams, tools, probabilities, forms,
leaving, and the exceptions that mistakes become."""

from official_clients import restart_under

restart_under(["openai", "anthropic"], {})

import json  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from typing import Literal  # noqa: E402

import anthropic  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402

import scripted  # noqa: E402
from common import main  # noqa: E402
from test_serve import QUESTIONS, Serving  # noqa: E402

PARIS = "The capital of France is Paris."
ASK = [{"role": "user", "content": QUESTIONS[0]}]
LONG = {"logit_bias": {"1": -100}, "max_tokens": 900}  # the end token never comes
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}}


class Place(pydantic.BaseModel):
    """What the clients make of an answer by themselves: they send the class as a schema."""
    city: Literal["Paris", "Rome"]
    sure: bool


class OpenAi(Serving):
    def client(self, *arguments, key="none"):
        self.start_server(*arguments)
        client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % self.port, api_key=key, max_retries=0)
        self.addCleanup(client.close)
        return client

    def test_chat(self):
        client = self.client()
        answer = client.chat.completions.create(model="m", messages=ASK, temperature=0, logprobs=True, top_logprobs=3)
        choice = answer.choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), (PARIS, "stop"))
        self.assertEqual(len(choice.logprobs.content), answer.usage.completion_tokens)
        self.assertEqual({len(token.top_logprobs) for token in choice.logprobs.content}, {3})
        several = client.chat.completions.create(model="m", messages=ASK, temperature=1, n=3, seed=1)
        self.assertEqual([each.index for each in several.choices], [0, 1, 2])
        self.assertEqual(client.models.list().data[0].object, "model")
        self.assertEqual(client.models.retrieve("tiny-v3").id, "tiny-v3")

    def test_stream(self):
        text, usage, roles, reasons = "", None, [], []
        for chunk in self.client().chat.completions.create(
                model="m", messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}):
            self.assertEqual(chunk.object, "chat.completion.chunk")
            usage = chunk.usage
            for choice in chunk.choices:
                self.assertIsNone(usage)
                text += choice.delta.content or ""
                roles += [choice.delta.role] if choice.delta.role else []
                reasons += [choice.finish_reason] if choice.finish_reason else []
        self.assertEqual((text, roles, reasons), (PARIS, ["assistant"], ["stop"]))
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_completions(self):
        client = self.client()
        answer = client.completions.create(model="m", prompt="Once upon a time", max_tokens=10, temperature=0, logprobs=2)
        self.assertEqual(len(answer.choices[0].logprobs.token_logprobs), 10)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        parts = client.completions.create(model="m", prompt="Once upon a time", max_tokens=10, temperature=0, stream=True)
        self.assertEqual("".join(part.choices[0].text for part in parts), answer.choices[0].text)

    def test_responses(self):
        client = self.client()
        answer = client.responses.create(model="m", input=QUESTIONS[0], temperature=0)
        self.assertEqual((answer.output_text, answer.status), (PARIS, "completed"))
        with client.responses.stream(model="m", input=ASK, temperature=0) as stream:
            kinds = [event.type for event in stream]
            self.assertEqual(stream.get_final_response().output_text, PARIS)
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))

    def test_forms(self):
        """Where the program has xgrammar. Calls are of the form of the model's template."""
        client = self.client()
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2]}},
                  "required": ["city", "size"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}}
        try:
            answer = client.chat.completions.create(model="m", messages=ASK, temperature=0, max_tokens=200,
                                                    response_format=form)
        except openai.BadRequestError as error:
            self.assertIn("without xgrammar", str(error))
            self.skipTest("this dsrun has no xgrammar")
        value = json.loads(answer.choices[0].message.content)
        self.assertEqual(set(value), {"city", "size"})
        self.assertIn(value["size"], (1, 2))
        answer = client.chat.completions.create(model="m", messages=ASK, temperature=0, max_tokens=200, tools=[TOOL],
                                                tool_choice="required", parallel_tool_calls=False)
        call = answer.choices[0].message.tool_calls[0]
        self.assertEqual((answer.choices[0].finish_reason, call.type, call.function.name), ("tool_calls", "function", "weather"))
        self.assertIsInstance(json.loads(call.function.arguments)["city"], str)
        again = ASK + [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        self.assertTrue(client.chat.completions.create(model="m", messages=again, tools=[TOOL], max_tokens=5).choices)
        parts = list(client.chat.completions.create(model="m", messages=ASK, temperature=0, max_tokens=200, tools=[TOOL],
                                                    tool_choice="required", parallel_tool_calls=False, stream=True))
        calls = [each for part in parts for choice in part.choices for each in choice.delta.tool_calls or []]
        self.assertEqual("".join(each.function.arguments or "" for each in calls), call.function.arguments)

    def test_classes(self):
        """Where the program has xgrammar."""
        client = self.client()
        options = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 200}
        try:
            answer = client.chat.completions.parse(**options, response_format=Place)
        except openai.BadRequestError as error:
            self.assertIn("without xgrammar", str(error))
            self.skipTest("this dsrun has no xgrammar")
        parsed = [answer.choices[0].message.parsed]
        with client.chat.completions.stream(**options, response_format=Place) as stream:
            parsed.append(stream.get_final_completion().choices[0].message.parsed)
        parsed.append(client.responses.parse(model="m", input=ASK, temperature=0, text_format=Place).output_parsed)
        tool = openai.pydantic_function_tool(Place, name="place")
        for choice in ({"type": "function", "function": {"name": "place"}}, "required"):
            answer = client.chat.completions.parse(**options, tools=[tool], tool_choice=choice,
                                                   **({"parallel_tool_calls": False} if choice == "required" else {}))
            call, = answer.choices[0].message.tool_calls
            parsed.append(call.function.parsed_arguments)
        for each in parsed:
            self.assertIsInstance(each, Place)
        # An answer that is of another form than promised is an error to who parses it, and told to who does not.
        twice = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": twice}}
        with self.assertRaises(openai.ContentFilterFinishReasonError):
            client.chat.completions.parse(**options, response_format=form)
        with client.chat.completions.stream(**options, response_format=form) as stream:
            with self.assertRaises(openai.ContentFilterFinishReasonError):
                stream.get_final_completion()
        choice, = client.chat.completions.create(**options, response_format=form).choices
        self.assertIn("uniqueItems", choice.message.refusal)
        response = client.responses.create(model="m", input=ASK, text={"format": {"type": "json_schema", "name": "x", "schema": twice}})
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "content_filter"))

    def test_leaving(self):
        client = self.client()
        with client.chat.completions.create(model="m", messages=ASK, stream=True, **LONG) as stream:
            next(iter(stream))
        deadline = time.monotonic() + 30
        while self.counts()["requests_running"] > 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        self.assertEqual(self.counts()["requests_cancelled_total"], 1)
        with self.assertRaises(openai.APITimeoutError):
            client.with_options(timeout=0.05).chat.completions.create(model="m", messages=ASK, **LONG)

    def test_mistakes(self):
        client = self.client("--api-key", "secret", key="secret")

        def ask(client=client, **options):
            return client.chat.completions.create(**{"model": "m", "messages": ASK, "max_tokens": 1, **options})

        self.assertTrue(ask())
        for kind, options in ((openai.BadRequestError, {"temperature": -1}),
                              (openai.BadRequestError, {"messages": [{"role": "user", "content": "x " * 5000}]}),
                              (openai.AuthenticationError, {"client": client.with_options(api_key="wrong")})):
            with self.assertRaises(kind) as caught:
                ask(**options)
            self.assertTrue(caught.exception.body["message"])
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("another")
        # One place is taken and nobody may wait any longer than the one that does.
        self.assert_ok_after_stop()
        client = self.client("--waiting", "1")
        waits = threading.Thread(target=lambda: client.chat.completions.create(model="m", messages=ASK, max_tokens=1))
        with client.chat.completions.create(model="m", messages=ASK, stream=True, **LONG) as first:
            next(iter(first))
            waits.start()
            while self.counts()["requests_waiting"] == 0:
                time.sleep(0.01)
            with self.assertRaises(openai.RateLimitError):
                client.chat.completions.create(model="m", messages=ASK)
        waits.join()


    def test_names_continuations_and_a_full_context(self):
        client = self.client("--model-name", "org/m", "--ctx", "64")
        self.assertEqual(client.models.retrieve("org/m").id, "org/m")
        begun = {"role": "assistant", "content": "The capital of"}
        for message, body in ((begun, {"continue_final_message": True, "add_generation_prompt": False, "min_tokens": 2}),
                              ({**begun, "prefix": True}, {"top_k": -1})):
            answer = client.chat.completions.create(model="m", messages=ASK + [message], temperature=0, extra_body=body)
            self.assertEqual(answer.choices[0].message.content, " France is Paris.")
        with self.assertRaises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x " * 300}])
        self.assertEqual(refused.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as refused:
            client.completions.create(model="m", prompt="x", best_of=2)
        self.assertIn("best_of", str(refused.exception))


class Anthropic(Serving):
    def client(self, *arguments, key="none"):
        self.start_server(*arguments)
        client = anthropic.Anthropic(base_url="http://127.0.0.1:%d" % self.port, api_key=key, max_retries=0)
        self.addCleanup(client.close)
        return client

    def test_messages(self):
        client = self.client()
        options = {"model": "m", "max_tokens": 50, "messages": ASK, "extra_body": {"temperature": 0}}
        answer = client.messages.create(**options)
        self.assertEqual(([block.text for block in answer.content], answer.stop_reason), ([PARIS], "end_turn"))
        with client.messages.stream(**options) as stream:
            self.assertEqual("".join(stream.text_stream), PARIS)
            self.assertEqual(stream.get_final_message().stop_reason, "end_turn")
        count = client.messages.count_tokens(model="m", messages=ASK)
        self.assertEqual(count.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens)
        cut = client.messages.create(**options, stop_sequences=["of"])
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", "of"))

    def test_continuations_and_tokens(self):
        client = self.client("--chat-template", "deepseek-v3.1")
        begun = {"model": "m", "messages": ASK + [{"role": "assistant", "content": "The capital of"}]}
        options = {**begun, "max_tokens": 20, "extra_body": {"temperature": 0}}
        self.assertEqual(client.messages.create(**options).content[0].text, " France is Paris.")
        count = client.messages.count_tokens(**begun).input_tokens
        with client.messages.stream(**options) as stream:
            started = next(part.message.usage for part in stream if part.type == "message_start")
            self.assertEqual(started.input_tokens + (started.cache_read_input_tokens or 0), count)
            self.assertEqual(stream.get_final_text(), " France is Paris.")
        thought = client.messages.create(model="m", max_tokens=8, messages=ASK, thinking={"type": "adaptive"})
        self.assertEqual(thought.content[0].type, "thinking")

    def test_tools(self):
        """Where the program has xgrammar."""
        client = self.client()
        tool = {"name": "weather", "input_schema": TOOL["function"]["parameters"]}
        try:
            answer = client.messages.create(model="m", max_tokens=200, messages=ASK, tools=[tool],
                                            tool_choice={"type": "any", "disable_parallel_tool_use": True}, extra_body={"temperature": 0})
        except anthropic.BadRequestError as error:
            self.assertIn("without xgrammar", str(error))
            self.skipTest("this dsrun has no xgrammar")
        block = answer.content[-1]
        self.assertEqual((answer.stop_reason, block.type, block.name), ("tool_use", "tool_use", "weather"))
        self.assertIsInstance(block.input["city"], str)
        options = {"model": "m", "max_tokens": 200, "messages": ASK, "tools": [tool], "extra_body": {"temperature": 0},
                   "tool_choice": {"type": "tool", "name": "weather"}}
        block, = client.messages.create(**options).content
        with client.messages.stream(**options) as stream:
            streamed, = stream.get_final_message().content
        self.assertEqual((streamed.name, streamed.input), (block.name, block.input))

    def test_classes(self):
        """Where the program has xgrammar."""
        client = self.client()
        try:
            answer = client.messages.parse(model="m", max_tokens=200, messages=ASK, output_format=Place)
        except anthropic.BadRequestError as error:
            self.assertIn("without xgrammar", str(error))
            self.skipTest("this dsrun has no xgrammar")
        self.assertIsInstance(answer.parsed_output, Place)

    def test_mistakes(self):
        client = self.client("--api-key", "secret", key="secret")
        for kind, client, options in ((anthropic.BadRequestError, client, {"max_tokens": 0}),
                                      (anthropic.AuthenticationError, client.with_options(api_key="wrong"), {})):
            with self.assertRaises(kind):
                client.messages.create(**{"model": "m", "max_tokens": 1, "messages": ASK, **options})


class DeepSeekV4(Serving):
    """A model that says a script: it reasons, spelling the mark of its end, answers and calls a tool."""
    THOUGHT = "I could write </think> here."
    ARGUMENTS = {"city": "Oslo <b>\n", "days": 2}
    CALL = ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo <b>\n</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')

    def setUp(self):
        super().setUp()
        folder = scripted.write(self.scratch / "scripted", {"<think>": [self.THOUGHT, "</think>", "Let me look.\n\n" + self.CALL]},
                                special=("<think>", "</think>"))
        self.start_server("--chat-template", "deepseek-v4", folder=folder)

    def test_openai(self):
        client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % self.port, api_key="none", max_retries=0)
        self.addCleanup(client.close)
        tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
        options = {"model": "m", "temperature": 0, "tools": [tool]}
        messages = list(ASK)
        for effort in ("low", "max", "none"):
            choice = client.chat.completions.create(**options, messages=messages, reasoning_effort=effort).choices[0]
            thought = None if effort == "none" else self.THOUGHT
            self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", "Let me look."))
            self.assertEqual(getattr(choice.message, "reasoning_content", None), thought)
            call, = choice.message.tool_calls
            self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("weather", self.ARGUMENTS))
            parts = [part.choices[0].delta for part in client.chat.completions.create(
                **options, messages=messages, reasoning_effort=effort, stream=True) if part.choices]
            self.assertEqual("".join(getattr(part, "reasoning_content", None) or "" for part in parts), thought or "")
            self.assertEqual("".join(part.content or "" for part in parts), "Let me look.")
            streamed = "".join(each.function.arguments or "" for part in parts for each in part.tool_calls or [])
            self.assertEqual(streamed, call.function.arguments)
            messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain </think>"}]
        answer = client.responses.create(model="m", input="x", temperature=0, reasoning={"effort": "low"}, tools=[
            {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}])
        self.assertEqual([item.type for item in answer.output], ["reasoning", "message", "function_call"])
        self.assertEqual(json.loads(answer.output[-1].arguments), self.ARGUMENTS)

    def test_anthropic(self):
        client = anthropic.Anthropic(base_url="http://127.0.0.1:%d" % self.port, api_key="none", max_retries=0)
        self.addCleanup(client.close)
        options = {"model": "m", "max_tokens": 400, "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
                   "extra_body": {"temperature": 0}}
        messages = list(ASK)
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}):
            answer = client.messages.create(**options, messages=messages, thinking=thinking)
            with client.messages.stream(**options, messages=messages, thinking=thinking) as stream:
                streamed = stream.get_final_message()
            for message in (answer, streamed):
                blocks = list(message.content)
                if thinking["type"] == "enabled":
                    self.assertEqual(blocks.pop(0).thinking, self.THOUGHT)
                text, call = blocks
                self.assertEqual((text.text, call.name, call.input, message.stop_reason),
                                 ("Let me look.", "weather", self.ARGUMENTS, "tool_use"))
            messages += [{"role": "assistant", "content": answer.content},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": answer.content[-1].id, "content": "rain"}]}]


if __name__ == "__main__":
    main()
