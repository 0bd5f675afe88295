"""Publishing killed at random moments while everything else goes wrong too: the repeated command ends with exactly the
right repository, every commit made once, and nothing on the way that looks whole and is not."""

import collections
import concurrent.futures
import os
import random
import signal
import time
import unittest

import faults
from checkpoints import packed_tiny
from common import QUICK, main, seeded_random
from publishing import REPO, PublishCase

KILLS = 50 if faults.LONG else 4
ROUNDS_AT_ONCE = 5  # most of their time is pauses
PAUSES = ("--dev", "pause=1") if faults.LONG else QUICK
# Seconds; an undisturbed run takes half of one, the pauses and delays of a disturbed one make it several.
KILLED_WITHIN = 4.0 if faults.LONG else 1.5

# (method, pattern, kind, chance, options): each of them about once or twice a run, so that runs end.
STRIKES = [
    ("*", "*", "429", 0.01, {"rate_limit": 1}), ("*", "*", "429", 0.005, {"retry_after": 1}),
    ("*", "*", "500", 0.01, {}), ("*", "*", "503", 0.01, {}), ("*", "*", "reset", 0.01, {}), ("*", "*", "cut", 0.01, {}),
    ("POST", "*", "lost", 0.01, {}), ("POST", "*", "lost", 0.01, {"status": 504}), ("PUT", "*", "lost", 0.01, {}),
    ("POST", "*/commit/*", "lost", 0.3, {"status": 504, "delay": 0.5}), ("POST", "*/commit/*", "lost", 0.2, {}),
    ("POST", "*/discussions*", "lost", 0.3, {}), ("POST", "*/create", "lost", 0.5, {}),
    ("PUT", "*", "corrupt_upload", 0.01, {"min_bytes": 100}), ("PUT", "*", "truncate_upload", 0.01, {"min_bytes": 100}),
    ("PUT", "*", "delay", 0.02, {"seconds": 0.5}), ("*", "*", "delay", 0.02, {"seconds": 0.3}),
]


class Round:
    """One repository's way: published under kills, then replaced by another grouping under kills."""

    def __init__(self, case, seed):
        self.case, self.random = case, random.Random(seed)
        self.kills, self.phases = 0, collections.Counter()
        small_parts = self.random.random() < 0.5
        self.hub = case.new_hub(random_seed=seed, page_size=self.random.choice((37, 1000)), upload_link_seconds=6,
                                multipart_threshold=15_000 if small_parts else 1 << 40,
                                chunk_size=self.random.choice((90_000, 700_000)))

    def run(self, kills):
        first, second = packed_tiny("expert"), packed_tiny("layer")
        if self.random.random() < 0.5:
            first, second = second, first
        self.strike()
        self.under_kills(first, kills // 2)
        commits = len(self.hub.commits(REPO))
        self.under_kills(second, kills - kills // 2)
        self.case.assertEqual(len(self.hub.commits(REPO)), commits + 1, "the replacement is not one merge")
        self.case.assertEqual([pull.status for pull in self.hub.pull_requests(REPO)], ["merged"])
        self.case.assert_commits_in_order(self.hub, "refs/pr/1")
        self.hub.clear_faults()
        return self

    def strike(self):
        for method, pattern, kind, chance, options in STRIKES:
            self.hub.add_fault(method, pattern, kind, chance=chance if faults.LONG else chance * 0.4, **options)

    def begin(self, folder):
        jobs = self.random.choice((1, 4, 9))
        return self.case.start_publishing(self.hub, folder, "--jobs", jobs, "--dev", "retries=30", *PAUSES)

    def under_kills(self, folder, kills):
        for _ in range(kills):
            process = self.begin(folder)
            deadline = time.monotonic() + self.random.uniform(0, KILLED_WITHIN)
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            result = self.case.finish(process)
            if result.code != 0:  # 0: it was faster
                self.case.assertEqual(result.code, -signal.SIGKILL, str(result))
                self.kills += 1
                self.phases[self.phase()] += 1
        self.case.assert_ok(self.case.finish(self.begin(folder), timeout=400))
        self.case.assert_published(self.hub, folder)
        self.case.assert_commits_in_order(self.hub)

    def phase(self):
        """How far the server is."""
        if not self.hub.exists(REPO):
            return "before the repository"
        pulls = self.hub.pull_requests(REPO)
        if pulls:
            return "pull request " + pulls[0].status
        commits = len(self.hub.commits(REPO))
        if "manifest.json" in self.hub.files(REPO):
            return "sealed"
        return "between commits" if commits > 1 else "first files"


class Kills(faults.FaultCase, PublishCase):
    def test_at_random_moments_with_all_faults(self):
        packed_tiny("expert"), packed_tiny("layer")  # before threads want them
        seeds = seeded_random()
        kills, phases, struck = 0, collections.Counter(), collections.Counter()
        with self.tally("publish: kill -9 at random moments, every fault of server and storage") as tally:
            with concurrent.futures.ThreadPoolExecutor(ROUNDS_AT_ONCE) as pool:
                while kills < KILLS:
                    left = KILLS - kills
                    count = min(ROUNDS_AT_ONCE, max(1, left // 3))
                    rounds = [pool.submit(Round(self, seeds.randrange(2**32)).run, max(2, left // count))
                              for _ in range(count)]
                    for future in rounds:
                        with tally.repetition("a round"):
                            done = future.result()
                            kills += done.kills
                            phases.update(done.phases)
                            struck.update(request.fault for request in done.hub.requests() if request.fault)
                    if tally.failures:
                        break
            tally.repetitions = kills
        print("killed %d times: %s; faults struck: %s" % (kills, dict(phases), dict(struck)), flush=True)
        if faults.LONG:
            self.assertGreaterEqual(len(phases), 4, "kills hit too few phases")

    @unittest.skipUnless(faults.LONG, "minutes of waiting; in the long form")
    def test_servers_that_fall_silent(self):
        """A request that gets no answer at all is given up after one to three minutes, and made again or looked for."""
        cases = [("GET", "*/tree/*"), ("POST", "*/preupload/*"), ("POST", "*/batch"), ("PUT", "uploads/*"),
                 ("POST", "*/commit/*"), ("POST", "*/verify"), ("POST", "api/complete_multipart")]
        with self.tally("publish: a server falls silent in the middle of a request") as tally:
            hubs = [self.new_hub(multipart_threshold=15_000, chunk_size=50_000) for _ in cases]
            for hub, (method, pattern) in zip(hubs, cases):
                hub.add_fault(method, pattern, "stall", times=1)
            processes = [self.start_publishing(hub, packed_tiny("layer")) for hub in hubs]
            for case, hub, process in zip(cases, hubs, processes):
                with tally.repetition(str(case)):
                    self.assert_ok(self.finish(process, timeout=400))
                    self.assert_published(hub, packed_tiny("layer"))
                    self.assert_commits_in_order(hub)


if __name__ == "__main__":
    main()
