"""The Hub as source: how a repository is called, and where a token goes."""

import os
import resource
import signal
import unittest

from checkpoints import SHARDS, write_small
from common import is_sanitized, main
from hub_case import HubCase


class Names(HubCase):
    def test_without_a_source_it_is_deepseek_v3(self):
        self.hub.add("deepseek-ai/DeepSeek-V3", self.source)
        for endpoint in (self.hub.url, self.hub.url + "/"):
            out = self.scratch / ("packed" + str(len(endpoint)))
            self.assert_ok(self.run_program("--by", "expert", "--out", out, env={"HF_ENDPOINT": endpoint}))
            self.assert_same_weights(out)
            self.assertEqual(self.origin(out)["repository"], "deepseek-ai/DeepSeek-V3")
            self.assertNotIn(self.hub.url, (out / "manifest.json").read_text() + (out / "README.md").read_text())
        self.assertTrue(all(entry.authorization is None for entry in self.hub.requests()))

    def test_names_and_revisions(self):
        self.hub.add("some-org/my.model_1", self.source, revision="v1.0")
        repository = self.hub.repositories["some-org/my.model_1"]
        commit = repository.head("v1.0").id
        repository.branches["feature/x"] = commit
        for place in ("some-org/my.model_1@v1.0", "hf://some-org/my.model_1@feature/x",
                      "some-org/my.model_1@" + commit, "some-org/my.model_1@" + commit[:9]):
            with self.subTest(place):
                before = len(self.hub.requests())
                out = self.scratch / place.replace("/", "_")
                self.assert_ok(self.pack(place, out=out))
                self.assert_same_weights(out)
                self.assertEqual(self.origin(out), {"kind": "hub", "repository": "some-org/my.model_1", "revision": commit})
                asked = place.partition("@")[2].replace("/", "%2F")
                resolved = [entry.raw_path for entry in self.hub.requests()[before:]
                            if entry.host == "hub" and commit not in entry.raw_path]
                self.assertEqual(resolved, [] if asked == commit else
                                 ["/some-org/my.model_1/resolve/%s/config.json" % asked])

    def test_a_local_folder_of_that_name_wins(self):
        write_small(self.scratch / "o" / "n")
        self.assert_ok(self.pack("o/n", cwd=self.scratch))
        self.assertEqual(self.asked(), [])
        self.assert_same_tree(self.out, self.whole)

    def test_addresses_as_a_browser_shows_them(self):
        for number, place in enumerate((
                "https://huggingface.co/o/n", "huggingface.co/o/n/", "https://hf.co/o/n/tree/main", self.hub.url + "/o/n",
                "https://huggingface.co/o/n/blob/main/config.json", "hf://models/o/n", "hf://o/n/",
                "https://huggingface.co/o/n/tree/" + self.commit_of())):
            with self.subTest(place):
                out = self.scratch / str(number)
                self.assert_ok(self.pack(place, out=out))
                self.assertEqual(self.origin(out), {"kind": "hub", "repository": "o/n", "revision": self.commit_of()})
        for place in ("https://huggingface.co/datasets/o/n", "https://huggingface.co/o/n/tree/main/folder", "https://hf.co/o"):
            self.assert_refused(self.pack(place), place, "names no whole repository of a model", "org/name@revision")

    def test_what_is_no_name(self):
        for place in ("hf://name", "hf://o/n@../x", "hf://o/n@a//b"):
            self.assert_refused(self.pack(place), place, "hf://org/name[@revision]")
        self.assertEqual(self.asked(), [])

    def test_other_commands_take_it_too(self):
        self.hub.add("o/packed", self.whole)
        self.assertIn("o/n@main (commit %s)" % self.commit_of()[:12],
                      self.assert_ok(self.run_program("inspect", "o/n", env=self.env())).stdout)
        self.assertIn('"url":"%s/o/n/resolve/%s/' % (self.hub.url, self.commit_of()),
                      self.assert_ok(self.run_program("inspect", "hf://o/n", "--json", env=self.env())).stdout)
        self.assert_ok(self.run_program("diff", "o/n", self.whole, "--tensors-only", env=self.env()))
        self.assert_ok(self.run_program("verify", "o/packed", "--source", "o/n", env=self.env()))


class Tokens(HubCase):
    """The token of an account is sent to the Hub, and is nowhere else."""

    def setUp(self):
        super().setUp()
        self.hub.add("o/private", self.source, private=True)

    def assert_hidden(self, *results):
        """In no request but those to the Hub's host, in no output, in no file."""
        self.assertEqual(self.hub.token_leaks(), [])
        for result in results:
            self.assertNotIn(self.hub.token, result.stdout + result.stderr, str(result.command))
        for path in self.scratch.rglob("*"):
            self.assertTrue(not path.is_file() or path.name == "token" or self.hub.token.encode() not in path.read_bytes(), path)

    def test_it_goes_to_the_hub_and_not_to_where_it_redirects(self):
        self.hub.page_size = 2
        result = self.assert_ok(self.pack("o/private", token="  %s\n" % self.hub.token))
        self.assert_same_weights()
        at_hub = self.hub.requests(host="hub")
        self.assertTrue(all(entry.authorization == "Bearer " + self.hub.token for entry in at_hub))
        self.assertGreater(len([entry for entry in at_hub if "/tree/" in entry.path]), 1)
        self.assertGreaterEqual(len(self.hub.requests(host="storage")), len(SHARDS))
        self.assert_hidden(result)

    def test_it_stays_on_a_redirect_within_the_hub(self):
        self.hub.rename("o/private", "new/name")
        self.hub.small_file_redirect = True
        result = self.assert_ok(self.pack("o/private", token=None))
        self.assert_same_weights()
        self.assertTrue(self.hub.requests(path="api/resolve-cache/*"))
        self.assert_hidden(result)

    def test_it_does_not_follow_a_redirect_to_another_port_of_the_same_host(self):
        other = self.serve(self.source)
        target = other.url + "/" + SHARDS[0]
        self.hub.add_fault("GET", "*" + SHARDS[0], "302", headers={
            "Location": target, "X-Repo-Commit": self.commit_of(repo="o/private"),
            "X-Linked-Etag": '"%s"' % self.hub.files("o/private")[SHARDS[0]]})
        self.assert_ok(self.pack("o/private", token=None))
        self.assertTrue(other.requests())
        self.assertEqual([entry.authorization for entry in other.requests() if entry.authorization], [])

    def test_it_is_read_from_the_usual_files(self):
        (self.scratch / "token").write_text(self.hub.token + "\n")
        (self.scratch / "cache" / "huggingface").mkdir(parents=True)
        (self.scratch / "cache" / "huggingface" / "token").write_text(self.hub.token)
        for number, env in enumerate(({"HF_TOKEN_PATH": str(self.scratch / "token"), "HF_HOME": "/nowhere"},
                                      {"HF_HOME": str(self.scratch)},
                                      {"HF_HOME": "", "XDG_CACHE_HOME": str(self.scratch / "cache")})):
            with self.subTest(env):
                self.assert_ok(self.pack("o/private", out=self.scratch / str(number), env=env))

    def test_it_is_not_sent_where_the_user_says_so(self):
        for value in ("1", "yes", "TRUE"):
            env = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": value}
            self.assert_refused(self.pack("o/private", token=None, env=env), "o/private", "private")
        self.assertTrue(all(entry.authorization is None for entry in self.hub.requests()))
        self.assert_ok(self.pack("o/private", token=None, env={"HF_HUB_DISABLE_IMPLICIT_TOKEN": "0"}))

    def test_it_is_not_sent_to_other_servers(self):
        server = self.serve(self.source)
        result = self.assert_ok(self.repack(server.url, self.out, env={"HF_TOKEN": self.hub.token}))
        self.assertEqual([entry.authorization for entry in server.requests() if entry.authorization], [])
        self.assert_hidden(result)

    def test_it_is_in_no_message_whatever_the_server_says(self):
        said = "token %s of https://x/y?token=%s is bad" % (self.hub.token, self.hub.token)
        results = []
        for status, path in ((403, "*config.json"), (401, "*/tree/*"), (500, "*" + SHARDS[1]), (400, "*index.json")):
            for headers in ({}, {"X-Error-Message": said}):
                self.hub.clear_faults()
                self.hub.add_fault("*", path, str(status), body=said, headers=headers)
                result = self.pack("o/private", "--dev", "retries=1", token=None)
                self.assertEqual(result.code, 1, str(result))
                self.assertIn("(token)" if (status, headers) != (403, {}) else "403", result.stderr)  # a HEAD has no body
                results.append(result)
        self.assert_hidden(*results)

    def test_it_is_in_no_message_about_links(self):
        self.hub.add_fault("GET", "*", "403", host="storage")
        result = self.pack("o/private", token=None)
        self.assertEqual(result.code, 1)
        for part in ("Signature", "Expires="):
            self.assertNotIn(part, result.stdout + result.stderr)
        self.assert_hidden(result)

    def killed(self, env):
        """The wait status of a program that crashes in the middle of its work."""
        def before():
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        cwd = self.scratch / "cwd"
        cwd.mkdir(exist_ok=True)
        stalled = self.hub.add_fault("GET", "*" + SHARDS[0], "stall")
        process = self.start("o/n", "--by", "expert", "--out", self.out, env={**self.env(), **env}, before=before, cwd=cwd)
        self.wait_until(lambda: stalled.struck > 0, "the transfer to begin")
        os.kill(process.pid, signal.SIGSEGV)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGSEGV
        self.assertTrue(os.WIFSIGNALED(status))
        self.hub.clear_faults()
        return status

    @unittest.skipIf(is_sanitized(), "SKIPPED: a sanitizer ends the program itself, without a core dump")
    def test_it_is_in_no_core_dump(self):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        if hard != resource.RLIM_INFINITY or not os.WCOREDUMP(self.killed({})):
            self.skipTest("this system writes no core dumps")
        self.assertFalse(os.WCOREDUMP(self.killed({"HF_TOKEN": self.hub.token})))
        (self.scratch / "token").write_text(self.hub.token)
        self.assertFalse(os.WCOREDUMP(self.killed({})), "with a token from a file")


class Renamed(HubCase):
    def test_it_is_followed_and_its_new_name_is_told_and_recorded(self):
        self.hub.rename("o/n", "new/name")
        result = self.assert_ok(self.pack("o/n"))
        self.assertIn("o/n is now called new/name", result.stderr)
        self.assert_same_weights()
        self.assertEqual(self.origin()["repository"], "new/name")
        direct = self.scratch / "direct"
        self.assert_ok(self.pack("new/name", out=direct))
        self.assert_same_tree(self.out, direct)
        old = [path for _, path in self.asked(host="hub") if path.startswith("o/n")]
        self.assertEqual(old, ["o/n/resolve/main/config.json"], "asked for once by its old name")

    def test_a_commit_of_it_too(self):
        self.hub.rename("o/n", "new/name")
        self.assert_ok(self.pack("o/n@" + self.commit_of(repo="new/name")))
        self.assert_same_weights()

    def test_in_a_circle(self):
        self.hub.add_fault("HEAD", "a/b/*", "307", headers={"Location": "/c/d/resolve/main/config.json"})
        self.hub.add_fault("HEAD", "c/d/*", "307", headers={"Location": "/a/b/resolve/main/config.json"})
        self.assert_refused(self.pack("a/b"), "redirected more than")


if __name__ == "__main__":
    main()
