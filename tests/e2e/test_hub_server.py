"""The server that plays the Hub in these tests: its links, limits, status codes, and above all its faults, seen by a
client of the standard library. That it speaks the Hub's protocol is for test_hub_protocol.py to show."""

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse
from pathlib import Path

from common import EndToEnd, main
from hub.objects import pointer
from hub_server import HubServer

BROKEN = (ConnectionResetError, http.client.RemoteDisconnected, http.client.IncompleteRead)


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)


class Server(EndToEnd):
    options = {}

    def setUp(self):
        super().setUp()
        self.hub = HubServer(**self.options)
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__)

    def fill(self, files, repo="org/model", **options):
        folder = self.scratch / repo.replace("/", "-")
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        self.hub.add(repo, folder, **options)

    def ask(self, method, address, body=None, token=True, headers=None, timeout=30):
        """One request on a connection of its own. Dictionaries and lists are sent as JSON; nothing is followed."""
        parts = urllib.parse.urlsplit(address if "://" in address else self.hub.url + "/" + address)
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout)
        self.addCleanup(connection.close)
        headers = dict(headers or {})
        if token and parts.netloc == urllib.parse.urlsplit(self.hub.url).netloc:
            headers["Authorization"] = "Bearer " + (token if isinstance(token, str) else self.hub.token)
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, parts.path + ("?" + parts.query if parts.query else ""), body, headers)
        return Answer(connection.getresponse())

    def commit(self, operations, parent=None, query="", repo="org/model", **options):
        header = {"summary": "Test", "description": "", **({"parentCommit": parent} if parent else {})}
        lines = [{"key": "header", "value": header}, *({"key": key, "value": value} for key, value in operations)]
        return self.ask("POST", "api/models/%s/commit/main%s" % (repo, query), "\n".join(map(json.dumps, lines)).encode(),
                        headers={"Content-Type": "application/x-ndjson"}, **options)

    def batch(self, *objects, **options):
        return self.ask("POST", "org/model.git/info/lfs/objects/batch", {
            "operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256", "ref": {"name": "main"},
            "objects": [{"oid": hashlib.sha256(data).hexdigest(), "size": len(data)} for data in objects]},
            headers={"Content-Type": "application/vnd.git-lfs+json"}, **options)

    def verify(self, data):
        return self.ask("POST", "org/model.git/info/lfs/objects/verify",
                        {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)})


def file(path, data):
    return "file", {"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}


def lfs_file(path, data):
    return "lfsFile", {"path": path, "algo": "sha256", "oid": hashlib.sha256(data).hexdigest(), "size": len(data)}


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
        self.hub.link_seconds = 0.3
        link = self.link()
        self.assertEqual(self.ask("GET", link).body, self.data)
        time.sleep(0.35)
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
                    self.ask("PUT", href, data, timeout=0.5)
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


class LargeFiles(Server):
    options = {"multipart_threshold": 1000, "chunk_size": 300}

    def setUp(self):
        super().setUp()
        self.fill({"config.json": b"{}"})
        self.data = os.urandom(700)
        self.large = os.urandom(3100)

    def actions(self, data):
        return self.batch(data).json()["objects"][0].get("actions")

    def test_an_object_counts_once_it_was_verified(self):
        self.assertEqual(self.commit([lfs_file("m.bin", self.data)]).status, 400)
        actions = self.actions(self.data)
        self.assertEqual(self.verify(self.data).status, 404)
        self.assertEqual(self.ask("PUT", actions["upload"]["href"], self.data).status, 200)
        self.assertEqual(self.commit([lfs_file("m.bin", self.data)]).status, 400)
        self.assertIsNotNone(self.actions(self.data))
        self.assertEqual(self.verify(self.data).status, 200)
        self.assertIsNone(self.actions(self.data))
        wrong_size = dict(lfs_file("m.bin", self.data)[1], size=5)
        self.assertEqual(self.commit([("lfsFile", wrong_size)]).status, 400)
        self.assertEqual(self.commit([lfs_file("m.bin", self.data)]).status, 200)
        self.assertEqual(self.hub.read("org/model", "m.bin"), self.data)

    def test_objects_belong_to_one_repository(self):
        self.test_an_object_counts_once_it_was_verified()
        self.hub.add("org/other")
        self.assertEqual(self.commit([lfs_file("m.bin", self.data)], repo="org/other").status, 400)

    def test_what_is_not_what_was_announced_is_thrown_away(self):
        for wrong in (self.data[:-1], self.data[:-1] + b"?", self.data + b"?"):
            self.ask("PUT", self.actions(self.data)["upload"]["href"], wrong)
            self.assertEqual((self.verify(self.data).status, self.verify(self.data).status), (422, 404))
        self.assertEqual(self.hub.objects("org/model"), [])

    def parts(self, action):
        numbers = sorted((name for name in action["header"] if name.isdigit()), key=int)
        size = int(action["header"]["chunk_size"])
        return [{"partNumber": int(name), "etag": self.ask("PUT", action["header"][name], self.large[
            (int(name) - 1) * size:int(name) * size]).headers["ETag"]} for name in numbers]

    def complete(self, action, parts):
        return self.ask("POST", action["href"], {"oid": hashlib.sha256(self.large).hexdigest(), "parts": parts},
                        token=False).status

    def test_an_upload_in_parts(self):
        action = self.actions(self.large)["upload"]
        self.assertEqual(len(action["header"]), 1 + 11)
        parts = self.parts(action)
        self.assertEqual(self.complete(action, parts[:-1]), 400)
        self.assertEqual(self.complete(action, [parts[1], parts[0], *parts[2:]]), 400)
        self.assertEqual(self.complete(action, [dict(parts[0], etag="0"), *parts[1:]]), 400)
        self.assertEqual(self.complete(dict(action, href=action["href"][:-1]), parts), 403)
        self.assertEqual(self.complete(action, parts), 200)
        self.assertEqual(self.complete(action, parts), 404)
        self.assertEqual(self.verify(self.large).status, 200)
        self.assertEqual(self.hub.objects("org/model"), [hashlib.sha256(self.large).hexdigest()])

    def test_what_the_storage_refuses(self):
        href = self.actions(self.data)["upload"]["href"]
        self.assertEqual(self.ask("PUT", href, b"").status, 501)
        self.assertEqual(self.ask("PUT", href, iter([self.data])).status, 411)
        self.assertEqual(self.ask("PUT", href, self.data, headers={"Authorization": "Bearer x"}).status, 400)
        self.hub.expire_links()
        self.assertEqual(self.ask("PUT", href, self.data).status, 403)

    def test_a_batch_answers_for_each_object(self):
        self.hub.lfs_errors[hashlib.sha256(b"bad").hexdigest()] = (403, "not this one")
        answer = self.batch(b"bad", self.data)
        bad, good = answer.json()["objects"]
        self.assertEqual((answer.status, bad["error"]["code"], "actions" in good), (200, 403, True))
        self.assertEqual(self.batch(*(b"%d" % number for number in range(257))).status, 413)

    def test_who_may(self):
        self.assertEqual(self.batch(self.data, token=False).status, 401)
        self.hub.add_token("hf_stranger", "stranger")
        self.assertEqual(self.batch(self.data, token="hf_stranger").status, 403)


class Commits(Server):
    def setUp(self):
        super().setUp()
        self.fill({"config.json": b"{}", "sub/a.txt": b"a"})
        self.before = self.hub.files("org/model")

    def test_all_or_nothing(self):
        head = self.hub.commits("org/model")[0].id
        for operations in ([file("b.txt", b"b"), ("deletedFile", {"path": "absent"})],
                           [file("b.txt", b"b"), ("deletedFolder", {"path": "absent/"})],
                           [file("b.txt", b"b"), ("unknown", {"path": "x"})],
                           [file("b.txt", b"b"), ("file", {"path": "c", "content": "%", "encoding": "base64"})],
                           [file("sub", b"a folder already")], [file("config.json/x", b"a file already")],
                           [file("../up", b"")], [file("/abs", b"")], [file("", b"")], [file("a//b", b"")]):
            self.assertIn(self.commit(operations).status, (400, 404), operations)
        self.assertEqual((self.hub.files("org/model"), self.hub.commits("org/model")[0].id), (self.before, head))

    def test_the_parent(self):
        head = self.hub.commits("org/model")[0].id
        self.assertEqual(self.commit([file("b.txt", b"b")], parent=head).status, 200)
        self.assertEqual(self.commit([file("b.txt", b"c")], parent=head).status, 412)
        self.assertEqual(self.hub.read("org/model", "b.txt"), b"b")

    def test_limits(self):
        self.hub.commit_operations_limit = 3
        self.assertEqual(self.commit([file("%d" % number, b"") for number in range(3)]).status, 200)
        self.assertEqual(self.commit([file("%d" % number, b"x") for number in range(4)]).status, 413)
        self.hub.commit_operations_limit, self.hub.commit_bytes_limit = None, 1000
        self.assertEqual(self.commit([file("large.txt", b"x" * 1000)]).status, 413)
        self.hub.commit_bytes_limit, self.hub.lfs_threshold = None, 500
        self.assertEqual(self.commit([file("large.txt", b"x" * 501)]).status, 400)
        self.hub.folder_entries_limit = 10
        self.assertEqual(self.commit([file("many/%d" % number, b"") for number in range(10)]).status, 200)
        self.assertEqual(self.commit([file("many/folder/x", b"")]).status, 400)
        self.assertEqual(self.ask("POST", "api/models/org/model/preupload/main", {
            "files": [{"path": "%d" % number, "size": 0, "sample": ""} for number in range(257)]}).status, 413)
        self.assertEqual(self.ask("POST", "api/models/org/model/paths-info/main", {
            "paths": ["%d" % number for number in range(1001)]}).status, 413)

    def test_preupload(self):
        self.hub.lfs_threshold = 1000
        asked = [("a.txt", b"text"), ("m.safetensors", b"text"), ("large.txt", b"x" * 1001), ("binary", b"\0"),
                 ("config.json", b"{}"), ("x.log", b"")]
        answer = self.ask("POST", "api/models/org/model/preupload/main", {"gitIgnore": "*.log\n", "files": [
            {"path": path, "size": len(data), "sample": base64.b64encode(data[:512]).decode()} for path, data in asked]})
        self.assertEqual([(entry["uploadMode"], entry["shouldIgnore"], "oid" in entry) for entry in answer.json()["files"]],
                         [("regular", False, False), ("lfs", False, False), ("lfs", False, False), ("lfs", False, False),
                          ("regular", False, True), ("regular", True, False)])

    def test_rate_limits(self):
        self.hub.rate_limits = {"api": (2, 0.5), "resolvers": (1, 60)}
        self.hub.retry_after = True
        first, _, third = [self.ask("GET", "api/models/org/model") for _ in range(3)]
        self.assertEqual((first.status, first.headers["RateLimit"][:9], third.status), (200, '"api";r=1', 429))
        self.assertRegex(third.headers["RateLimit"], r'^"api";r=0;t=\d+$')
        self.assertEqual(third.headers["Retry-After"], "1")
        self.assertEqual(self.ask("GET", "api/models/org/model", token=False).status, 200)  # counted for itself
        self.assertEqual([self.ask("GET", "org/model/resolve/main/config.json").status for _ in range(2)], [200, 429])
        time.sleep(0.55)
        self.assertEqual(self.ask("GET", "api/models/org/model").status, 200)

    @unittest.skipUnless(shutil.which("git"), "SKIPPED: no git to compare with")
    def test_ids_are_those_of_git(self):
        """The same files committed by git itself have the same ids: blobs, pointers, trees and commits."""
        self.fill({"m.safetensors": os.urandom(100), "sub.txt": b"sorts before sub/", "sub/z": b""}, title="More")
        self.hub.commit("org/model", {"sub/a.txt": None, "deep/er/x": b"x"}, "Change")
        work = self.scratch / "work"

        def git(*arguments, **options):
            environment = {"PATH": os.environ["PATH"], "HOME": str(self.scratch), "GIT_CONFIG_NOSYSTEM": "1",
                           **options.pop("env", {})}
            return subprocess.run(["git", "-C", work, *arguments], env=environment, check=True, capture_output=True,
                                  text=True, **options).stdout.strip()
        work.mkdir()
        git("init", "-q")
        for commit in reversed(self.hub.commits("org/model")):
            git("rm", "-rfq", "--ignore-unmatch", ".")
            for path, held in commit.files.items():
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_bytes(pointer(held.content.sha256, held.size) if held.lfs else held.content.read())
            git("-c", "filter.lfs.clean=cat", "-c", "filter.lfs.required=false", "add", "-A")
            self.assertEqual(git("write-tree"), commit.folders[""])
            who = {"GIT_%s_%s" % (role, name): value for role in ("AUTHOR", "COMMITTER") for name, value in (
                ("NAME", commit.author), ("EMAIL", commit.author + "@users.noreply.hub.test"),
                ("DATE", "%d +0000" % commit.time))}
            git("commit", "-q", "-F", "-", input=commit.title + "\n", env=who)
            self.assertEqual(git("rev-parse", "HEAD"), commit.id)


class CommandLine(Server):
    def test_it_serves_and_fails_as_told(self):
        self.fill({"config.json": b"{}"})
        program = Path(__file__).resolve().parent.parent / "support" / "hub_server.py"
        process = subprocess.Popen([sys.executable, program, "--repo", "org/one=%s" % (self.scratch / "org-model"), "--repo",
                                    "org/empty", "--private", "org/one", "--token", "hf_own", "--fault",
                                    "GET api/models/org/empty:503:times=1"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop, process)
        url = process.stdout.readline().strip()
        own = {"Authorization": "Bearer hf_own"}
        self.assertEqual(self.ask("GET", url + "/org/one/resolve/main/config.json", headers=own).body, b"{}")
        self.assertEqual(self.ask("GET", url + "/org/one/resolve/main/config.json").status, 401)
        self.assertEqual([self.ask("GET", url + "/api/models/org/empty").status for _ in range(2)], [503, 200])


if __name__ == "__main__":
    main()
