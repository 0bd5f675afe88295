"""dsrun serve with little memory: under a limit of its address space (700 MiB), and in a control group with 200 MB more than
--ram. Requests of 1 to 60 MB, alone and several at once, are answered or refused each for itself, and the server goes on.

DSPACK_TESTS=long has more sizes. Control groups are made where that is permitted (version 1 or 2, as root or with a delegated
group); elsewhere that part says that it did not run."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import resource
import signal
import time
import unittest
from pathlib import Path

import faults
from common import is_sanitized, limit, main
from test_serve import QUESTIONS, Serving, chat

MB = 1_000_000
RAM = 400 * MB  # of --ram; the small model takes a few
SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 31, 33, 40, 50, 60) if faults.LONG else (1, 24, 60)
SECONDS = 60  # of a request; the whole of this test is far shorter
REFUSED = {400, 413, 429, 500, 503}
ANSWER = "The capital of France is Paris."


def inside(before, unit, count, after):
    return before + unit * count + after


def bodies(size):
    """(what, path, body of about `size` bytes, statuses): texts, trees and lists whose memory is a multiple of theirs."""
    message = b'{"messages":[{"role":"user","content":"'
    end = b'"}],"max_tokens":1}'
    yield "a word", "/v1/chat/completions", inside(message, b"x ", size // 2, end), REFUSED
    yield "spaces", "/v1/chat/completions", inside(message, b" ", size, end), REFUSED
    yield "escapes", "/v1/chat/completions", inside(message, b"\\u4e00", size // 6, end), REFUSED
    yield "emoji", "/v1/messages", inside(message, "😀".encode(), size // 4, end), REFUSED
    yield "messages", "/v1/chat/completions", inside(
        b'{"max_tokens":1,"messages":[', b'{"role":"user","content":""},', size // 29, b'{"role":"user","content":""}]}'), REFUSED
    yield "parts", "/v1/chat/completions", inside(
        b'{"max_tokens":1,"messages":[{"role":"user","content":[', b'{"type":"text","text":"x"},', size // 27, b'{"type":"text","text":"x"}]}]}'), REFUSED
    yield "tools", "/v1/chat/completions", inside(
        message + b'x"}],"max_tokens":1,"tools":[', b'{"type":"function","function":{"name":"f"}},', size // 44,
        b'{"type":"function","function":{"name":"f"}}]}'), REFUSED | {200}
    yield "lists", "/v1/completions", inside(b'{"max_tokens":1,"prompt":"x","x":[', b"[],", size // 3, b"[]]}"), REFUSED | {200}
    yield "numbers", "/v1/completions", inside(b'{"max_tokens":1,"prompt":[', b"5,", size // 2, b"5]}"), REFUSED
    yield "prompts", "/v1/completions", inside(b'{"max_tokens":1,"prompt":[', b'"x",', size // 4, b'"x"]}'), REFUSED
    yield "tokenize", "/tokenize", inside(b'{"content":"', b"x ", size // 2, b'"}'), REFUSED | {200}
    yield "detokenize", "/detokenize", inside(b'{"tokens":[', b"200,", size // 4, b"200]}"), REFUSED | {200}
    yield "template", "/apply-template", inside(message, b"x ", size // 2, end), REFUSED | {200}
    yield "count", "/v1/messages/count_tokens", inside(message, b"x ", size // 2, end), REFUSED | {200}
    yield "no JSON", "/v1/responses", b"{" * size, {400, 413}


class MemoryGroup:
    """A control group with a limit on memory; `path` is None where none can be made."""

    def __init__(self, most_bytes):
        self.path = None
        for parent, file in self.places():
            path = Path(parent) / ("dspack-test-%d" % os.getpid())
            try:
                path.mkdir()
                try:
                    (path / file).write_text(str(most_bytes))
                    self.path = path
                    return
                except OSError:
                    path.rmdir()
            except OSError:
                continue

    @staticmethod
    def places():
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            if number == "0":
                yield "/sys/fs/cgroup" + name, "memory.max"
            elif "memory" in controllers.split(","):
                yield "/sys/fs/cgroup/memory" + name, "memory.limit_in_bytes"
                yield "/sys/fs/cgroup/memory", "memory.limit_in_bytes"

    def join(self):
        """In the process that is to be held."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        """Bytes, or None where the system does not tell."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with contextlib.suppress(OSError):
                return int((self.path / name).read_text())
        return None

    def remove(self):
        for _ in range(500):
            try:
                return self.path.rmdir()
            except OSError:  # its process has not ended yet
                time.sleep(0.01)


@unittest.skipIf(is_sanitized("DSPACK_DSRUN"), "SKIPPED: no limit on memory fits a sanitizer's shadow")
class LittleMemory(Serving, faults.FaultCase):
    def start_limited(self, before):
        self.process = self.start("serve", self.data(), "--port", "0", "--device", "cpu", "--ram", "%dMB" % (RAM // MB), "--parallel", "2",
                                  "--waiting", "16", program="DSPACK_DSRUN", before=before)
        said = self.process.stderr.readline().decode()
        self.assertIn("/v1", said)
        self.port = int(said.split("/v1")[0].rsplit(":", 1)[1])

    def send(self, path, body):
        """Status and text; a refusal may come before all is sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def check_answer(self):
        """Of one who asks for little, whatever others have asked for."""
        for _ in range(100):
            status, text = self.send("/v1/chat/completions", json.dumps(chat(QUESTIONS[0])).encode())
            if status != 503:
                break
            time.sleep(0.05)  # the memory of those before is given back a moment after their answers
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], ANSWER)

    def judge(self, what, size, path, body, statuses):
        status, text = self.send(path, body)
        self.assertIn(status, statuses | {413} if size >= 33 else statuses, text[:300])
        if size > 33:  # more than any body may have (32 MiB)
            self.assertEqual(status, 413, text[:300])
        if status != 200:
            self.assertLess(len(text), 1000)
        return status

    def run_all(self, title):
        statuses = {}
        with self.tally("little memory: " + title) as tally:
            for size in SIZES:
                for what, path, body, right in bodies(size * MB):
                    with tally.repetition("%d MB of %s" % (size, what)):
                        try:
                            status = self.judge(what, size, path, body, right)
                        except (OSError, http.client.HTTPException) as error:
                            self.assertIsNone(self.process.poll(), "the server has ended: %s" % self.process.poll())
                            self.fail("no answer: %r" % error)
                        statuses[status] = statuses.get(status, 0) + 1
                        self.check_answer()
            # Several at once have the same memory.
            for size in SIZES[1:-1]:
                together = [each for each in bodies(size * MB)][::2]
                with tally.repetition("%d times %d MB at once" % (len(together), size)), \
                        concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
                    sent = [pool.submit(self.judge, what, size, path, body, right | {503}) for what, path, body, right in together]
                    try:
                        for each in sent:
                            statuses[each.result()] = statuses.get(each.result(), 0) + 1
                    except (OSError, http.client.HTTPException) as error:
                        self.fail("no answer: %r, the server's status is %s" % (error, self.process.poll()))
                    self.check_answer()
        print("%s: statuses %s" % (title, dict(sorted(statuses.items()))), flush=True)
        self.assertGreater(statuses.get(200, 0), 0)

    def test_address_space(self):
        self.start_limited(limit(resource.RLIMIT_AS, 700 << 20))
        self.run_all("an address space of 700 MiB")
        self.assert_ok_after_stop(log="dsrun: .*")

    def test_control_group(self):
        group = MemoryGroup(RAM + 200 * MB)
        if group.path is None:
            self.skipTest("SKIPPED: no control group can be made here")
        self.addCleanup(group.remove)
        self.start_limited(group.join)
        self.run_all("a control group of %d MB" % (RAM // MB + 200))
        print("the group's highest: %s bytes" % group.peak(), flush=True)
        self.assert_ok_after_stop(log="dsrun: .*")
        self.assertNotEqual(self.process.returncode, -signal.SIGKILL)


if __name__ == "__main__":
    main()
