"""`reshard publish` against a server that speaks the Hub's protocol: what it puts there, what it replaces, how it goes on
after it was stopped."""

import json
import re
import resource
import signal
import unittest

import safetensors_io
from checkpoints import EXPERT_0, packed_tiny, write_small
from common import EndToEnd, is_sanitized, main
from publishing import COMPLETE, REPO, SEALING, PublishCase


class Publish(PublishCase):
    def test_a_new_repository(self):
        hub = self.new_hub()
        result = self.assert_ok(self.publish(hub))
        self.assertIn("no such repository: it is created", result.stdout)
        self.assertIn(COMPLETE, result.stdout)
        self.assertEqual(result.stderr, "")
        self.assert_published(hub)
        self.assert_commits_in_order(hub)
        *_, sealing = commits = [set(one.files) - set(other.files) for other, one in
                                 zip(list(reversed(hub.commits(REPO))), list(reversed(hub.commits(REPO)))[1:])]
        self.assertEqual(sealing, SEALING)
        self.assertEqual(len(commits), 5)  # of 338 files, a hundred at a time, and the three that seal
        self.assertFalse(hub.repositories[REPO].private)
        self.assertTrue(hub.is_lfs(REPO, EXPERT_0.replace("001", "003")))
        self.assertFalse(hub.is_lfs(REPO, "config.json"))

    def test_what_was_published_reads_back_as_the_folder(self):
        hub = self.new_hub(page_size=50)
        self.assert_ok(self.publish(hub))
        small, packed = write_small(self.scratch / "small"), self.scratch / "packed"
        self.assert_ok(self.repack(small, packed))
        self.assert_ok(self.publish(hub, packed, repo="me/small"))
        environment = {"HF_ENDPOINT": hub.url}
        for place, source in ((REPO, self.data()), ("hf://me/small", small)):
            verified = self.assert_ok(self.run_program("verify", place, "--source", source, env=environment))
            self.assertIn("every digest fits", verified.stdout)
            self.assertIn("equal to the source, byte for byte", verified.stdout)
        out = self.scratch / "shards"
        self.assert_ok(self.run_program("unpack", REPO, "--exact", "--out", out, env=environment))
        for shard in self.data().glob("*.safetensors"):
            self.assertEqual((out / shard.name).read_bytes(), shard.read_bytes(), shard.name)

    def test_what_was_published_runs_from_there(self):
        self.folder, hub = packed_tiny("layer"), self.new_hub()
        self.assert_ok(self.publish(hub, None, "--private"))

        def say(place, *arguments):
            return self.assert_ok(self.run_program(place, "-p", "What is the capital of France?", "-n", 12, *arguments,
                                                   program="DSPACK_DSRUN", env=self.environment(hub))).stdout
        here = say(self.folder)
        self.assertIn("Paris", here)
        self.assertEqual(say("hf://" + REPO, "--cache", self.scratch / "cache"), here)

    def test_the_same_command_again_does_nothing(self):
        self.folder, hub = packed_tiny("layer"), self.new_hub()
        self.assert_ok(self.publish(hub))
        before = len(hub.requests())
        result = self.assert_ok(self.publish(hub))
        self.assertIn("all of it", result.stdout)
        self.assertIn(COMPLETE, result.stdout)
        self.assertEqual({request.method for request in hub.requests()[before:]}, {"GET"})

    def test_requests_are_within_the_hubs_limits(self):
        hub = self.new_hub(page_size=100)
        self.assert_ok(self.publish(hub))
        for request in hub.requests("POST", "*/preupload/*"):
            self.assertLessEqual(len(json.loads(request.body)["files"]), 256)
        for request in hub.requests("POST", "*/objects/batch"):
            body = json.loads(request.body)
            self.assertLessEqual(len(body["objects"]), 100)
            self.assertEqual(body["ref"], {"name": "main"})
        for request in hub.requests("PUT"):
            self.assertEqual(request.host, "storage")
            self.assertIsNone(request.authorization)
        self.assertEqual(len(hub.requests("PUT")), len(hub.objects(REPO)))  # equal files are sent once
        self.assertGreaterEqual(len([request for request in hub.requests("GET", "*/tree/*")]), 4)  # pages

    def test_large_files_go_in_parts(self):
        hub = self.new_hub(multipart_threshold=20_000, chunk_size=25_013, official_action_urls=True)
        self.assert_ok(self.publish(hub, packed_tiny("layer"), "--jobs", 3))
        self.assert_published(hub, packed_tiny("layer"))
        completions = hub.requests("POST", "api/complete_multipart")
        self.assertTrue(completions)
        self.assertGreater(max(len(json.loads(request.body)["parts"]) for request in completions), 10)

    def test_empty_and_odd_files(self):
        source = write_small(self.scratch / "source")
        (source / "empty.txt").write_bytes(b"")
        (source / "with space \u00e4 #?%.txt").write_text("x")
        folder = self.scratch / "packed"
        self.assert_ok(self.repack(source, folder))
        hub = self.new_hub()
        result = self.assert_ok(self.publish(hub, folder))
        self.assert_published(hub, folder)
        self.assertIn("commits  1\n", result.stdout)
        self.assertEqual(len(hub.commits(REPO)), 2)  # all at once, behind the Hub's own first one
        self.assert_ok(self.publish(hub, folder, "--check"))

    def test_private(self):
        self.folder, hub = packed_tiny("layer"), self.new_hub()
        self.assertIn("created, private", self.assert_ok(self.publish(hub, None, "--private")).stdout)
        self.assertTrue(hub.repositories[REPO].private)
        self.assert_published(hub)
        self.assert_ok(self.publish(hub, None, "--private"))
        self.assert_ok(self.publish(hub))
        hub.add("me/open")
        result = self.publish(hub, None, "--private", repo="me/open")
        self.assert_refused(result, "me/open", "is public", "--private")
        self.assertEqual(set(hub.files("me/open")), {".gitattributes"})

    def test_a_branch(self):
        hub = self.new_hub()
        self.assert_ok(self.publish(hub, None, "--revision", "by-expert/1"))
        self.assert_published(hub, revision="by-expert/1")
        self.assertEqual(set(hub.files(REPO)), {".gitattributes"})
        self.assert_ok(self.publish(hub, None, "--revision", "by-expert/1", "--check"))
        self.assertEqual(self.publish(hub, None, "--check").code, 1)
        # Another state of it, for which no pull request is possible: at no commit does it look sealed and is not.
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(hub, layered, "--revision", "by-expert/1"))
        self.assert_published(hub, layered, revision="by-expert/1")
        self.assert_commits_in_order(hub, "by-expert/1")
        self.assertEqual(hub.pull_requests(REPO), [])

    def limits_and_jobs(self):
        hub = self.new_hub()
        result = self.assert_ok(self.publish(hub, packed_tiny("layer"), "--jobs", 8, "--limit-rate", "10MB"))
        self.assert_published(hub, packed_tiny("layer"))
        self.assertRegex(result.stdout, r"time     1 s at least, at --limit-rate 10.0 MB/s")
        self.assertGreater(float(re.search(r"; ([0-9.]+) s, ", result.stdout).group(1)), 0.9)

    @unittest.skipIf(is_sanitized(), "SKIPPED: a sanitizer's shadow takes more than the limit")
    def test_memory_does_not_grow_with_the_files(self):
        folder = self.scratch / "source"
        folder.mkdir()
        payload = bytes(60_000_000)
        safetensors_io.write(folder / "model.safetensors", {"model.layers.0.w": ("U8", [len(payload)], payload)})
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(folder, packed, by="layer"))
        hub = self.new_hub(multipart_threshold=1 << 40)
        self.assert_ok(self.publish(hub, packed, before=lambda: resource.setrlimit(resource.RLIMIT_DATA,
                                                                                   (50_000_000, 50_000_000))))
        self.assert_published(hub, packed)


class Replace(PublishCase):
    def setUp(self):
        super().setUp()
        self.hub = self.new_hub()
        self.hub.add(REPO, self.folder)  # as one commit, which is soon done
        self.layered = packed_tiny("layer")

    def test_an_existing_one_is_replaced_by_a_pull_request_that_is_merged(self):
        self.hub = self.new_hub()
        self.assert_ok(self.publish(self.hub))
        before = len(self.hub.commits(REPO))
        result = self.assert_ok(self.publish(self.hub, self.layered))
        self.assertIn("replaced through a pull request", result.stdout)
        self.assertIn("320 files that the folder lacks", result.stdout)
        self.assertIn("merged   pull request: %s/%s/discussions/1\n" % (self.hub.url, REPO), result.stdout)
        self.assert_published(self.hub, self.layered)
        self.assertEqual(len(self.hub.commits(REPO)), before + 1)  # readers saw the old one, then the new one
        pull, = self.hub.pull_requests(REPO)
        self.assertEqual(pull.status, "merged")
        self.assert_commits_in_order(self.hub, "refs/pr/1")
        self.assertIn("ref", json.loads(self.hub.requests("POST", "*/batch")[0].body))
        self.assertNotIn("ref", json.loads(self.hub.requests("POST", "*/batch")[-1].body))
        self.assertIn("all of it", self.assert_ok(self.publish(self.hub, self.layered)).stdout)
        self.assert_ok(self.publish(self.hub))  # and back again
        self.assert_published(self.hub)
        self.assertEqual([pull.status for pull in self.hub.pull_requests(REPO)], ["merged", "merged"])

    def test_what_somebody_has_damaged_is_mended(self):
        self.hub.commit(REPO, {"config.json": b"{}", "model/embed.safetensors": None, "notes.txt": b"x"})
        result = self.publish(self.hub, None, "--check")
        self.assertEqual(result.code, 1, str(result))
        self.assertEqual(result.stdout.splitlines(), [
            "config.json: has 2 bytes there, %d here" % (self.folder / "config.json").stat().st_size,
            "model/embed.safetensors: is missing there", "notes.txt: is there, and not in the folder"])
        self.assertIn("3 differences", result.stderr)
        self.hub.commit(REPO, {"config.json": (self.folder / "config.json").read_bytes().replace(b"1", b"2")})
        self.assertIn("config.json: has other content there", self.publish(self.hub, None, "--check").stdout)
        # Somebody's own file is not deleted, whoever's repository it is.
        changes = len(self.hub.requests("POST", "*"))
        self.assert_refused(self.publish(self.hub), "no part of a packed repository (notes.txt)", "delete them first")
        self.assertEqual(len(self.hub.requests("POST", "*")), changes)
        self.hub.commit(REPO, {"notes.txt": None})
        self.assert_ok(self.publish(self.hub))
        self.assert_published(self.hub)
        self.assert_ok(self.publish(self.hub, None, "--check"))

    def test_a_pull_request_that_others_merge(self):
        result = self.assert_ok(self.publish(self.hub, self.layered, "--create-pr"))
        self.assertIn("opened   pull request, to be merged by others: %s/%s/discussions/1\n" % (self.hub.url, REPO),
                      result.stdout)
        self.assert_published(self.hub)  # main is as it was
        self.assert_published(self.hub, self.layered, "refs/pr/1")
        self.assertEqual([pull.status for pull in self.hub.pull_requests(REPO)], ["open"])
        again = self.assert_ok(self.publish(self.hub, self.layered, "--create-pr"))
        self.assertIn("discussions/1", again.stdout)
        self.assertEqual(len(self.hub.pull_requests(REPO)), 1)
        self.assert_ok(self.publish(self.hub, self.layered))  # without the flag, the same one is merged
        self.assert_published(self.hub, self.layered)
        self.assertEqual([pull.status for pull in self.hub.pull_requests(REPO)], ["merged"])
        done = self.assert_ok(self.publish(self.hub, self.layered, "--create-pr"))
        self.assertIn("all of it", done.stdout)
        self.assertEqual(len(self.hub.pull_requests(REPO)), 1)

    def test_a_pull_request_is_found_among_many_and_goes_on(self):
        fault = self.hub.add_fault("POST", "*/commit/*", "403", skip=2)
        result = self.publish(self.hub, self.layered, "--create-pr")
        self.assertEqual(result.code, 1, str(result))
        self.assertEqual(fault.struck, 1)
        self.assertEqual([pull.status for pull in self.hub.pull_requests(REPO)], ["draft"])
        self.hub.clear_faults()
        for number in range(25):
            self.hub.repositories[REPO].open_pull("Other %d" % number, "", "somebody")
        self.assert_ok(self.publish(self.hub, self.layered, "--create-pr"))
        self.assert_published(self.hub, self.layered, "refs/pr/1")
        self.assertEqual(len(self.hub.pull_requests(REPO)), 26)
        self.assert_commits_in_order(self.hub, "refs/pr/1")

    def test_a_merge_that_conflicts_says_so(self):
        self.assert_ok(self.publish(self.hub, self.layered, "--create-pr"))
        self.hub.commit(REPO, {"README.md": b"another card"})
        result = self.publish(self.hub, self.layered)
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("pull request 1", result.stderr)
        self.assertIn("conflicts with what is there (HTTP 409", result.stderr)
        self.assertIn("close that and run the same command again", result.stderr)
        self.hub.repositories[REPO].pulls[1].status = "closed"
        self.assert_ok(self.publish(self.hub, self.layered))
        self.assert_published(self.hub, self.layered)

    def somebody_commits_meanwhile(self):
        """The branch moves between the look and the commit: it is looked at again, not overwritten."""
        waiting = self.hub.add_fault("POST", "*/preupload/*", "delay", seconds=1.5, times=1)
        process = self.start_publishing(self.hub, self.layered, "--revision", "b")
        self.wait_until(lambda: waiting.struck, "the first preupload")
        self.hub.commit(REPO, {"model/strange.safetensors": b"x" * 20}, revision="b")
        self.assert_ok(self.finish(process))
        self.assert_published(self.hub, self.layered, "b")
        self.assert_commits_in_order(self.hub, "b")

    def test_two_at_once(self):
        first = self.start_publishing(self.hub, self.layered)
        second = self.start_publishing(self.hub, self.layered)
        codes = [self.finish(first), self.finish(second)]
        self.assertIn(0, [result.code for result in codes], "\n".join(map(str, codes)))
        self.assert_ok(self.publish(self.hub, self.layered))
        self.assert_published(self.hub, self.layered)
        self.assert_commits_in_order(self.hub)


class Interrupt(PublishCase):
    def ctrl_c_leaves_what_the_same_command_goes_on_with(self):
        hub = self.new_hub()
        process = self.start_publishing(hub, self.folder, "--limit-rate", "5MB")
        self.wait_until(lambda: hub.exists(REPO) and len(hub.commits(REPO)) > 1, "the first commit")
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, 130, str(result))
        self.assertIn("run the same command again to resume", result.stderr)
        self.assertNotIn("manifest.json", hub.files(REPO))
        self.assert_ok(self.publish(hub))
        self.assert_published(hub)
        self.assert_commits_in_order(hub)

    def killed_behind_each_commit_in_turn(self):
        hub = self.new_hub()
        kills = 0
        for commits in range(2, 6):
            process = self.start_publishing(hub, self.folder, "--limit-rate", "20MB")
            self.wait_until(lambda: process.poll() is not None or len(
                hub.requests("POST", "*/commit/main")) >= commits - 1, "commit %d" % commits)
            if process.poll() is None:
                process.kill()
                kills += 1
            process.wait()
        self.assertGreater(kills, 1)
        self.assert_ok(self.publish(hub))
        self.assert_published(hub)
        self.assert_commits_in_order(hub)
        # What was there was not sent again, but for what was on its way.
        self.assertLess(len(hub.requests("PUT")), len(hub.objects(REPO)) + 8 * kills)


class AtTheSameTime(EndToEnd):
    """Those that take seconds."""

    def test_rates_delays_and_interruptions(self):
        packed_tiny(), packed_tiny("layer")  # before threads want them
        self.together(
            Publish("limits_and_jobs"), Replace("somebody_commits_meanwhile"),
            *map(Interrupt, ("ctrl_c_leaves_what_the_same_command_goes_on_with", "killed_behind_each_commit_in_turn")))


if __name__ == "__main__":
    main()
