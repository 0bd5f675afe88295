"""A crowd at `dsrun serve`: hundreds of clients at once that chat, read streams (some of them slowly), leave, are reset, send
texts that are too long and JSON that is none. Every answer that ends is the one that its question gets alone; no memory,
descriptor, thread or place stays.

DSPACK_TESTS=long: 500 clients for two minutes. DSPACK_CROWD=CLIENTS,SECONDS: so many, for as long (of a sanitizer's build, fewer
by default). DSPACK_CROWD_PEER=HOST:PORT asks a server that runs already, such as one under a debugger; nothing but its answers
is judged then."""

import asyncio
import collections
import json
import os
import random
import re
import resource
import socket
import time
from pathlib import Path

import faults
from common import is_sanitized, main, seeded_random
from hostile.exchange import answers
from test_serve import QUESTIONS, Serving, chat, events

SANITIZED = is_sanitized("DSPACK_DSRUN")
CLIENTS, SECONDS = (float(each) for each in os.environ.get(
    "DSPACK_CROWD", "500,120" if faults.LONG and not SANITIZED else "60,30" if faults.LONG else "12,4" if SANITIZED else "100,2").split(","))
PEER = os.environ.get("DSPACK_CROWD_PEER")
MOST_GROWTH_KIB = 64 * 1024  # from a tenth of the time to the end: what the allocator keeps after so many at once
# What a server that has too much to do may say; it also leaves connections beyond its number (-1 below).
BUSY = (429, 503)


def request(path, body, host="localhost"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (path.encode(), host.encode(), len(data)) + data)


def essence(path, body):
    """Of a whole answer or a stream: what does not change from one time to the next."""
    if b'"stream": true' not in request(path, body):
        def of(text):
            answer = json.loads(text)
            if path == "/v1/messages":
                return answer["content"], answer["stop_reason"]
            if path == "/v1/responses":
                return [part["text"] for item in answer["output"] for part in item["content"]], answer["status"]
            return [(choice.get("message", choice.get("text")), choice["finish_reason"]) for choice in answer["choices"]]
        return of

    def of_stream(text):
        said, reasons, last = collections.defaultdict(str), {}, None
        for _, last in events(text):
            if last == "[DONE]":
                continue
            part = json.loads(last)
            for choice in part.get("choices", []):
                said[choice["index"]] += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
            if part.get("type") == "content_block_delta":
                said[0] += part["delta"].get("text", "")
            if part.get("type") == "message_delta":
                reasons[0] = part["delta"]["stop_reason"]
        return dict(said), reasons, last == "[DONE]" or '"message_stop"' in (last or "")
    return of_stream


class Crowd(Serving, faults.FaultCase):
    QUESTIONS = [(path, dict(body, **stream)) for stream in ({}, {"stream": True}) for path, body in (
        *(("/v1/chat/completions", chat(question, temperature=heat, seed=5)) for question in QUESTIONS for heat in (0, 0.8)),
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}),
        ("/v1/chat/completions", chat(QUESTIONS[3], n=3, temperature=0.9, seed=1)),
        ("/v1/messages", dict(chat(QUESTIONS[1]), max_tokens=12)))] + [("/v1/responses", {"input": QUESTIONS[0], "temperature": 0})]
    WRONG = [b"{", b"[]", b'{"messages":5}', b"\xff", b"[" * 10_000, b'{"messages":[],"prompt":[],"input":[]}', b""]

    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = int(CLIENTS) + 200
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
            self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def usage(self):
        """Resident memory (KiB), descriptors and threads of the server."""
        status = Path("/proc/%d/status" % self.process.pid).read_text()
        return (int(re.search(r"VmRSS:\s+(\d+)", status)[1]), len(os.listdir("/proc/%d/fd" % self.process.pid)),
                int(re.search(r"Threads:\s+(\d+)", status)[1]))

    async def exchange(self, data, read):
        """Status and text of the answer; -1: the connection was not taken, or ended before one."""
        writer = None
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 16)
            writer.write(data)
            received = await read(reader, writer)
            for status, _, body in answers(received):
                return status, body.decode()
            return -1, ""
        except OSError:
            return -1, ""
        finally:
            if writer:
                writer.transport.abort()

    async def client(self, mine, until):
        async def whole(reader, _):
            return await reader.read(-1)

        async def slowly(reader, _):
            received = b""
            while piece := await reader.read(100):
                received += piece
                await asyncio.sleep(0.01)
            return received

        async def left(reader, writer):
            if kind == "leaves" and mine.random() < 0.7:  # half a request has no answer to be read
                await reader.read(mine.randrange(1, 400))
            if mine.random() < 0.5:  # as one that is killed
                writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            return b""

        while time.monotonic() < until:
            kind = mine.choice(("whole", "whole", "whole", "slow", "leaves", "leaves", "long", "wrong", "half"))
            at = mine.randrange(len(self.QUESTIONS))
            path, body = self.QUESTIONS[at]
            if kind == "long":
                text = mine.choice(("x ", " ", "Zeit ", "\n")) * mine.choice((10_000, 50_000, 200_000))
                body = {"prompt": text, "max_tokens": 1} if mine.random() < 0.5 else chat(text)
                status, _ = await self.exchange(request("/v1/completions" if "prompt" in body else "/v1/chat/completions", body), whole)
                expected = (400,)
            elif kind == "wrong":
                status, _ = await self.exchange(request(path, mine.choice(self.WRONG)), whole)
                expected = (400,)
            elif kind in ("leaves", "half"):
                data = request(path, body)
                await self.exchange(data[:len(data) // 2] if kind == "half" else data, left)
                status, expected = 0, (0,)
            else:
                status, text = await self.exchange(request(path, body), slowly if kind == "slow" else whole)
                expected = (200,)
                if status == 200:
                    # A stream that is cut off has its mark of an end missing, and is no answer that has ended.
                    got = essence(path, body)(text)
                    if got != self.alone[at]:
                        self.wrong.append((kind, path, body, got, self.alone[at]))
            self.done[kind, "well" if status in expected else status] += 1
            if status not in (*expected, *BUSY, -1):
                self.wrong.append((kind, path, status))
            if status in (*BUSY, -1):
                await asyncio.sleep(mine.random() / 5)

    async def look(self, until):
        """The longest wait of one who asks whether the server is well."""
        while time.monotonic() < until:
            begin = time.monotonic()
            status, _ = await self.exchange(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", lambda reader, _: reader.read(-1))
            if status != -1:
                self.slowest = max(self.slowest, time.monotonic() - begin)
            await asyncio.sleep(0.1)

    async def crowd(self, clients, seconds):
        seeds = [self.random.random() for _ in range(clients)]
        until = time.monotonic() + seconds
        await asyncio.gather(self.look(until), *(self.client(random.Random(seed), until) for seed in seeds))

    def test_crowd(self):
        self.random = seeded_random()
        self.host, self.slowest, self.wrong, self.done = "127.0.0.1", 0, [], collections.Counter()
        if PEER:
            self.host, port = PEER.rsplit(":", 1)
            self.port = int(port)
        else:
            self.start_server("--parallel", "4", "--waiting", "200")
        self.alone = []
        for path, body in self.QUESTIONS:
            status, text = asyncio.run(self.exchange(request(path, body), lambda reader, _: reader.read(-1)))
            self.assertEqual(status, 200, text)
            self.alone.append(essence(path, body)(text))
        if PEER:
            asyncio.run(self.crowd(int(CLIENTS), SECONDS))
            return self.assertEqual(self.wrong, [])
        before = self.usage()
        asyncio.run(self.crowd(int(CLIENTS), SECONDS / 10))
        self.wait_for(lambda: self.state() == (0, 0))
        early = self.usage()
        asyncio.run(self.crowd(int(CLIENTS), SECONDS * 9 / 10))
        self.wait_for(lambda: self.state() == (0, 0))
        self.wait_until(lambda: self.usage()[1] <= before[1] and self.usage()[2] <= early[2],
                        "descriptors that are closed and threads that end", 90)
        late = self.usage()
        print("crowd: %d clients, %d s: %s; /health after %.2f s at most; %d, %d, %d kB before, after a tenth, and at the end; %d descriptors"
              % (CLIENTS, SECONDS, ", ".join("%s %s %d" % (*what, count) for what, count in sorted(self.done.items(), key=str)),
                 self.slowest, before[0], early[0], late[0], late[1]), flush=True)
        self.assertEqual(self.wrong[:5], [])
        for kind in ("whole", "slow", "wrong", "long"):
            self.assertGreater(self.done[kind, "well"], 0, kind)
        if not SANITIZED:
            self.assertLess(self.slowest, 5)
            self.assertLess(late[0] - early[0], MOST_GROWTH_KIB)
        # Who comes now is served at once.
        self.assertEqual(self.answer("/v1/chat/completions", chat(QUESTIONS[0]))["choices"][0]["message"]["content"], "The capital of France is Paris.")
        self.assert_ok_after_stop(log="dsrun: .*")


if __name__ == "__main__":
    main()
