"""Where a repository's files lie: a folder, an http(s) folder on a server with byte ranges, or the Hub.

A place reads ranges. What it returns is as long as was asked, or OSError is raised; memory grows only with bytes that
arrive, and a server that sends a byte now and then does not hold anybody up.
"""

import http.client
import io
import ipaddress
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any, Dict, Optional, Protocol

from .json_text import parse_json

TIMEOUT_SECONDS = 30  # of silence; of an answer, until it must have come at the least rate
LEAST_RATE = 10_000  # bytes a second, head and body of an answer
MAX_HUB_ANSWER_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_HUB_NAME = re.compile(r"(?:hf://)?([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:@([^@\s]+))?")


class Place(Protocol):
    def read_all(self, path: str, most: int) -> bytes:
        """A whole file of at most so many bytes."""

    def read(self, path: str, offset: int, length: int, size: int) -> bytes:
        """A range of a file that must have `size` bytes."""


class Folder:
    def __init__(self, root: str):
        self.root = Path(root)

    def read_all(self, path: str, most: int) -> bytes:
        with open(self.root / path, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise OSError("%s: larger than %d bytes" % (self.root / path, most))
        return data

    def read(self, path: str, offset: int, length: int, size: int) -> bytes:
        with open(self.root / path, "rb") as file:
            there = os.fstat(file.fileno()).st_size
            if there != size:
                raise OSError("%s: %d bytes, and the manifest says %d" % (self.root / path, there, size))
            file.seek(offset)
            data = file.read(length)
        if len(data) != length:
            raise OSError("%s: ends within the range %d-%d" % (self.root / path, offset, offset + length))
        return data


def _origin(url: str) -> "tuple[str, Optional[str], Optional[int]]":
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _is_private_line(url: str) -> bool:
    """Whether nobody on the way can read a token: TLS, or this machine itself."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The token stays with the server that it is for, and nothing that began with TLS goes on without it."""

    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage,
                         newurl: str) -> Optional[urllib.request.Request]:
        if not newurl.startswith(("http://", "https://")) or (req.full_url.startswith("https:")
                                                               and not newurl.startswith("https:")):
            raise urllib.error.HTTPError(req.full_url, code, "a redirect that is not followed", headers, fp)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if request and token and _origin(req.full_url) == _origin(newurl):
            request.add_unredirected_header("Authorization", token)
        return request


class _Paced(io.RawIOBase):
    """What a socket brings, as long as that is fast enough."""

    def __init__(self, raw: Any):
        super().__init__()
        self.raw = raw
        self.begin = time.monotonic()
        self.bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> Optional[int]:
        got: Optional[int] = self.raw.readinto(into)
        self.bytes += got or 0
        seconds = time.monotonic() - self.begin
        if got and seconds > TIMEOUT_SECONDS and self.bytes < LEAST_RATE * (seconds - TIMEOUT_SECONDS):
            raise TimeoutError("%d bytes in %.0f s: too slow to wait for" % (self.bytes, seconds))
        return got

    def close(self) -> None:
        self.raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, sock: Any, *arguments: Any, **options: Any):
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_Paced(self.fp.detach()))


class _Connection(http.client.HTTPConnection):
    response_class = _PacedResponse


class _TlsConnection(http.client.HTTPSConnection):
    response_class = _PacedResponse


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_Connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self) -> None:
        self.tls = ssl.create_default_context()
        self.tls.set_alpn_protocols(["http/1.1"])
        super().__init__(context=self.tls)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_TlsConnection, req, context=self.tls)


class HttpFolder:
    """`address` ends with a slash, or has a %s in which the path goes."""

    def __init__(self, address: str, token: Optional[str] = None):
        self.address = address
        self.token = token if token and _is_private_line(address) else None
        self.opener = urllib.request.build_opener(_Redirects(), _Http(), _Https())

    def url(self, path: str) -> str:
        return self.address + urllib.parse.quote(path)

    def get(self, url: str, headers: Optional[Dict[str, str]] = None) -> Any:
        request = urllib.request.Request(url, headers={"User-Agent": "dspack-python", **(headers or {})})
        if self.token:
            request.add_unredirected_header("Authorization", "Bearer " + self.token)
        return self.opener.open(request, timeout=TIMEOUT_SECONDS)

    @staticmethod
    def body(answer: Any, most: int, url: str) -> bytes:
        pieces = []
        left = most + 1
        while left > 0:
            piece = answer.read(min(left, _PIECE_BYTES))
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
        if left == 0:
            raise OSError("%s: more than the %d bytes that were asked for" % (url, most))
        return b"".join(pieces)

    def read_all(self, path: str, most: int) -> bytes:
        url = self.url(path)
        with self.get(url) as answer:
            data = self.body(answer, most, url)
            declared = answer.headers.get("Content-Length")
        if declared is not None and declared != str(len(data)):
            raise OSError("%s: ended after %d of %s bytes" % (url, len(data), declared[:20]))
        return data

    def read(self, path: str, offset: int, length: int, size: int) -> bytes:
        if length == 0:
            return b""
        url = self.url(path)
        last = offset + length - 1
        with self.get(url, {"Range": "bytes=%d-%d" % (offset, last)}) as answer:
            if answer.status != 206:
                raise OSError("%s: the server sends no byte ranges (status %d)" % (url, answer.status))
            said = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if said is None or (int(said[1]), int(said[2])) != (offset, last):
                raise OSError("%s: another range than was asked for" % url)
            if int(said[3]) != size:
                raise OSError("%s: %s bytes, and the manifest says %d" % (url, said[3], size))
            data = self.body(answer, length, url)
        if len(data) != length:
            raise OSError("%s: ended after %d of %d bytes" % (url, len(data), length))
        return data


def _hub_token() -> Optional[str]:
    """As the Hub's own client finds it: HF_TOKEN, else the file that "hf auth login" wrote."""
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                                                          "huggingface")
        try:
            with open(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token"), encoding="utf-8") as file:
                token = file.read(4096).strip()
        except (OSError, UnicodeDecodeError):
            return None
    return token if re.fullmatch(r"[!-~]+", token) else None


def open_hub(name: str, revision: str) -> HttpFolder:
    """A repository at the commit that `revision` names now; all reads are of that commit."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    api = HttpFolder(endpoint + "/", _hub_token())
    url = "%s/api/models/%s/revision/%s" % (endpoint, name, urllib.parse.quote(revision, safe=""))
    with api.get(url) as answer:
        text = api.body(answer, MAX_HUB_ANSWER_BYTES, url)
    try:
        commit = parse_json(text.decode("utf-8"))["sha"]
    except (ValueError, KeyError, TypeError):
        raise OSError("%s: the answer names no commit" % url) from None
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise OSError("%s: the answer names no commit" % url)
    return HttpFolder("%s/%s/resolve/%s/" % (endpoint, name, commit), api.token)


def open_place(source: "str | os.PathLike[str]") -> Place:
    """A folder that exists, an http(s) address, or a name on the Hub: org/name[@revision], hf://org/name[@revision]."""
    text = os.fspath(source)
    if text.startswith(("http://", "https://")):
        return HttpFolder(text.rstrip("/") + "/")
    named = _HUB_NAME.fullmatch(text)
    if named and (text.startswith("hf://") or not os.path.isdir(text)) and ".." not in named[1]:
        return open_hub(named[1], named[2] or "main")
    return Folder(text)
