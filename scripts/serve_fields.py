#!/usr/bin/env python3
"""Writes the fields of requests, which a running dsrun serve describes, as the tables of docs/serve.md.

    curl -s localhost:8080/openapi.json | scripts/serve_fields.py docs/serve.md

replaces what stands between the two marks of that file. tests/e2e/test_serve_fields.py checks that it agrees."""

import json
import pathlib
import sys

BEGIN, END = "<!-- fields: scripts/serve_fields.py -->\n", "<!-- end of fields -->\n"
APIS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses",
        "messages": "/v1/messages"}
HEADS = {"obeyed": "**Obeyed:**", "harmless": "**Harmless**: no answer depends on them.",
         "refused": "**Refused** with status 400 and the field's name, unless the value asks for nothing:"}


def properties(description, path):
    body = description["paths"][path]["post"]["requestBody"]
    return body["content"]["application/json"]["schema"]["properties"]


def tables(description):
    """Markdown: a table for each treatment; names of which the same is said share a line."""
    lines = {treatment: {} for treatment in HEADS}  # what is said -> names -> APIs
    for api, path in APIS.items():
        for name, field in properties(description, path).items():
            said = (field.get("description", ""), field.get("x-unless", ""))
            lines[field["x-treatment"]].setdefault(said, {}).setdefault(name, []).append(api)
    text = ""
    for treatment, rows in lines.items():
        is_refused = treatment == "refused"
        text += "%s\n\n| field | of | |%s\n|---|---|---|%s\n" % (HEADS[treatment], " unless |" if is_refused else "",
                                                              "---|" if is_refused else "")
        for (said, unless), names in rows.items():
            by_apis = {}
            for name, apis in names.items():
                by_apis.setdefault(tuple(apis), []).append(name)
            for apis, same in by_apis.items():
                where = "all" if len(apis) == len(APIS) else ", ".join(apis)
                text += "| %s | %s | %s |%s\n" % (", ".join("`%s`" % name for name in same), where, said,
                                                  " %s |" % unless if is_refused else "")
        text += "\n"
    return text


def replaced(document, description):
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + tables(description) + END + after


def main():
    path = pathlib.Path(sys.argv[1])
    path.write_text(replaced(path.read_text(encoding="utf-8"), json.load(sys.stdin)), encoding="utf-8")


if __name__ == "__main__":
    main()
