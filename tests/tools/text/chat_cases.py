"""Writes chat_cases.json: what transformers makes of CONVERSATIONS with each chat template of a folder.

    python chat_cases.py TEMPLATES ../../data/text/chat_cases.json

TEMPLATES holds NAME.jinja, one for each name that `dsrun --chat-template` knows: the texts that the repositories have
(README.md says which), which are not copied here. Needs transformers and jinja2. A case is a conversation, the
options, and the results: the text, with the templates that give it; null stands for a template that fails.
"""
import hashlib
import itertools
import json
import pathlib
import sys

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

THINKING = ("deepseek-v3.1", "deepseek-v3.1-terminus")


def system(text):
    return {"role": "system", "content": text}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def call(name, arguments, id=None):
    of_id = {} if id is None else {"id": id}
    return {**of_id, "type": "function", "function": {"name": name, "arguments": arguments}}


PARIS = '{"city": "Paris"}'
ROME = '{"city": "Rome"}'
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Wetter für „Städte“ \u2028 \u007f <b>&'\"\\/\t\n\u0001",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "enum": ["Paris", "北京", "😀"]},
            "limits": {"minimum": -0.0, "maximum": 1e22, "default": 1.5e-7, "multipleOf": 0.1, "exclusive": 100000.0,
                       "count": 123456789012345678, "big": 1e16, "almost": 9007199254740993.0, "none": None}},
            "required": ["city"], "additionalProperties": False, "empty": {}, "list": [], "nested": [[1, [2.0]], {}]}}},
    {"type": "function", "function": {"name": "z", "parameters": {}, "a": True}},
]

CONVERSATIONS = [
    [],
    [user("What is the capital of France?")],
    [system("You are helpful."), user("Hello!")],
    [system("One."), user("Hi!"), system("Two."), assistant("Hello!"), user("What is 12 plus 7?")],
    [user("a"), assistant("b"), user("c"), assistant("d")],
    [user("Line\n\n  indented {{ x }} <｜User｜> <|im_end|> \\n 你好 😀"), assistant(""), user("  ")],
    [system(""), user("")],
    [system("Only a system message.")],
    [assistant("I speak first."), user("Oh.")],
    [user("u"), user("v"), assistant("w"), assistant("x")],
    # Reasoning in the history, whole, twice, and cut.
    [user("q"), assistant("<think>Let me see.</think>\n\nAn answer."), user("r"),
     assistant("a</think>b</think>c"), user("s"), assistant("<think>cut"), user("t")],
    # Tool calls: one, with its result, with the answer.
    [user("q"), assistant(None, tool_calls=[call("get_weather", PARIS, "call_1")])],
    [user("q"), assistant(None, tool_calls=[call("get_weather", PARIS, "call_1")]),
     tool('{"sky": "blue"}', tool_call_id="call_1", name="get_weather")],
    [user("q"), assistant(None, tool_calls=[call("get_weather", PARIS, "call_1")]), tool("sun", tool_call_id="call_1"),
     assistant("<think>hm</think>It is sunny."), user("Thank you!")],
    # Several calls and results, and calls again.
    [system("s"), user("q"), assistant(None, tool_calls=[call("get_weather", PARIS, "a"), call("get_weather", ROME, "b")]),
     tool("sun", tool_call_id="b"), tool("rain", tool_call_id="a"),
     assistant(None, tool_calls=[call("f", "{}", "c"), call("g", "{}", "d"), call("h", "{}", "e")]),
     tool("1", tool_call_id="c"), tool("2", tool_call_id="d"), tool("3", tool_call_id="e"), assistant("Done."), user("Go on.")],
    [user("q"), assistant("", tool_calls=[call("f", "{}", "1")]), tool("r", tool_call_id="1"),
     assistant(None, tool_calls=[call("f", "{}", "2")]), tool("r", tool_call_id="2"),
     assistant(None, tool_calls=[call("f", "{}", "3")]), tool("r", tool_call_id="3"), user("and?")],
    # Beside content, beside reasoning, an empty list, arguments as an object, quotes in arguments, no ids.
    [user("q"), assistant("I look.", tool_calls=[call("f", "{}", "functions.f:0"), call("g", "{}", "functions.g:1")])],
    [user("q"), assistant("<think>a</think>b", tool_calls=[call("f", "{}", "1")]), user("r"),
     assistant("<think>a</think>b", tool_calls=[call("f", "{}", "2")])],
    [user("q"), assistant("x", tool_calls=[]), user("r")],
    [user("q"), assistant(None, tool_calls=[])],
    [user("q"), assistant(None, tool_calls=[call("f", {"b": 1, "a": [1.0, "ü", None, True]}, "1")]), tool("r", tool_call_id="1")],
    [user("q"), assistant(None, tool_calls=[call("f", '{"a": "x\\"y"}')]), tool("r"), tool("r2", name="n")],
    # Results without calls, and what follows them.
    [tool("1"), tool("2"), assistant("<think>x</think>y"), tool("3"), user("u"), tool("4")],
    [tool("1"), assistant(None, tool_calls=[call("f", "{}", "1")])],
    # Nothing where something belongs.
    [user(None)],
    [system(None), user("u")],
    [user("u"), assistant(None)],
    [user("u"), assistant("a"), tool(None)],
    # Names, and the beginning of an answer.
    [system("s"), user("u", name="Anna"), assistant("a", name="Bob"), user("v", name=""), tool("t", name="f")],
    [user("u"), assistant("The answer", prefix=True)],
    [user("u"), assistant("x", prefix=False), assistant("y", prefix=True)],
    [system("s"), assistant(None, tool_calls=[call("f", "{}", "1")])],
    [system("s"), assistant("a")],
]


def render(template, messages, prompt, thinking, tools):
    more = {"thinking": thinking} if thinking else {}
    try:
        texts, _ = render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=prompt,
                                         bos_token="<B>", eos_token="<E>", **more)
    except Exception:  # whatever a template's program does with what it did not expect
        return None
    return texts[0]


def render_error(template, messages, prompt, tools, tokens):
    """The text and no reason, or None and why there is none."""
    try:
        texts, _ = render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=prompt, **tokens)
    except Exception as error:  # as above
        return None, repr(error)
    return texts[0], ""


def cases(templates):
    for index, messages in enumerate(CONVERSATIONS):
        for prompt, thinking, tools in itertools.product((True, False), (False, True), (None, TOOLS)):
            if tools is not None and (index != 2 or thinking):
                continue
            if not prompt and index % 2:  # the end alone differs: half of the conversations show it
                continue
            results = {}
            for name, template in templates.items():
                if thinking and name not in THINKING:
                    continue
                results.setdefault(render(template, messages, prompt, thinking, tools), []).append(name)
            yield {"messages": index, "add_generation_prompt": prompt, "thinking": thinking, "tools": tools is not None,
                   "results": [{"text": text, "templates": names} for text, names in results.items()]}


def main(folder, out):
    files = sorted(pathlib.Path(folder).glob("*.jinja"))
    templates = {file.stem: file.read_text(encoding="utf-8") for file in files}
    line = lambda value: json.dumps(value, ensure_ascii=False)
    digests = {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    text = (f'{{\n"transformers": {line(transformers.__version__)},\n"sha256": {line(digests)},\n"tools": {line(TOOLS)},\n'
            '"conversations": [\n' + ",\n".join(map(line, CONVERSATIONS)) + '\n],\n"cases": [\n'
            + ",\n".join(map(line, cases(templates))) + "\n]\n}\n")
    pathlib.Path(out).write_text(text, encoding="utf-8")
    print(len(templates), "templates,", len(CONVERSATIONS), "conversations")


if __name__ == "__main__":
    main(*sys.argv[1:])
