"""dsrun serve: calls of tools in the answers, in every family's form and through every API, streamed and whole: what the
model wrote reaches the client, and nothing that it did not write. The model says scripts (scripted.py)."""

import json

import scripted
from common import main
from test_serve import Serving, events

THINK = "<think>"


def tool(name, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {key: {"type": kind} for key, kind in parameters.items()}}}}


TOOLS = [tool("weather", city="string", days="integer"), tool("write", path="string", content="string")]


def dsml(*calls, end="</｜DSML｜function_calls>"):
    text = "<｜DSML｜function_calls>\n"
    for name, arguments in calls:
        text += f'<｜DSML｜invoke name="{name}">\n'
        for key, value in arguments.items():
            is_text = str(isinstance(value, str)).lower()
            value = value if isinstance(value, str) else json.dumps(value)
            text += f'<｜DSML｜parameter name="{key}" string="{is_text}">{value}</｜DSML｜parameter>\n'
        text += "</｜DSML｜invoke>\n"
    return text + end


def glm(name, arguments):
    text = f"<tool_call>{name}\n"
    for key, value in arguments.items():
        value = value if isinstance(value, str) else json.dumps(value)
        text += f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
    return text + "</tool_call>"


def hermes(name, arguments):
    return '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (name, arguments)


def deepseek(name, arguments):
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def kimi(identity, arguments):
    return (f"<|tool_calls_section_begin|><|tool_call_begin|>{identity}<|tool_call_argument_begin|>{arguments}"
            "<|tool_call_end|><|tool_calls_section_end|>")


FILE = {"path": "package.json", "content": '  {"private": true}\n'}
LONG = {"path": "long.txt", "content": " ".join(f"word{i}" for i in range(40))}
# name: (script, content, calls); all of them whole.
CALLS = {
    "dsml": ("Look.\n\n" + dsml(("weather", {"city": "Oslo", "days": 2})), "Look.", [("weather", {"city": "Oslo", "days": 2})]),
    "dsml two": (dsml(("write", FILE), ("weather", {"city": "Kiel"})), "", [("write", FILE), ("weather", {"city": "Kiel"})]),
    "glm": (glm("write", FILE), "", [("write", FILE)]),
    "glm zip": (glm("weather", {"city": "10001", "days": 3}), "", [("weather", {"city": "10001", "days": 3})]),
    "hermes": ("So: " + hermes("weather", '{"city": "a</tool_call>b"}'), "So:", [("weather", {"city": "a</tool_call>b"})]),
    "deepseek": (deepseek("weather", '{"city": "Graz"}'), "", [("weather", {"city": "Graz"})]),
    "kimi": (kimi("functions.weather:0", '{"city": "Bern"}'), "", [("weather", {"city": "Bern"})]),
    "kimi other id": (kimi("functions_weather_4", '{"city": "Nice"}'), "", [("weather", {"city": "Nice"})]),
}
# Texts that stay text, though tools are offered.
TEXTS = {
    "prose": "In HTML, `<tool_call>` is no tag;\n\nclose with `</tool_call>`. The end.\n",
    "unknown dsml": dsml(("nope", {"a": "1"})),
    "unknown glm": glm("nope", {"b": "2"}),
    "unknown kimi": kimi("functions.nope:1", '{"c": 3}'),
    "unreadable": dsml(("write", {})).replace(">\n</｜DSML｜invoke", '>\n<parameter name="path">x</｜DSML｜parameter>\n</｜DSML｜invoke'),
    "white space": " \n \n",
}
CUT = {"cut dsml": dsml(("write", LONG)), "cut glm": glm("write", LONG | {"path": "b"}),
       "cut deepseek": deepseek("write", json.dumps(LONG | {"path": "c"})),
       "cut kimi": kimi("write", json.dumps(LONG | {"path": "d"}))}
THOUGHTS = {"thought kimi": kimi("functions.weather:7", '{"city": "Rome"}'), "thought glm": glm("weather", {"city": "Pisa"}),
            "thought dsml": dsml(("weather", {"city": "Bari"}))}


class Reply:
    """An answer of any of the APIs, streamed or whole: reasoning, content, calls with their arguments' text, and how it
    ended in OpenAI's word."""

    def __init__(self):
        self.reasoning = self.content = ""
        self.calls = []
        self.end = None

    def whole_calls(self):
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def no_json(text):
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


class ServeCalls(Serving):
    def setUp(self):
        super().setUp()
        scripts = {name: text for name, (text, _, _) in CALLS.items()} | TEXTS | CUT
        scripts["digits"] = deepseek("weather", '{"days": 123456789012345678901234567890, "city": [1.10]}')
        scripts |= {name: f"{THINK}hm\n{text}" for name, text in THOUGHTS.items()}
        folder = scripted.write(self.scratch / "model", scripts)
        self.start_server("--ctx", "4k", "--parallel", "2", folder=folder)
        self.scripts = scripts

    def body(self, api, script, tools, most):
        question = [{"role": "user", "content": f"<GO:{script}>"}]
        if api == "chat":
            return {"messages": question, "temperature": 0, "max_tokens": most, **({"tools": tools} if tools else {})}
        if api == "messages":
            tools = [{"name": each["function"]["name"], "input_schema": each["function"]["parameters"]} for each in tools or ()]
            return {"messages": question, "temperature": 0, "max_tokens": most, **({"tools": tools} if tools else {})}
        tools = [{"type": "function", **each["function"]} for each in tools or ()]
        return {"input": question, "temperature": 0, "max_output_tokens": most, **({"tools": tools} if tools else {})}

    def get(self, api, script, tools=TOOLS, most=2000, streamed=False):
        path = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}[api]
        status, _, text = self.ask(path, {**self.body(api, script, tools, most), "stream": streamed})
        self.assertEqual(status, 200, text)
        read = getattr(self, f"read_{api}_{'stream' if streamed else 'whole'}")
        return read(text)

    @staticmethod
    def read_chat_whole(text):
        choice = json.loads(text)["choices"][0]
        reply = Reply()
        message = choice["message"]
        reply.content, reply.reasoning = message["content"] or "", message.get("reasoning_content", "")
        reply.calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        reply.end = choice["finish_reason"]
        return reply

    @staticmethod
    def read_chat_stream(text):
        reply = Reply()
        for _, data in events(text):
            if data == "[DONE]":
                continue
            choice = json.loads(data)["choices"][0]
            delta = choice["delta"]
            reply.content += delta.get("content") or ""
            reply.reasoning += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if "name" in call["function"]:
                    reply.calls.append((call["function"]["name"], ""))
                name, before = reply.calls[call["index"]]
                reply.calls[call["index"]] = (name, before + call["function"]["arguments"])
            reply.end = choice["finish_reason"]
        return reply

    ANTHROPIC_ENDS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}

    def read_messages_whole(self, text):
        message = json.loads(text)
        reply = Reply()
        for block in message["content"]:
            if block["type"] == "text":
                reply.content += block["text"]
            elif block["type"] == "thinking":
                reply.reasoning += block["thinking"]
            else:
                reply.calls.append((block["name"], json.dumps(block["input"])))
        reply.end = self.ANTHROPIC_ENDS[message["stop_reason"]]
        return reply

    def read_messages_stream(self, text):
        reply = Reply()
        for name, data in events(text):
            event = json.loads(data)
            if name == "content_block_start" and event["content_block"]["type"] == "tool_use":
                reply.calls.append((event["content_block"]["name"], ""))
            if name == "content_block_delta":
                delta = event["delta"]
                reply.content += delta.get("text", "")
                reply.reasoning += delta.get("thinking", "")
                if "partial_json" in delta:
                    reply.calls[-1] = (reply.calls[-1][0], reply.calls[-1][1] + delta["partial_json"])
            if name == "message_delta":
                reply.end = self.ANTHROPIC_ENDS[event["delta"]["stop_reason"]]
        return reply

    @staticmethod
    def read_response(response):
        reply = Reply()
        for item in response["output"]:
            if item["type"] == "function_call":
                reply.calls.append((item["name"], item["arguments"]))
                assert (item["status"] == "incomplete") == no_json(item["arguments"])
            else:
                text = "".join(part["text"] for part in item["content"])
                if item["type"] == "reasoning":
                    reply.reasoning += text
                else:
                    reply.content += text
        reply.end = "length" if response["status"] == "incomplete" else "tool_calls" if reply.calls else "stop"
        return reply

    def read_responses_whole(self, text):
        return self.read_response(json.loads(text))

    def read_responses_stream(self, text):
        *_, (name, data) = events(text)
        self.assertIn(name, ("response.completed", "response.incomplete"))
        return self.read_response(json.loads(data)["response"])

    def each(self, names):
        for name in names:
            for api in ("chat", "messages", "responses"):
                for streamed in (False, True):
                    with self.subTest(name, api=api, streamed=streamed):
                        yield name, api, streamed

    def test_calls_are_what_the_model_wrote(self):
        for name, api, streamed in self.each(CALLS):
            _, content, calls = CALLS[name]
            reply = self.get(api, name, streamed=streamed)
            self.assertEqual((reply.content, reply.whole_calls(), reply.end), (content, calls, "tool_calls"))

    def test_text_stays_text_to_the_byte(self):
        for name, api, streamed in self.each(TEXTS):
            reply = self.get(api, name, streamed=streamed)
            self.assertEqual((reply.content, reply.calls, reply.end), (TEXTS[name], [], "stop"))

    def test_without_tools_all_is_text(self):
        for name, api, streamed in self.each(CALLS):
            reply = self.get(api, name, tools=None, streamed=streamed)
            self.assertEqual((reply.content, reply.calls, reply.end), (self.scripts[name], [], "stop"))

    def test_a_call_that_is_cut_has_no_whole_arguments(self):
        for name, api, streamed in self.each(CUT):
            for most in (20, 60):
                reply = self.get(api, name, most=most, streamed=streamed)
                self.assertEqual(reply.end, "length")
                self.assertTrue(all(no_json(arguments) for _, arguments in reply.calls), reply.calls)
                if not reply.calls and name in ("cut dsml", "cut glm"):
                    self.assertTrue(self.scripts[name].startswith(reply.content) and reply.content, reply.content)

    def test_calls_within_reasoning(self):
        for name, api, streamed in self.each(THOUGHTS):
            reply = self.get(api, name, streamed=streamed)
            self.assertEqual((reply.reasoning, reply.content, reply.end), ("hm", "", "tool_calls"))
            self.assertEqual([call for call, _ in reply.calls], ["weather"])
            without = self.get(api, name, tools=None, streamed=streamed)
            self.assertEqual((without.reasoning, without.calls), ("hm\n" + THOUGHTS[name], []))

    def test_numbers_keep_their_digits_in_the_body(self):
        # A client's JSON reader may round them; the bytes must not.
        for api in ("chat", "messages", "responses"):
            path = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}[api]
            text = self.ask(path, self.body(api, "digits", TOOLS, 500))[2]
            self.assertIn("123456789012345678901234567890", text)
            self.assertIn("1.10", text)


class ServeCallsOfOneFamily(Serving):
    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>"
                "{{ c.function.name }}\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>{% endfor %}{% endfor %}")

    def test_only_the_templates_marks_are_read(self):
        scripts = {"own": glm("weather", {"city": "Oslo"}), "dsml": dsml(("weather", {"city": "Kiel"})),
                   "kimi": kimi("functions.weather:0", "{}"), "deepseek": deepseek("weather", "{}")}
        self.start_server("--ctx", "2k", folder=scripted.write(self.scratch / "model", scripts, template=self.TEMPLATE))
        for name, script in scripts.items():
            message = self.answer("/v1/chat/completions", {"messages": [{"role": "user", "content": f"<GO:{name}>"}],
                                                           "temperature": 0, "tools": TOOLS})["choices"][0]["message"]
            calls = [call["function"]["name"] for call in message.get("tool_calls", [])]
            self.assertEqual((calls, message["content"]), (["weather"], None) if name == "own" else ([], script), name)

    def test_special_marks_are_text_where_nothing_is_offered(self):
        marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
                 "<|tool_calls_section_end|>")
        script = kimi("functions.weather:0", '{"city": "Bern"}')
        self.start_server("--ctx", "2k", folder=scripted.write(self.scratch / "model", {"kimi": script}, special=marks))
        question = {"messages": [{"role": "user", "content": "<GO:kimi>"}], "temperature": 0}
        message = self.answer("/v1/chat/completions", question)["choices"][0]["message"]
        self.assertEqual((message["content"], message.get("tool_calls")), (script, None))
        message = self.answer("/v1/chat/completions", {**question, "tools": TOOLS})["choices"][0]["message"]
        self.assertEqual(message["tool_calls"][0]["function"]["arguments"], '{"city": "Bern"}')


if __name__ == "__main__":
    main()
