"""Answers of generated schemas, checked by the package jsonschema: what ended by itself is JSON of its schema, or the client
was told what is wrong with it. Through every way in which answers come: whole, streamed, several at once, with drafts, as
calls of tools in each family, at temperature 0 and above. DSPACK_TESTS=long: 500 schemas instead of 16."""

import official_clients

official_clients.restart_under(("jsonschema",), {})

import itertools
import json
import os
import random
import re
import unittest

import jsonschema

from common import main
from test_structured import HAS_XGRAMMAR, QUESTION, TEMPLATES, Asking

COUNT = 500 if os.environ.get("DSPACK_TESTS") == "long" else 16
WORDS = ("Rome", "größe", "a\"b", "x\\y", "", "日本", "tab\there", "12")
PATTERNS = ("^[a-z]{1,4}$", "^\"x\"$", "^a\\\\b$", "^\\d{2}-\\d{2}$", "^(foo|ba[rz])+$", "[A-Z]", "^(?!no)[a-z]{1,6}$")
FORMATS = ("date", "time", "email", "uuid", "ipv4", "uri")


class Schemas:
    """Small ones, of which an answer by chance ends soon."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one_of(self, *choices):
        return self.random.choice(choices)

    def string(self, depth):
        kind = self.random.randrange(6)
        if kind == 0:
            low = self.random.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + self.random.randrange(40)}
        if kind == 1:
            return {"type": "string", "pattern": self.one_of(*PATTERNS), **self.one_of({}, {"maxLength": 12})}
        if kind == 2:
            return {"type": "string", "format": self.one_of(*FORMATS)}
        if kind == 3:
            return {"enum": self.random.sample(WORDS, 3)}
        return {"type": "string", "maxLength": 12}

    def number(self, depth):
        low = self.one_of(-100, -1.5, 0, 0.25, 7)
        return {"type": self.one_of("integer", "number"), self.one_of("minimum", "exclusiveMinimum"): low,
                self.one_of("maximum", "exclusiveMaximum"): low + self.one_of(1.5, 10, 1000),
                **self.one_of({}, {}, {"multipleOf": self.one_of(1, 2, 5, 0.5)})}

    def simple(self, depth):
        return self.one_of({"type": "boolean"}, {"type": "null"}, {"const": self.one_of(1, "x", None, [1, {"a": 2}])},
                           {"type": ["boolean", "null"]}, {"enum": [1, 2.5, "three", None]})

    def array(self, depth):
        most = self.random.randrange(1, 4)
        schema = {"type": "array", "items": self.any(depth + 1), "maxItems": most, "minItems": self.random.randrange(most + 1)}
        return {**schema, **self.one_of({}, {}, {"uniqueItems": True}, {"prefixItems": [self.any(depth + 1)]},
                                        {"contains": self.any(depth + 1), "minContains": 0})}

    def object(self, depth):
        names = self.random.sample(("a", "größe", "b c", "öb", "x\"y", "日本", "id"), self.random.randrange(1, 5))
        schema = {"type": "object", "properties": {name: self.any(depth + 1) for name in names},
                  "required": [name for name in names if self.random.random() < 0.7]}
        return {**schema, **self.one_of(
            {}, {"additionalProperties": False}, {"additionalProperties": {"type": "boolean"}, "maxProperties": 5},
            {"minProperties": 1}, {"anyOf": [{"required": [name]} for name in names]},
            {"dependentRequired": {names[0]: [names[-1]]}}, {"not": {"required": names + ["no"]}},
            {"if": {"required": [names[0]]}, "then": {"required": [names[-1]]}},
            {"patternProperties": {"^k[0-9]$": {"type": "integer", "minimum": 0, "maximum": 9}}, "additionalProperties": False})}

    def composed(self, depth):
        kind = self.random.randrange(4)
        if kind == 0:
            return {"anyOf": [self.any(depth + 1), self.any(depth + 1)]}
        if kind == 1:
            return {"oneOf": [self.any(depth + 1), {"type": "null"}]}
        if kind == 2:
            return {"allOf": [self.object(depth + 1), {"type": "object", "properties": {"more": {"type": "boolean"}}}]}
        return {"$ref": "#/$defs/name", "description": "beside it", **self.one_of({}, {"maxLength": 3})}

    def any(self, depth=0):
        makers = (self.string, self.number, self.simple) if depth > 1 else (
            self.string, self.number, self.simple, self.array, self.object, self.object, self.composed)
        return self.one_of(*makers)(depth)

    def whole(self):
        return {**self.object(0), "$defs": {"name": {"type": "string", "maxLength": 6}}}


def parsed(text):
    """As JSON says, and no name twice."""
    def members(pairs):
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a name comes twice")
        return value
    return json.loads(text, object_pairs_hook=members)


@unittest.skipUnless(HAS_XGRAMMAR, "SKIPPED: this build has no xgrammar (scripts/xgrammar)")
class Answers(Asking):
    def setUp(self):
        super().setUp()
        self.ends = {}

    def check(self, schema, text, reason, refusal):
        self.ends[reason] = self.ends.get(reason, 0) + 1
        is_right = True
        try:
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(parsed(text))
        except (jsonschema.ValidationError, ValueError):
            is_right = False
        if reason in ("stop", "tool_calls"):
            self.assertTrue(is_right, (schema, text))
        elif reason == "content_filter":
            self.assertTrue(refusal, (schema, text))
            self.assertFalse(is_right, (schema, text, refusal))
        else:
            self.assertEqual(reason, "length")

    def choices(self, streams, body):
        """(content or arguments, finish_reason, refusal) of each choice."""
        status, text = self.ask("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 600 if COUNT > 40 else 200, "stream": streams, **body})
        self.assertEqual(status, 200, text)
        if not streams:
            for choice in json.loads(text)["choices"]:
                message = choice["message"]
                calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
                yield calls or [message["content"]], choice["finish_reason"], message.get("refusal")
            return
        texts, ends = {}, {}
        for line in re.findall(r"^data: (\{.*)$", text, re.M):
            for choice in json.loads(line)["choices"]:
                delta = choice["delta"]
                texts.setdefault(choice["index"], "")
                texts[choice["index"]] += delta.get("content") or ""
                if choice["finish_reason"]:
                    ends[choice["index"]] = (choice["finish_reason"], delta.get("refusal"))
        for index, (reason, refusal) in ends.items():
            yield [texts[index]], reason, refusal

    def test_answers_in_json(self):
        drafts = ("--mtp", "2") if "--mtp" in self.run_program("serve", "--help", program="DSPACK_DSRUN").stdout else ()
        for options in ((), drafts):
            self.start_server("--parallel", "4", *options)
            for seed in range(COUNT):
                schema = Schemas(seed).whole()
                form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
                ways = itertools.product((False, True), (0, 1.2), (1, 2)) if COUNT > 40 else ((seed % 2 == 0, 1.2, 2), (seed % 2 == 1, 0, 1))
                for streams, temperature, count in ways:
                    body = {"response_format": form, "temperature": temperature, "seed": seed, "n": count}
                    with self.subTest(seed=seed, streams=streams, temperature=temperature, options=options):
                        for texts, reason, refusal in self.choices(streams, body):
                            self.check(schema, texts[0], reason, refusal)
        print("finish_reasons of answers: %s" % self.ends, flush=True)
        self.assertGreater(self.ends["stop"], COUNT // 2)

    def test_calls_in_every_family(self):
        names = ["deepseek-v3", "deepseek-v3.1", "kimi-k2", *TEMPLATES]
        for number, name in enumerate(names):
            template = name
            if name in TEMPLATES:
                template = str(self.scratch / (name + ".jinja"))
                with open(template, "w", encoding="utf-8") as file:
                    file.write(TEMPLATES[name])
            self.start_server("--parallel", "4", "--chat-template", template)
            for seed in range(number, COUNT, len(names)):
                schema = Schemas(1000 + seed).whole()
                tools = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": seed % 2 == 0}}]
                for temperature in (0, 1.2):
                    body = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "temperature": temperature,
                            "seed": seed, "chat_template_kwargs": {"thinking": False}}
                    with self.subTest(seed=seed, name=name, temperature=temperature):
                        for texts, reason, refusal in self.choices(False, body):
                            self.check(schema, texts[0], reason, refusal)
        print("finish_reasons of calls: %s" % self.ends, flush=True)
        self.assertGreater(self.ends["tool_calls"], COUNT // 4)


if __name__ == "__main__":
    main()
