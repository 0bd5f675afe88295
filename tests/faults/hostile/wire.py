"""Requests as bytes: their lines, their lengths, and bodies in chunks. What RFC 9112 has for one message and another for two
is refused: behind a proxy that reads it otherwise, the rest would be somebody else's request."""

import json

from hostile.exchange import SENTINEL, Sent

BODY = json.dumps({"content": "hello"}).encode()
BAD, WELL, NONE = [[400]], [[200, 404]], [[]]
TOO_LONG = [[413]]
HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(150))  # a client of TLS


def get(line, *fields):
    return b"\r\n".join([line, b"Host: localhost", *fields, b"", b""])


def lines():
    ok = b"GET /version HTTP/1.1"
    return [
        Sent("an ordinary one", get(ok), WELL),
        Sent("empty lines before it", b"\r\n\r\n" + get(ok), WELL + BAD),
        Sent("a method in lower case", get(b"get /version HTTP/1.1"), [[400], [404, 404], [405, 404]]),
        Sent("no method", get(b" /version HTTP/1.1"), BAD),
        Sent("no target", get(b"GET HTTP/1.1"), BAD),
        Sent("no version", get(b"GET /version"), BAD),
        Sent("HTTP/0.9", b"GET /version\r\n", BAD),
        Sent("HTTP/2.0", get(b"GET /version HTTP/2.0"), BAD + [[505]]),
        Sent("HTTP/1.9", get(b"GET /version HTTP/1.9"), BAD + [[505]] + WELL),
        Sent("HTTP/1.1x", get(b"GET /version HTTP/1.1x"), BAD),
        Sent("http in lower case", get(b"GET /version http/1.1"), BAD),
        Sent("two spaces", get(b"GET  /version HTTP/1.1"), BAD),
        Sent("tabs", get(b"GET\t/version\tHTTP/1.1"), BAD),
        Sent("a space in the target", get(b"GET /ver sion HTTP/1.1"), BAD),
        Sent("a line feed alone", ok + b"\nHost: localhost\n\n", BAD),
        Sent("a carriage return alone", ok + b"\rHost: localhost\r\r", BAD, ends=True),
        Sent("a NUL in the target", get(b"GET /ver\0sion HTTP/1.1"), BAD),
        Sent("an escape in the target", get(b"GET /\x1b[2J HTTP/1.1"), BAD),
        Sent("an escape in the method", get(b"G\x1b[2JT / HTTP/1.1"), BAD),
        Sent("no ASCII in the target", get("GET /vérsion\u202e HTTP/1.1".encode()), BAD + [[404, 404]]),
        Sent("no UTF-8 in the target", get(b"GET /\xff\xfe HTTP/1.1"), BAD + [[404, 404]]),
        Sent("a target of 20 kB", get(b"GET /" + b"a" * 20_000 + b" HTTP/1.1"), [[414], [431]]),
        Sent("a query of 15 kB", get(b"GET /version?" + b"a" * 15_000 + b" HTTP/1.1"), WELL),
        Sent("a method of 20 kB", get(b"G" * 20_000 + b" / HTTP/1.1"), BAD + [[431]]),
        Sent("a whole address", get(b"GET http://localhost/version HTTP/1.1"), WELL + [[404, 404]]),
        Sent("a stranger's address", get(b"GET http://evil.example/version HTTP/1.1"), BAD + [[403, 404], [404, 404]]),
        Sent("CONNECT", get(b"CONNECT evil.example:80 HTTP/1.1"), [[400], [404], [405], [404, 404], [405, 404]]),
        Sent("OPTIONS of all", get(b"OPTIONS * HTTP/1.1"), [[404, 404], [405, 404]]),
        Sent("OPTIONS of a path", get(b"OPTIONS /v1/chat/completions HTTP/1.1"), [[405, 404]]),
        Sent("TRACE", get(b"TRACE /version HTTP/1.1", b"X-Secret: a"), [[405, 404]]),
        Sent("PUT", get(b"PUT /version HTTP/1.1", b"Content-Length: 0"), [[405, 404]]),
        Sent("the parent", get(b"GET /../../etc/passwd HTTP/1.1"), [[404, 404]]),
        Sent("the parent, escaped", get(b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1"), [[404, 404]]),
        Sent("two slashes", get(b"GET //version HTTP/1.1"), [[404, 404]]),
        Sent("a fragment", get(b"GET /version#a HTTP/1.1"), [[400], [404, 404]]),
        Sent("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD + [[505]]),
        Sent("TLS", HELLO + b"\r\n\r\n", BAD),
        Sent("an answer", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", BAD),
        Sent("nothing", b"", NONE, ends=True),
        Sent("half a line", b"GET /ver", BAD + NONE, ends=True),
        Sent("half a head", ok + b"\r\nHost: loc", BAD + NONE, ends=True),
    ]


def post(fields, body=BODY, version=b"1.1"):
    return b"\r\n".join([b"POST /tokenize HTTP/" + version, b"Host: localhost", *fields, b"", b""]) + body


def lengths():
    n = len(BODY)
    said = lambda text: post([b"Content-Length: " + text])
    return [
        Sent("the right one", said(b"%d" % n), WELL),
        Sent("leading zeros", said(b"00000000%d" % n), WELL + BAD),
        Sent("spaces around", said(b"  %d \t" % n), WELL),
        Sent("negative", said(b"-%d" % n), BAD),
        Sent("a plus", said(b"+%d" % n), BAD),
        Sent("of sixteen", said(b"0x%x" % n), BAD),
        Sent("an exponent", said(b"1e1"), BAD),
        Sent("a fraction", said(b"%d.0" % n), BAD),
        Sent("nothing", said(b""), BAD),
        Sent("a word", said(b"all"), BAD),
        Sent("two numbers", said(b"%d %d" % (n, n)), BAD),
        Sent("a list of the same", said(b"%d, %d" % (n, n)), BAD + WELL),
        Sent("a list of others", said(b"%d, %d" % (n, n + 1)), BAD),
        Sent("a semicolon", said(b"%d;" % n), BAD),
        Sent("a NUL", said(b"%d\0" % n), BAD),
        Sent("twice the same", post([b"Content-Length: %d" % n] * 2), BAD + WELL),
        Sent("two others", post([b"Content-Length: %d" % n, b"Content-Length: %d" % (n + 5)]), BAD),
        Sent("zero and another", post([b"Content-Length: 0", b"Content-Length: %d" % n]), BAD),
        Sent("2^31", said(b"2147483648"), TOO_LONG),
        Sent("2^32 and the right one", said(b"%d" % (2 ** 32 + n)), TOO_LONG),
        Sent("2^63", said(b"9223372036854775808"), TOO_LONG + BAD),
        Sent("2^64 and the right one", said(b"%d" % (2 ** 64 + n)), TOO_LONG + BAD),
        Sent("a thousand digits", said(b"9" * 1000), TOO_LONG + BAD),
        Sent("one more than may be", said(b"%d" % ((32 << 20) + 1)), TOO_LONG),
        Sent("a space before the colon", post([b"Content-Length : %d" % n]), BAD),
        Sent("folded", post([b"Content-Length:\r\n %d" % n]), BAD + WELL),
        Sent("of a GET with a request in its body", b"GET /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
             % len(SENTINEL) + SENTINEL, WELL),
        Sent("none of a POST", post([], b""), [[400, 404]]),
        Sent("zero", post([b"Content-Length: 0"], b""), [[400, 404]]),
        Sent("less than comes", post([b"Content-Length: %d" % (n - 2)]), [[400, 400]]),
        Sent("more than comes", post([b"Content-Length: %d" % (n + 1)]), NONE, ends=True),
        Sent("beside chunks", post([b"Content-Length: %d" % n, b"Transfer-Encoding: chunked"],
                                   b"%x\r\n%s\r\n0\r\n\r\n" % (n, BODY)), BAD),
        Sent("behind chunks", post([b"Transfer-Encoding: chunked", b"Content-Length: 5"],
                                   b"%x\r\n%s\r\n0\r\n\r\n" % (n, BODY)), BAD),
    ]


def chunked(pieces, end=b"0\r\n\r\n", field=b"Transfer-Encoding: chunked", version=b"1.1"):
    return post([field], b"".join(pieces) + end, version)


def chunking():
    n = len(BODY)
    one = [b"%x\r\n%s\r\n" % (n, BODY)]
    coded = lambda text: chunked(one, field=b"Transfer-Encoding: " + text)
    sized = lambda text: chunked([text + b"\r\n" + BODY + b"\r\n"])
    return [
        Sent("one chunk", chunked(one), WELL),
        Sent("chunks of a byte", chunked([b"1\r\n%c\r\n" % byte for byte in BODY]), WELL),
        Sent("in capitals", coded(b"CHUNKED"), WELL),
        Sent("zeros before the size", sized(b"0000%X" % n), WELL),
        Sent("an extension", sized(b"%x;a=b" % n), WELL),
        Sent("a quoted extension", sized(b'%x;a="b"' % n), WELL),
        Sent("trailers", chunked(one, b"0\r\nX-A: b\r\n\r\n"), WELL),
        Sent("trailers that a head has", chunked(one, b"0\r\nContent-Length: 5\r\nHost: evil.example\r\n\r\n"), WELL + BAD),
        Sent("gzip and chunks", coded(b"gzip, chunked"), [[501]]),
        Sent("gzip and chunks on two lines", post([b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked"], one[0] + b"0\r\n\r\n"), [[501]]),
        Sent("deflate and chunks", coded(b"deflate , chunked"), [[501]]),
        Sent("an unknown coding and chunks", coded(b"xchunked, chunked"), [[501]]),
        Sent("identity and chunks", coded(b"identity, chunked"), [[501]]),
        Sent("a coding with a parameter", coded(b"gzip;q=1, chunked"), [[501]]),
        Sent("chunks and gzip", coded(b"chunked, gzip"), BAD + [[501]]),
        Sent("gzip alone", coded(b"gzip"), BAD + [[501]]),
        Sent("identity alone", coded(b"identity"), BAD + [[501]]),
        Sent("an unknown coding", coded(b"xchunked"), BAD + [[501]]),
        Sent("chunks twice", coded(b"chunked, chunked"), BAD + [[501]]),
        Sent("chunks on two lines", post([b"Transfer-Encoding: chunked"] * 2, one[0] + b"0\r\n\r\n"), BAD + [[501]]),
        Sent("no coding", coded(b""), BAD + [[501]]),
        Sent("a vertical tab before chunks", coded(b"\x0bchunked"), BAD + [[501]]),
        Sent("of HTTP/1.0", chunked(one, version=b"1.0"), BAD),
        Sent("a space before the colon", chunked(one, field=b"Transfer-Encoding : chunked"), BAD),
        Sent("a negative size", sized(b"-%x" % n), BAD),
        Sent("a plus before the size", sized(b"+%x" % n), BAD),
        Sent("a size with 0x", sized(b"0x%x" % n), BAD),
        Sent("a size with an underscore", sized(b"1_3"), BAD),
        Sent("a size of 2^64 and the right one", sized(b"1%016x" % n), BAD + TOO_LONG),
        Sent("a size of 2^64 - 1", sized(b"f" * 16), BAD + TOO_LONG),
        Sent("a size of 2^63", sized(b"8" + b"0" * 15), BAD + TOO_LONG),
        Sent("a size of a megabyte of zeros", sized(b"0" * 1_000_000 + b"%x" % n), BAD + [[413], [431]]),
        Sent("a size without end", chunked([b"0" * 5_000_000], b""), BAD + [[413], [431]]),
        Sent("a size that is no number", sized(b"zz"), BAD),
        Sent("no size", sized(b""), BAD),
        Sent("an extension of a megabyte", sized(b"%x;" % n + b"a" * 1_000_000), BAD + [[413], [431]]),
        Sent("an extension without end", chunked([b"1;" + b"a" * 5_000_000], b""), BAD + [[413], [431]]),
        Sent("an extension with a line feed", sized(b"%x;\nx" % n), BAD),
        Sent("line feeds alone", chunked([b"%x\n%s\n" % (n, BODY)], b"0\n\n"), BAD),
        Sent("nothing behind the bytes", chunked([b"%x\r\n%s" % (n, BODY)]), BAD),
        Sent("more bytes than the size", chunked([b"%x\r\n%s\r\n" % (n - 1, BODY)]), BAD),
        Sent("trailers of a megabyte", chunked(one, b"0\r\n" + b"X-A: b\r\n" * 125_000 + b"\r\n"), BAD + [[413], [431]]),
        Sent("trailers without end", chunked(one, b"0\r\n" + b"X-A: b\r\n" * 625_000), BAD + [[413], [431]]),
        Sent("33 MB", chunked([b"100000\r\n" + b" " * (1 << 20) + b"\r\n"] * 33), TOO_LONG),
        Sent("no end", chunked(one, b""), NONE, ends=True),
        Sent("half an end", chunked(one, b"0\r\n"), NONE, ends=True),
    ]
