"""`reshard publish --with-hf`: the Hub's own client sends the weights, and everything else is as without it. Either way
resumes what the other began, killed at any moment."""

import os
import signal
import sys
import time
from pathlib import Path

from hub_client import Client  # first: it restarts this file where the client is
from checkpoints import packed_tiny
from common import EndToEnd, main, seeded_random
from publishing import REPO, SEALING, TOKEN, PublishCase

KILLS = 10 if os.environ.get("DSPACK_TESTS") == "long" else 3


class WithHf(Client, PublishCase):
    def environment(self, hub, token=TOKEN):
        folder = str(Path(sys.executable).parent)
        return {**PublishCase.environment(self, hub, TOKEN), "PATH": folder + ":" + os.environ["PATH"],
                "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def setUp(self):
        super().setUp()
        self.hub = self.new_hub()

    def weights_by_hf(self, revision="main"):
        """Paths that commits of the client's changed; at no commit does anything look whole that is not."""
        commits = [commit for commit in reversed(self.hub.commits(REPO, revision))]
        changed = set()
        for before, commit in zip(commits, commits[1:]):
            self.assert_honest(commit)
            if "weights" in commit.title:
                changed |= {path for path in commit.files if path not in before.files
                            or before.files[path].oid != commit.files[path].oid}
        return changed

    def test_the_client_sends_the_weights_and_nothing_that_seals(self):
        result = self.assert_ok(self.publish(self.hub, None, "--with-hf"))
        self.assertIn("weights  by hf upload\n", result.stdout)
        self.assert_published(self.hub)
        by_hf = self.weights_by_hf()
        self.assertGreater(len(by_hf), 300)
        self.assertEqual(by_hf & SEALING, set())
        self.assertIn("all of it", self.assert_ok(self.publish(self.hub, None, "--with-hf")).stdout)

    def test_another_state_is_replaced_through_a_pull_request(self):
        self.assert_ok(self.publish(self.hub))
        commits = len(self.hub.commits(REPO))
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(self.hub, layered, "--with-hf"))
        self.assert_published(self.hub, layered)
        self.assertEqual(len(self.hub.commits(REPO)), commits + 1)
        self.assertTrue(self.weights_by_hf("refs/pr/1"))

    def test_on_another_branch_the_manifest_goes_first(self):
        self.assert_ok(self.publish(self.hub, None, "--revision", "other"))
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(self.hub, layered, "--revision", "other", "--with-hf"))
        self.assert_published(self.hub, layered, "other")
        self.assertTrue(self.weights_by_hf("other"))

    def test_either_resumes_what_the_other_began(self):
        random = seeded_random()
        for first, then in ((("--with-hf",), ()), ((), ("--with-hf",))):
            kills = rounds = 0
            while kills < KILLS:
                self.hub = self.new_hub()
                self.hub.add_fault("PUT", "*", "delay", seconds=0.03)  # 174 of them, four at a time
                is_killed = True
                while is_killed and kills < KILLS:
                    process = self.start_publishing(self.hub, self.folder, *first)
                    deadline = time.monotonic() + random.uniform(0.1, 1.2)
                    while process.poll() is None and time.monotonic() < deadline:
                        time.sleep(0.01)
                    is_killed = process.poll() is None
                    if is_killed:
                        os.kill(process.pid, signal.SIGKILL)
                        kills += 1
                    self.finish(process)
                self.assert_ok(self.publish(self.hub, None, *then))
                self.assert_published(self.hub)
                self.weights_by_hf()
                rounds += 1
            print("%s: killed %d times in %d rounds" % (" ".join(first) or "without --with-hf", kills, rounds), flush=True)

    def test_what_it_cannot_do(self):
        env = {**self.environment(self.hub), "PATH": "/nonexistent"}
        result = self.finish(self.start("publish", self.folder, "--repo", REPO, "--with-hf", env=env))
        self.assert_refused(result, "PATH has no `hf`", "pip install huggingface_hub hf_xet")
        self.assertEqual(self.hub.requests(), [])
        limited = self.publish(self.hub, None, "--with-hf", "--limit-rate", "1MB")
        self.assertEqual(limited.code, 2, str(limited))
        self.assertIn("--limit-rate does not bound what `hf upload` sends", limited.stderr)
        outlook = self.assert_ok(self.publish(self.hub, None, "--with-hf", "--dry-run")).stdout
        self.assertIn("client   hf upload: with hf_xet only chunks that the Hub lacks\n", outlook)

    def test_its_failure_is_told_and_resumed(self):
        fault = self.hub.add_fault("PUT", "*", "403")
        # The client's message, which is not ours, has the signed link of the upload that failed.
        result = EndToEnd.finish(self, self.start_publishing(self.hub, self.folder, "--with-hf"))
        self.assertEqual(result.code, 1, str(result))
        self.assertNotIn(TOKEN, result.stderr)
        self.assertIn("`hf upload` ended with status 1 (its reason is above)", result.stderr)
        self.hub.clear_faults()
        self.assertTrue(fault)
        self.assert_ok(self.publish(self.hub, None, "--with-hf"))
        self.assert_published(self.hub)


if __name__ == "__main__":
    main()
