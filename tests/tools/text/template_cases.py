"""Random templates for the engine of chat templates, and what jinja2 as transformers sets it up makes of them.

    python template_cases.py OUT.json [--seed N] [--count N]

Writes the contexts and COUNT cases, one a line: a template, the number of its context, and the text, or null where
rendering fails (a quarter of the cases at most). Names and values have types, so that most expressions make sense; some
are of a random type. Left out is what docs/chat.md calls not supported, and texts with addresses of Python's objects.
Needs transformers.
"""
import argparse
import json
import random
import re

from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template

TEXTS = ["", "a", "user", "assistant", " x ", "a,b,,c", "Hello World", "one\n  two\n\nthree\n", "<think>x</think>y", "it's",
         '"q"', "你好", "🙂 ok", "12", "3.5", "-7", "\t", "a\\b", "abcabc", "snake_case", "…", "straße ΑΣ (ǆ)", "ÉCOLE d'été", "٣²", "½一",
         "a text of several words, to be cut somewhere"]
ROLES = ["system", "user", "assistant", "tool"]
CONTEXT_TYPES = {"text": ["bos_token", "name"], "number": ["count", "ratio"], "flag": ["add_generation_prompt", "thinking"],
                 "texts": ["words"], "numbers": ["nums"], "dicts": ["messages", "tools"], "dict": ["table", "messages[0]"],
                 "any": ["nothing", "missing", "messages[0].content", "messages[-1]['tool_calls']", "table.b"]}

ONE_OF = {
    "filters of a text": [
        "upper", "lower", "trim", "title", "capitalize", "string", "reverse", "first", "last", "length", "safe",
        "tojson", "safe | tojson", "truncate(9)", "truncate(12, true)", 'truncate(20, end="…", leeway=0)'],
    "methods of cases": ["upper", "lower", "title", "capitalize", "swapcase"],
    "formats of a number": [
        "%s", "%d.", "%r", "%5.2f|", "%-7d|", "%+.3e", "%05d", "%x", "%#o", "%g", "%08.3f", "% d", "%.0f", "%i%%", "%c", "%#X"],
    "formats of a text": [
        "%s-%s", "%s %% %r", "<%r|%s>", "%9s|%-9s|", "%.2s|%a", "%*s"],
    "JSON": [
        "", "", "(indent=2)", "(ensure_ascii=true)", "(sort_keys=true)", '(separators=(",", ":"))'],
    "fields": [
        "{}{}", "{0}-{1}-{0}", "{{{}}} {}", "{} {k}", "{1}{k}"],
    "filters of a number": [
        "abs", "round", "int", "float", "round(1)", 'round(method="ceil")', 'round(1, "floor")'],
    "types of anything": [
        "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable",
        "sequence", "true", "false", "callable"],
    "types": [
        "string", "number", "integer", "mapping", "iterable", "sequence", "float"],
    "tests of a number": [
        "odd", "even", "divisibleby 3", "divisibleby(2)", "eq 2", "gt 1", "lessthan(3)", "ge(0)", "in [1, 2]"],
    "tests of a text": [
        "lower", "upper", 'equalto "user"', 'in "abc"', "ne(name)", "sameas none"],
    "beginnings": [
        '"a"', '"<think>"', '("x", "u")'],
    "separators": [
        "", '","', '"b"', '",", 1', "none, 1"],
    "filters of texts": [
        "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "list", "reverse | list", "unique | list",
        'map("upper") | list', 'map("trim") | list', "select | list", 'reject("equalto", "a") | list'],
    "default": [
        "", ', default="none"'],
    "filters of numbers": [
        "sort", "sort(reverse=true)", "list", "reverse | list", "unique | list", 'select("odd") | list',
        'reject("gt", 1) | list', 'map("abs") | list', 'map("string") | map("int") | list'],
    "tests of attributes": [
        '"role", "equalto", "user"', '"content"', '"tool_calls", "defined"', '"role", "in", ["user", "tool"]'],
    "uses of a dict": [
        ".role", ".b", '["a"]', '.get("a")', '.get("zz", 3)', '["zz"]', ".values() | list", ".items() | list",
        " | items | list", " | dictsort", " | dictsort(reverse=true)"],
    "uses of a loop": [
        "previtem", "nextitem", "changed(count)", 'cycle(1, "b")'],
    "filters of a block": [
        "trim", "upper", "indent(2)", 'replace("a", "b")', "trim | length", "tojson"],
}


def make_context(rng):
    messages = []
    for i in range(rng.randint(1, 4)):
        message = {"role": rng.choice(ROLES), "content": rng.choice(TEXTS + [None, [{"type": "text", "text": "part"}]])}
        if rng.random() < 0.3:
            arguments = {"x": rng.randint(0, 9), "y": "好"}
            message["tool_calls"] = [{"id": f"c{i}", "function": {"name": "f", "arguments": arguments}}]
        messages.append(message)
    return {"messages": messages,
            "tools": [{"type": "function", "function": {"name": name, "parameters": {"n": [1, 2.5, None, True]}}}
                      for name in "fg"[:rng.randint(0, 2)]],
            "bos_token": "<s>", "name": rng.choice(TEXTS), "count": rng.randint(-3, 12),
            "ratio": rng.choice([0.5, -2.25, 1e20, 3.0]),
            "add_generation_prompt": rng.random() < 0.5, "thinking": rng.random() < 0.5, "nothing": None,
            "words": rng.choices(TEXTS, k=rng.randint(0, 4)), "nums": [rng.randint(-9, 9) for _ in range(rng.randint(0, 5))],
            "table": {key: rng.choice([1, "v", None, [1]]) for key in rng.sample(["b", "a", "B", "c d"], rng.randint(1, 4))}}


def quoted(text):
    for old, new in (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("'", "\\'")):
        text = text.replace(old, new)
    return f"'{text}'"


class Writer:
    """One template."""

    def __init__(self, rng):
        self.rng = rng
        self.scopes = [{kind: list(names) for kind, names in CONTEXT_TYPES.items()}]
        self.macros = []
        self.spaces = []
        self.loops = 0  # loops around, up to the next macro
        self.fresh = 0

    def one(self, *forms):
        return self.rng.choice(forms)

    def of(self, name):
        return self.rng.choice(ONE_OF[name])

    def maybe(self, chance):
        return self.rng.random() < chance

    def new_name(self):
        self.fresh += 1
        return self.one("v", "item", "x_") + str(self.fresh)

    def known(self, kind):
        names = [name for scope in self.scopes for name in scope.get(kind, [])]
        return self.rng.choice(names) if names else "missing"

    def expression(self, kind, depth):
        if self.maybe(0.025):
            kind = self.one("text", "number", "flag", "texts", "numbers", "dict", "dicts", "any")
        return getattr(self, kind)(depth)

    def value(self, depth):
        return self.expression(self.one("text", "text", "number", "flag", "texts", "numbers", "dict", "any"), depth)

    def sub(self, kind, depth):
        """An operand: with brackets if it is more than a name."""
        written = self.expression(kind, depth - 1)
        is_name = written.replace("_", "a").replace(".", "a").isalnum() and not written[0].isdigit()
        return written if is_name else f"({written})"

    def sure(self, kind, depth):
        """An operand of that type, to be cut: of another, jinja2 makes nothing where it is a constant, else an error."""
        return f"({getattr(self, kind)(depth - 1)})"

    def small(self):
        return str(self.rng.randint(-4, 6))

    def text(self, depth):
        if depth <= 0 or self.maybe(0.25):
            return self.known("text") if self.maybe(0.4) else quoted(self.rng.choice(TEXTS))
        t, n, s = (lambda: self.sub("text", depth)), (lambda: self.sub("number", depth)), self.small
        return self.rng.choice([
            lambda: f"{t()} ~ {self.sub(self.one('text', 'number', 'flag', 'any'), depth)}",
            lambda: f"{t()} + {t()}",
            lambda: f"{self.sure('text', depth)}[{s()}:{s()}]",
            lambda: f"{self.sure('text', depth)}[{self.one(s(), '')}:{self.one(s(), '')}:{self.one('-1', '2', '-2', '1')}]",
            lambda: f"{t()}[{self.one('0', '-1')}]",
            lambda: f"{t()} | {self.of('filters of a text')}",
            lambda: f"{t()}.{self.one('strip', 'lstrip', 'rstrip')}({self.one('', quoted(self.one('a', ' x', 'ab', chr(10))))})",
            lambda: f"{t()}.{self.of('methods of cases')}()",
            lambda: f"{t()}.replace({quoted(self.one('a', ' ', 'b', ''))}, {t()}{self.one('', ', 1')})",
            lambda: f"{t()} | replace({quoted(self.one('a', ' ', 'x'))}, {quoted(self.one('', 'zz', '-'))}{self.one('', ', 1')})",
            lambda: f"{t()}.{self.one('removeprefix', 'removesuffix')}({quoted(self.one('a', '<', 'y', 'user'))})",
            lambda: f"{t()} | indent({self.one('', '2', '2, true', 'width=3, blank=true', quoted('> '))})",
            lambda: f"{t()} if {self.sub('flag', depth)} else {t()}",
            lambda: f"{self.sub('texts', depth)} | join({self.one('', quoted(', '), quoted(chr(10)))})",
            lambda: f"{quoted(self.one(', ', '', '-'))}.join({self.sub('texts', depth)})",
            lambda: f"{self.sub(self.one('any', 'dict', 'numbers', 'dicts', 'texts', 'text'), depth)} | tojson{self.of('JSON')}",
            lambda: f"{self.sub('any', depth)} | default({t()}{self.one('', ', true')})",
            lambda: f"{quoted(self.of('formats of a text'))} | format({t()}, {self.sub('any', depth)})",
            lambda: f"{quoted('%(k)s %(n)06.2f')} {self.one('%', '| format')} " + f"({{'k': {t()}, 'n': {n()}}})",
            lambda: f"{quoted('%(k)s %(n)d')} | format(k={t()}, n={n()})",
            lambda: f"{quoted(self.of('formats of a number'))} % {n()}",
            lambda: f"{quoted(self.of('fields'))}.format({t()}, {n()}, k={self.sub('any', depth)})",
            lambda: f"{self.sub('any', depth)} | string",
            lambda: f"{self.sub(self.one('any', 'dict', 'numbers', 'flag'), depth)} | safe | tojson",
            lambda: f"{t()} * {self.one('0', '2', '3')}",
            lambda: f"{t()}.partition({quoted(self.one(',', 'b'))})[{self.one('0', '1', '2', '-1')}]",
            lambda: f"{t()}.zfill({self.one('0', '5')})",
            lambda: f"{self.sub('texts', depth)} | {self.one('first', 'last')}",
            lambda: self.macro_call(depth) or t(),
        ])()

    def number(self, depth):
        if depth <= 0 or self.maybe(0.25):
            if self.loops and self.maybe(0.4):
                return self.one("loop.index", "loop.index0", "loop.length", "loop.revindex", "loop.revindex0", "loop.depth")
            return self.known("number") if self.maybe(0.4) else self.one("0", "1", "2", "7", "-3", "1.5", "10_0", "2e3")
        n, t = (lambda: self.sub("number", depth)), (lambda: self.sub("text", depth))
        return self.rng.choice([
            lambda: f"{n()} {self.one('+', '-', '*', '+', '-')} {n()}",
            lambda: f"{n()} {self.one('/', '//', '%')} {self.one('2', '3', '-2', '0.5')}",
            lambda: f"{n()} ** {self.one('2', '0', '3')}",
            lambda: f"-{n()}",
            lambda: f"{self.sub(self.one('text', 'texts', 'dict', 'numbers', 'dicts'), depth)} | {self.one('length', 'count')}",
            lambda: f"{t()} | int{self.one('', '(5)')}",
            lambda: f"{t()} | float{self.one('', '(1.5)')}",
            lambda: f"{n()} | {self.of('filters of a number')}",
            lambda: f"{t()}.{self.one('find', 'rfind', 'count')}({quoted(self.one('a', 'b', '好'))})",
            lambda: f"{self.sub('numbers', depth)} | {self.one('sum', 'min', 'max', 'first', 'last', 'sum(start=2)')}",
            lambda: f"{self.sub('numbers', depth)}[{self.small()}]",
            lambda: f"{self.sub('numbers', depth)}.{self.one('count', 'index')}({n()})",
            lambda: f"{t()} | wordcount",
            lambda: f"{n()} if {self.sub('flag', depth)} else {n()}",
        ])()

    def flag(self, depth):
        if depth <= 0 or self.maybe(0.2):
            if self.loops and self.maybe(0.4):
                return self.one("loop.first", "loop.last", "not loop.last", "loop.previtem is defined", "loop.nextitem is defined")
            return self.known("flag") if self.maybe(0.6) else self.one("true", "false", "True")
        n, t, f, a = ((lambda kind=kind: self.sub(kind, depth)) for kind in ("number", "text", "flag", "any"))
        return self.rng.choice([
            lambda: f"{n()} {self.one('<', '>', '<=', '>=', '==', '!=')} {n()}",
            lambda: f"{t()} {self.one('==', '!=', '<', '>=')} {t()}",
            lambda: f"{n()} < {n()} <= {n()}",
            lambda: f"{t()} {self.one('in', 'not in')} {self.one(t, lambda: self.sub('texts', depth), lambda: self.sub('dict', depth))()}",
            lambda: f"{f()} {self.one('and', 'or')} {f()}",
            lambda: f"not {f()}",
            lambda: f"{a()} is {self.one('', 'not ')}{self.of('types of anything')}",
            lambda: f"{self.sub(self.one('text', 'number', 'texts', 'dict'), depth)} is {self.one('', 'not ')}{self.of('types')}",
            lambda: f"{n()} is {self.of('tests of a number')}",
            lambda: f"{t()} is {self.of('tests of a text')}",
            lambda: f"{t()}.{self.one('startswith', 'endswith')}({self.of('beginnings')})",
            lambda: f"{t()}.{self.one('isdigit', 'isdecimal', 'isnumeric', 'isalpha', 'isalnum', 'isspace', 'isascii', 'isupper', 'islower', 'istitle')}()",
            lambda: f"{self.sub('texts', depth)} == {self.sub('texts', depth)}",
        ])()

    def texts(self, depth):
        if depth <= 0 or self.maybe(0.3):
            some = ", ".join(quoted(self.rng.choice(TEXTS)) for _ in range(self.rng.randint(0, 3)))
            return self.known("texts") if self.maybe(0.5) else f"[{some}]"
        t, l = (lambda: self.sub("text", depth)), (lambda: self.sub("texts", depth))
        return self.rng.choice([
            lambda: f"[{self.text(depth - 1)}, {self.text(depth - 1)}]",
            lambda: f"{t()}.{self.one('split', 'rsplit')}({self.of('separators')})",
            lambda: f"{t()}.splitlines({self.one('', 'true')})",
            lambda: f"{l()} | {self.of('filters of texts')}",
            lambda: f"{l()} + {l()}",
            lambda: f"{self.sure('texts', depth)}[{self.small()}:{self.small()}]",
            lambda: f"{self.sure('texts', depth)}[::-1]",
            lambda: f"{t()} | list",
            lambda: f"{self.sub('dict', depth)} | list",
            lambda: f"{self.sub('dict', depth)}.keys() | list",
            lambda: f"{self.sub('dicts', depth)} | map(attribute={quoted('role')}{self.of('default')}) | list",
            lambda: f"{t()}.{self.one('partition')}({quoted(',')}) | list",
        ])()

    def numbers(self, depth):
        if depth <= 0 or self.maybe(0.3):
            return self.known("numbers") if self.maybe(0.6) else "[1, 2, 3]"
        n, l = (lambda: self.sub("number", depth)), (lambda: self.sub("numbers", depth))
        return self.rng.choice([
            lambda: f"[{self.number(depth - 1)}, {self.number(depth - 1)}]",
            lambda: f"range({self.one('3', '1, 4', '5, 0, -2', 'count', 'words | length', '0, 10, 4')}) | list",
            lambda: f"{l()} | {self.of('filters of numbers')}",
            lambda: f"{l()} + {l()}",
            lambda: f"{self.sure('numbers', depth)}[{self.small()}:]",
            lambda: f"{self.sub('texts', depth)} | map({quoted('length')}) | list",
            lambda: f"({self.number(depth - 1)}, {n()})",
        ])()

    def dict(self, depth):
        if depth <= 0 or self.maybe(0.4):
            made = self.one("{}", "{'a': 1}", "{'k': [1, {'n': none}], 2: 'two'}", "{'role': 'user', 'content': '<&>'}")
            return self.known("dict") if self.maybe(0.6) else made
        return self.rng.choice([
            lambda: f"{{{quoted(self.one('a', 'b'))}: {self.value(depth - 1)}, {quoted('c')}: {self.text(depth - 1)}}}",
            lambda: f"dict(a={self.value(depth - 1)}, b={self.number(depth - 1)})",
            lambda: f"dict({self.sub('dict', depth)}, z={self.number(depth - 1)})",
            lambda: f"{self.sub('dict', depth)}.copy()",
            lambda: f"{self.sub('dicts', depth)} | {self.one('first', 'last')}",
            lambda: f"{self.sub('dicts', depth)}[{self.one('0', '-1')}]",
        ])()

    def dicts(self, depth):
        if depth <= 0 or self.maybe(0.5):
            return self.known("dicts")
        return self.rng.choice([
            lambda: f"{self.sub('dicts', depth)} | {self.one('selectattr', 'rejectattr')}({self.of('tests of attributes')}) | list",
            lambda: f"{self.sure('dicts', depth)}[{self.small()}:]",
            lambda: f"[{self.sub('dict', depth)}]",
            lambda: f"{self.sub('dicts', depth)} | sort(attribute={quoted('role')})",
        ])()

    def any(self, depth):
        if depth <= 0 or self.maybe(0.3):
            made = self.one("none", "[]", "''", "0", "missing", "{}", "()", "(1,)", "missing.deep")
            return self.known("any") if self.maybe(0.7) else made
        return self.rng.choice([
            lambda: f"{self.sub('dict', depth)}{self.of('uses of a dict')}",
            lambda: f"{self.sub('text', depth)} or {self.sub('any', depth)}",
            lambda: f"{self.sub('any', depth)} and {self.sub('number', depth)}",
            lambda: f"{self.sub('any', depth)} if {self.sub('flag', depth)}",
            lambda: f"{self.sub('dict', depth)} | attr({quoted('role')})",
            lambda: f"{self.sub('dicts', depth)} | map(attribute={quoted(self.one('content', 'function.name', 'tool_calls.0.id'))}) | list",
            lambda: f"[{self.value(depth - 1)}, {self.value(depth - 1)}]",
            lambda: f"loop.{self.of('uses of a loop')}" if self.loops else "count",
            lambda: self.known("space") if self.spaces else "nothing",
            lambda: self.value(depth - 1),
        ])()

    def macro_call(self, depth):
        if not self.macros:
            return ""
        name, parameters = self.rng.choice(self.macros)
        given = parameters[:self.rng.randint(0, len(parameters))]
        by_place = self.rng.randint(0, len(given))
        words = [("" if i < by_place else f"{each}=") + self.text(depth - 1) for i, each in enumerate(given)]
        return f"{name}({', '.join(words)})"

    def tag(self, inside):
        left, right = self.one("", "", "", "-", "-", "+"), self.one("", "", "", "-", "-", "+")
        return f"{{%{left}{self.one(' ', ' ', '')}{inside} {right}%}}" + self.one("", "", "\n", "\n", "\n  ", " ")

    def printed(self, inside):
        return f"{{{{{self.one('', '', '', '-')} {inside} {self.one('', '', '', '-')}}}}}"

    def body(self, depth, scope=True):
        if scope:
            self.scopes.append({})
        out = "".join(self.statement(depth - 1) for _ in range(self.rng.randint(1, 3)))
        if scope:
            self.scopes.pop()
        return out

    def declare(self, kind, name):
        self.scopes[-1].setdefault(kind, []).append(name)

    def statement(self, depth):
        print_one = lambda: self.printed(self.value(3)) + self.one("", "\n", " ", "\n\n", "  \n")
        data = lambda: self.one("text ", "\n", "  ", "<|im_start|>", "{ ", "% ", "\t", "你好 ", "#", "{# note #}",
                                "{#- note -#}\n", "a\n  b\n", "'\"")
        if depth <= 0:
            return self.one(print_one, print_one, data)()
        way = self.one("print", "print", "print", "data", "data", "branch", "branch", "loop", "loop", "assign", "assign", "block_assign", "space",
                       "macro", "call", "filtered", "with_", "raw", "generation", "raising", "leave")
        if way in ("print", "data"):
            return print_one() if way == "print" else data()
        return getattr(self, way)(depth)

    def branch(self, depth):
        out = self.tag(f"if {self.expression(self.one('flag', 'flag', 'any'), 2)}") + self.body(depth, scope=False)
        if self.maybe(0.3):
            out += self.tag(f"elif {self.flag(2)}") + self.body(depth, scope=False)
        if self.maybe(0.5):
            out += self.tag("else") + self.body(depth, scope=False)
        return out + self.tag("endif")

    def loop(self, depth):
        kind, of = self.one(("text", "texts"), ("number", "numbers"), ("dict", "dicts"), ("pair", "dict"), ("text", "text"))
        self.scopes.append({})
        source = self.expression(of, 2)
        if kind == "pair":
            key, value = self.new_name(), self.new_name()
            target, source = f"{key}, {value}", f"({source}){self.one('.items()', ' | items', ' | dictsort')}"
            self.declare("text", key)
            self.declare("any", value)
        else:
            target = self.new_name()
            self.declare(kind, target)
        around, self.loops = self.loops, 0
        condition = f" if {self.flag(2)}" if self.maybe(0.2) and " if " not in source else ""
        self.loops = around + 1
        out = self.tag(f"for {target} in {source if ' if ' not in source else '(' + source + ')'}{condition}") + self.body(depth)
        self.scopes.pop()
        self.loops = around
        if self.maybe(0.2):
            out += self.tag("else") + self.body(depth)
        return out + self.tag("endfor")

    def assign(self, depth):
        name, kind = self.new_name(), self.one("text", "number", "flag", "texts", "numbers", "dict", "any")
        if self.maybe(0.15):
            other = self.new_name()
            out = self.tag(f"set {name}, {other} = {self.text(2)}, {self.sub('number', 2)}")
            self.declare("text", name)
            self.declare("number", other)
            return out
        out = self.tag(f"set {name} = {self.expression(kind, 3)}")
        self.declare(kind, name)
        return out

    def block_assign(self, depth):
        name = self.new_name()
        out = self.tag(f"set {name}{self.one('', '', ' | trim', ' | upper')}") + self.body(depth) + self.tag("endset")
        self.declare("text", name)
        return out

    def space(self, depth):
        if self.spaces and self.maybe(0.6):
            return self.tag(f"set {self.rng.choice(self.spaces)} = {self.text(2)}")
        name = "ns" + str(self.fresh)
        self.fresh += 1
        out = self.tag(f"set {name} = namespace(t={self.text(1)}, n={self.number(1)})")
        if len(self.scopes) == 1:
            self.spaces.append(f"{name}.t")
            self.declare("text", f"{name}.t")
            self.declare("number", f"{name}.n")
            self.declare("space", f"{name}.n")
        return out

    def macro(self, depth):
        if self.loops or len(self.scopes) > 1:
            return self.assign(depth)
        name, parameters = "m" + str(self.fresh), [self.new_name() for _ in range(self.rng.randint(0, 2))]
        self.fresh += 1
        written = [each + (f"={quoted(self.rng.choice(TEXTS))}" if i or self.maybe(0.5) else "")
                   for i, each in enumerate(parameters)]
        self.scopes.append({"text": parameters})
        caller = self.printed("caller() if caller") if self.maybe(0.7) else ""
        out = self.tag(f"macro {name}({', '.join(written)})") + self.body(depth) + caller + self.tag("endmacro")
        self.scopes.pop()
        self.macros.append((name, parameters))
        return out

    def call(self, depth):
        if not self.macros:
            return self.macro(depth)
        around, self.loops = self.loops, 0
        out = self.tag(f"call {self.macro_call(2)}") + self.body(depth) + self.tag("endcall")
        self.loops = around
        return out

    def filtered(self, depth):
        around, self.loops = self.loops, 0
        out = self.tag(f"filter {self.of('filters of a block')}") + self.body(depth) + self.tag("endfilter")
        self.loops = around
        return out

    def with_(self, depth):
        name = self.new_name()
        value = self.text(2)
        self.scopes.append({"text": [name]})
        out = self.tag(f"with {name} = {value}") + self.body(depth, scope=False) + self.tag("endwith")
        self.scopes.pop()
        return out

    def raw(self, depth):
        return "{% raw %}" + self.one("{{ x }}", " {% if %}\n", "{# c #}", "") + self.one("{% endraw %}", "{%- endraw -%}\n")

    def generation(self, depth):
        around, self.loops = self.loops, 0
        out = self.tag("generation") + self.body(depth) + self.tag("endgeneration")
        self.loops = around
        return out

    def raising(self, depth):
        condition = f"{self.flag(2)} and {self.flag(1)}"
        return self.tag(f"if {condition}") + f"{{{{ raise_exception({self.text(1)}) }}}}" + self.tag("endif")

    def leave(self, depth):
        if not self.loops:
            return self.branch(depth)
        return self.tag(f"if {self.flag(2)}") + self.tag(self.one("break", "continue")) + self.tag("endif")


def render(template, context):
    try:
        return compile_template(template).render(**json.loads(json.dumps(context)))
    except Exception:  # the sandbox passes on whatever an expression raises
        return None


def printable(text):
    strange = (" object at 0x", "<built-in", "<function", "<class", "<Macro", "<Namespace", "dict_", "\0")
    return text is None or (len(text) < 1500 and not any(mark in text for mark in strange)
                            and not re.search("[0-9]{17}", text))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    contexts = [make_context(rng) for _ in range(12)]
    cases, failed = [], 0
    while len(cases) < options.count:
        writer = Writer(rng)
        template = "".join(writer.statement(3) for _ in range(rng.randint(2, 5)))
        at = rng.randrange(len(contexts))
        if not 20 < len(template) < 900:
            continue
        text = render(template, contexts[at])
        if not printable(text) or text == "" or text is None and failed >= len(cases) / 4:
            continue
        failed += text is None
        cases.append({"template": template, "context": at, "text": text})
    lines = [json.dumps(each, ensure_ascii=False) for each in cases]
    heads = [json.dumps(each, ensure_ascii=False) for each in contexts]
    with open(options.out, "w", encoding="utf-8") as file:
        file.write('{"contexts": [\n' + ",\n".join(heads) + '\n],\n"cases": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(cases)} cases, of which {failed} fail")


if __name__ == "__main__":
    main()
