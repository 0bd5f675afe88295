"""HTTP as the hub's two hosts speak it: requests with their bodies, replies, ranges, faults, and the log."""

import json
import re
import threading
import time
import traceback
import urllib.parse
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple, Union

from wire_pieces import PIECE_BYTES, TestHandler, TestServer

from .objects import Content
from .repository import Refused

LOGGED_BODY_BYTES = 1 << 20


@dataclass
class Request:
    """A request, and one line of the log. `range` is [begin, end) as answered; `status` stays 0 where no answer was
    given; `received` and `sent` count body bytes; `body` is kept in the log where it is small (JSON, commits)."""
    time: float
    host: str  # "hub" or "storage"
    connection: int
    method: str
    raw_path: str  # as on the wire, percent-encoded, with the query
    path: str  # decoded, without the leading slash and the query
    query: Dict[str, list]
    headers: Dict[str, str]  # names in lower case
    authorization: Optional[str]
    id: str  # X-Request-Id of the answer
    body: Optional[bytes] = None
    range: Optional[Tuple[int, int]] = None
    status: int = 0
    received: int = 0
    sent: int = 0
    fault: str = ""

    @property
    def segments(self):
        """The path's parts, each decoded on its own: a revision such as refs/pr/1 comes as one part, refs%2Fpr%2F1."""
        return [urllib.parse.unquote(part) for part in self.raw_path.partition("?")[0].strip("/").split("/")]

    def argument(self, name, default=None):
        return self.query.get(name, [default])[-1]

    def json(self):
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            raise Refused(400, "Invalid JSON") from None


@dataclass
class Reply:
    """`content` is a stretch of a file that honours Range, or plain bytes."""
    status: int
    content: Union[bytes, Content] = b""
    headers: Dict[str, str] = field(default_factory=dict)


def json_reply(value, status=200, headers=None):
    kind = {"Content-Type": "application/json; charset=utf-8"}
    return Reply(status, json.dumps(value).encode(), {**kind, **(headers or {})})


def refusal(error: Refused):
    if error.status < 400:  # a redirect
        return Reply(error.status, error.message.encode(), {"Content-Type": "text/plain", **error.headers})
    headers = {"X-Error-Message": error.message, **error.headers}
    if error.code:
        headers["X-Error-Code"] = error.code
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="Authentication required", charset="UTF-8"'
    return json_reply({"error": error.message}, error.status, headers)


class Host(TestServer):
    """One host of the hub. `answer` is called with each request, under no lock, and returns a Reply."""

    def __init__(self, hub, name, address, port, answer):
        self.hub, self.name, self.answer = hub, name, answer
        self.closing = threading.Event()
        super().__init__((address, port), Handler)
        self.url = "http://%s:%d" % (address, self.server_address[1])

    def stop(self):
        self.closing.set()
        super().stop()

    def not_expected(self, request, client_address):
        """A defect of this server, or a request that it did not expect: the connection drops, and the hub's end tells of
        it."""
        self.hub.defects.append(traceback.format_exc())


class HungUp(Exception):
    """The connection was ended on purpose."""


class Handler(TestHandler):
    server_version = "hub_server"

    def setup(self):
        super().setup()
        self.connection_id = self.server.hub.log.next_connection()

    def handle_request(self):
        raw = urllib.parse.urlsplit(self.path)
        log = self.server.hub.log
        request = Request(time.monotonic(), self.server.name, self.connection_id, self.command, self.path,
                          urllib.parse.unquote(raw.path).lstrip("/"),
                          urllib.parse.parse_qs(raw.query, keep_blank_values=True),
                          {name.lower(): value for name, value in self.headers.items()},
                          self.headers.get("Authorization"), log.next_id())
        log.record(request)
        try:
            if request.method in ("GET", "HEAD"):
                self.answer_reading(request)
            else:
                self.answer_changing(request)
        except HungUp:
            pass
        finally:
            log.done(request)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    # Faults ---------------------------------------------------------------------------------------------------------

    def take_fault(self, request, size, begin=0):
        fault = self.server.hub.faults.take(request.host, request.method, request.path, size, begin)
        request.fault = fault.kind if fault else ""
        return fault, request.fault, fault.options if fault else {}

    def answer_reading(self, request):
        """Nothing is carried out, so the answer is made first, and the fault may depend on it."""
        self.read_body(request, None, None)
        reply = self.answer(request)
        begin, end = self.asked_range(request, reply)
        fault, kind, options = self.take_fault(request, end - begin, begin)
        if kind == "ignore_range" and isinstance(reply.content, Content):
            begin, end, request.range = 0, reply.content.size, None
            reply.status = 200 if reply.status == 206 else reply.status
            reply.headers.pop("Content-Range", None)
        self.send(request, reply, begin, end, fault, kind, options)

    def answer_changing(self, request):
        """The fault is taken first: some keep the request from being carried out, some alter what it brings."""
        length = int(request.headers.get("content-length") or 0)
        fault, kind, options = self.take_fault(request, length)
        if kind in ("reset", "cut", "stall"):
            self.read_exactly(request, length // 2, None)
            if kind == "stall":
                self.server.closing.wait(float(options.get("seconds", 3600)))
            self.hang_up(with_reset=kind == "reset")
        self.read_body(request, kind, options)
        if kind == "status":
            return self.send(request, Reply(500), 0, 0, fault, kind, options)
        if kind == "corrupt_upload" and request.body:
            middle = len(request.body) // 2
            request.body = request.body[:middle] + bytes([request.body[middle] ^ 1]) + request.body[middle + 1:]
        if kind == "truncate_upload":
            request.body = request.body[:-int(options.get("delta", 7))]
        reply = self.answer(request)
        begin, end = self.asked_range(request, reply)
        self.send(request, reply, begin, end, fault, kind, options)

    def answer(self, request):
        try:
            return self.server.answer(request)
        except Refused as error:
            return refusal(error)

    # Bodies of requests ---------------------------------------------------------------------------------------------

    def read_body(self, request, kind, options):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = bytearray()
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                data += self.read_exactly(request, size, None)
                self.rfile.readline()
                if size == 0:
                    break
            request.body = bytes(data)
        else:
            rate = (lambda: float(options["rate"])) if kind == "slow" else None
            request.body = self.read_exactly(request, int(request.headers.get("content-length") or 0), rate)

    def read_exactly(self, request, count, rate_now):
        data = bytearray()
        while len(data) < count:
            rate = rate_now() if rate_now else None
            piece = min(count - len(data), max(1, int(rate / 50)) if rate else 16 * PIECE_BYTES)
            due = time.monotonic() + (piece / rate if rate else 0)
            part = self.rfile.read(piece)
            data += part
            request.received += len(part)
            if len(part) < piece:  # the client went away
                self.close_connection = True
                raise HungUp()
            time.sleep(max(0.0, due - time.monotonic()))
        return bytes(data)

    # Answers --------------------------------------------------------------------------------------------------------

    @staticmethod
    def asked_range(request, reply):
        """[begin, end) of the reply's content that is to be sent; the reply is changed to 206 or 416 as needed."""
        size = reply.content.size if isinstance(reply.content, Content) else len(reply.content)
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        condition = request.headers.get("if-range")
        if not (isinstance(reply.content, Content) and reply.status == 200 and match and match[0] != "bytes=-"
                and condition in (None, reply.headers.get("ETag"))):
            return 0, size
        begin = int(match[1]) if match[1] else max(0, size - int(match[2]))
        end = min(int(match[2]) + 1, size) if match[1] and match[2] else size
        if begin >= end:
            reply.status, reply.content = 416, b""
            reply.headers["Content-Range"] = "bytes */%d" % size
            return 0, 0
        reply.status = 206
        reply.headers["Content-Range"] = "bytes %d-%d/%d" % (begin, end - 1, size)
        request.range = (begin, end)
        return begin, end

    def send(self, request, reply, begin, end, fault, kind, options):
        if kind == "delay" or (kind == "lost" and "delay" in options):
            self.server.closing.wait(float(options.get("seconds" if kind == "delay" else "delay", 1)))
        if kind == "lost" and "status" not in options:
            self.hang_up(with_reset=True)
        if kind in ("lost", "status"):
            reply, begin = self.told_to_fail(options), 0
            end = len(reply.content)
        headers = {"Content-Length": str(end - begin), "X-Request-Id": request.id, **reply.headers}
        if kind == "headers":
            changed = {name.lower(): value for name, value in options["headers"].items()}
            headers = {name: value for name, value in headers.items() if name.lower() not in changed}
            headers.update({name: value for name, value in options["headers"].items() if value is not None})
        broken = kind in ("reset", "cut", "stall")
        has_body = request.method != "HEAD" and end > begin
        if broken and not has_body:
            self.give_up(kind, options)
        self.start(request, reply.status, headers)
        if not has_body:
            return
        half = begin + (end - begin) // 2
        flipped = int(options.get("at", half)) if kind == "corrupt" else -1
        rate = (lambda: float(fault.options["rate"])) if kind == "slow" else (lambda: None)
        self.send_content(request, reply.content, begin, half if broken else end, rate, flipped)
        if broken:
            self.wfile.flush()
            self.give_up(kind, options)

    @staticmethod
    def told_to_fail(options):
        headers = {"Content-Type": "text/plain"}
        if "retry_after" in options:
            headers["Retry-After"] = str(options["retry_after"])
        if "rate_limit" in options:
            headers["RateLimit"] = '"api";r=0;t=%s' % options["rate_limit"]
        headers.update(options.get("headers", {}))
        body = options.get("body", "told to fail")
        return Reply(int(options["status"]), body if isinstance(body, bytes) else str(body).encode(), headers)

    def start(self, request, status, headers):
        request.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value).encode("ascii", "replace").decode().replace("\n", " "))
        self.end_headers()

    def send_content(self, request, content, begin, end, rate_now, flipped):
        is_file = isinstance(content, Content)
        self.send_paced(lambda at, count: content.read(at, at + count) if is_file else content[at:at + count], begin, end,
                        rate_now, flipped, request)

    def give_up(self, kind, options):
        if kind == "stall":
            self.server.closing.wait(float(options.get("seconds", 3600)))
        self.hang_up(with_reset=kind == "reset")

    def hang_up(self, with_reset):
        super().hang_up(with_reset)
        raise HungUp()


class Log:
    """All requests, in the order in which they came. Thread-safe."""

    def __init__(self, verbose=False):
        self.verbose = verbose
        self._lock = threading.Lock()
        self._entries = []
        self._connections = 0
        self._ids = 0

    def next_connection(self):
        with self._lock:
            self._connections += 1
            return self._connections

    def next_id(self):
        with self._lock:
            self._ids += 1
            return "Root=1-%08x-%024x" % (int(time.time()), self._ids)

    def record(self, request):
        with self._lock:
            self._entries.append(request)

    def done(self, request):
        if request.body is not None and len(request.body) > LOGGED_BODY_BYTES:
            request.body = None
        if self.verbose:
            print("%s %s %s -> %d%s" % (request.host, request.method, request.raw_path, request.status,
                                        " (%s)" % request.fault if request.fault else ""), flush=True)

    def entries(self):
        with self._lock:
            return list(self._entries)
