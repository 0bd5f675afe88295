"""Requests of strangers to `dsrun serve`, some six hundred of thirteen kinds: lines, lengths, chunks, fields, UTF-8, JSON,
schemas, keys, hosts, origins, slow clients, and what others have put into the folder of its cache or for a session. Each is
answered by one of the statuses that are right, soon, in text that is short and harmless; the server goes on, keeps no
connection, place or descriptor, and takes little memory. The requests are in hostile/wire.py, asked.py and access.py, files in
saved.py.

DSPACK_TESTS=long has larger JSON; otherwise every second of JSON and every fourth of the schemas and
saved chats is tried, from one that the seed chooses.
DSPACK_HOSTILE=TEXT runs those whose names have the text."""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import faults
from common import MESSAGE_BYTES, UNPRINTABLE, clean_environment, is_sanitized, main, path_from_environment, seeded_random
from hostile import access, asked, judge, saved, wire
from hostile.exchange import SENTINEL, exchange
from test_serve import QUESTIONS, Serving, chat

SANITIZED = is_sanitized("DSPACK_DSRUN")
SECONDS = 60 if SANITIZED else 10  # of a request; schemas may have more
SCHEMA_SECONDS = 120 if SANITIZED else 40
MOST_GROWTH_KIB = 512 * 1024  # of a server's memory, over all requests of a kind
HAS_XGRAMMAR = b"structured output by xgrammar" in subprocess.run(
    [path_from_environment("DSPACK_DSRUN"), "--version"], capture_output=True, check=True).stdout
ONE_OF = 1 if faults.LONG else 20 if SANITIZED else 4
REMARKS = r"dsrun: .{1,%d}" % (MESSAGE_BYTES + 130)


class HostileCase(Serving, faults.FaultCase):
    def setUp(self):
        super().setUp()
        self.random = seeded_random()

    def chosen(self, cases, one_of):
        wanted = os.environ.get("DSPACK_HOSTILE")
        if wanted:
            return [case for case in cases if wanted in case.name]
        cases = list(cases)
        self.assertGreaterEqual(len(cases), 20)
        return cases[self.random.randrange(one_of)::one_of]

    def usage(self):
        """The highest resident memory (KiB) and open descriptors of the server."""
        status = Path("/proc/%d/status" % self.process.pid).read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]), len(os.listdir("/proc/%d/fd" % self.process.pid))

    def check_answers(self, got):
        for status, head, body in zip(got.statuses, got.heads, got.bodies):
            self.assertNotEqual(status, -1, "no answer of HTTP: %r" % head[:200])
            self.assertNotRegex(head.replace("\r\n", ""), UNPRINTABLE)
            text = body.decode("utf-8")
            if status != 200:
                self.assertNotRegex(text, UNPRINTABLE)
                self.assertLess(len(body), 1000)

    @staticmethod
    def request_of(case):
        return case.data + (b"" if case.ends else SENTINEL)

    def run_kind(self, title, cases, *arguments, one_of=1, seconds=SECONDS, headers=None):
        """All on one server, one after the other; then it is asked an ordinary question."""
        self.start_server(*arguments)
        before = self.usage()
        with self.tally("hostile requests: " + title) as tally:
            for case in self.chosen(cases(self.port) if callable(cases) else cases, one_of):
                with tally.repetition(case.name):
                    got = exchange(self.port, self.request_of(case), case.ends, seconds)
                    self.assertTrue(got.is_closed, "the connection is still there after %d s" % seconds)
                    self.assertIn(got.statuses, case.statuses, "%r" % got.bodies[:1])
                    self.check_answers(got)
        status, _, text = self.ask("/v1/chat/completions", chat(QUESTIONS[0]), headers=headers)
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], "The capital of France is Paris.")
        self.wait_until(lambda: self.usage()[1] <= before[1], "descriptors that are closed")
        after = self.usage()
        print("%s: %d MiB more at most" % (title, (after[0] - before[0]) // 1024), flush=True)
        if not SANITIZED:
            self.assertLess(after[0] - before[0], MOST_GROWTH_KIB)
        self.assert_ok_after_stop(log=REMARKS)


class Requests(HostileCase):
    def test_lines(self):
        self.run_kind("lines", wire.lines())

    def test_lengths(self):
        self.run_kind("lengths", wire.lengths())

    def test_chunking(self):
        self.run_kind("chunks", wire.chunking())

    def test_fields(self):
        self.run_kind("fields and their values", asked.fields())

    def test_texts(self):
        self.run_kind("UTF-8", asked.texts())

    def test_bombs(self):
        self.run_kind("JSON", asked.bombs(), one_of=1 if faults.LONG else 2)

    @unittest.skipUnless(HAS_XGRAMMAR, "SKIPPED: this build has no xgrammar (scripts/xgrammar)")
    def test_schemas(self):
        self.run_kind("schemas", asked.schemas(), one_of=ONE_OF, seconds=SCHEMA_SECONDS)

    def test_keys(self):
        self.run_kind("keys", access.keys(), "--api-key", access.KEY, headers={"Authorization": "Bearer " + access.KEY})

    def test_hosts(self):
        self.run_kind("hosts", access.hosts)

    def test_origins(self):
        self.run_kind("origins", access.origins)


TIME = 0.5  # seconds for requests to arrive, and for what is sent to be taken


def drip(data, repeat=b""):
    """Byte by byte, ten a second; then `repeat` without end."""
    def act(connection):
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(0.1)
        while repeat:
            connection.sendall(repeat)
            time.sleep(0.1)
    return act


def say(data, then=None):
    def act(connection):
        connection.sendall(data)
        if then:
            then(connection)
    return act


class SlowClients(HostileCase):
    HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def cases(self):
        """name: what a client does until its connection ends, which it does for lack of time."""
        length, chunks = self.HEAD + b"Content-Length: 100\r\n\r\n", self.HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        return {
            "nothing": say(b""), "a byte": say(b"G"), "half a line": say(b"GET /ver"), "half a head": say(self.GET[:30]),
            "a line, slowly": drip(self.GET * 9), "a target without end, slowly": drip(b"GET /", b"a"), "empty lines, slowly": drip(b"", b"\r\n"),
            "a head, slowly": drip(self.HEAD * 9), "fields without end, slowly": say(self.HEAD, drip(b"", b"X-A: b\r\n")),
            "a field without end, slowly": say(self.HEAD + b"X-A: ", drip(b"", b"b")), "a head alone": say(length), "half a body": say(length + b"{" * 50),
            "a body, slowly": say(length, drip(b" " * 99)), "no chunk": say(chunks), "half a chunk": say(chunks + b"5\r\nab"),
            "chunks, slowly": say(chunks, drip(b"", b"1\r\n \r\n")), "a chunk's size, slowly": say(chunks, drip(b"", b"0")),
            "an extension, slowly": say(chunks + b"1;", drip(b"", b"a")), "no last chunk": say(chunks + b"2\r\n{}\r\n"),
            "half a last chunk": say(chunks + b"2\r\n{}\r\n0\r\n"), "trailers, slowly": say(chunks + b"2\r\n{}\r\n0\r\n", drip(b"", b"X-A: b\r\n")),
            "nothing after it may go on": say(self.HEAD + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"), "nothing after an answer": say(self.GET),
            "half of a second one": say(self.GET + self.GET[:20]), "a second one, slowly": say(self.GET, drip(self.GET * 9)),
            "a body without end behind a refusal": say(self.HEAD + b"Content-Length: 99999999999\r\n\r\n", drip(b"", b"a" * 1000)),
        }

    def unread(self, tokens, name_bytes):
        """A connection with a request for a long stream, of which nothing is read. Each piece has the model's name, so
        that all are more than the system keeps for a connection."""
        body = json.dumps(chat(QUESTIONS[0], stream=True, max_tokens=tokens, model="m" * name_bytes, logit_bias={"1": -100})).encode()
        connection = socket.socket()
        self.addCleanup(connection.close)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return connection

    def test_slow_clients(self):
        """All at once; another client is answered meanwhile, and each of them is let go."""
        self.start_server("--parallel", "4", "--dev", "request-time=%g" % TIME, "--dev", "send-time=%g" % TIME, "--dev", "unsent=10GB")
        before = self.usage()
        cases = self.cases()
        self.assertGreaterEqual(len(cases), 20)
        ended = {}

        def act(name, doing):
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
                begin = time.monotonic()
                try:
                    doing(connection)
                    while not self.is_ended(connection):
                        if time.monotonic() > begin + 60:
                            return
                        time.sleep(0.02)
                except OSError:
                    pass
                ended[name] = time.monotonic() - begin

        threads = [threading.Thread(target=act, args=case) for case in cases.items()]
        streams = [self.unread(900, 30_000) for _ in range(3)]
        for thread in threads:
            thread.start()
        slowest = 0
        while any(thread.is_alive() for thread in threads):
            begin = time.monotonic()
            self.assertEqual(self.ask("/health")[0], 200)
            slowest = max(slowest, time.monotonic() - begin)
            time.sleep(0.05)
        with self.tally("hostile requests: slow clients") as tally:
            for name in cases:
                with tally.repetition(name):
                    self.assertIn(name, ended, "it is still there")
                    self.assertGreater(ended[name], 0 if "refusal" in name else TIME / 2)
                    # A refused one is heard out for three seconds.
                    self.assertLess(ended[name], 20 if SANITIZED else 3 + 3 * TIME)
            with tally.repetition("streams of which nothing is read"):
                self.wait_for(lambda: self.state() == (0, 0))
                self.assertEqual(self.counts()["requests_cancelled_total"], len(streams))
        self.assertLess(slowest, 5 if SANITIZED else 1)
        self.wait_until(lambda: self.usage()[1] <= before[1], "descriptors that are closed")
        self.assert_ok_after_stop()

    @staticmethod
    def is_ended(connection):
        """TCP_INFO's state: no longer established."""
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x01"

    def test_what_is_left_unread_is_bounded(self):
        """Whatever the time."""
        self.start_server("--dev", "send-time=3600", "--dev", "unsent=200kB")
        self.unread(500, 100_000)
        self.wait_for(lambda: self.counts()["requests_total"] == 1)
        self.wait_for(lambda: self.state() == (0, 0))
        self.assertEqual(self.counts()["requests_cancelled_total"], 1)
        self.assert_ok_after_stop()


class Files(HostileCase):
    """What others have put into a folder or file that dsrun keeps conversations in."""

    def fill(self, folder, count):
        """A cache with so many conversations: {question: answer}."""
        self.start_server("--cache-disk", folder)
        answers = {}
        for number in range(count):
            question = "%s %d" % (QUESTIONS[number % len(QUESTIONS)], number)
            answers[question] = self.answer("/v1/chat/completions", chat(question))["choices"][0]["message"]["content"]
        self.assert_ok_after_stop()
        return answers

    def check(self, folder, answers, log=None):
        self.start_server_that_may_talk("--cache-disk", folder)
        for question, answer in answers.items():
            said = self.answer("/v1/chat/completions", chat(question))["choices"][0]["message"]["content"]
            self.assertEqual(said, answer, question)
        self.process.terminate()
        result = self.finish(self.process, 60)
        self.assertEqual(result.code, 0, str(result))
        for line in result.stderr.splitlines():
            self.assertRegex(line, "^%s$" % REMARKS)
            self.assertNotRegex(line, UNPRINTABLE)

    def start_server_that_may_talk(self, *arguments):
        self.process = self.start("serve", self.data(), "--port", "0", "--device", "cpu", *arguments, program="DSPACK_DSRUN")
        said = b""
        while b"/v1" not in said:
            line = self.process.stderr.readline()
            self.assertTrue(line, said)
            self.assertLess(len(line), MESSAGE_BYTES + 130)
            said += line
        self.port = int(re.search(rb":([0-9]+)/v1", said)[1])

    def test_cache_files(self):
        """Each of a folder's files is another damaged one: every question gets the answer that it got before."""
        folder = self.scratch / "prefixes"
        answers = self.fill(folder, len(saved.DAMAGE))
        files = sorted(folder.glob("kv-*.safetensors"))
        self.assertGreaterEqual(len(files), len(saved.DAMAGE))
        sound = self.scratch / "sound.safetensors"
        shutil.copyfile(files[0], sound)
        mine = {folder / ".kv-notes": "mine", folder / ".my-kv-files" / "a" / "letter": "mine", folder / "kv-notes.txt": "mine"}
        for path, text in mine.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with self.tally("hostile files: prefix cache") as tally:
            for file, (name, damage) in zip(files, saved.DAMAGE.items()):
                with tally.repetition(name):
                    damage(file, sound)
            with tally.repetition("all of them, and a stranger's files"):
                self.check(folder, answers)
                self.check(folder, answers)
                for path, text in mine.items():
                    self.assertEqual(path.read_text() if path.exists() else "gone", text, path)

    def test_cache_blocks_of_others(self):
        """Sound files: under the name of another, linked, and behind a parent that is not theirs."""
        folder = self.scratch / "prefixes"
        answers = self.fill(folder, 6)
        files = sorted(folder.glob("kv-*.safetensors"))
        away = self.scratch / "away"
        away.mkdir()
        one, two, three, four = files[:4]
        texts = [one.read_bytes(), two.read_bytes()]
        one.write_bytes(texts[1])
        two.write_bytes(texts[0])
        shutil.move(three, away / three.name)
        three.symlink_to(away / three.name)
        saved.DAMAGE["another parent"](four, one)
        self.check(folder, answers)
        self.assertTrue((away / three.name).is_file() and not (away / three.name).is_symlink())

    def test_cache_rows_of_no_numbers(self):
        """With a digest that is right: an error of that request, and the file goes."""
        folder = self.scratch / "prefixes"
        (question, answer), = self.fill(folder, 1).items()
        for file in folder.glob("kv-*.safetensors"):
            saved.with_payload(lambda header, payload: bytes(payload[:header["tokens"]["data_offsets"][1]])
                               + b"\xff" * (len(payload) - header["tokens"]["data_offsets"][1]))(file, None)
        self.start_server_that_may_talk("--cache-disk", folder)
        self.assertEqual(self.ask("/v1/chat/completions", chat(question))[0], 500)
        self.assertEqual(self.answer("/v1/chat/completions", chat(question))["choices"][0]["message"]["content"], answer)

    def test_cache_folders(self):
        """Of a folder that others may write, or that is none, nothing is read: a line that names it."""
        def make(name, mode=0o700, kind="folder"):
            path = self.scratch / name
            if kind == "folder":
                path.mkdir()
                path.chmod(mode)
            elif kind == "file":
                path.write_text("mine")
            elif kind == "link":
                (self.scratch / (name + ".away")).mkdir(mode=0o777)
                (self.scratch / (name + ".away")).chmod(0o777)
                path.symlink_to(self.scratch / (name + ".away"))
            elif kind == "pipe":
                os.mkfifo(path)
            return path

        cases = {"all may write": make("a", 0o777), "a group may write": make("b", 0o770), "others may write": make("c", 0o702),
                 "sticky": make("d", 0o1777), "a file": make("e", kind="file"), "a link to what all may write": make("f", kind="link"),
                 "a pipe": make("g", kind="pipe"), "a device": Path("/dev/null"), "a process": Path("/proc/self"),
                 "a name of 5,000 characters": self.scratch / ("x" * 5000), "an escape": self.scratch / "a\x1b[2Jb" / ("c" * 5000)}
        if os.getuid() == 0:
            cases["of another user"] = make("h")
            os.chown(cases["of another user"], 12345, 12345)
        with self.tally("hostile files: folders of a prefix cache") as tally:
            for name, path in cases.items():
                with tally.repetition(name):
                    result = judge.run("DSPACK_DSRUN", ["serve", self.data(), "--port", "0", "--device", "cpu", "--cache-disk", path], self.scratch)
                    self.assertEqual(judge.faults(result), [], str(result))

    def test_sessions(self):
        sound = self.scratch / "sound"
        made = subprocess.run([path_from_environment("DSPACK_DSRUN"), str(self.data()), "--device", "cpu", "--session", str(sound)], input=b"hello\n",
                              capture_output=True, env=clean_environment(self.scratch))
        self.assertEqual(made.returncode, 0, made.stderr)
        with self.tally("hostile files: sessions") as tally:
            for case in self.chosen(saved.sessions(sound, self.data()), ONE_OF):
                with tally.repetition(case.name), tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                    (program, arguments), = case.prepare(Path(folder))
                    outcome = judge.run(program, arguments, folder)
                    self.assertEqual(judge.faults(outcome), [], str(outcome))


if __name__ == "__main__":
    main()
