"""The server that plays the Hub in these tests: its links and its faults, seen by a client of the standard library.
That it speaks the Hub's protocol is for test_hub_protocol.py to show."""

import hashlib
import http.client
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from common import main
from hub_lab import Server, file
from hub_server import HubServer

BROKEN = (ConnectionResetError, http.client.RemoteDisconnected, http.client.IncompleteRead)


class Links(Server):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(10000)
        self.fill({"m.safetensors": self.data, "a.txt": b"0123456789"})

    def link(self):
        return self.ask("HEAD", "org/model/resolve/main/m.safetensors").headers["Location"]

    def test_the_redirect_tells_what_the_file_is(self):
        for method in ("HEAD", "GET"):
            answer = self.ask(method, "org/model/resolve/main/m.safetensors")
            self.assertEqual(answer.status, 302)
            self.assertEqual(answer.headers["X-Linked-Etag"], '"%s"' % hashlib.sha256(self.data).hexdigest())
            self.assertEqual(answer.headers["X-Linked-Size"], "10000")
            self.assertEqual(answer.headers["X-Repo-Commit"], self.hub.commits("org/model")[0].id)
            self.assertNotEqual(answer.headers["Content-Length"], "10000")
            self.assertTrue(answer.headers["X-Request-Id"])
            self.assertTrue(answer.headers["Location"].startswith(self.hub.storage_url + "/"))

    def test_ranges(self):
        for address, data in ((self.link(), self.data), ("org/model/resolve/main/a.txt", b"0123456789")):
            size = len(data)
            for asked, begin, end in (("0-0", 0, 1), ("3-7", 3, 8), ("5-", 5, size), ("-4", size - 4, size),
                                      ("2-%d" % (size * 2), 2, size)):
                answer = self.ask("GET", address, headers={"Range": "bytes=" + asked})
                self.assertEqual((answer.status, answer.body), (206, data[begin:end]), asked)
                self.assertEqual(answer.headers["Content-Range"], "bytes %d-%d/%d" % (begin, end - 1, size))
            beyond = self.ask("GET", address, headers={"Range": "bytes=%d-" % size})
            self.assertEqual((beyond.status, beyond.headers["Content-Range"]), (416, "bytes */%d" % size))
            whole = self.ask("GET", address, headers={"Range": "bytes=0-1,4-5"})
            self.assertEqual((whole.status, whole.body), (200, data))
            other = self.ask("GET", address, headers={"Range": "bytes=1-2", "If-Range": '"another"'})
            self.assertEqual((other.status, other.body), (200, data))

    def test_links_expire(self):
        self.hub.link_seconds = 1
        link = self.link()
        self.assertEqual(self.ask("GET", link).body, self.data)
        time.sleep(1.05)
        late = self.ask("GET", link)
        self.assertEqual(late.status, 403)
        self.assertIn(b"Request has expired", late.body)
        self.hub.link_seconds = 60
        link = self.link()
        self.hub.expire_links()
        self.assertEqual(self.ask("GET", link).status, 403)
        self.assertEqual(self.ask("GET", self.link()).status, 200)

    def test_a_link_is_good_for_what_was_signed_alone(self):
        link = self.link()
        other = hashlib.sha256(b"other").hexdigest()
        for changed in (link.replace("Expires=1", "Expires=2"), re.sub(r"/[0-9a-f]{64}\?", "/%s?" % other, link),
                        link.partition("?")[0], link[:-1] + ("0" if link[-1] != "0" else "1")):
            self.assertEqual(self.ask("GET", changed).status, 403, changed)
        self.assertEqual(self.ask("PUT", link, b"overwritten").status, 403)

    def test_a_token_is_refused_by_the_storage_and_told(self):
        self.assertEqual(self.hub.token_leaks(), [])
        answer = self.ask("GET", self.link(), headers={"Authorization": "Bearer " + self.hub.token})
        self.assertEqual(answer.status, 400)
        leak, = self.hub.token_leaks()
        self.assertEqual((leak.host, leak.method), ("storage", "GET"))
        with self.assertRaisesRegex(AssertionError, "a token went where it must not"):
            self.hub.assert_token_stayed_home()

    def test_a_token_in_an_address_or_a_body_is_told(self):
        self.ask("GET", "api/models/org/model?token=" + self.hub.token)
        self.ask("POST", "api/validate-yaml", {"content": "x " + self.hub.token})
        self.ask("GET", "api/models/org/model", headers={"X-Other": self.hub.token})
        self.assertEqual(len(self.hub.token_leaks()), 3)


class Faults(Server):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(10000)
        self.fill({"m.safetensors": self.data, "config.json": b"{}"})
        self.link = self.ask("HEAD", "org/model/resolve/main/m.safetensors").headers["Location"]

    def test_status(self):
        self.hub.add_fault("GET", "api/models/*", "429", times=1, rate_limit=3, retry_after=4, body="slow down")
        answer = self.ask("GET", "api/models/org/model")
        self.assertEqual((answer.status, answer.body, answer.headers["RateLimit"], answer.headers["Retry-After"]),
                         (429, b"slow down", '"api";r=0;t=3', "4"))
        self.assertEqual(self.ask("GET", "api/models/org/model").status, 200)

    def test_nothing_is_carried_out_under_a_status(self):
        self.hub.add_fault("POST", "*/commit/main", "500", times=1)
        self.assertEqual(self.commit([file("a.txt", b"a")]).status, 500)
        self.assertNotIn("a.txt", self.hub.files("org/model"))

    def test_bodies_that_break(self):
        for kind in ("reset", "cut"):
            with self.subTest(kind):
                self.hub.add_fault("GET", "objects/*", kind, times=1)
                with self.assertRaises(BROKEN):
                    self.ask("GET", self.link)
                entry = self.hub.requests("GET", "objects/*")[-1]
                self.assertEqual((entry.fault, entry.sent), (kind, 5000))

    def test_an_answer_without_a_body_breaks(self):
        for kind in ("reset", "cut"):
            with self.subTest(kind):
                self.hub.add_fault("HEAD", "*", kind, times=1)
                with self.assertRaises(BROKEN):
                    self.ask("HEAD", "org/model/resolve/main/m.safetensors")

    def test_stall(self):
        self.hub.add_fault("GET", "objects/*", "stall", times=1)
        with self.assertRaises(socket.timeout):
            self.ask("GET", self.link, timeout=0.3)
        self.assertEqual(self.ask("GET", self.link).body, self.data)

    def test_an_upload_that_breaks_is_not_stored(self):
        data = os.urandom(100000)
        for kind in ("reset", "cut", "stall"):
            with self.subTest(kind):
                href = self.batch(data).json()["objects"][0]["actions"]["upload"]["href"]
                self.hub.add_fault("PUT", "uploads/*", kind, times=1)
                with self.assertRaises((*BROKEN, BrokenPipeError, socket.timeout)):
                    self.ask("PUT", href, data, timeout=0.5 if kind == "stall" else 30)
                self.wait_until(lambda: self.hub.requests("PUT")[-1].received == 50000, "half of it to be read")
                self.assertEqual(self.hub.requests("PUT")[-1].received, 50000)
                self.assertEqual(self.verify(data).status, 404)

    def test_a_lost_answer(self):
        self.hub.add_fault("POST", "*/commit/main", "lost", times=1)
        with self.assertRaises(BROKEN):
            self.commit([file("a.txt", b"a")])
        self.assertEqual(self.hub.read("org/model", "a.txt"), b"a")
        self.hub.add_fault("POST", "*/commit/main", "lost", times=1, status=504, delay=0.2)
        started = time.monotonic()
        self.assertEqual(self.commit([file("b.txt", b"b")]).status, 504)
        self.assertGreaterEqual(time.monotonic() - started, 0.2)
        self.assertEqual(self.hub.read("org/model", "b.txt"), b"b")
        self.hub.add_fault("POST", "api/repos/create", "lost", times=1)
        with self.assertRaises(BROKEN):
            self.ask("POST", "api/repos/create", {"name": "made", "organization": "org"})
        self.assertTrue(self.hub.exists("org/made"))
        self.assertEqual(self.ask("POST", "api/repos/create", {"name": "made", "organization": "org"}).status, 409)

    def test_corrupt(self):
        self.hub.add_fault("GET", "objects/*", "corrupt", at=7000)
        part = self.ask("GET", self.link, headers={"Range": "bytes=0-6999"})
        self.assertEqual(part.body, self.data[:7000])
        part = self.ask("GET", self.link, headers={"Range": "bytes=6000-8000"})
        self.assertEqual([at for at in range(2001) if part.body[at] != self.data[6000 + at]], [1000])

    def test_ignore_range(self):
        self.hub.add_fault("GET", "objects/*", "ignore_range")
        answer = self.ask("GET", self.link, headers={"Range": "bytes=5-6"})
        self.assertEqual((answer.status, answer.body), (200, self.data))
        self.assertNotIn("Content-Range", answer.headers)

    def test_headers(self):
        self.hub.add_fault("HEAD", "*/resolve/*", "headers", headers={"x-linked-etag": '"00"', "X-Repo-Commit": None})
        answer = self.ask("HEAD", "org/model/resolve/main/m.safetensors")
        self.assertEqual((answer.status, answer.headers["X-Linked-Etag"]), (302, '"00"'))
        self.assertNotIn("X-Repo-Commit", answer.headers)

    def test_slow(self):
        self.hub.add_fault("*", "*", "slow", rate=20000.0, min_bytes=5000)
        started = time.monotonic()
        self.assertEqual(self.ask("GET", self.link).body, self.data)
        self.assertGreaterEqual(time.monotonic() - started, 0.45)
        href = self.batch(b"x" * 6000).json()["objects"][0]["actions"]["upload"]["href"]
        started = time.monotonic()
        self.assertEqual(self.ask("PUT", href, b"x" * 6000).status, 200)
        self.assertGreaterEqual(time.monotonic() - started, 0.25)

    def test_whom_a_fault_strikes(self):
        def statuses(count):
            return [self.ask("GET", "api/models/org/model").status for _ in range(count)]
        self.hub.add_fault("GET", "api/*", "503", skip=1, every=2, times=2)
        self.assertEqual(statuses(8), [200, 200, 503, 200, 503, 200, 200, 200])
        self.hub.clear_faults()
        self.hub.add_fault("GET", "*", "503", host="storage")
        self.assertEqual((statuses(1), self.ask("GET", self.link).status), ([200], 503))
        with self.assertRaises(ValueError):
            self.hub.add_fault("GET", "*", "nonsense")

    def test_chance_repeats_with_its_seed(self):
        def struck(seed):
            with HubServer(random_seed=seed) as hub:
                fault = hub.add_fault("*", "*", "503", chance=0.5)
                return [bool(hub.faults.take("hub", "GET", "x", 0)) for _ in range(50)], fault.struck
        self.assertEqual(struck(1), struck(1))
        self.assertNotEqual(struck(1)[0], struck(2)[0])
        self.assertTrue(10 < struck(1)[1] < 40)


class Defects(Server):
    def test_what_the_server_did_not_expect_does_not_pass_unseen(self):
        with self.assertRaisesRegex(RuntimeError, r"hub_server failed 1 times(.|\n)*AttributeError"):
            with HubServer() as hub:
                with self.assertRaises(BROKEN):
                    self.ask("POST", hub.url + "/api/validate-yaml", ["a list"])


class CommandLine(Server):
    def test_it_serves_and_fails_as_told(self):
        self.fill({"config.json": b"{}"})
        program = Path(__file__).resolve().parent.parent / "support" / "hub_server.py"
        process = subprocess.Popen([
            sys.executable, program, "--repo", "org/one=%s" % (self.scratch / "org-model"), "--repo", "org/empty",
            "--private", "org/one", "--token", "hf_own", "--fault", "GET api/models/org/empty:503:times=1"],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop, process)
        url = process.stdout.readline().strip()
        own = {"Authorization": "Bearer hf_own"}
        self.assertEqual(self.ask("GET", url + "/org/one/resolve/main/config.json", headers=own).body, b"{}")
        self.assertEqual(self.ask("GET", url + "/org/one/resolve/main/config.json").status, 401)
        self.assertEqual([self.ask("GET", url + "/api/models/org/empty").status for _ in range(2)], [503, 200])


if __name__ == "__main__":
    main()
