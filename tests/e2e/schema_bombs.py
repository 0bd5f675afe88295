"""Schemas that ask for more time or memory than an answer is worth: forty kinds."""

TEXT = {"type": "string"}


def tower(levels, make):
    """Definitions of which each is made of the next one, and the last one is a string."""
    steps = {"d%d" % i: make({"$ref": "#/$defs/d%d" % (i + 1)}) for i in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, "d%d" % levels: TEXT}}


def nested(levels, make, inner=None):
    schema = inner or TEXT
    for _ in range(levels):
        schema = make(schema)
    return schema


def properties(count, each, **more):
    return {"type": "object", "properties": {"p%d" % i: each(i) if callable(each) else each for i in range(count)}, **more}


def rings(*lengths):
    """Lists within lists that must be of several kinds, which come round after different numbers of steps."""
    steps = {}
    for length in lengths:
        for i in range(length):
            steps["r%d_%d" % (length, i)] = {"type": "array", "items": {"$ref": "#/$defs/r%d_%d" % (length, (i + 1) % length)}}
    return {"allOf": [{"$ref": "#/$defs/r%d_0" % length} for length in lengths], "$defs": steps}


def pattern(text):
    return {"type": "string", "pattern": text}


def schema_bombs():
    pair = lambda each: {"type": "object", "properties": {"a": each, "b": each}, "required": ["a", "b"]}
    return {
        "wide": {"enum": ["value %d" % i for i in range(100000)]},
        "pairs": tower(30, pair),
        "many items": {"type": "array", "items": TEXT, "minItems": 10 ** 9, "maxItems": 10 ** 9},
        "long": {"type": "string", "maxLength": 10 ** 12},
        "long within the bounds": properties(40, {"type": "string", "minLength": 1000, "maxLength": 1 << 20}),
        "repeats of repeats": pattern("^(([a-z]{1,100}){1,100}){1,100}$"),
        "backtracking": pattern("^(a+)+$"),
        "backtracking, with look-ahead": pattern("^(?=(a+)+$)(a|aa)+$"),
        "determinised": pattern("(a|b)*a(a|b){40}"),
        "the middle of a text": properties(20, pattern("^.{0,4000}x.{0,4000}$")),
        "long patterns": properties(20, lambda i: pattern("^(?:[a-z]{1,%d}|[0-9]{1,10})$" % (360 + i))),
        "all letters": properties(20, lambda i: pattern("^\\p{L}{1,%d}$" % (40 + i))),
        "a pattern of 20 kB": pattern("^" + "(a|b)" * 4000 + "$"),
        "groups": pattern("(" * 200 + "a" + ")" * 200),
        "optional": properties(550, {"type": "integer"}),
        "optional and counted": properties(300, {"type": "integer"}, minProperties=100, maxProperties=200),
        "free names": properties(40, TEXT, additionalProperties={"type": "integer"}),
        "free names, long": {"type": "object", "properties": {"k" * 300 + str(i): TEXT for i in range(60)}, "additionalProperties": True},
        "names by patterns": {"type": "object", "patternProperties": {"^%s.{1,18}$" % c: TEXT for c in "abcdefghijklmnop"}},
        "many members": {"type": "object", "minProperties": 4096, "additionalProperties": {"type": "boolean"}},
        "terminal": pattern("\x1b[2J("),
        "ambiguous": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}} for _ in range(20)]}}},
        "all of a tower": tower(30, lambda each: {"allOf": [each, each]}),
        "any of a tower": tower(30, lambda each: {"anyOf": [each, each]}),
        "one of a tower": tower(30, lambda each: {"oneOf": [each, {"type": "null"}]}),
        "if of a tower": tower(30, lambda each: {"if": each, "then": each, "else": each}),
        "not of a tower": tower(31, lambda each: {"not": each}),
        "combinations": {"allOf": [{"anyOf": [{"required": ["p%d" % (4 * i + way)]} for way in range(4)]} for i in range(12)]},
        "conditions": {"allOf": [{"if": {"required": ["a%d" % i]}, "then": {"required": ["b%d" % i]}} for i in range(40)]},
        "rings": rings(2, 3, 5, 7, 11, 13, 17),
        "enumerations of each other": {"allOf": [{"enum": list(range(i, 150 + i))} for i in range(6)]},
        "large values": {"enum": [{"k%d" % i: list(range(100)) for i in range(8)}, ["x" * 1000] * 40]},
        "tuples": {"type": "array", "prefixItems": [{"type": "array", "prefixItems": [TEXT] * 20} for _ in range(25)]},
        "lists of lists": nested(6, lambda each: {"type": "array", "items": each, "minItems": 1, "maxItems": 4096}),
        "unlike items": {"type": "array", "items": {"type": "integer"}, "minItems": 4000, "uniqueItems": True},
        "multiples": {"type": "integer", "multipleOf": 1021},
        "multiples in a range": properties(100, {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 7000}),
        "numbers of forty digits": properties(80, {"type": "number", "minimum": -(10 ** 39) + 7, "exclusiveMaximum": 10 ** 39 - 3}),
        "one of many": {"oneOf": [properties(1, {"const": i}) for i in range(200)]},
        "deep": nested(5000, lambda each: {"type": "array", "items": each}),
    }
