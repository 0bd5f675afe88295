"""The server that plays the Hub in these tests: large objects, commits, their limits and their ids."""

import base64
import hashlib
import os
import shutil
import subprocess
import time
import unittest

from common import main
from hub.objects import pointer
from hub_lab import Server, file, lfs_file


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
        files = [{"path": path, "size": len(data), "sample": base64.b64encode(data[:512]).decode()}
                 for path, data in asked]
        answer = self.ask("POST", "api/models/org/model/preupload/main", {"gitIgnore": "*.log\n", "files": files})
        self.assertEqual([(entry["uploadMode"], entry["shouldIgnore"], "oid" in entry)
                          for entry in answer.json()["files"]],
                         [("regular", False, False), ("lfs", False, False), ("lfs", False, False),
                          ("lfs", False, False), ("regular", False, True), ("regular", True, False)])

    def test_rate_limits(self):
        self.hub.rate_limits = {"api": (2, 2.0), "resolvers": (1, 60)}
        self.hub.retry_after = True
        first, _, third = [self.ask("GET", "api/models/org/model") for _ in range(3)]
        self.assertEqual((first.status, first.headers["RateLimit"][:9], third.status), (200, '"api";r=1', 429))
        self.assertRegex(third.headers["RateLimit"], r'^"api";r=0;t=\d+$')
        self.assertIn(third.headers["Retry-After"], ("1", "2"))
        self.assertEqual(self.ask("GET", "api/models/org/model", token=False).status, 200)  # counted for itself
        self.assertEqual([self.ask("GET", "org/model/resolve/main/config.json").status for _ in range(2)], [200, 429])
        time.sleep(2.05)
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


if __name__ == "__main__":
    main()
