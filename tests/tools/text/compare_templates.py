"""Compares dsrun with transformers on chat templates: every template of a folder, every conversation, with and without
the question for an answer, with and without tools.

    python compare_templates.py TEMPLATES DSRUN MODEL [--show N]

TEMPLATES holds *.jinja (other projects' templates are not copied here; docs/chat.md says where ours were from), MODEL is
a folder with a tokenizer, such as tests/data/tiny-v3. Needs transformers. Prints the counts and, of the first N
differences, both texts; exits 1 if there is one.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

from chat_cases import CONVERSATIONS, TOOLS, assistant, call, render_error, system, tool, user

MORE = [
    [system("s"), user("q"), assistant("a", reasoning_content="I think.\nSo."), user("r")],
    [user("q"), assistant("", reasoning_content="why", tool_calls=[call("get_weather", {"city": "Paris", "n": 2}, "call00001")]),
     tool('{"sky": "blue"}', tool_call_id="call00001", name="get_weather"), assistant("Blue."), user("Thanks!")],
    [system("s"), user("q"), assistant("", tool_calls=[call("a", {"x": [1, "ü", None]}, "123456789"), call("b", {}, "abcdefghi")]),
     tool("1", tool_call_id="123456789", name="a"), tool("2", tool_call_id="abcdefghi", name="b")],
    [user(" \n x \u3000 \t "), assistant("\n<think>\na\n</think>\n\nb\n"), user("e\u0301 👩‍👩‍👧 \u2028 \x7f")],
]


def ours(dsrun, model, template, messages, prompt, tools):
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({"messages": messages, "tools": tools}, file, ensure_ascii=False)
        file.flush()
        command = [dsrun, "tokenize", model, "--chat", file.name, "--text", "--chat-template", str(template)]
        result = subprocess.run(command + ([] if prompt else ["--dev", "no-question"]), capture_output=True)
    if result.returncode == 1:
        return None, result.stderr.decode()
    if result.returncode != 0:
        raise SystemExit(f"{template}: status {result.returncode}: {result.stderr.decode()}")
    return result.stdout.decode()[:-1], ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("templates", type=pathlib.Path)
    parser.add_argument("dsrun")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=5)
    options = parser.parse_args()
    config = json.loads((options.model / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = {key: config[key]["content"] if isinstance(config[key], dict) else config[key] for key in ("bos_token", "eos_token")}
    counts = collections.Counter()
    files = sorted(options.templates.glob("*.jinja"))
    for file in files:
        source = file.read_text(encoding="utf-8")
        for messages in CONVERSATIONS + MORE:
            for prompt, tools in ((True, None), (False, None), (True, TOOLS)):
                expected, why = render_error(source, messages, prompt, tools, tokens)
                got, said = ours(options.dsrun, options.model, file, messages, prompt, tools)
                kind = "both fail" if got is None and expected is None else "equal" if got == expected else "different"
                counts[kind] += 1
                if kind != "different":
                    continue
                counts[file.name] += 1
                if counts[kind] <= options.show:
                    print(f"{file.name}: {json.dumps(messages, ensure_ascii=False)}, question {prompt}, tools {tools is not None}\n"
                          f"  transformers: {expected!r} {why}\n  dsrun: {got!r} {said}")
    print(len(files), "templates;", ", ".join(f"{name}: {count}" for name, count in counts.items()))
    sys.exit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
