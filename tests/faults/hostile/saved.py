"""Saved KV caches, as a prefix cache has them and as chats: damaged by a disk, or made by somebody who knows the form."""

import hashlib
import json
import os
import shutil
import socket
import struct

from hostile.cases import DSRUN, Case


def parts(data):
    """Header and payload of a safetensors file."""
    length, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def joined(header, payload, digest=True):
    """The file, with a digest that is right."""
    if digest:
        header["__metadata__"]["sha256"] = hashlib.sha256(payload).hexdigest()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    return struct.pack("<Q", len(text)) + text + payload


def with_header(change, digest=True):
    def damage(path, _):
        header, payload = parts(path.read_bytes())
        change(header)
        path.write_bytes(joined(header, payload, digest))
    return damage


def with_payload(change):
    def damage(path, _):
        header, payload = parts(path.read_bytes())
        path.write_bytes(joined(header, change(header, bytearray(payload))))
    return damage


def with_bytes(change):
    return lambda path, _: path.write_bytes(change(path.read_bytes()))


def with_length(number):
    return with_bytes(lambda data: struct.pack("<Q", number) + data[8:])


def with_text(text):
    """In place of the header's JSON."""
    def change(data):
        _, payload = parts(data)
        return struct.pack("<Q", len(text)) + text + payload
    return with_bytes(change)


def metadata(**changed):
    def change(header):
        header["__metadata__"].update(changed)
    return with_header(change, digest="sha256" not in changed)


def tensor(name, **changed):
    def change(header):
        header[name].update(changed)
    return with_header(change)


def put(make):
    """Something else of that name."""
    def damage(path, other):
        path.unlink()
        make(path, other)
    return damage


def make_socket(path, _):
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            one.bind("/proc/self/fd/%d/%s" % (here, path.name))  # a path of a socket has 107 bytes
        finally:
            os.close(here)


def other_tokens(header, payload):
    begin, end = header["tokens"]["data_offsets"]
    payload[begin:end] = struct.pack("<I", 2 ** 32 - 1) * ((end - begin) // 4)
    return bytes(payload)


# name: damage(path, other), of a file; `other` is another sound one. Each is left out, or refused.
DAMAGE = {
    "empty": with_bytes(lambda data: b""), "seven bytes": with_bytes(lambda data: data[:7]), "a header's length alone": with_bytes(lambda data: data[:8]),
    "half": with_bytes(lambda data: data[:len(data) // 2]), "a byte too few": with_bytes(lambda data: data[:-1]),
    "a byte too many": with_bytes(lambda data: data + b"\0"), "zeros": with_bytes(lambda data: bytes(len(data))),
    "a flipped bit at the end": with_bytes(lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "a header of nothing": with_length(0), "a header of 2^63": with_length(2 ** 63), "a header of 2^64 - 1": with_length(2 ** 64 - 1),
    "a header of all": with_bytes(lambda data: struct.pack("<Q", len(data) - 8) + data[8:]),
    "a header of 70 kB": with_header(lambda header: header["__metadata__"].update(note="x" * 70_000)),
    "a header that is no JSON": with_text(b"hello"), "a header that is deep": with_text(b"[" * 60_000), "a header of a list": with_text(b"[]"),
    "a NUL behind the header": with_bytes(lambda data: data.replace(b"}  ", b"}\0 ", 1)), "no UTF-8": with_text(b'{"__metadata__":{"dspack_kv":"\xff"}}'),
    "no metadata": with_header(lambda header: header.update(__metadata__={"a": "b"})), "no version": metadata(dspack_kv=""),
    "a later version": metadata(dspack_kv="2"), "an escape as version": metadata(dspack_kv="\x1b[2J"), "another model": metadata(model="0" * 64),
    "no digest of a model": metadata(model="x"), "another parent": metadata(parent="1" * 64), "a position of 2^64": metadata(first=str(2 ** 64)),
    "a position of -1": metadata(first="-1"), "a position above all": metadata(first="4294967295"), "another digest": metadata(sha256="2" * 64),
    "tokens of floats": tensor("tokens", dtype="F32"), "2^61 tokens": tensor("tokens", shape=[2 ** 61]), "tokens of two axes": tensor("tokens", shape=[1, 1]),
    "no tokens": with_header(lambda header: header.pop("tokens")), "rows upon rows": with_header(lambda header: [
        header[name].update(data_offsets=header["tokens"]["data_offsets"]) for name in header if name.startswith("kv.")]),
    "a text of 2^60": with_header(lambda header: header.update(text={"dtype": "U8", "shape": [2 ** 60], "data_offsets": [0, 2 ** 60]})),
    "another plane": with_header(lambda header: header.update({"kv.\x1b[2J": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})),
    "tokens that are none": with_payload(other_tokens),
    "a folder": put(lambda path, _: path.mkdir()), "a pipe": put(lambda path, _: os.mkfifo(path)), "a socket": put(make_socket),
    "a link to nothing": put(lambda path, _: path.symlink_to("nothing")), "a link to itself": put(lambda path, _: path.symlink_to(path.name)),
    "a link to zeros without end": put(lambda path, _: path.symlink_to("/dev/zero")),
}


def sessions(sound, data):
    """Files given to --session: each is refused, and left as it is. `sound`: one that is loaded; `data`: the model."""
    def case(name, damage):
        def prepare(folder):
            path, other = folder / "session", folder / "other"
            shutil.copyfile(sound, path)
            shutil.copyfile(sound, other)
            path.chmod(0o600)
            damage(path, other)
            return [(DSRUN, [data, "--device", "cpu", "--session", path])]
        return Case(name, prepare)

    def messages(text):
        """With other messages beside the rows."""
        def change(header, payload):
            begin, _ = header["text"]["data_offsets"]
            header["text"].update(shape=[len(text)], data_offsets=[begin, begin + len(text)])
            return bytes(payload[:begin]) + text
        return with_payload(change)

    told = {"no messages": b" ", "messages that are no JSON": b"hello", "messages of a list of lists": b"[[]]", "deep messages": b"[" * 100_000,
            "a question without an answer": b'[{"role":"user","content":"x"}]', "an answer first": b'[{"role":"assistant","content":"x"}] ',
            "an unknown role": b'[{"role":"\\u001b[2J","content":"x"},{"role":"assistant","content":"x"}]',
            "a content of a number": b'[{"role":"user","content":5},{"role":"assistant","content":"x"}]', "messages of no UTF-8": b'[{"role":"user","content":"\xff"}]',
            "a block of a prefix cache": None}
    without_text = with_header(lambda header: header.pop("text"))
    # A chat has no parent; its tokens are compared with those of its messages; and links to nothing are no chat yet.
    passable = ("another parent", "tokens that are none", "a link to nothing", "a link to itself")
    yield from (case(name, damage) for name, damage in DAMAGE.items() if name not in passable)
    yield from (case(name, without_text if text is None else messages(text)) for name, text in told.items())
    yield case("writable by others", lambda path, _: path.chmod(0o666))
    yield case("a page of text", lambda path, _: path.write_text("Dear diary,\n" * 100))
