"""Kills of the real program: at every transition of its journal, and at random moments. The same command goes on, and
the result is that of an undisturbed run."""

import collections
import os
import resource
import shutil
import signal
import time

import faults
import safetensors_io
from checkpoints import packed_tiny, packing_seconds, raw
from common import limit, main, seeded_random

KILLS_OVER_HTTP = 120 if faults.LONG else 10
KILLS_LOCALLY = 80 if faults.LONG else 5
RATE = 4e6  # bytes per second and connection: streaming takes about as long as everything else

SHARDS = 24
BIG_SHARD_MB = 36 if faults.LONG else 24  # three or more runs that are ended


def write_scattered(folder):
    """Experts of tiny matrices, each in other shards than its neighbours; the shards' names are long.

    The journal's first record lists the shards, so it alone is longer than any weight file: a limit on the size of
    files, put at an offset of the journal behind that, kills the program exactly there and nowhere else."""
    folder.mkdir()
    tensors = {"model.embed_tokens.weight": [8, 4], "model.norm.weight": [4], "lm_head.weight": [8, 4]}
    for layer in range(4):
        tensors["model.layers.%d.input_layernorm.weight" % layer] = [4]
        for expert in range(2):
            for part in ("gate_proj", "up_proj", "down_proj"):
                tensors["model.layers.%d.mlp.experts.%d.%s.weight" % (layer, expert, part)] = [4, 4]
    shards = [{} for _ in range(SHARDS)]
    weight_map = {}
    for number, (name, shape) in enumerate(tensors.items()):
        count = 2
        for dimension in shape:
            count *= dimension
        shards[number % SHARDS][name] = ("BF16", shape, raw(count, number))
        weight_map[name] = "model-%s-%05d-of-%05d.safetensors" % ("x" * 180, number % SHARDS + 1, SHARDS)
    for shard in shards:
        safetensors_io.write(folder / weight_map[next(iter(shard))], shard)
    safetensors_io.write_index(folder, weight_map)
    (folder / "config.json").write_text('{"model_type": "deepseek_v3"}')
    return folder


def die_behind(size):
    """For `before`: the first write behind this offset of any file kills the program, at once and uncaught; a write
    across it is cut there first."""
    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return apply


class AtTransitions(faults.FaultCase):
    def setUp(self):
        super().setUp()
        self.source = write_scattered(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))

    def journal_of(self, source):
        """The complete journal of an undisturbed run, as [begin of a record, ..., end]."""
        too_large = self.source / "LICENSE"
        too_large.write_bytes(bytes(100_000))
        out = self.scratch / "journal"
        self.assert_refused(self.repack(source, out, "--jobs", 1, before=limit(resource.RLIMIT_FSIZE, 50_000)),
                            "LICENSE", "File too large")
        too_large.unlink()
        bounds = [0]
        for line in (out / ".reshard" / "journal").read_bytes().splitlines(keepends=True):
            bounds.append(bounds[-1] + len(line))
        shutil.rmtree(out)
        largest = max(path.stat().st_size for path in (self.whole / "model").rglob("*.safetensors"))
        self.assertGreater(bounds[1], largest, "the limits would strike weight files")
        self.assertGreater(len(bounds), SHARDS + 10)  # a record a shard, and one for each that completes files
        return bounds[1:]

    def kill_at(self, size, source, out, jobs):
        result = self.repack(source, out, "--jobs", jobs, before=die_behind(size))
        self.assertEqual(result.code, -signal.SIGXFSZ, str(result))
        self.assert_nothing_wrong_sealed(out, self.whole)

    def each_alone(self, name, source, jobs, step):
        """A run for each place: killed there, then left alone to the end."""
        bounds = self.journal_of(source)
        places = [(begin + end) // 2 for begin, end in zip(bounds, bounds[1:])] + bounds
        with self.tally(name) as tally:
            for size in sorted(places)[::step]:
                with tally.repetition("byte %d of the journal" % size):
                    out = self.scratch / ("out-%s-%d" % (jobs, size))
                    self.kill_at(size, source, out, jobs)
                    self.assert_ok(self.repack(source, out))
                    self.assert_same_tree(out, self.whole)

    def one_after_the_other(self, name, source, jobs):
        """One output, whose run is killed at every transition in turn."""
        with self.tally(name) as tally:
            out = self.scratch / ("march-%s" % jobs)
            for size in self.journal_of(source):
                with tally.repetition("byte %d of the journal" % size):
                    self.kill_at(size, source, out, jobs)
            with tally.repetition("the last run"):
                self.assert_ok(self.repack(source, out))
                self.assert_same_tree(out, self.whole)

    def test_from_a_folder(self):
        self.each_alone("kill before, in and after every journal record; folder, --jobs 1", self.source, 1, 1)
        self.one_after_the_other("the same output killed at every journal record in turn; folder", self.source, 1)

    def test_from_a_folder_with_four_jobs(self):
        self.each_alone("kill before, in and after every journal record; folder, --jobs 4", self.source, 4,
                        1 if faults.LONG else 4)

    def test_over_http(self):
        url = self.serve(self.source).url
        for jobs in (1, 4):
            self.each_alone("kill before, in and after every journal record; HTTP, --jobs %d" % jobs, url, jobs,
                            1 if faults.LONG else 8)


def phase(out):
    """Where a run was when it died, told from what it left."""
    if not (out / ".reshard" / "journal").exists():
        return "complete" if (out / "manifest.json").exists() else "before the journal"
    if (out / "manifest.json").exists():
        return "clearing up"
    if (out / "provenance").exists() or (out / "config.json").exists():
        return "companions"
    if b'"shard":' in (out / ".reshard" / "journal").read_bytes():
        return "later shards"
    return "first shards"


class AtRandomMoments(faults.FaultCase):
    def setUp(self):
        super().setUp()
        self.undisturbed = packed_tiny()
        self.random = seeded_random()
        self.phases = collections.Counter()

    def run_for(self, seconds, source, out):
        """Starts the run and kills it; the result if it was faster."""
        process = self.start(source, "--by", "expert", "--out", out, "--jobs", self.random.choice((1, 4)))
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        if process.poll() is not None:
            return self.assert_ok(self.finish(process))
        os.kill(process.pid, signal.SIGKILL)
        result = self.finish(process)
        if result.code == 0:  # it ended between the look and the kill
            return result
        self.assertEqual(result.code, -signal.SIGKILL, str(result))
        self.phases[phase(out)] += 1
        self.assert_nothing_wrong_sealed(out, self.undisturbed)
        return None

    def kill_and_go_on(self, name, source, kills, usual_seconds):
        """Rounds of one folder each: killed a few times at random moments, then left alone to the end."""
        rounds = 0
        with self.tally(name) as tally:
            while sum(self.phases.values()) < kills:
                out = self.scratch / ("round-%d" % rounds)
                rounds += 1
                for _ in range(self.random.randint(3, 9)):
                    if sum(self.phases.values()) == kills:
                        break
                    with tally.repetition("kill %d" % (tally.repetitions + 1)):
                        if self.run_for(self.random.uniform(0, usual_seconds * 0.6), source, out):
                            tally.repetitions -= 1  # it was faster than the kill
                            break
                with tally.repetition("the end of round %d" % rounds):
                    tally.repetitions -= 1  # kills are what is counted
                    self.assert_ok(self.repack(source, out))
                    self.assert_same_tree(out, self.undisturbed)
                shutil.rmtree(out)
        print("killed %d times in %d rounds: %s" % (sum(self.phases.values()), rounds, dict(self.phases)), flush=True)

    def test_over_http(self):
        url = self.serve(self.data(), rate=RATE).url
        began = time.monotonic()
        self.assert_ok(self.repack(url, self.scratch / "measured"))
        self.kill_and_go_on("kill -9 at random moments; HTTP, --jobs 1 or 4", url, KILLS_OVER_HTTP,
                            time.monotonic() - began)
        self.assertGreater(self.phases["first shards"] + self.phases["later shards"], 0, "no kill hit the streaming")

    def test_from_a_folder(self):
        self.kill_and_go_on("kill -9 at random moments; folder, --jobs 1 or 4", self.data(), KILLS_LOCALLY,
                            packing_seconds())


class AgainAndAgain(faults.FaultCase):
    """One shard of which no run gets more than a part: what each run has read must be worth something to the next."""

    def setUp(self):
        super().setUp()
        self.source = self.scratch / "source"
        self.source.mkdir()
        name = "model.safetensors"
        tensors = {"model.layers.0.mlp.experts.%d.%s.weight" % (expert, part): ("U8", [1 << 20], raw(1 << 10, expert) * 1024)
                   for expert in range(BIG_SHARD_MB // 3) for part in ("gate_proj", "up_proj", "down_proj")}
        safetensors_io.write(self.source / name, tensors)
        safetensors_io.write_index(self.source, dict.fromkeys(tensors, name))
        (self.source / "config.json").write_text('{"model_type": "deepseek_v3"}')
        self.size = (self.source / name).stat().st_size
        self.whole = self.scratch / "whole"
        begun = time.monotonic()
        self.assert_ok(self.repack(self.source, self.whole))
        # Slower than the program on this machine, at this moment: what waits to be read at a kill is lost.
        self.rate = min(20e6, self.size / (time.monotonic() - begun) / 2)

    def sent(self, server):
        return sum(request.sent for request in server.requests("model.safetensors"))

    def march(self, signal_number, by, most_sent):
        """Ends each run when it has got some 6 MB; the bytes that all runs got."""
        server = self.serve(self.source, rate=self.rate)
        whole = self.whole if by == "expert" else self.scratch / "whole-layer"
        out = self.scratch / ("%s-%d" % (by, signal_number))
        if not whole.exists():
            self.assert_ok(self.repack(self.source, whole, by=by))
        for _ in range(3 * BIG_SHARD_MB):
            before = self.sent(server)
            process = self.start(server.url, "--by", by, "--out", out, "--jobs", 1)
            while process.poll() is None and self.sent(server) < before + 6e6:
                time.sleep(0.01)
            if process.poll() is None:
                process.send_signal(signal_number)
            result = self.finish(process)
            if result.code == 0:
                break
            self.assertIn(result.code, (-signal.SIGKILL, 130), str(result))
            if result.code == 130:
                self.assertRegex(result.stderr, "stopped on request; [0-9.]+ k?B of what was read will be read again")
            self.assert_nothing_wrong_sealed(out, whole)
        else:
            self.fail("the work is never done")
        self.assert_same_tree(out, whole)
        self.assertLess(self.sent(server), most_sent * self.size)

    def test_killed_or_stopped_at_each_few_megabytes_a_run_comes_to_its_end(self):
        with self.tally("one shard, killed or stopped again and again within it") as tally:
            for by in ("expert", "layer"):
                with tally.repetition("kill -9, by " + by):
                    self.march(signal.SIGKILL, by, 2.5)
                with tally.repetition("SIGTERM, by " + by):
                    self.march(signal.SIGTERM, by, 1.6)  # what was on its way is lost, and the server counts it


if __name__ == "__main__":
    main()
