"""Answers of servers: an HTTP folder and the Hub, by a server that says, byte for byte, what a case has."""

import json

import faults
from checkpoints import SHARDS, write_small
from common import INDEX
from hostile.cases import PATHS, RESHARD, URL, Case
from raw_server import RawServer


def scripted(answer):
    """A server on loopback: `answer(path, headers)` returns the pieces of a whole answer, head and body; then the
    connection is closed."""
    def say(send, request):
        first, *headers = request.split("\r\n")
        path = first.split(" ")[1].lstrip("/").split("?")[0]
        for piece in answer(path, headers):
            send(piece)

    return RawServer(say)


def whole(status, headers, body, reason="OK"):
    lines = ["HTTP/1.1 %d %s" % (status, reason), *("%s: %s" % pair for pair in headers), "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def sound(folder, path, headers):
    """What a good server of the folder answers, with ranges."""
    file = folder / path
    if not file.is_file():
        return whole(404, [("Content-Length", 0)], b"", "Not Found")
    content = file.read_bytes()
    wanted = [line.split("=", 1)[1] for line in headers if line.lower().startswith("range: bytes=")]
    if not wanted:
        return whole(200, [("Content-Length", len(content)), ("ETag", '"1"'), ("Accept-Ranges", "bytes")], content)
    begin, end = wanted[0].split("-")
    begin, end = (int(begin), min(int(end) + 1 if end else len(content), len(content))) if begin else (
        len(content) - int(end), len(content))
    if begin >= len(content):
        return whole(416, [("Content-Range", "bytes */%d" % len(content)), ("Content-Length", 0)], b"", "No")
    return whole(206, [("Content-Length", end - begin), ("ETag", '"1"'),
                       ("Content-Range", "bytes %d-%d/%d" % (begin, end - 1, len(content)))], content[begin:end])


MOST_BYTES = 3_000_000_000 if faults.LONG else 700_000_000  # more than the memory that a program may take, in any case


def endless(first, piece):
    yield first
    for _ in range(MOST_BYTES // len(piece)):
        yield piece


ANSWERS = {
    "nothing": lambda: [b""], "no HTTP": lambda: [b"hello\r\n\r\n"], "a status of no number": lambda: [b"HTTP/1.1 abc OK\r\n\r\n"],
    "status 99": lambda: [b"HTTP/1.1 099 x\r\n\r\n"], "HTTP/9": lambda: [b"HTTP/9.9 200 OK\r\n\r\n"],
    "a line of a gigabyte": lambda: endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536),
    "header lines for ever": lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n" * 4096),
    "100 Continue for ever": lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1024),
    "a length below zero": lambda: [whole(200, [("Content-Length", -5)], b"x")],
    "a length of 2^64": lambda: [whole(200, [("Content-Length", 2**64)], b"x")],
    "a length of 2^63-1": lambda: [whole(200, [("Content-Length", 2**63 - 1)], b"x")],
    "a length of no number": lambda: [whole(200, [("Content-Length", "x")], b"x")],
    "two lengths": lambda: [whole(200, [("Content-Length", 5), ("Content-Length", 7)], b"hello")],
    "a body for ever": lambda: endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536),
    "a body of brackets": lambda: endless(b"HTTP/1.1 200 OK\r\n\r\n", b"[" * 65536),
    "a chunk of 2^64-1": lambda: [whole(200, [("Transfer-Encoding", "chunked")], b"ffffffffffffffff\r\nx")],
    "a chunk below zero": lambda: [whole(200, [("Transfer-Encoding", "chunked")], b"-1\r\nx\r\n")],
    "a chunk of no number": lambda: [whole(200, [("Transfer-Encoding", "chunked")], b"xyz\r\nx\r\n")],
    "a chunk's extension for ever": lambda: endless(whole(200, [("Transfer-Encoding", "chunked")], b"1;"), b"a" * 65536),
    "trailers for ever": lambda: endless(whole(200, [("Transfer-Encoding", "chunked")], b"0\r\n"), b"X-Y: z\r\n" * 4096),
    "gzip that is none": lambda: [whole(200, [("Content-Encoding", "gzip"), ("Content-Length", 5)], b"hello")],
    "a refusal for ever": lambda: endless(b"HTTP/1.1 403 Forbidden\r\n\r\n", b"x" * 65536),
    "a refusal with an escape": lambda: [whole(403, [("X-Error-Message", "\x1b[2Jx\x9b2J"), ("Content-Length", 8)],
                                               b"\x1b]0;x\x07\xc2\x9b", "\x1b[31m")],
    "a refusal of 4 MB": lambda: [whole(403, [("Content-Length", 4_000_000)], b"abc " * 1_000_000)],
    "to a file": lambda: [whole(302, [("Location", "file:///etc/passwd"), ("Content-Length", 0)], b"")],
    "to gopher": lambda: [whole(302, [("Location", "gopher://127.0.0.1:1/x"), ("Content-Length", 0)], b"")],
    "to ftp": lambda: [whole(302, [("Location", "ftp://127.0.0.1:1/x"), ("Content-Length", 0)], b"")],
    "to nowhere": lambda: [whole(302, [("Location", ""), ("Content-Length", 0)], b"")],
    "to no address": lambda: [whole(302, [("Location", "http://[::1"), ("Content-Length", 0)], b"")],
    "to an address of 2 MB": lambda: [whole(302, [("Location", "/" + "a" * 2_000_000), ("Content-Length", 0)], b"")],
    "without an address": lambda: [whole(302, [("Content-Length", 0)], b"")],
    "204": lambda: [whole(204, [], b"")], "304": lambda: [whole(304, [], b"")], "205": lambda: [whole(205, [("Content-Length", 0)], b"")],
    "300": lambda: [whole(300, [("Content-Length", 0)], b"")], "401": lambda: [whole(401, [("Content-Length", 0)], b"")],
    "407": lambda: [whole(407, [("Content-Length", 0)], b"")], "418": lambda: [whole(418, [("Content-Length", 0)], b"")],
    "451": lambda: [whole(451, [("Content-Length", 0)], b"")], "999": lambda: [whole(999, [("Content-Length", 0)], b"")],
}

# Of a request for a range alone: what is wrong with the answer's Content-Range or length.
RANGES = {
    "another range": ("bytes 1-8/9", 8), "no unit": ("0-7/100", 8), "another unit": ("lines 0-7/100", 8), "no size": ("bytes 0-7/*", 8),
    "backwards": ("bytes 7-0/100", 8), "below zero": ("bytes -1-7/100", 8), "beyond 64 bits": ("bytes 0-18446744073709551615/18446744073709551616", 8),
    "a size of 2^63": ("bytes 0-7/9223372036854775808", 8), "a size below its end": ("bytes 0-7/4", 8), "no number": ("bytes x-y/z", 8),
    "empty": ("", 8), "two": ("bytes 0-7/100, bytes 0-7/100", 8), "a size of 2^62": ("bytes 0-7/4611686018427387904", 8),
}


def http_case(name, pattern, answer):
    """`answer()` for requests of paths that end so; all else is as a good server has it."""
    def serve(folder):
        def respond(path, headers):
            return answer() if path.endswith(pattern) else [sound(folder / "source", path, headers)]
        return scripted(respond)

    def prepare(folder):
        write_small(folder / "source")
        return [(RESHARD, [URL, "--by", "expert", "--out", folder / "packed", "--dev", "retries=0"])]

    return Case("HTTP: " + name, prepare, serve=serve, after=finished_from_the_folder)


def finished_from_the_folder(test, folder):
    """A run from the sound source into the same place ends well, or says what is in its way and how to remove it."""
    again = test.run_program(folder / "source", "--by", "expert", "--out", folder / "packed")
    if again.code != 0:
        test.assertIn("remove the folder", again.stderr, str(again))
        test.remove(folder / "packed")
        test.assert_ok(test.run_program(folder / "source", "--by", "expert", "--out", folder / "packed"))


def http():
    for pattern in (INDEX, SHARDS[1]):
        for name, answer in ANSWERS.items():
            yield http_case("%s: %s" % (pattern[:12], name), pattern, answer)
    for name, (content_range, count) in RANGES.items():
        def answer(content_range=content_range, count=count):
            return [whole(206, [("Content-Range", content_range), ("Content-Length", count), ("ETag", '"1"')], bytes(count))]
        yield http_case("range: " + name, SHARDS[1], answer)


COMMIT = "a" * 40


def hub_case(name, answers):
    """`answers` maps the ends of paths to functions that make an answer; all else is 404."""
    def serve(_):
        def respond(path, headers):
            for pattern, answer in answers.items():
                if pattern in path:
                    return answer()
            return [whole(404, [("Content-Length", 0)], b"", "Not Found")]
        return scripted(respond)

    def prepare(folder):
        return [(RESHARD, ["org/name", "--by", "expert", "--out", folder / "packed", "--dev", "retries=0"])]

    return Case("Hub: " + name, prepare, serve=serve, env={"HF_ENDPOINT": URL[:-1], "HF_TOKEN": "hf_" + "t" * 34},
                after=lambda test, folder: test.assert_absent(folder / "packed"))


def text(document):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return lambda: [whole(200, [("Content-Type", "application/json"), ("X-Repo-Commit", COMMIT), ("Content-Length", len(body))], body)]


def file(path, **changes):
    return {"type": "file", "oid": "b" * 40, "size": 100, "path": path,
            "lfs": {"oid": "c" * 64, "size": 100, "pointerSize": 130}, **changes}


INFO = {"id": "org/name", "sha": COMMIT, "siblings": [], "private": False, "gated": False}


def hub():
    for name, answer in ANSWERS.items():
        yield hub_case("commit: " + name, {"api/models": answer})
        yield hub_case("listing: " + name, {"/tree/": answer, "api/models": text(INFO)})
    for sha in ("", "x", "a" * 39, "../" + "a" * 37, 5, None, [], "A" * 40, "a" * 400_000):
        yield hub_case("the commit is %.20r" % (sha,), {"api/models": text(dict(INFO, sha=sha))})
    for name, path in PATHS.items():
        yield hub_case("a listed path is " + name, {"/tree/": text([file("config.json"), file(path)]), "api/models": text(INFO)})
    for key in ("size", "oid", "lfs", "type"):
        for value in (-1, 2**63, 2**64, 1.5, "x", [], None, True, {}):
            yield hub_case("a listed %s is %r" % (key, value), {
                "/tree/": text([file(INDEX), file("model.safetensors", **{key: value})]), "api/models": text(INFO)})
    for name, listing in {"an object": {"a": 1}, "numbers": [1, 2], "twice the same": [file("a"), file("a")], "empty": [],
                          "deep": b"[" * 100_000, "40 MB of numbers": b"[" + b"1," * 20_000_000 + b"1]",
                          "open": b"[{", "a file below a file": [file("a"), file("a/b")]}.items():
        yield hub_case("the listing is " + name, {"/tree/": text(listing), "api/models": text(INFO)})
    for name, link in {"itself": "<URL>; rel=\"next\"", "elsewhere": '<http://127.0.0.1:1/x>; rel="next"', "a file":
                       '<file:///etc/passwd>; rel="next"', "open": "<http://"}.items():
        body = json.dumps([file("config.json")]).encode()
        yield hub_case("the next page is " + name, {
            "/tree/": lambda link=link, body=body: [whole(200, [("Link", link), ("Content-Length", len(body)), ("X-Repo-Commit", COMMIT)], body)],
            "api/models": text(INFO)})


def cases():
    yield from http()
    yield from hub()
