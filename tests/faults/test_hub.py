"""The Hub that limits, redirects to links of a second or two, cuts, lies, and moves its branch while a run is killed."""

import json
import signal

import faults
from checkpoints import SHARDS
from common import QUICK, main

RUNS = 120 if faults.LONG else 18
KILLS = 60 if faults.LONG else 9
SECOND = 1.0 if faults.LONG else 0.4  # on the clock: of links and of what is sent
PAUSES = () if faults.LONG else QUICK

# Method, pattern, kind and options. What strikes a whole class of requests passes after a few.
PASSING = [("GET", "objects/*", "cut", dict(min_bytes=1000)), ("GET", "objects/*", "reset", dict(min_bytes=1000)),
           ("GET", "objects/*", "503", {}), ("GET", "objects/*", "403", {}), ("GET", "o/n/resolve/*", "429", dict(rate_limit=1)),
           ("GET", "o/n/resolve/*", "500", {}), ("GET", "api/*", "429", dict(retry_after=1)), ("GET", "api/*", "502", {})]
LASTING = [("GET", "objects/*", "403", {}), ("GET", "objects/*", "404", {}), ("GET", "objects/*", "ignore_range", {}),
           ("GET", "*.safetensors", "403", {}), ("GET", "*.safetensors", "404", {}), ("GET", "api/*", "403", {}),
           ("GET", "*.safetensors", "headers", dict(headers={"X-Repo-Commit": "ab" * 20})),
           ("GET", "*.safetensors", "headers", dict(headers={"X-Linked-Etag": '"%s"' % ("ab" * 32)}))]


class Hub(faults.ServerCase):
    def start(self, place, *arguments, **options):
        return super().start(place, *PAUSES, *arguments, **options)

    def new_hub(self):
        hub = self.serve_hub(page_size=self.random.choice((2, 1000)))
        hub.add("o/n", self.source, private=True)
        return hub

    def env(self, hub):
        return {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token}

    def run_undisturbed(self, hub, out):
        """What the repository packs to: its manifest names the commit, which is another for each server."""
        self.assert_ok(self.repack("o/n", out, env=self.env(hub)))
        return out

    def begin_run(self, name, number, kinds, most, skip, expires=False):
        """`expires`: certainly a link, as what is left after a cut is asked for too late."""
        hub = self.new_hub()
        whole = self.run_undisturbed(hub, self.scratch / ("%s-whole-%d" % (name, number)))
        hub.link_seconds = SECOND * (0.7 if expires else self.random.choice((0.7, 1.0, 2.0)))
        armed = []
        pause = PAUSES
        if expires:
            armed.append(("objects/*", "cut"))
            hub.add_fault("GET", "objects/*", "cut", min_bytes=100_000, times=1)
            pause, most = ("--dev", "pause=%g" % SECOND), 1
        for _ in range(self.random.randint(1, most)):
            method, pattern, kind, options = self.random.choice(kinds)
            armed.append((pattern, kind))
            hub.add_fault(method, pattern, kind, **{**options, **skip(number)})
        out = self.scratch / ("%s-%d" % (name, number))
        jobs = self.random.choice((1, 4))
        # So slow that links expire under way.
        process = self.start("o/n", "--by", "expert", "--out", out, "--jobs", jobs, *pause, "--limit-rate",
                             "%dKB" % (250 / SECOND), env=self.env(hub))
        return "%s, --jobs %d, links of %.1f s" % (armed, jobs, hub.link_seconds), hub, whole, out, process

    def complete(self, hub, out, whole):
        hub.link_seconds = 60.0
        self.assert_completed(hub, out, whole, lambda: self.repack("o/n", out, env=self.env(hub)))

    def assert_no_token_left(self, hub, result):
        self.assertEqual(hub.token_leaks(), [])
        for secret in (hub.token, "Signature="):
            self.assertNotIn(secret, result.stdout + result.stderr)

    def test_links_of_a_second_and_faults_that_pass(self):
        def start(number):
            return self.begin_run("passing", number, PASSING, 3,
                                  lambda _: dict(skip=self.random.randint(0, 3), times=self.random.randint(1, 2)),
                                  expires=number % 3 == 0)

        expired = 0
        with self.tally("the Hub: links of a second, cut, reset, 403 of the storage, 429, 500, 502, 503: bursts") as tally:
            for what, hub, whole, out, process in self.side_by_side(RUNS, start):
                with tally.repetition(what):
                    result = self.finish(process)
                    self.assert_no_token_left(hub, result)
                    if result.code != 0:  # two faults of that kind, one behind the other
                        self.assertIn("age is not the reason", self.assert_stopped_clearly(result))
                        self.complete(hub, out, whole)
                    self.assert_same_tree(out, whole)
                    expired += len([entry for entry in hub.requests(host="storage")
                                    if entry.status == 403 and entry.fault == ""])
        print("%d links had expired" % expired, flush=True)
        self.assertGreater(expired, RUNS // 9, "hardly a link has expired")

    def test_faults_that_last(self):
        def start(number):
            return self.begin_run("lasting", number, LASTING, 1, lambda number: dict(skip=number % 3))

        stopped = 0
        with self.tally("the Hub: refused links and files, 200 for a range, another commit, another digest") as tally:
            for what, hub, whole, out, process in self.side_by_side(RUNS, start):
                with tally.repetition(what):
                    result = self.finish(process)
                    if result.code != 0:
                        stopped += 1
                        self.assertIn("/o/n", self.assert_stopped_clearly(result))
                    self.assert_no_token_left(hub, result)
                    self.complete(hub, out, whole)
        self.assertGreaterEqual(stopped, RUNS // 3, "the faults hardly struck")

    def test_one_bit_flipped_by_the_storage(self):
        def start(number):
            hub = self.new_hub()
            whole = self.run_undisturbed(hub, self.scratch / ("flip-whole-%d" % number))
            shard = self.random.choice(SHARDS)
            digest = hub.files("o/n")[shard]
            size = (self.source / shard).stat().st_size
            hub.add_fault("GET", "objects/*/" + digest, "corrupt", at=self.random.randrange(size - 300_000, size), host="storage")
            out = self.scratch / ("flip-%d" % number)
            return shard, hub, whole, out, self.start("o/n", "--by", "expert", "--out", out, env=self.env(hub))

        with self.tally("the Hub: one bit flipped by its storage: refused, then the same bytes") as tally:
            for shard, hub, whole, out, process in self.side_by_side(RUNS // 3, start):
                with tally.repetition(shard):
                    line = self.assert_stopped_clearly(self.finish(process))
                    self.assertIn("SHA-256", line)
                    self.assertIn(shard, line)
                    self.complete(hub, out, whole)

    def test_killed_while_the_branch_moves(self):
        with self.tally("the Hub: kill -9 at random moments, then the branch moves: goes on at its commit") as tally:
            for number in range(KILLS):
                hub = self.new_hub()
                whole = self.run_undisturbed(hub, self.scratch / ("moving-whole-%d" % number))
                before = json.loads((whole / "manifest.json").read_text())["origin"]["revision"]
                out = self.scratch / ("moving-%d" % number)
                since, wanted = len(hub.requests()), self.random.randint(1, 12)
                process = self.start("o/n", "--by", "expert", "--out", out, "--limit-rate", "3MB", env=self.env(hub))
                with tally.repetition("killed at request %d" % wanted):
                    self.wait_until(lambda: len(hub.requests()) >= since + wanted or process.poll() is not None, "requests")
                    process.send_signal(signal.SIGKILL)
                    self.finish(process)
                    journal = out / ".reshard" / "journal"
                    begun = (out / "manifest.json").exists() or (journal.exists() and b"\n" in journal.read_bytes())
                    hub.commit("o/n", {"README.md": b"# moved\n"})
                    again = self.repack("o/n", out, env=self.env(hub))
                    if begun and not journal.exists() and again.code != 0:
                        self.assertIn("at commit " + before, again.stderr)  # it was complete
                        self.assert_same_tree(out, whole)
                        continue
                    self.assert_ok(again)
                    if begun:
                        self.assert_same_tree(out, whole)
                    else:
                        self.assertEqual((out / "README.source.md").read_text(), "# moved\n")


if __name__ == "__main__":
    main()
