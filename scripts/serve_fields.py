#!/usr/bin/env python3
"""Writes the fields of requests and the keywords of schemas, which a running dsrun serve describes, as tables of docs/serve.md.

    curl -s localhost:8080/openapi.json | scripts/serve_fields.py docs/serve.md

replaces what stands between the marks of that file. tests/e2e/test_serve_fields.py checks that it agrees."""

import json
import pathlib
import sys
import textwrap

BEGIN, END = "<!-- fields: scripts/serve_fields.py -->\n", "<!-- end of fields -->\n"
SCHEMAS_BEGIN, SCHEMAS_END = "<!-- schemas: scripts/serve_fields.py -->\n", "<!-- end of schemas -->\n"
SCHEMAS = {"held": "**Held**: no token is chosen that breaks it.",
           "checked": "**Checked**: the finished answer is looked at, and a fault is told.",
           "remark": "**Remarks**, which say nothing of values.", "refused": "**Refused** with status 400 and the place."}
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


def schema_tables(description):
    """Markdown: for each treatment its keywords; those of which something is to be known have a line of their own."""
    text = ""
    for treatment, head in SCHEMAS.items():
        text += head + "\n\n| keyword | |\n|---|---|\n"
        plain, rows = [], []
        for keyword in description["x-schemas"]["keywords"]:
            if keyword["treatment"] == treatment:
                said = keyword.get("description", "")
                if not said:
                    plain.append(keyword["name"])
                elif said == "likewise":
                    rows[-1][0].append(keyword["name"])
                else:
                    rows.append(([keyword["name"]], said))
        for names, said in rows + ([(plain, "")] if plain else []):
            text += "| %s | %s |\n" % (", ".join("`%s`" % name for name in names), said)
        text += "\n"
    formats = "Formats: %s." % ", ".join(description["x-schemas"]["formats"])
    return text + textwrap.fill(formats, 120, break_on_hyphens=False) + "\n\n"


def between(document, begin, end, text):
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + "\n" + text + end + after


def replaced(document, description):
    document = between(document, SCHEMAS_BEGIN, SCHEMAS_END, schema_tables(description))
    return between(document, BEGIN, END, tables(description))


def main():
    path = pathlib.Path(sys.argv[1])
    path.write_text(replaced(path.read_text(encoding="utf-8"), json.load(sys.stdin)), encoding="utf-8")


if __name__ == "__main__":
    main()
