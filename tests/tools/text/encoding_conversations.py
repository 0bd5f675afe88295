"""Random conversations for an encoder of chats: all roles, tools, calls and their results, reasoning, and fields that are
empty, null or missing, some of them such that no encoder should take them."""
import json
import random

WORDS = ("weather", "Paris", "why?", "2+2", "naïve", "北京", "天气 怎么样", "😀👩‍👩‍👧", "\n\n", "\n", "  ", "\t",
         "{x}", "{{ y }}", "\\n", '"quoted"', "<b>", "&amp;", "</result>", "<｜User｜>", "\u2028", "e\u0301", "None", "`code`", "%s", "{0}", "C:\\dir\\")
NAMES = ("get_weather", "search", "open-page", "f", "ns.tool_1", "取得")
KEYS = ("city", "days", "q", "a b", "größe", "items", "keys", "x-1", "", "名")
TOOLS = (
    {"type": "function", "function": {"name": "get_weather", "description": "Wetter für „Städte“ \u2028 <b>&'\"\\/\t\n",
                                      "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False, "empty": {}, "list": [],
        "properties": {"city": {"type": "string", "enum": ["Paris", "北京", "😀"]},
                       "limit": {"type": "number", "default": 1.5e-7, "maximum": 1e22}}}}},
    {"type": "function", "function": {"name": "search", "parameters": {}}},
    {"function": {"parameters": {"type": "object"}, "name": "now", "strict": True}},
)
FORMATS = ({"type": "json_object"}, {}, None,
           {"type": "json_schema", "json_schema": {"name": "größe", "schema": {"type": "object", "properties": {"a": {"type": "null"}}}}})
REFUSED_ARGUMENTS = ("", "not JSON", "[1]", "3", "null", '"text"', '{"a": 1', "{'a': 1}")


class Conversations:
    def __init__(self, seed, is_wild=True):
        self.random = random.Random(seed)
        self.is_wild = is_wild  # also what should be refused

    def chance(self, share):
        return self.random.random() < share

    def text(self, most=6):
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(1, most)))

    def value(self, depth=0):
        kind = self.random.randrange(11 if depth < 3 else 8)
        if kind < 3:
            return self.text(3)
        if kind < 8:
            return (self.random.randint(-10**17, 10**17), self.random.uniform(-1e3, 1e3), self.random.choice((True, False, None)),
                    self.random.choice((0, -0.0, 1.0, 1e16, 1e-5, 5e-324, 123456789012345680.0)), "")[kind - 3]
        if kind == 8:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(KEYS): self.value(depth + 1) for _ in range(self.random.randrange(4))}

    def field(self, message, name, value, missing=0.1):
        """Sets a field, or makes it empty, null or absent."""
        if self.chance(missing):
            value = self.random.choice(("", None, KeyError))
        if value is not KeyError:
            message[name] = value
        return message

    def tools_fields(self, message, share):
        if self.chance(share):
            message["tools"] = self.random.sample(TOOLS, self.random.randint(0, len(TOOLS)))
        if self.chance(share):
            message["response_format"] = self.random.choice(FORMATS)
        return message

    def system(self):
        return self.tools_fields(self.field({"role": "system"}, "content", self.text()), 0.25)

    def question(self):
        if self.chance(0.15):
            message = {"role": "developer", "content": self.text()}
            return self.tools_fields(self.field(message, "content", message["content"], 0.05 if self.is_wild else 0), 0.5)
        return self.field({"role": "user"}, "content", self.text(), 0.05)

    def arguments(self):
        if self.is_wild and self.chance(0.02):
            return self.random.choice(REFUSED_ARGUMENTS)
        value = {self.random.choice(KEYS): self.value() for _ in range(self.random.randrange(4))}
        if self.chance(0.1):
            return value
        return json.dumps(value, ensure_ascii=self.chance(0.5), indent=self.random.choice((None, None, 1)),
                          separators=self.random.choice((None, (",", ":"))))

    def calls(self):
        message = {"role": "assistant"}
        self.field(message, "content", self.text(), 0.5)
        self.field(message, "reasoning_content", self.text(), 0.3)
        has_ids = self.chance(0.8)
        message["tool_calls"] = [
            {**({"id": "call_%08x" % self.random.getrandbits(32)} if has_ids else {}), "type": "function",
             "function": {"name": self.random.choice(NAMES), "arguments": self.arguments()}}
            for _ in range(self.random.choice((1, 1, 2, 3)))]
        return message

    def results(self, calls):
        all_results = []
        for call in calls:
            message = self.field({"role": "tool"}, "content", self.text(), 0.1)
            if "id" in call and self.chance(0.95):
                message["tool_call_id"] = call["id"]
            all_results.append(message)
        if self.chance(0.2):
            self.random.shuffle(all_results)
        if self.chance(0.05):
            all_results.pop()
        if self.is_wild and self.chance(0.03):
            all_results.append({"role": "tool", "content": "one too many"})
        return all_results

    def answer(self):
        message = self.field({"role": "assistant"}, "content", self.text())
        self.field(message, "reasoning_content", self.text(), 0.1 if self.is_wild else 0)
        if self.chance(0.1):
            message["tool_calls"] = self.random.choice(([], None))
        return message

    def conversation(self):
        messages = [self.system() for _ in range(self.random.choice((0, 0, 1, 1, 1, 2)))]
        for _ in range(self.random.randint(0 if self.is_wild else 1, 3)):
            messages.append(self.question())
            for _ in range(self.random.choice((0, 0, 1, 2))):
                messages.append(self.calls())
                messages += self.results(messages[-1]["tool_calls"])
            if self.chance(0.9):
                messages.append(self.answer())
            if self.chance(0.05):
                messages.append(self.system())
        if messages and messages[-1]["role"] == "assistant" and self.chance(0.5):
            messages.append(self.question())
        if self.is_wild and self.chance(0.03):
            self.random.shuffle(messages)
        tools = self.random.sample(TOOLS, self.random.randint(0, 2)) if self.chance(0.3) else None
        return {"messages": messages, "tools": tools}
