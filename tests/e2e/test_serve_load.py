"""dsrun serve under load and under attack: every finished answer is the one that its question gets alone, memory,
descriptors and places come back, and the next client is served.

DSPACK_SERVE_LOAD=full: 500 clients for two minutes (60 under a sanitizer), 100,000 fuzzed requests, 10,000 connections, a
body of 1 GB; else a tenth or less."""

import http.client
import json
import os
import random
import resource
import select
import socket
import threading
import time

from common import is_sanitized, main, seeded_random
from test_serve import QUESTIONS, Serving, chat

IS_FULL = os.environ.get("DSPACK_SERVE_LOAD") == "full"


class ServeLoad(Serving):
    def usage(self):
        """Resident memory (kB), its highest, and open descriptors of the server."""
        with open("/proc/%d/status" % self.process.pid) as status:
            fields = dict(line.split(":", 1) for line in status)
        return (int(fields["VmRSS"].split()[0]), int(fields["VmHWM"].split()[0]),
                len(os.listdir("/proc/%d/fd" % self.process.pid)))

    def report(self, what, **figures):
        print("%s: %s" % (what, ", ".join("%s %s" % (name.replace("_", " "), value) for name, value in figures.items())))

    def wait_for_places(self):
        deadline = time.monotonic() + 60
        while self.counts()["requests_running"] + self.counts()["requests_waiting"] > 0:
            self.assertLess(time.monotonic(), deadline, "a place is not given back")
            time.sleep(0.05)

    def wait_for_descriptors(self, most):
        deadline = time.monotonic() + 60
        while self.usage()[2] > most:
            self.assertLess(time.monotonic(), deadline, "%d descriptors, %d before" % (self.usage()[2], most))
            time.sleep(0.05)

    def test_mixed_requests(self):
        """Whole answers and streams in all APIs, clients that leave at any time, that read slowly, that are killed; texts
        that are too long, and what is no request."""
        clients = 8 if not IS_FULL else 60 if is_sanitized("DSPACK_DSRUN") else 500
        each_sends, seconds = (10 ** 6, 120) if IS_FULL else (8, 600)
        self.start_server("--parallel", "3", "--waiting", "100")
        bodies = [("/v1/chat/completions", chat(question, temperature=heat, seed=5))
                  for question in QUESTIONS for heat in (0, 0.8)]
        bodies += [("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}),
                   ("/v1/messages", dict(chat(QUESTIONS[1]), max_tokens=12)),
                   ("/v1/chat/completions", chat(QUESTIONS[3], n=3, temperature=0.9, seed=1))]
        hopeless = [("/v1/chat/completions", chat("word " * 200_000), 400), ("/v1/completions", {"prompt": 5}, 400)]

        def essence(path, text):
            answer = json.loads(text)
            return answer["content"] if path == "/v1/messages" else answer["choices"]

        alone = [essence(path, self.ask(path, body)[2]) for path, body in bodies]
        before = self.usage()
        wrong, finished, refused, lock = [], [0], [0], threading.Lock()
        end = time.monotonic() + seconds
        choice = seeded_random()
        seeds = [choice.random() for _ in range(clients)]

        def client(seed):
            mine = random.Random(seed)
            for _ in range(each_sends):
                if time.monotonic() > end:
                    return
                at = mine.randrange(len(bodies))
                path, body = bodies[at]
                kind = mine.choice(("whole", "whole", "whole", "leaves", "reset", "slow", "hopeless"))
                if kind == "hopeless":
                    path, body, wanted = mine.choice(hopeless)
                    status, _, text = self.ask(path, body)
                    with lock:
                        refused[0] += status in (429, 503)
                        if status not in (wanted, 429, 503):
                            wrong.append((path, str(body)[:80], text, status))
                    continue
                if kind == "whole":
                    status, _, text = self.ask(path, body)
                    with lock:
                        if IS_FULL and status in (429, 503):  # a crowd that is larger than the queue
                            refused[0] += 1
                            continue
                        finished[0] += 1
                        if status != 200 or essence(path, text) != alone[at]:
                            wrong.append((path, body, text, alone[at]))
                    continue
                data = json.dumps(dict(body, stream=True)).encode()
                with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
                    connection.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                                       % (path.encode(), len(data)))
                    is_half = kind == "leaves" and mine.random() < 0.3
                    connection.sendall(data[:len(data) // 2] if is_half else data)
                    if kind == "slow":
                        while connection.recv(50):
                            time.sleep(0.002)
                    elif not is_half and mine.random() < 0.7:
                        connection.recv(mine.randrange(1, 400))
                    if kind == "reset":  # as a client that is killed
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

        def stubborn(seed):
            while IS_FULL and time.monotonic() < end:
                try:
                    client(seed)
                except (OSError, http.client.HTTPException):  # more connections than one address may have
                    refused[0] += 1
                    seed += 1
            if not IS_FULL:
                client(seed)

        threads = [threading.Thread(target=stubborn, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(finished[0], 0)
        self.wait_for_places()
        self.assertGreater(self.counts()["pass_rows_total"], self.counts()["passes_total"])
        self.wait_for_descriptors(before[2])
        after = self.usage()
        self.report("mixed requests", clients=clients, finished=finished[0], refused=refused[0], kB_before=before[0], kB_after=after[0],
                    descriptors=after[2])
        self.assert_ok_after_stop()

    def fuzzed(self, mine, good):
        data = bytearray(json.dumps(good).encode())
        kind = mine.randrange(5)
        if kind == 0:
            for _ in range(mine.randrange(1, 6)):
                data[mine.randrange(len(data))] = mine.randrange(256)
        elif kind == 1:  # a value replaced by another one
            body = json.loads(data)
            body[mine.choice(list(body) + ["n", "stop", "tools", "seed"])] = mine.choice(
                (None, -1, 0, 2 ** 64, 1e308, "", "x" * 100, [], [[]], {}, {"a": {}}, True, [None], "\ud800", [{"type": 1}]))
            data = bytearray(json.dumps(body).encode())
        elif kind == 2:
            body = json.loads(data)
            del body[mine.choice(list(body))]
            data = bytearray(json.dumps(body).encode())
        elif kind == 3:
            cut = sorted(mine.randrange(len(data)) for _ in range(2))
            data = data[:cut[0]] + data[cut[1]:]
        else:
            at = mine.randrange(len(data))
            data = data[:at] + bytes(mine.randrange(256) for _ in range(mine.randrange(40))) + data[at:]
        return bytes(data)

    def test_fuzzed_requests(self):
        count = 100_000 if IS_FULL else 200 if is_sanitized("DSPACK_DSRUN") else 2000
        self.start_server("--parallel", "2")
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        good = [chat("hello", max_tokens=1), chat("hello", max_tokens=1, tools=[tool], stop=["x"], n=2, logprobs=True),
                {"prompt": "Once", "max_tokens": 1, "logprobs": 1}, {"content": "text"}, {"tokens": [1, 2]},
                {"input": [{"role": "user", "content": "x"}], "max_output_tokens": 1, "instructions": "x"},
                {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 1, "system": "x"}]
        paths = ["/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                 "/v1/responses", "/v1/messages", "/apply-template", "/v1/messages/count_tokens", "/v1/models", "/%00",
                 "/../etc/passwd", "//", "/metrics"]
        mine, statuses = seeded_random(), {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        start = time.monotonic()
        for number in range(count):
            if number == count // 10:
                early = self.usage()
            at = mine.randrange(len(good))
            path = paths[at] if mine.random() < 0.8 else mine.choice(paths)
            connection.request(mine.choice(("POST",) * 9 + ("PUT", "OPTIONS")), path,
                               self.fuzzed(mine, good[at]), {"Content-Type": mine.choice(("application/json", "x\t/y", "\xff"))})
            response = connection.getresponse()
            response.read()
            statuses[response.status] = statuses.get(response.status, 0) + 1
        connection.close()
        self.assertLessEqual(set(statuses), {200, 400, 403, 404, 405})
        self.assertGreater(statuses[200], 0)
        self.wait_for_places()
        late = self.usage()
        self.report("fuzzed requests", requests=count, seconds=round(time.monotonic() - start), statuses=statuses,
                    kB_after_a_tenth=early[0], kB_at_the_end=late[0])
        if not is_sanitized("DSPACK_DSRUN"):
            self.assertLess(late[0], early[0] + 16_000)
        self.assertEqual(self.answer("/v1/chat/completions", chat(QUESTIONS[0]))["choices"][0]["message"]["content"],
                         "The capital of France is Paris.")
        self.assert_ok_after_stop(log="dsrun: (a request's field .* is not known, and does nothing|a tool of type .* is left out: .*)")

    def test_connections_bodies_and_headers(self):
        connections, body = (10_000, 1_000_000_000) if IS_FULL else (1000, 64_000_000)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < connections + 100:
            connections = hard - 100
            print("SKIPPED: %d connections; this system allows %d files" % (10_000, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, connections + 100), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.start_server()
        before = self.usage()
        crowd = [socket.create_connection(("127.0.0.1", self.port), timeout=60) for _ in range(connections)]
        for each in crowd[::2]:
            try:
                each.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
            except OSError:
                pass  # it has been closed, as it should be
        self.assertEqual(self.ask("/health")[0], 200)
        crowded = self.usage()
        for each in crowd:
            each.close()
        # A body that is announced, and one that is not, in chunks without an end.
        for head in (b"Content-Length: %d" % body, b"Transfer-Encoding: chunked"):
            with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
                piece, sent, said = b"x" * 65_536, 0, b""
                framed = piece if b"Length" in head else b"10000\r\n" + piece + b"\r\n"
                try:
                    while sent < body and not said:
                        connection.sendall(framed)
                        sent += len(piece)
                        if select.select([connection], [], [], 0)[0]:
                            said = connection.recv(200)
                    said = said or connection.recv(200)
                except OSError:
                    pass
                self.assertIn(b"413", said)
                self.report("body", bytes_sent=sent)
        # Many long bodies at once: together they have a bound as well.
        many = [socket.create_connection(("127.0.0.1", self.port), timeout=60) for _ in range(16)]
        for each in many:
            each.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n")
        refused = 0
        for _ in range(29):
            for each in list(many):
                try:
                    each.sendall(b"x" * 1_000_000)
                    was_refused = select.select([each], [], [], 0)[0] and b" 503 " in each.recv(100)
                except OSError:
                    was_refused = True
                if was_refused:
                    refused += 1
                    many.remove(each)
                    each.close()
        self.assertEqual(self.answer("/v1/chat/completions", chat(QUESTIONS[0]))["choices"][0]["message"]["content"],
                         "The capital of France is Paris.")
        for each in many:
            each.close()
        self.assertGreater(refused, 8)
        # Headers without an end.
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            said = b""
            try:
                for number in range(100_000):
                    connection.sendall(b"x-%d: y\r\n" % number)
                    if select.select([connection], [], [], 0)[0]:
                        said = connection.recv(200)
                        break
            except OSError:
                pass
            self.assertIn(b"431", said)
        self.assertEqual(self.ask("/health")[0], 200)
        self.wait_for_descriptors(before[2])
        after = self.usage()
        self.report("connections", connections=connections, descriptors_then=crowded[2], descriptors_after=after[2],
                    kB_before=before[0], kB_highest=after[1])
        if not is_sanitized("DSPACK_DSRUN"):
            # All bodies together 64 MiB, of which one grows by being copied, and sockets and their buffers.
            self.assertLess(after[1], before[0] + 120_000)
        self.assert_ok_after_stop()

    def test_slow_and_half_open_clients_hold_no_place(self):
        """A client that takes nothing of its stream is let go when too much has piled up, or at the latest in time."""
        self.start_server("--parallel", "1")
        body = json.dumps({"prompt": "Once", "max_tokens": 900, "temperature": 0, "logit_bias": {"1": -100}, "stream": True,
                           "logprobs": 20}).encode()
        stuck = []
        for _ in range(3):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", self.port))
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            stuck.append(connection)
        self.addCleanup(lambda: [each.close() for each in stuck])
        start = time.monotonic()
        self.assertEqual(self.answer("/v1/chat/completions", chat(QUESTIONS[0]))["choices"][0]["message"]["content"],
                         "The capital of France is Paris.")
        self.report("behind three clients that read nothing", seconds=round(time.monotonic() - start, 1))
        self.wait_for_places()


if __name__ == "__main__":
    main()
