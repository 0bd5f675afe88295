"""What goes wrong on request.

A fault strikes requests of a method ("*" for any) whose path (decoded, without the leading slash and the query) matches
a shell pattern, on the Hub's host, the storage host, or both (`host`). Kinds:

    status           another answer instead of the right one; nothing is carried out. `status` (a bare number as kind
                     means the same), `body`, `headers`, `retry_after`, `rate_limit` (seconds: RateLimit's t)
    reset            TCP reset: of a download after half of the body, of an upload after half of it was read, of the
                     rest without an answer; nothing is carried out
    cut              the same, but the connection is closed in order
    stall            the same, but the connection stays open and silent for `seconds` (default: an hour)
    lost             the request is carried out, the connection is reset without an answer; with `status` (and `body`)
                     that is answered instead, as a gateway does that gave up waiting. `delay` seconds pass first
    slow             bodies come and go at `rate` bytes per second; a change of fault.options["rate"] works at once
    delay            the answer comes `seconds` later
    headers          the answer's headers are changed as `headers` says (a dict; None takes one away)
    corrupt          a download has one bit flipped: byte `at` of the file (strikes only answers that hold it), or the
                     middle of the body
    ignore_range     a download comes whole, with 200
    corrupt_upload   the body is stored with one bit flipped and answered as if nothing had happened
    truncate_upload  the body is stored without its last `delta` bytes (default: 7)

`times` limits how often a fault strikes (default: always), `skip` lets so many matching requests pass first, `every`
strikes only each so-many-th after them, `chance` makes it random (the server's `random_seed`), `min_bytes` spares small
bodies: the request's for uploads, the answer's for the rest. Of several faults that match, the first added strikes.
"""

import fnmatch
import random
import threading
from dataclasses import dataclass, field
from typing import Dict, List, Optional

from wire_pieces import strikes

KINDS = {"status", "reset", "cut", "stall", "lost", "slow", "delay", "headers", "corrupt", "ignore_range",
         "corrupt_upload", "truncate_upload"}


@dataclass
class Fault:
    method: str
    pattern: str
    kind: str
    times: Optional[int] = None
    skip: int = 0
    every: int = 1
    chance: float = 1.0
    min_bytes: int = 0
    host: str = "*"
    options: Dict[str, object] = field(default_factory=dict)
    matched: int = 0
    struck: int = 0


class Faults:
    """Thread-safe."""

    def __init__(self, random_seed=0):
        self._lock = threading.Lock()
        self._random = random.Random(random_seed)
        self._list: List[Fault] = []

    def add(self, method, pattern, kind, options):
        if kind.isdigit():
            options = {**options, "status": int(kind)}
            kind = "status"
        if kind not in KINDS:
            raise ValueError("unknown fault %r" % kind)
        known = {name: options.pop(name) for name in ("times", "skip", "every", "chance", "min_bytes", "host")
                 if name in options}
        fault = Fault(method, pattern, kind, options=options, **known)
        with self._lock:
            self._list.append(fault)
        return fault

    def clear(self):
        with self._lock:
            self._list.clear()

    def take(self, host, method, path, size, begin=0) -> Optional[Fault]:
        """The fault that strikes a request with `size` bytes of body (from byte `begin` of a file), if one does."""
        with self._lock:
            return next((fault for fault in self._list if fnmatch.fnmatchcase(host, fault.host)
                         and fnmatch.fnmatchcase(method, fault.method) and fnmatch.fnmatchcase(path, fault.pattern)
                         and strikes(fault, self._random, size, begin)), None)


def parse_fault(text):
    """"METHOD PATTERN:KIND:key=value,..." -> method, pattern, kind, options."""
    method, _, rest = text.partition(" ")
    pattern, kind, *more = rest.split(":", 2)
    options: Dict[str, object] = {}
    for pair in (more[0].split(",") if more else []):
        key, value = pair.split("=", 1)
        options[key] = float(value) if "." in value and key != "body" else int(value) if value.isdigit() else value
    return method, pattern, kind, options
