"""Bytes sent to a server of HTTP, as they are, and all that it answers: for requests that no client makes."""

import select
import socket
import time
from dataclasses import dataclass, field

# Behind a request: shows where the server thinks that it ends, and ends the connection.
SENTINEL = b"GET /sentinel HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass
class Sent:
    """`statuses`: those that are right, of all answers in turn; several lists: each is. `ends`: the client sends nothing
    behind it and ends its sending side, where there is a sentinel otherwise, which is answered by 404."""
    name: str
    data: bytes
    statuses: list
    ends: bool = False


@dataclass
class Exchange:
    statuses: list = field(default_factory=list)
    bodies: list = field(default_factory=list)
    heads: list = field(default_factory=list)
    seconds: float = 0.0
    is_closed: bool = False  # by the server, in time


def exchange(port, data, ends=False, seconds=20):
    """Sends as long as the server takes it, and reads all answers, until it closes the connection."""
    begin = time.monotonic()
    received, sent = b"", 0
    result = Exchange()
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.setblocking(False)
        is_sending = True
        while time.monotonic() < begin + seconds:
            readable, writable, _ = select.select([connection], [connection] if is_sending else [], [], 1)
            try:
                if writable:
                    sent += connection.send(data[sent:sent + (1 << 20)]) if sent < len(data) else 0
                    if sent == len(data):
                        is_sending = False
                        if ends:
                            connection.shutdown(socket.SHUT_WR)
                if readable:
                    piece = connection.recv(1 << 16)
                    received += piece
                    if not piece:
                        result.is_closed = True
                        break
            except BlockingIOError:
                pass
            except ConnectionError:  # reset: nothing more comes
                result.is_closed = True
                break
    result.seconds = time.monotonic() - begin
    for status, head, body in answers(received):
        result.statuses.append(status)
        result.heads.append(head)
        result.bodies.append(body)
    return result


def answers(received):
    """Status, head and body of each; what is no answer of HTTP has status -1."""
    while received:
        head, found, rest = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if not found or len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            yield -1, head.decode("latin-1"), received
            return
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                size, _, rest = rest.partition(b"\r\n")
                length = int(size or b"0", 16)
                body, rest = body + rest[:length], rest[length + 2:]
                if length == 0:
                    break
        else:
            length = int(fields.get("content-length", 0))
            body, rest = rest[:length], rest[length:]
        if words[1] != "100":
            yield int(words[1]), head.decode("latin-1"), body
        received = rest
