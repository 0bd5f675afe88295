"""Headers of safetensors files and the index: of an ordinary checkpoint, read by `reshard` and `reshard inspect`."""

import json
import struct

import safetensors_io
from checkpoints import SHARDS, write_small
from common import INDEX
from hostile.cases import NUMBERS, PATHS, RESHARD, Case, is_number, places, replaced, title, value_at, without

ENTRY = {"dtype": "U8", "shape": [2, 2], "data_offsets": [0, 4]}


def repack(folder, source="source"):
    return (RESHARD, [folder / source, "--by", "expert", "--out", folder / "packed"])


def sound_again(test, folder):
    """The same command, once the source is sound, makes a repository: nothing was left that is in its way."""
    test.remove(folder / "source")
    write_small(folder / "source")
    program, arguments = repack(folder)
    test.assert_ok(test.run_program(*arguments, program=program))
    test.assert_ok(test.run_program("verify", folder / "packed"))


def with_shard(content):
    def prepare(folder):
        source = write_small(folder / "source")
        (source / SHARDS[1]).write_bytes(content)
        return [repack(folder), (RESHARD, ["inspect", source])]
    return prepare


def shard_case(name, content):
    return Case("header: " + name, with_shard(content), after=sound_again)


def broken_files():
    good = safetensors_io.with_length({"a": ENTRY}) + b"abcd"
    yield "empty", b""
    for length in (1, 7, 8, 20, len(good) - 1):
        yield "cut after %d bytes" % length, good[:length]
    yield "a byte too many", good + b"e"
    for length in (0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 8, 2**64 - 1):
        yield "length %d" % length, struct.pack("<Q", length) + good[8:]
    texts = {"an array": b"[]", "a number": b"5", "null": b"null", "a text": b'"a"', "two objects": b"{}{}",
             "zeros": bytes(64), "no UTF-8": b'{"\xff\xfe":1}', "an overlong form": b'{"\xc0\xae":1}',
             "half a surrogate": b'{"\\ud800":1}', "a comment": b"/* */{}", "a comma too many": b'{"a":1,}',
             "not a number": b'{"a":NaN}', "open": b'{"a":', "1e400": b'{"a":1e400}', "a NUL": b'{"a\0":1}',
             "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "deep arrays": b'{"a":' + b"[" * 500_000,
             "many empty arrays": b'{"a":[' + b"[]," * 2_000_000 + b"[]]}",
             "many numbers": b'{"a":{"dtype":"U8","data_offsets":[0,4],"shape":[' + b"1," * 4_000_000 + b"1]}}",
             "a long number": b'{"a":{"dtype":"U8","data_offsets":[0,4],"shape":[' + b"9" * 2_000_000 + b"]}}",
             "a long name": b'{"' + b"a" * 8_000_000 + b'":1}', "a long dtype":
             b'{"a":{"dtype":"' + b"F" * 8_000_000 + b'","shape":[4],"data_offsets":[0,4]}}',
             "much metadata": b'{"__metadata__":{' + b",".join(b'"%d":1' % i for i in range(500_000)) + b"}}"}
    for name, text in texts.items():
        yield name, safetensors_io.with_length(text) + b"abcd"


def broken_entries():
    header = {"a": ENTRY}
    for place in places(header):
        value = value_at(header, place)
        if not place:
            continue
        if is_number(value):
            for name, number in {**NUMBERS, "null": None}.items():
                yield "%s is %s" % (title(place), name), replaced(header, place, number)
        else:
            for name, other in {"null": None, "a number": 5, "a text": "x", "empty": [], "an empty object": {}}.items():
                yield "%s is %s" % (title(place), name), replaced(header, place, other)
        if place != ("a",):
            yield "%s is missing" % title(place), without(header, place)
    for name, shape, dtype in (("wraps", [2**32, 2**32], "U8"), ("wraps in bits", [2**61], "F64"),
                               ("wraps to the right size", [2**62, 4, 1], "F64"), ("half a byte", [7], "F4"),
                               ("wraps behind a zero", [0, 2**63, 2**63], "U8"), ("has 100,000 axes", [1] * 100_000, "U8")):
        yield "a shape that " + name, {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]}}
    yield "an unknown field", {"a": dict(ENTRY, strides=[1])}
    yield "100,000 tensors at one place", {"t%d" % i: ENTRY for i in range(100_000)}
    yield "an overlap", {"a": ENTRY, "b": dict(ENTRY, data_offsets=[2, 6])}
    yield "a hole", {"a": dict(ENTRY, shape=[1], data_offsets=[0, 1]), "b": dict(ENTRY, shape=[2], data_offsets=[2, 4])}


def fused(count):
    """A tensor that claims to be so many experts of one byte."""
    name = "model.layers.1.mlp.experts.gate_up_proj"
    return safetensors_io.with_length({name: {"dtype": "U8", "shape": [count, 1, 1], "data_offsets": [0, count]}})


def index_case(name, text):
    def prepare(folder):
        source = write_small(folder / "source")
        (source / INDEX).write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
        return [repack(folder), (RESHARD, ["inspect", source])]
    return Case("index: " + name, prepare, after=sound_again)


def broken_indexes():
    for name, path in PATHS.items():
        yield "a shard's path is " + name, {"weight_map": {"a": path}}
    texts = {"empty": b"", "open": b"{", "an array": b"[]", "no map": b"{}", "the map is a list": b'{"weight_map":[]}',
             "an empty map": b'{"weight_map":{}}', "NULs": b"\0\0", "no UTF-8": b'{"weight_map":{"a":"\xff"}}',
             "twice the same": b'{"weight_map":{"a":"b","a":"c"}}', "behind it": b'{"weight_map":{"a":"b"}} x',
             "deep": b'{"weight_map":' + b'{"a":' * 50_000, "arrays": b'{"weight_map":' + b"[" * 500_000,
             "a million shards": b'{"weight_map":{' + b",".join(b'"%d":"%d.safetensors"' % (i, i) for i in
                                                                range(1_000_000)) + b"}}",
             "a million numbers": b'{"metadata":[' + b"1," * 6_000_000 + b'1],"weight_map":{}}'}
    yield from texts.items()


def cases():
    for name, content in broken_files():
        yield shard_case(name, content)
    for name, header in broken_entries():
        yield shard_case(name, safetensors_io.with_length(header) + b"abcd")
    for name, text in broken_indexes():
        yield index_case(name, text)
