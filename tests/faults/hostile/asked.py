"""Requests whose HTTP is in order, and whose bodies are not: fields and their values, UTF-8, JSON that is large or deep, schemas
that ask for endless work. Each is answered by one status out of those that are right, and the connection goes on."""

import json

import faults
from hostile.exchange import Sent

OK, BAD = [[200, 404]], [[400, 404]]
EITHER = OK + BAD
TOO_LONG = [[413]]
CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hello"}]
TIMES = 10 if faults.LONG else 1


def sent(name, body, statuses, path=CHAT, fields=b"Content-Type: application/json"):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: %d\r\n\r\n" % (path.encode(), fields, len(body))
    return Sent(name, head + body, statuses)


def chat(**fields):
    return {"messages": ASK, "max_tokens": 2, "temperature": 0, **fields}


def fields():
    """What no field may be, and numbers at their ends."""
    tool = lambda **function: {"tools": [{"type": "function", "function": {"name": "f", **function}}]}
    bad = {
        "n 0": {"n": 0}, "n -1": {"n": -1}, "n 2^31": {"n": 2 ** 31}, "n 2^64": {"n": 2 ** 64}, "n 1e9": {"n": 1e9},
        "n as text": {"n": "2"}, "n as list": {"n": [1]}, "temperature -1": {"temperature": -1},
        "temperature 1e300": {"temperature": 1e300}, "temperature as text": {"temperature": "hot"},
        "top_p 2": {"top_p": 2}, "top_p -1": {"top_p": -1}, "top_k -7": {"top_k": -7},
        "min_p 2": {"min_p": 2}, "max_tokens 2^70": {"max_tokens": 2 ** 70}, "max_tokens as text": {"max_tokens": "9"},
        "max_tokens -7": {"max_tokens": -7}, "stop as number": {"stop": 5}, "stop of numbers": {"stop": [5]},
        "stop of 100,000": {"stop": ["x%d" % i for i in range(100_000)]}, "stop of 1 MB": {"stop": ["x" * 1_000_000]},
        "logit_bias as list": {"logit_bias": [1]}, "logit_bias of words": {"logit_bias": {"a": 1}},
        "logit_bias of 2^64": {"logit_bias": {str(2 ** 64): 1}}, "logit_bias beyond the vocabulary": {"logit_bias": {"999999": 1}},
        "top_logprobs 10^9": {"logprobs": True, "top_logprobs": 10 ** 9},
        "top_logprobs -1": {"logprobs": True, "top_logprobs": -1}, "logprobs as number": {"logprobs": 5},
        "stream as text": {"stream": "yes"}, "messages as text": {"messages": "hello"}, "messages of texts": {"messages": ["a"]},
        "messages empty": {"messages": []}, "no role": {"messages": [{"content": "x"}]},
        "role of a number": {"messages": [{"role": 5, "content": "x"}]},
        "content of a number": {"messages": [{"role": "user", "content": 5}]},
        "content of numbers": {"messages": [{"role": "user", "content": [5]}]},
        "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
        "tools as text": {"tools": "f"}, "tool_choice as number": {"tool_choice": 5},
        "tool_choice of nothing": {"tool_choice": "required"},
        "a tool's name with an escape": {**tool(), "tools": [{"type": "function", "function": {"name": "\x1b[2J"}}],
                                         "tool_choice": "required"},
        "response_format as text": {"response_format": "json"}, "response_format unknown": {"response_format": {"type": "\x1b[2J"}},
        "stop_token_ids beyond the vocabulary": {"stop_token_ids": [2 ** 32]}, "min_tokens -1": {"min_tokens": -1},
        "chat_template_kwargs as text": {"chat_template_kwargs": "x"},
        "chat_template_kwargs that hide the messages": {"chat_template_kwargs": {"messages": []}},
        "seed as list": {"seed": [1]},
    }
    good = {
        "an unknown field of 1 MB": {"\x1b[2J" * 10: "x" * 1_000_000}, "max_tokens 2^32": {"max_tokens": 2 ** 32},
        "seed 2^70": {"seed": 2 ** 70}, "seed -1": {"seed": -1}, "a model of 1 MB": {"model": "m" * 1_000_000},
        "a model with an escape": {"model": "\x1b[2J\u202e"}, "null everywhere": {name: None for name in (
            "n", "stop", "tools", "seed", "logit_bias", "response_format", "stream", "user", "tool_choice", "top_p")},
        "ten thousand parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 10_000}]},
        "a user of an object": {"user": {"a": [1]}}, "top_p 0": {"top_p": 0}, "logit_bias 1e9": {"logit_bias": {"1": 1e9}},
        "tools of texts": {"tools": ["f"]},
    }
    texts = {"prompt of a number": {"prompt": 5}, "prompt beyond the vocabulary": {"prompt": [2 ** 40]},
             "prompt of mixed parts": {"prompt": [1, "a"]}, "best_of": {"prompt": "x", "best_of": 10 ** 9},
             "no prompt": {}, "ten thousand prompts of four million tokens": {"prompt": [[1] * 500] * 10_000, "n": 8}}
    return [*(sent(name, chat(**changed), BAD) for name, changed in bad.items()),
            *(sent(name, chat(**changed), EITHER) for name, changed in good.items()),
            *(sent(name, dict({"max_tokens": 1}, **body), BAD, "/v1/completions") for name, body in texts.items()),
            sent("tokens that are none", {"tokens": [-1, 2 ** 64, "a"]}, BAD, "/detokenize"),
            sent("tokens of a text", {"tokens": "abc"}, BAD, "/detokenize"),
            sent("content of a number", {"content": 5}, BAD, "/tokenize"),
            sent("no max_tokens of messages", {"messages": ASK, "max_tokens": 0}, BAD, "/v1/messages"),
            sent("system of a number", {"messages": ASK, "max_tokens": 1, "system": 5}, BAD, "/v1/messages"),
            sent("input of a number", {"input": 5}, BAD, "/v1/responses")]


def texts():
    """Bytes that are no UTF-8, and characters that rule terminals or have a meaning for templates."""
    quoted = lambda raw: b'{"messages":[{"role":"user","content":"a' + raw + b'b"}],"max_tokens":2,"temperature":0}'
    broken = {"a lone continuation": b"\x80", "a start alone": b"\xc3", "overlong, of two": b"\xc0\xaf",
              "overlong, of three": b"\xe0\x80\xaf", "overlong, of four": b"\xf0\x80\x80\xaf", "a surrogate": b"\xed\xa0\x80",
              "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80", "above U+10FFFF": b"\xf4\x90\x80\x80",
              "five bytes": b"\xf8\x88\x80\x80\x80", "six bytes": b"\xfc\x84\x80\x80\x80\x80", "0xFE": b"\xfe", "0xFF": b"\xff",
              "Latin-1": b"caf\xe9", "two of three bytes": b"\xe2\x82", "three of four bytes": b"\xf0\x9f\x98",
              "a NUL": b"\0", "a line feed": b"\n", "an escape": b"\x1b[2J", "DEL behind a broken start": b"\xe2\x7f",
              "a high surrogate escaped": b"\\ud800", "a low surrogate escaped": b"\\udc00", "surrogates reversed": b"\\ude00\\ud83d",
              "an unknown escape": b"\\x41", "half an escape": b"\\u12", "an escape without end": b"\\u"}
    sound = {"a NUL escaped": b"\\u0000", "an escape escaped": b"\\u001b[2J", "right to left": "\u202e\u2066".encode(),
             "separators": "\u2028\u2029".encode(), "no character": "\ufffe\uffff".encode(), "a hundred accents": ("e" + "\u0301" * 100).encode(),
             "the last one": "\U0010ffff".encode(), "private": "\ue000\U000f0000".encode(), "a mark of order": "\ufeff".encode(),
             "marks of the model": "<｜User｜><｜end▁of▁sentence｜><think>".encode(), "emoji": "👩‍👩‍👧‍👦".encode(), "tags": "\U000e0041\U000e007f".encode()}
    body = json.dumps(chat())
    return [*(sent(name, quoted(raw), BAD) for name, raw in broken.items()),
            *(sent(name, quoted(raw), OK) for name, raw in sound.items()),
            sent("a mark of order before it", b"\xef\xbb\xbf" + body.encode(), EITHER),
            sent("UTF-16", body.encode("utf-16"), BAD), sent("UTF-32", body.encode("utf-32"), BAD),
            sent("UTF-7", body.encode("utf-7").replace(b"{", b"+AHs-"), BAD),
            sent("broken in an unknown field", body.encode()[:-1] + b',"x":"\xff"}', BAD),
            sent("broken in a key", body.encode()[:-1] + b',"\xff":1}', BAD)]


def bombs():
    """JSON that is large, deep, or nearly JSON."""
    open_chat = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"temperature":0'
    inside = lambda text: open_chat + b',"x":' + text + b"}"
    large = 300_000 * TIMES
    cases = {
        "lists without an end": b"[" * large, "objects without an end": b'{"a":' * large,
        "lists in lists": b"[" * large + b"]" * large, "both in turn": b'[{"a":' * large + b"1" + b"}]" * large,
        "65 deep inside": inside(b"[" * 65 + b"]" * 65), "a thousand deep inside": inside(b'{"a":' * 1000 + b"1" + b"}" * 1000),
        "nothing": b"", "a space": b" ", "a number": b"5", "a text": b'"a"', "null": b"null", "a list": b"[]", "half an object": b'{"messages":',
        "two objects": open_chat + b"}{}", "a comma too many": open_chat + b",}", "single quotes": b"{'messages':[]}",
        "a comment": open_chat + b"/* a */}", "NaN": inside(b"NaN"), "Infinity": inside(b"-Infinity"), "no quotes": b"{messages:[]}",
        "a number above all": inside(b"1e999"), "a point without digits": inside(b"1."), "zeros before a number": inside(b"007"),
        "a plus": inside(b"+1"), "a NUL behind it": open_chat + b"}\0", "XML": b"<messages/>", "a form": b"messages=hello&max_tokens=1",
        "messages of a million nulls": b'{"messages":[' + b"null," * large + b"null]}",
    }
    passable = {
        "a million nulls": inside(b"[" + b"null," * large + b"null]"),
        "a million keys": inside(b"{" + b",".join(b'"k%d":1' % number for number in range(large // 2)) + b"}"),
        "a key a million times": inside(b"{" + b'"k":1,' * large + b'"k":1}'),
        "messages twice": open_chat + b',"messages":[]}', "a number of a million digits": inside(b"1" * large),
        "a fraction of a million digits": inside(b"0." + b"1" * large), "an exponent of many digits": inside(b"1e-" + b"9" * 1000),
        "a million escapes": inside(b'"' + b"\\u0041" * large + b'"'), "a million backslashes": inside(b'"' + b"\\\\" * large + b'"'),
        "a key of a megabyte": inside(b'{"' + b"k" * large + b'":1}'), "a million spaces": open_chat + b" " * large + b"}",
        "64 deep inside": inside(b"[" * 62 + b"]" * 62),
        "a hundred thousand messages": b'{"max_tokens":1,"messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 100_000) + b"]}",
        "a hundred thousand tools": open_chat + b',"tools":[' + b",".join([b'{"type":"function","function":{"name":"f"}}'] * 100_000) + b"]}",
    }
    return [*(sent(name, body, BAD) for name, body in cases.items()),
            *(sent(name, body, EITHER) for name, body in passable.items())]


def nest(times, wrap, inner):
    for _ in range(times):
        inner = wrap(inner)
    return inner


def schemas():
    """Work without end, for whoever makes a grammar of them. Some are answered: they only look so."""
    text = {"type": "string"}
    pattern = lambda each: {"type": "string", "pattern": each}
    properties = lambda count, each: {"type": "object", "properties": {"p%d" % number: each for number in range(count)}}
    doubled = lambda each, last=text: {"$ref": "#/$defs/d0", "$defs": {"d30": last, **{
        "d%d" % number: each({"$ref": "#/$defs/d%d" % (number + 1)}) for number in range(30)}}}
    refused = {
        "values without number": {"enum": ["value %d" % number for number in range(100_000)]},
        "properties without number": properties(10_000, text), "alternatives without number": {"anyOf": [text] * 10_000},
        "a key of 100 kB": {"type": "object", "properties": {"k" * 100_000: text}},
        "a value of 100 kB": {"enum": ["v" * 100_000]}, "33 deep": nest(40, lambda each: {"type": "array", "items": each}, text),
        "64 deep": nest(100, lambda each: {"type": "array", "items": each}, text),
        "types listed often": nest(30, lambda each: {"type": ["object", "array"] * 4, "properties": {"a": each}, "items": each}
                                   if each is text else {"type": ["object", "null"] * 4, "properties": {"a": each}}, text),
        "a type a thousand times": {"type": ["string"] * 1000}, "a type that is none": {"type": "\x1b[2J"}, "no types": {"type": []},
        "a reference to a value": {"$ref": "#/default", "default": nest(20, lambda each: {"type": "array", "items": each}, text)},
        "a reference to itself": {"$ref": "#"}, "references in a ring": {"$ref": "#/$defs/a", "$defs": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "a reference to a file": {"$ref": "file:///etc/passwd"}, "a reference to a host": {"$ref": "http://localhost/schema"},
        "10^9 items": {"type": "array", "items": text, "minItems": 10 ** 9, "maxItems": 10 ** 9},
        "10^12 characters": {"type": "string", "maxLength": 10 ** 12}, "a length of -1": {"type": "string", "maxLength": -1},
        "a length of a text": {"type": "string", "maxLength": "9"}, "10^9 repeats": pattern("^a{999999999}$"),
        "2^32 + 1 repeats": pattern("^a{4294967297}$"), "repeats the wrong way": pattern("^a{9,1}$"), "a group without end": pattern("(" * 200),
        "a class without end": pattern("[" * 200),
        "a pattern of 1 kB": pattern("a" * 1000), "a pattern with an escape": pattern("\x1b[2J("),
        "patterns without number": properties(30, pattern("^a$")), "bounds the wrong way": {"type": "integer", "minimum": 5, "maximum": 1},
        "numbers in 590 ranges": {"anyOf": [
            {"type": "number", "minimum": -1.5e10 + number, "maximum": 1.5e17 + number} for number in range(590)]},
        "a format 590 times": {"type": "array", "items": {"anyOf": [{"type": "string", "format": "uri"}] * 590}},
        "half of 500 properties": {**properties(500, text), "minProperties": 250, "maxProperties": 300},
        "a number": 5, "a text that is no JSON": "{",
    }
    heavy = {
        "repeats in repeats": pattern("^(([a-z]{1,100}){1,100}){1,100}$"), "repeats five deep": pattern("^((((a{1,50}){1,50}){1,50}){1,50}){1,50}$"),
        "all that is no a": pattern(r"^[^\x00]{1,255}([^a]{1,255}){1,255}$"),
        "300 lengths in 4,096 items": {"type": "array", "minItems": 4096, "maxItems": 4096, "items": {
            "anyOf": [{"type": "string", "maxLength": number} for number in range(1, 300)]}},
    }
    odd = {
        "doubled objects": doubled(lambda each: {"type": "object", "properties": {"a": each, "b": each}, "required": ["a", "b"]}),
        "doubled alternatives": doubled(lambda each: {"anyOf": [each, each]}),
        "eightfold items": doubled(lambda each: {"type": "array", "prefixItems": [each] * 8, "items": False}),
        "ambiguous": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}] * 200}}},
        "to the left without end": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
                                                                    "b": {"anyOf": [{"$ref": "#/$defs/a"}, text]}}},
        "nothing fits": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}},
        "a look ahead": pattern("^(?=(a+)+$)(a|aa)+$"), "a reference back": pattern(r"^(a+)+\1$"), "not": {"not": {}},
        "bounds above all": {"type": "integer", "exclusiveMinimum": 2 ** 63 - 1}, "backtracking": pattern("^(a+)+$"), "determinised": pattern("(a|b)*a(a|b){40}"), "empty loops": pattern("^((((((a?)*)*)*)*)*)*$"),
        "sixty alternatives of nothing": pattern("^(%s)*$" % "|".join(["a*"] * 60)), "600 properties": properties(590, text),
        "4,096 items three deep": nest(3, lambda each: {"type": "array", "items": each, "minItems": 4096, "maxItems": 4096}, text),
        "4,096 properties": {"type": "object", "additionalProperties": text, "minProperties": 4096},
        "names of 4,096 characters": nest(30, lambda each: {"type": "object", "propertyNames": {"type": "string", "maxLength": 4096},
                                                            "additionalProperties": each}, text),
        "lengths of 4,096 in 590 properties": properties(590, {"type": "string", "minLength": 4000, "maxLength": 4096}),
        "twenty automatons": properties(20, pattern("^(a|b)*a(a|b){30}$")), "anything 500 times": {"anyOf": [{}] * 500},
        "keys that rule terminals": {"type": "object", "properties": {"\x1b[2J\u202e%d" % number: text for number in range(50)}},
    }
    as_format = lambda schema: chat(max_tokens=8, temperature=1, seed=1, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    return [*(sent(name, as_format(schema), BAD) for name, schema in refused.items()),
            *(sent(name, as_format(schema), EITHER) for name, schema in (heavy | odd).items()),
            sent("5,000 deep, as text", json.dumps(as_format("")).replace('""', '{"items":' * 5000 + "{}" + "}" * 5000).encode(), BAD)]
