"""Compares dsrun's template engine with transformers: every template of a folder, every conversation, with and without
the question for an answer, with tools, and with thinking asked for.

    python compare_templates.py TEMPLATES BENCH_TEMPLATES [--show N] [--each]

TEMPLATES holds *.jinja (other projects' templates are not copied here; public_templates.tsv says where ours were from),
BENCH_TEMPLATES is the program of tests/bench. Needs transformers. Prints the counts and, of the first N differences,
both texts; with --each a line for each template. Exits 1 if there is a difference.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

from chat_cases import CONVERSATIONS, TOOLS, assistant, call, render_error, system, tool, user

MORE = [
    [system("s"), user("q"), assistant("a", reasoning_content="I think.\nSo."), user("r")],
    [user("q"), assistant("", reasoning_content="why", tool_calls=[call("get_weather", {"city": "Paris", "n": 2}, "call00001")]),
     tool('{"sky": "blue"}', tool_call_id="call00001", name="get_weather"), assistant("Blue."), user("Thanks!")],
    [system("s"), user("q"), assistant("", tool_calls=[call("a", {"x": [1, "ü", None]}, "123456789"), call("b", {}, "abcdefghi")]),
     tool("1", tool_call_id="123456789", name="a"), tool("2", tool_call_id="abcdefghi", name="b")],
    [user(" \n x \u3000 \t "), assistant("\n<think>\na\n</think>\n\nb\n"), user("e\u0301 👩‍👩‍👧 \u2028 \x7f")],
]
TOKENS = {"bos_token": "<B>", "eos_token": "<E>"}
THINKING = {"thinking": True, "enable_thinking": True}
WAYS = ((True, None, {}), (False, None, {}), (True, TOOLS, {}), (True, None, THINKING))


def ours(program, cases):
    lines = (json.dumps({"template": str(file), "messages": messages, "tools": tools, "chat_template_kwargs": more,
                         "add_generation_prompt": prompt, **TOKENS}) for file, messages, prompt, tools, more in cases)
    said = subprocess.run([program], input="\n".join(lines), stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout
    return [json.loads(line) for line in said.split("\n") if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("templates", type=pathlib.Path)
    parser.add_argument("program")
    parser.add_argument("--show", type=int, default=5)
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args()
    counts, slowest = collections.Counter(), collections.Counter()
    files = sorted(options.templates.glob("*.jinja"))
    for file in files:
        source = file.read_text(encoding="utf-8")
        cases = [(file, messages, *way) for messages in CONVERSATIONS + MORE for way in WAYS]
        own = collections.Counter()
        for (_, messages, prompt, tools, more), said in zip(cases, ours(options.program, cases), strict=True):
            expected, why = render_error(source, messages, prompt, tools, {**TOKENS, **more})
            got = said.get("text")
            kind = "both fail" if got is None and expected is None else "equal" if got == expected else "different"
            own[kind] += 1
            for key in ("steps", "bytes", "compile_us", "render_us"):
                slowest[key] = max(slowest[key], said[key])
            if kind == "different" and counts[kind] + own[kind] <= options.show:
                print(f"{file.name}: {json.dumps(messages, ensure_ascii=False)}, question {prompt}, tools {tools is not None}, {more}\n"
                      f"  transformers: {expected!r} {why}\n  dsrun: {got!r} {said.get('error')}")
        counts += own
        if options.each:
            print(f"{file.name}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(own.items())))
    print(len(files), "templates;", ", ".join(f"{name}: {count}" for name, count in counts.items()))
    print("at most:", ", ".join(f"{key} {value:.0f}" for key, value in slowest.items()))
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
