"""Running a model off the Hub: packed and ordinary, through the cache, from a local snapshot, and without a network."""

import functools
import json
import subprocess

from checkpoints import packed_tiny
from common import clean_environment, main, path_from_environment
from hub_case import HubCase

GOLDENS = json.loads((HubCase.data("tiny-v3-golden") / "prompts.json").read_text(encoding="utf-8"))["prompts"]
TOKENS = ",".join(map(str, GOLDENS[0]["token_ids"]))
NOWHERE = {"HF_ENDPOINT": "http://no-such-host.invalid"}


class Dsrun(HubCase):
    def setUp(self):
        super().setUp()
        self.cache = self.scratch / "cache"
        self.hub.add("o/packed", packed_tiny())
        self.hub.add("o/ordinary", self.data())

    def run_model(self, place, *arguments, token="", env=None, **options):
        return self.run_program(place, "--tokens", TOKENS, "-n", 12, "--cache", self.cache, *arguments,
                                program="DSPACK_DSRUN", env={**self.env(token), **(env or {})}, **options)

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def text():
        """Of the local model; the same for all cases."""
        command = [path_from_environment("DSPACK_DSRUN"), HubCase.data(), "--tokens", TOKENS, "-n", "12"]
        run = subprocess.run(command, check=True, capture_output=True, env=clean_environment("/nonexistent"))
        return run.stdout.decode()

    def assert_text(self, result):
        self.assertEqual(self.assert_ok(result).stdout, self.text(), str(result))
        return result

    def folders(self):
        return sorted(path.name for path in self.cache.iterdir() if path.name != "hub-commits")

    def weights_asked(self, since=0):
        return [entry for entry in self.hub.requests()[since:] if entry.host == "storage"]

    def test_packed_and_ordinary(self):
        for place in ("hf://o/packed", "o/ordinary"):
            with self.subTest(place):
                since = len(self.hub.requests())
                self.assert_text(self.run_model(place))
                self.assertTrue(self.weights_asked(since))
                since = len(self.hub.requests())
                self.assert_text(self.run_model(place))
                self.assertEqual(self.weights_asked(since), [], "all of it is kept")
        self.assertEqual(len(self.folders()), 2)

    def test_a_cache_belongs_to_a_commit(self):
        self.assert_text(self.run_model("o/packed"))
        first = self.commit_of(repo="o/packed")
        self.hub.commit("o/packed", {"notes.txt": b"new\n"})
        self.assert_text(self.run_model("o/packed"))
        self.assert_text(self.run_model("hf://o/packed@" + first))
        self.assertEqual(len(self.folders()), 2)
        for commit in (first, self.commit_of(repo="o/packed")):
            self.assertEqual(len([name for name in self.folders() if commit in name]), 1, self.folders())

    def test_private_with_expiring_links_and_no_token_on_them(self):
        self.hub.add("o/private", packed_tiny(), private=True)
        self.hub.link_seconds = 1.0
        self.assert_text(self.run_model("o/private", token=None))
        self.assertEqual(self.hub.token_leaks(), [])
        for path in self.cache.rglob("*"):
            self.assertTrue(not path.is_file() or self.hub.token.encode() not in path.read_bytes(), path)
        result = self.run_model("o/private")
        self.assertEqual(result.code, 1)
        self.assertIn("no such repository", result.stderr)
        self.assertIn("HF_TOKEN", result.stderr)

    def test_without_a_network_what_was_used_before_can_be_used_again(self):
        for place in ("hf://o/packed", "o/ordinary"):
            with self.subTest(place):
                self.assert_text(self.run_model(place))
                result = self.assert_text(self.run_model(place, env=NOWHERE))
                self.assertIn("continuing with the local copy", result.stderr)
                since = len(self.hub.requests())
                self.assert_text(self.run_model(place, env={"HF_HUB_OFFLINE": "1"}))
                self.assertEqual(len(self.hub.requests()), since)

    def test_what_is_not_here_offline_is_named(self):
        self.assert_ok(self.run_program("hf://o/packed", "--tokens", "5", "-n", 1, "--cache", self.cache,
                                        program="DSPACK_DSRUN", env=self.env()))
        result = self.run_model("hf://o/packed", env={"HF_HUB_OFFLINE": "1"})
        self.assertEqual(result.code, 1, "one token has not touched all experts")
        self.assertIn("HF_HUB_OFFLINE is set", result.stderr)
        self.assertIn("/experts/", result.stderr)

    def test_a_whole_snapshot_is_a_local_folder(self):
        for repo in ("o/packed", "o/ordinary"):
            with self.subTest(repo):
                snapshot = self.fill_cache(repo)
                since = len(self.hub.requests())
                result = self.assert_text(self.run_model("hf://" + repo))
                self.assertIn("read from the local snapshot %s\n" % snapshot, result.stderr)
                self.assertEqual(self.weights_asked(since), [])
                self.assertEqual(self.folders(), [], "nothing is copied")
                since = len(self.hub.requests())
                self.assert_text(self.run_model(repo, "--dev", "io=direct", env={"HF_HUB_OFFLINE": "1"}))
                self.assert_text(self.run_model("%s@%s" % (repo, self.commit_of(repo=repo)), env={"HF_HUB_OFFLINE": "1"}))
                self.assertEqual(len(self.hub.requests()), since)

    def test_a_partial_snapshot_is_completed(self):
        left_out = [path for path in self.hub.files("o/packed") if path.startswith("model/layers/003/")]
        self.assertGreater(len(left_out), 0)
        self.fill_cache("o/packed", leave_out=left_out)
        result = self.assert_text(self.run_model("o/packed"))
        self.assertIn("as far as it goes", result.stderr)
        named = {entry.path.rpartition("packed/resolve/")[2].partition("/")[2]
                 for entry in self.hub.requests("GET", "o/packed/resolve/*", host="hub")}
        self.assertTrue(named)
        self.assertLessEqual(named, set(left_out))

    def test_sealing_what_was_kept(self):
        self.hub.rename("o/packed", "new/packed")
        result = self.assert_text(self.run_model("o/packed"))
        self.assertIn("o/packed is now called new/packed", result.stderr)
        (folder,) = self.folders()
        self.assertTrue(folder.startswith("new_packed"), folder)
        sealed = self.run_program("seal", self.cache / folder, env=self.env())
        self.assertIn("files are not complete", sealed.stderr)
        self.assert_text(self.run_model("o/packed", env=NOWHERE))

    def test_plan_and_text(self):
        for place in ("hf://o/packed", "o/ordinary"):
            result = self.run_program("plan", place, "--cache", self.cache, program="DSPACK_DSRUN", env=self.env())
            self.assert_ok(result)
            result = self.run_program("tokenize", place, "-p", "hello", "--cache", self.cache, program="DSPACK_DSRUN",
                                      env=self.env())
            self.assertEqual(result.stdout, self.run_program("tokenize", self.data(), "-p", "hello",
                                                             program="DSPACK_DSRUN").stdout)


if __name__ == "__main__":
    main()
