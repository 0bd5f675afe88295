"""Collects the chat templates of public repositories for compare_templates.py.

    python collect_templates.py OUT CLONE ...

CLONE is a git clone, in a folder named OWNER+NAME or below one. Templates are files *.jinja, and strings in JSON and in
the source of programs, that use `messages` and write a question down. Writes each into OUT, once, and prints a line for
it, as in ../../data/text/public_templates.tsv: repository, path, commit, SHA-256. Needs transformers.
"""
import ast
import hashlib
import json
import pathlib
import re
import subprocess
import sys

from chat_cases import assistant, render_error, user

QUESTIONS = ([user("Hello")], [user("Hello"), assistant("x"), user("y")])
NOT_READ = (".html", ".yml", ".yaml", ".liquid", ".css", ".svg")


def git(clone, *arguments):
    return subprocess.run(["git", "-C", clone, *arguments], stdout=subprocess.PIPE, check=False).stdout.decode("utf-8", "replace")


def json_strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from json_strings(item)


def python_strings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def unescaped(literal):
    try:
        return json.loads('"' + literal.replace("\\'", "'").replace("\n", "\\n") + '"')
    except ValueError:
        return literal


def quoted_strings(text):
    """Of languages like C: in double quotes, also several in a row, in single quotes, raw ones, and of many lines."""
    for run in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*\+?\s*"(?:[^"\\\n]|\\.)*")*', text):
        yield "".join(unescaped(part) for part in re.findall(r'"((?:[^"\\\n]|\\.)*)"', run[0]))
    for single in re.finditer(r"'((?:[^'\\\n]|\\.)*)'", text):
        yield unescaped(single[1].replace('"', '\\"').replace('\\\\"', '\\"'))
    for raw in re.finditer(r'R"(\w*)\((.*?)\)\1"', text, re.DOTALL):
        yield raw[2]
    for lines in re.finditer(r'(?:"""|`)(.*?)(?:"""|`)', text, re.DOTALL):
        yield lines[1].strip("\n")


def strings(path, text):
    try:
        if path.endswith((".jinja", ".jinja2", ".j2")):
            return [text]
        if path.endswith(".json"):
            return list(json_strings(json.loads(text)))
        if path.endswith(".py"):
            return list(python_strings(ast.parse(text)))
    except (ValueError, SyntaxError):
        pass
    return list(quoted_strings(text))


def is_chat_template(source):
    if "{%" not in source or "messages" not in source or not 200 < len(source) < 100_000:
        return False
    texts = [render_error(source, messages, True, None, {"bos_token": "<B>", "eos_token": "<E>"})[0] for messages in QUESTIONS]
    return any(text and "Hello" in text for text in texts)


def main(out, *clones):
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    seen = set()
    for clone in clones:
        name = next(part.replace("+", "/") for part in reversed(pathlib.Path(clone).resolve().parts) if "+" in part)
        commit = git(clone, "rev-parse", "HEAD").strip()
        for found in git(clone, "grep", "-lI", "-e", "{%", "HEAD").splitlines():
            path = found.partition(":")[2]
            if path.endswith(NOT_READ):
                continue
            for source in strings(path, git(clone, "show", f"HEAD:{path}")):
                digest = hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()
                if digest in seen or not is_chat_template(source):
                    continue
                seen.add(digest)
                (folder / f"{digest[:16]}.jinja").write_text(source, encoding="utf-8", newline="")
                print(name, path, commit, digest, sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
