#!/usr/bin/env python3
"""A real HTTP/1.1 file server that honours Range, and misbehaves on request.

As a module:

    with RangeServer(folder) as server:
        server.add_fault("*.safetensors", "503", times=2)
        ... server.url ... server.log ...

From the command line (prints its URL as the first line, then one line a request with --verbose):

    range_server.py FOLDER [--port N] [--rate BYTES_PER_SECOND] [--token T] [--certificate FILE]
                    [--fault 'PATTERN:KIND:key=value,...']

Faults, each for the paths that match a shell pattern (without the leading slash):

    ignore_range         answers 200 with the whole file
    truncate             promises the whole range and closes the connection after half of it; a function `then` is
                         called in between
    reset                the same, with a TCP reset
    stall                the same, but the connection stays open and silent for `seconds` (default: an hour)
    corrupt              the byte of the file at offset `at` comes with one bit flipped; strikes answers that hold it
    status               the status given by `status`; a bare number as kind means the same ("404", "503")
                         with `retry_after` and `body`
    wrong_content_range  206 with a Content-Range that was not asked for
    wrong_length         the right Content-Range, but `delta` bytes more or less of body (default: 7 less)
    change_etag          another ETag from here on (or the one that `etag` says)
    no_version           no ETag
    shrink               no ETag either, and the file ends `delta` bytes earlier (default: 7)
    redirect             302 (or `status`) to `to` + path; `within`: "old:new" replaces a part of the path; with `linked`
                         as the Hub does for LFS files: X-Linked-Etag is the file's SHA-256, X-Linked-Size its size
                         (or what `etag` and `size` say)
    slow                 sends the body at `rate` bytes per second; a change of fault.options["rate"] takes effect at once

`times` limits how often a fault strikes (default: always), `skip` lets so many matching requests pass first, `chance`
makes it random (seed it by `random_seed`), `min_bytes` spares answers with fewer body bytes (small probes of a file).

Standard library only; Python 3.9 or later.
"""

import argparse
import fnmatch
import hashlib
import os
import random
import re
import ssl
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from wire_pieces import TestHandler, TestServer, strikes  # noqa: E402


@dataclass
class Fault:
    pattern: str
    kind: str
    times: Optional[int] = None
    skip: int = 0
    every: int = 1
    chance: float = 1.0
    min_bytes: int = 0
    options: Dict[str, object] = field(default_factory=dict)
    matched: int = 0
    struck: int = 0


@dataclass
class Request:
    """One line of the log. `range` is [begin, end) as asked for; `sent` counts body bytes."""
    time: float
    connection: int
    method: str
    raw_path: str  # as on the wire, percent-encoded, with the query
    path: str  # decoded, without the leading slash
    range: Optional[Tuple[int, int]]
    host: str
    authorization: Optional[str]
    status: int = 0
    sent: int = 0
    fault: str = ""


class RangeServer(TestServer):
    def __init__(self, root, port=0, rate=None, token=None, random_seed=0, verbose=False, commit=None):
        self.root = os.path.abspath(root)
        self.rate = rate  # bytes per second and connection
        self.token = token  # a bearer token without which every answer is 401
        self.commit = commit  # X-Repo-Commit of every answer, as the Hub has it: what of the Hub this server can play
        self.verbose = verbose
        self.log: List[Request] = []
        self.virtual: Dict[str, Tuple[bytes, int]] = {}  # path -> first bytes, size; the rest reads as zeros
        self.extra_headers: Dict[str, Dict[str, str]] = {}  # path -> headers of every answer with (a part of) that file
        self.renames: Dict[str, str] = {}  # path prefix as asked for -> folder under root
        self._faults: List[Fault] = []
        self._random = random.Random(random_seed)
        self._lock = threading.Lock()
        self._connections = 0
        super().__init__(("127.0.0.1", port), Handler)
        self.url = "http://127.0.0.1:%d" % self.server_address[1]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def add_fault(self, pattern, kind, times=None, skip=0, chance=1.0, min_bytes=0, **options):
        if kind.isdigit():
            options["status"] = int(kind)
            kind = "status"
        if kind not in KINDS:
            raise ValueError("unknown fault %r" % kind)
        fault = Fault(pattern, kind, times, skip, chance=chance, min_bytes=min_bytes, options=options)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear_faults(self):
        with self._lock:
            self._faults.clear()

    def requests(self, pattern="*"):
        with self._lock:
            return [entry for entry in self.log if fnmatch.fnmatch(entry.path, pattern)]

    def take_fault(self, path, begin, end):
        with self._lock:
            return next((fault for fault in self._faults if fnmatch.fnmatch(path, fault.pattern)
                         and strikes(fault, self._random, end - begin, begin)), None)

    def record(self, entry):
        with self._lock:
            self.log.append(entry)

    def next_connection(self):
        with self._lock:
            self._connections += 1
            return self._connections

    def local_path(self, path):
        """The file that a decoded URL path means, or None where it leads out of the root."""
        for prefix, folder in self.renames.items():
            if path.startswith(prefix):
                path = folder + path[len(prefix):]
                break
        full = os.path.normpath(os.path.join(self.root, path))
        return full if full.startswith(self.root + os.sep) else None


KINDS = {"ignore_range", "truncate", "reset", "stall", "corrupt", "status", "wrong_content_range", "wrong_length",
         "change_etag", "no_version", "shrink", "redirect", "slow"}


class Handler(TestHandler):
    server_version = "range_server"

    def setup(self):
        super().setup()
        self.connection_id = self.server.next_connection()

    def do_HEAD(self):
        self.answer(send_body=False)

    def do_GET(self):
        self.answer(send_body=True)

    def answer(self, send_body):
        raw = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(raw.path).lstrip("/")
        entry = Request(time.monotonic(), self.connection_id, self.command, self.path, path, None,
                        self.headers.get("Host", ""), self.headers.get("Authorization"))
        self.server.record(entry)
        self.entry = entry
        try:
            self.answer_path(path, send_body)
        finally:
            if self.server.verbose:
                print(entry, flush=True)

    def answer_path(self, path, send_body):
        if self.server.token and self.entry.authorization != "Bearer " + self.server.token:
            return self.refuse(401, b"a token is required", {"WWW-Authenticate": "Bearer"})
        found = self.find(path)
        asked = self.asked_range(found[1]) if found else None
        fault = self.server.take_fault(path, *(asked or (0, found[1] if found else 0)))
        self.entry.fault = fault.kind if fault else ""
        if fault and fault.kind == "status":
            headers = {"Retry-After": str(fault.options["retry_after"])} if "retry_after" in fault.options else {}
            return self.refuse(fault.options["status"], fault.options.get("body", "told to fail").encode(), headers)
        if fault and fault.kind == "redirect":
            old, _, new = str(fault.options.get("within", ":")).partition(":")
            target = str(fault.options["to"]).rstrip("/") + self.path.replace(old, new, 1)
            headers = self.linked_headers(found, fault.options) if fault.options.get("linked") and found else {}
            return self.refuse(int(fault.options.get("status", 302)), b"", {"Location": target, **headers})
        if found is None:
            return self.refuse(404, b"no such file", {})
        self.serve_file(found, asked, fault, send_body)

    @staticmethod
    def linked_headers(found, options):
        with open(found[0], "rb") as file:
            etag = options.get("etag") or hashlib.sha256(file.read()).hexdigest()
        return {"X-Linked-Etag": '"%s"' % etag, "X-Linked-Size": str(options.get("size", found[1]))}

    def find(self, path):
        """(first bytes or local path, size, version) or None."""
        if path in self.server.virtual:
            head, size = self.server.virtual[path]
            return head, size, "virtual-%d" % size
        full = self.server.local_path(path)
        if full is None or not os.path.isfile(full):
            return None
        info = os.stat(full)
        return full, info.st_size, "%x-%x" % (info.st_mtime_ns, info.st_size)

    def asked_range(self, size):
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return None
        begin = int(match[1])
        end = int(match[2]) + 1 if match[2] else size
        self.entry.range = (begin, end)
        return begin, min(end, size)

    def serve_file(self, found, asked, fault, send_body):
        content, size, version = found
        kind = fault.kind if fault else ""
        if kind == "shrink":
            size -= int(fault.options.get("delta", 7))
        begin, end = asked if asked and kind != "ignore_range" else (0, size)
        end = min(end, size)
        if begin >= end and asked:
            return self.refuse(416, b"", {"Content-Range": "bytes */%d" % size})
        status = 206 if asked and kind != "ignore_range" else 200
        length = end - begin
        if kind == "wrong_length":
            length = max(0, length + int(fault.options.get("delta", -7)))
        headers = {"Accept-Ranges": "bytes", "Content-Length": str(length), "Content-Type": "application/octet-stream"}
        if kind not in ("no_version", "shrink"):
            headers["ETag"] = '"%s"' % (fault.options.get("etag", version + "-changed") if kind == "change_etag" else version)
        headers.update(self.server.extra_headers.get(self.entry.path, {}))
        if status == 206:
            shift = 1 if kind == "wrong_content_range" else 0
            headers["Content-Range"] = "bytes %d-%d/%d" % (begin + shift, end - 1 + shift, size + shift)
        self.start(status, headers)
        if not send_body:
            return
        rate = (lambda: fault.options["rate"]) if kind == "slow" else (lambda: self.server.rate)
        if kind in ("truncate", "reset", "stall"):
            self.send_content(content, begin, begin + length // 2, rate)
            if kind == "stall":
                self.wfile.flush()
                time.sleep(float(fault.options.get("seconds", 3600)))
            fault.options.get("then", lambda: None)()
            self.hang_up(with_reset=kind == "reset")
        else:
            flipped = int(fault.options["at"]) if kind == "corrupt" else -1
            self.send_content(content, begin, begin + length, rate, flipped)

    def send_content(self, content, begin, end, rate_now, flipped=-1):
        source = open(content, "rb") if isinstance(content, str) else None
        try:
            self.send_paced(lambda at, count: self.piece(content, source, at, count), begin, end, rate_now, flipped, self.entry)
        finally:
            if source:
                source.close()

    @staticmethod
    def piece(content, source, at, count):
        if source:
            source.seek(at)
            return source.read(count).ljust(count, b"\0")
        return content[at:at + count].ljust(count, b"\0")

    def refuse(self, status, body, headers):
        self.start(status, {"Content-Length": str(len(body)), "Content-Type": "text/plain", **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def start(self, status, headers):
        self.entry.status = status
        self.send_response(status)
        if self.server.commit:
            self.send_header("X-Repo-Commit", self.server.commit)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def parse_fault(text):
    pattern, kind, *rest = text.split(":", 2)
    options: Dict[str, object] = {}
    for pair in (rest[0].split(",") if rest else []):
        key, value = pair.split("=", 1)
        options[key] = float(value) if key == "chance" else int(value) if value.lstrip("-").isdigit() else value
    return pattern, kind, options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, help="bytes per second and connection")
    parser.add_argument("--token", help="answer 401 to requests without this bearer token")
    parser.add_argument("--certificate", metavar="FILE", help="a certificate and its key (PEM): serve over TLS")
    parser.add_argument("--random-seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print every request")
    parser.add_argument("--fault", action="append", default=[], metavar="PATTERN:KIND[:key=value,...]")
    arguments = parser.parse_args()
    server = RangeServer(arguments.folder, arguments.port, arguments.rate, arguments.token, arguments.random_seed,
                         arguments.verbose)
    if arguments.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url = "https://localhost:%d" % server.server_address[1]
    for text in arguments.fault:
        pattern, kind, options = parse_fault(text)
        server.add_fault(pattern, kind, **options)
    print(server.url, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
