"""Who may ask: keys, names of hosts, and pages of strangers. What is asked for is /props, which tells of the machine."""

from hostile.exchange import Sent

OK, NO, BAD = [[200, 404]], [[403, 404]], [[400]]
KEY = "s3cret-Key"


def asked(name, statuses, *fields, path="/props", host=b"localhost"):
    head = [b"GET %s HTTP/1.1" % path.encode(), *([] if host is None else [b"Host: " + host]), *fields]
    return Sent(name, b"\r\n".join([*head, b"", b""]), statuses)


def keys():
    """Of a server with the key KEY. Its sentinel is refused as well."""
    key = KEY.encode()
    well, no = [[200, 401]], [[401, 401]]
    authorization = lambda text: b"Authorization: " + text
    wrong = {"none": (), "empty": (authorization(b""),), "another": (authorization(b"Bearer other"),),
             "its beginning": (authorization(b"Bearer " + key[:-1]),), "more than it": (authorization(b"Bearer " + key + b"x"),),
             "twice in one": (authorization(b"Bearer " + key * 2),), "in lower case": (authorization(b"Bearer " + key.lower()),),
             "another scheme": (authorization(b"Basic " + key),), "Bearer twice": (authorization(b"Bearer Bearer " + key),),
             "in quotes": (authorization(b'Bearer "' + key + b'"'),), "Bearer alone": (authorization(b"Bearer"),),
             "Bearer and a space": (authorization(b"Bearer "),), "a NUL": (authorization(b"Bearer \\0"),),
             "15 kB": (authorization(b"Bearer " + b"k" * 15_000),), "its beginning, fifteen thousand times": (authorization(key[:1] * 15_000),),
             "no UTF-8": (authorization(b"Bearer \xff\xfe"),), "a star": (authorization(b"Bearer *"),),
             "a wrong X-Api-Key": (b"X-Api-Key: other",), "an empty X-Api-Key": (b"X-Api-Key:",),
             "a wrong one before the right": (authorization(b"Bearer other"), authorization(b"Bearer " + key)),
             "as a cookie": (b"Cookie: key=" + key,), "of a proxy": (b"Proxy-Authorization: Bearer " + key,),
             "forwarded for this machine": (b"X-Forwarded-For: 127.0.0.1", b"X-Real-IP: 127.0.0.1"),
             "another path by a header": (b"X-Original-URL: /health", b"X-Rewrite-URL: /health")}
    paths = ("/metrics", "/props", "/v1/models", "/machine", "/openapi.json", "/version", "/v1/models/tiny-v3", "/v1/nothing",
             "/health/", "/health/../props", "//props", "/HEALTH", "/v1/health/x", "/%2f", "/props?key=" + KEY, "/metrics?/health")
    return [*(asked(name, no, *fields) for name, fields in wrong.items()),
            asked("as it is", well, authorization(b"Bearer " + key)), asked("without Bearer", well, authorization(key)),
            asked("as X-Api-Key", well, b"X-Api-Key: " + key),
            *(asked("none for " + path, no, path=path) for path in paths),
            *(asked("none for " + path, [[200, 401]], path=path) for path in ("/health", "/v1/health", "/")),
            Sent("none of HEAD", b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [[401]]),
            Sent("none of OPTIONS", b"OPTIONS /props HTTP/1.1\r\nHost: localhost\r\n\r\n", no),
            Sent("none of POST to /health", b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", [[401, 401], [405, 401]]),
            *(Sent("none for " + path, b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}" % path.encode(), no)
              for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize", "/detokenize", "/apply-template"))]


def hosts(port):
    """Of a server without a key at 127.0.0.1: names of this machine alone."""
    names = {"localhost": OK, "localhost:%d" % port: OK, "LOCALHOST": OK, "LocalHost:80": OK, "127.0.0.1": OK, "127.0.0.1:%d" % port: OK,
             "127.255.0.9": OK, "[::1]": OK, "[::1]:%d" % port: OK}
    strangers = ("evil.example", "evil.example:%d" % port, "localhost.evil.example", "evil-localhost", "xlocalhost", "localhost.",
                 "127.0.0.1.evil.example", "127.0.0.1.", "127.1", "0177.0.0.1", "0x7f000001", "2130706433", "0.0.0.0", "[::]", "[::2]",
                 "10.0.0.1", "[::1]evil", "[::1]evil:80", "[::1].evil.example", "[::1", "::1]", "[evil]", "localhost:80:evil",
                 "localhost:evil", "localhost:-1", "localhost: 80", "localhost 80", "localhost,evil.example", "localhost@evil.example",
                 "evil.example@localhost", "localhost/evil", "localhost#", "localhost?", "[localhost]", "127.0.0.1:80:80",
                 "\u202elocalhost", "löcalhost", "localhost%00", "localhost\\evil", "*", "[::ffff:8.8.8.8]", "localhost:8080:8080")
    return [*(asked(name, statuses, host=name.encode()) for name, statuses in names.items()),
            *(asked(name, NO + BAD, host=name.encode()) for name in strangers),
            # Of this machine, however they are written: nobody else is reached by them.
            *(asked(name, OK + NO + BAD, host=name.encode()) for name in ("localhost:99999", "[127.0.0.1]", "[::1%25lo]")),
            asked("none", BAD + NO, host=None), asked("an empty one", BAD + NO, host=b""),
            asked("localhost and a stranger", BAD + NO, b"Host: evil.example"),
            asked("a stranger and localhost", BAD + NO, b"Host: localhost", host=b"evil.example"),
            asked("a stranger forwarded", OK, b"X-Forwarded-Host: evil.example"),
            asked("localhost forwarded by a stranger", NO + BAD, b"X-Forwarded-Host: localhost", host=b"evil.example"),
            asked("a stranger's for /health", NO + BAD, host=b"evil.example", path="/health"),
            asked("a stranger's for the page", NO + BAD, host=b"evil.example", path="/"),
            asked("a NUL", BAD + NO, host=b"localhost\\0"), asked("a NUL byte", BAD, host=b"localhost\0")]


def origins(port):
    """Of a server without a key and without --allow-origin: of pages, its own alone may ask."""
    own = b"127.0.0.1:%d" % port
    page = lambda name, statuses, origin, *fields: asked(name, statuses, b"Origin: " + origin, *fields, host=own)
    strangers = ("http://evil.example", "https://evil.example", "http://localhost", "http://localhost:1", "http://127.0.0.1", "http://127.0.0.1:1",
                 "http://127.0.0.2:%d" % port, "http://127.0.0.1:%d.evil.example" % port, "http://evil.example/127.0.0.1:%d" % port,
                 "http://evil.example@127.0.0.1:%d" % port, "http://127.0.0.1:%d@evil.example" % port, "http://127.0.0.1:%d/" % port,
                 "null", "*", "file://", "chrome-extension://abc", "://", "http://", "evil", "http://evil.example, http://127.0.0.1:%d" % port,
                 "http://127.0.0.1:%d http://evil.example" % port, "HTTP://EVIL.EXAMPLE", "http://[::1]:%d" % port, "data:text/html,x", "\u202e")
    fetched = lambda site, mode=b"cors": (b"Sec-Fetch-Site: " + site, b"Sec-Fetch-Mode: " + mode, b"Sec-Fetch-Dest: empty")
    return [page("its own", OK, b"http://" + own), *(page(each, NO + BAD, each.encode()) for each in strangers),
            asked("no page", OK, host=own),
            asked("two, its own first", NO + BAD, b"Origin: http://" + own, b"Origin: http://evil.example", host=own),
            # Without Origin, as for pictures and scripts of a page; a browser says where they are asked for.
            asked("a stranger's script", NO, *fetched(b"cross-site", b"no-cors"), host=own),
            asked("a neighbour's script", NO, *fetched(b"same-site", b"no-cors"), host=own),
            asked("its own script", OK, *fetched(b"same-origin"), host=own),
            asked("by hand", OK, *fetched(b"none", b"navigate"), host=own),
            Sent("a stranger asks beforehand", b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: " + own + b"\r\nOrigin: http://evil.example\r\n"
                 b"Access-Control-Request-Method: POST\r\n\r\n", NO + [[405, 404]]),
            Sent("a stranger sends a form", b"POST /v1/chat/completions HTTP/1.1\r\nHost: " + own + b"\r\nOrigin: http://evil.example\r\n"
                 b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", NO),
            Sent("a stranger's form without an origin", b"POST /v1/chat/completions HTTP/1.1\r\nHost: " + own + b"\r\nSec-Fetch-Site: cross-site\r\n"
                 b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", NO)]
