"""Running a model off an HTTP server: what is transferred, what is kept, and what happens when either goes wrong."""

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time

from checkpoints import packed_tiny
from common import EndToEnd, flip_bit, main

GOLDENS = json.loads((EndToEnd.data("tiny-v3-golden") / "prompts.json").read_text(encoding="utf-8"))["prompts"]
TOKENS = ",".join(map(str, GOLDENS[0]["token_ids"]))
SHORT = ",".join(map(str, GOLDENS[0]["token_ids"][:5]))
ANSWER_TOKENS = 12
PROBE = 64 * 1024  # what a shard of unknown size is first asked for
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.")


class Remote(EndToEnd):
    said = {}

    def setUp(self):
        super().setUp()
        self.cache = self.scratch / "cache"

    def place(self, kind):
        """A folder to be served: packed by expert or by layer, or the ordinary checkpoint."""
        return self.data() if kind == "ordinary" else packed_tiny(kind)

    def run_model(self, place, *arguments, tokens=TOKENS, count=ANSWER_TOKENS, **options):
        return self.run_program(place, "--tokens", tokens, "-n", count, *arguments, program="DSPACK_DSRUN", **options)

    def remotely(self, server, *arguments, **options):
        return self.run_model(server.url, "--cache", self.cache, *arguments, **options)

    def local_text(self, **options):
        """What the checkpoint says on this machine."""
        asked = tuple(options.items())
        if asked not in self.said:
            self.said[asked] = self.assert_ok(self.run_model(self.data(), **options)).stdout
        return self.said[asked]

    def stats_of(self, server, *arguments, **options):
        path = self.scratch / "stats.json"
        result = self.assert_ok(self.remotely(server, "--stats", path, *arguments, **options))
        return result.stdout, json.loads(path.read_text())

    def folder(self):
        (folder,) = self.cache.iterdir()
        return folder

    def journal(self):
        """Records of the cache's journal, a torn last line apart; none where no run has come so far."""
        text = b"".join(path.read_bytes() for path in self.cache.glob("*/.dspack-cache/journal"))
        return [json.loads(line[17:]) for line in text.split(b"\n")[:-1]]

    def kept_experts(self):
        return {record["file"] for record in self.journal() if "file" in record}

    def assert_remote_refuses(self, result, *needles):
        self.assertEqual(result.code, 1, str(result))
        last = result.stderr.rstrip("\n").split("\n")[-1]
        self.assertTrue(last.startswith("dsrun: "), str(result))
        for needle in needles:
            self.assertIn(needle, last, str(result))


def read_header(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


def tensors_of(folder):
    """Every tensor: name -> (file, begin, end), absolute."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        header, start = read_header(path)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (str(path.relative_to(folder)), start + begin, start + end)
    return found


class Transfers(Remote):
    def routed(self, stats):
        return {(layer["layer"], expert) for layer in stats["experts"]["layers"] for expert in layer.get("experts", [])}

    def check_cold_run(self, kind):
        place = self.place(kind)
        server = self.serve(place)
        said, stats = self.stats_of(server, tokens=SHORT, count=1)
        self.assertEqual(said, self.local_text(tokens=SHORT, count=1))
        self.assertLessEqual(stats["experts"]["read"], 0.7 * stats["experts"]["present"], "the prompt is too long")
        tensors = tensors_of(place)
        touched = set()
        for request in server.log:
            if not request.path.endswith(".safetensors") or request.status != 206:
                continue
            begin, end = request.range
            if begin < PROBE and kind == "ordinary" and end <= read_header(place / request.path)[1] + PROBE:
                continue  # the header
            for name, (path, first, last) in tensors.items():
                if path == request.path and begin < last and first < end:
                    touched.add(name)
        experts = {m.groups() for m in map(EXPERT.match, touched) if m}
        self.assertEqual(len(experts), stats["experts"]["read"], "only the routed experts are fetched")
        rest = {name for name in touched if not EXPERT.match(name)}
        self.assertFalse({name for name in rest if name.startswith("model.layers.5.")}, "the MTP module is not needed")
        self.assertIn("model.embed_tokens.weight", rest)
        always = {n for n in tensors if not EXPERT.match(n) and not n.startswith("model.layers.5.")}
        self.assertLessEqual(rest, always)
        needed = sum(last - first for name, (_, first, last) in tensors.items() if name in always)
        fetched = stats["network"]["bytes"]
        self.assertEqual(fetched["always_needed"] + fetched["embedding"], needed)
        network = stats["network"]
        self.assertEqual(network["bytes"]["experts"], stats["bytes_read"]["experts"])
        self.assertEqual(network["requests"], len(server.log))
        return server, said

    def check_second_run(self, server, said):
        before = len(server.log)
        again, stats = self.stats_of(server, tokens=SHORT, count=1)
        self.assertEqual(again, said)
        self.assertEqual(len(server.log), before, "a second run asks for nothing: %s" % server.log[before:])
        self.assertEqual(stats["network"]["requests"], 0)
        self.assertEqual(stats["network"]["bytes"]["experts"], 0)
        self.assertEqual(stats["network"]["cache_bytes"]["experts"], stats["bytes_read"]["experts"])

    def test_by_expert(self):
        self.check_second_run(*self.check_cold_run("expert"))

    def test_by_layer(self):
        self.check_second_run(*self.check_cold_run("layer"))

    def test_ordinary(self):
        self.check_second_run(*self.check_cold_run("ordinary"))

    def test_the_text_is_the_local_one(self):
        said = self.local_text()
        for kind in ("expert", "layer", "ordinary"):
            server = self.serve(self.place(kind))
            for _ in range(2):
                self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said, kind)
            requests = len(server.log)
            self.assertEqual(self.assert_ok(self.remotely(server, "--mtp", 2)).stdout, said, kind)
            self.assertGreater(len(server.log), requests)

    def test_few_slots_read_again_from_the_cache_and_not_from_the_network(self):
        server = self.serve(self.place("expert"))
        self.assert_ok(self.remotely(server))
        sent = [request.path for request in server.log if "/experts/" in request.path]
        self.assertEqual(len(sent), len(set(sent)), "an expert was fetched twice")

    def test_a_bounded_cache_stays_within_its_bound(self):
        server = self.serve(self.place("expert"))
        said = self.local_text()
        bound = 6_000_000
        self.assertEqual(self.assert_ok(self.remotely(server, "--disk", bound)).stdout, said)
        held = sum(path.stat().st_size for path in (self.folder() / "model").rglob("*") if path.is_file())
        self.assertLessEqual(held, bound)
        self.assertTrue(any("removed" in record for record in self.journal()))
        self.assertEqual(self.assert_ok(self.remotely(server, "--disk", bound)).stdout, said)

    def test_a_bound_below_what_every_token_needs_is_refused(self):
        server = self.serve(self.place("expert"))
        self.assert_remote_refuses(self.remotely(server, "--disk", "1kB"), "--disk", "every token needs")

    def test_a_second_process_is_refused(self):
        server = self.serve(self.place("expert"), rate=200_000)
        first = self.start(server.url, "--cache", self.cache, "--tokens", TOKENS, program="DSPACK_DSRUN")
        self.wait_until(lambda: len(server.log) > 5, "the first run at work")
        self.assert_remote_refuses(self.remotely(server), "another program uses this cache")
        first.kill()


class Links(Remote):
    def test_a_link_is_resolved_once_and_again_when_it_expires(self):
        far = self.serve(self.place("layer"))
        near = self.serve(self.place("layer"))
        near.add_fault("*.safetensors", "redirect", to=far.url)
        far.add_fault("*experts.safetensors", "403", times=1, skip=3)
        said, stats = self.stats_of(near)
        self.assertEqual(said, self.local_text())
        resolved = [request.path for request in near.log if request.path.endswith(".safetensors")]
        self.assertLessEqual(len(resolved), len(set(resolved)) + 2)
        self.assertEqual(stats["network"]["link_resolutions"], len(resolved))

    def test_a_link_that_always_expires_is_given_up(self):
        far = self.serve(self.place("expert"))
        near = self.serve(self.place("expert"))
        near.add_fault("*.safetensors", "redirect", to=far.url)
        far.add_fault("*head.safetensors", "403", skip=1)
        far.add_fault("*layers/000/dense.safetensors", "403", body="no such luck")
        self.assert_remote_refuses(self.remotely(near), "layers/000/dense.safetensors", "403")


class Faults(Remote):
    def test_spoilt_bytes_are_fetched_again_and_refused_the_second_time(self):
        said = self.local_text()
        for kind, pattern in (("expert", "*experts/*.safetensors"), ("expert", "*dense.safetensors"),
                              ("layer", "*embed.safetensors")):
            shutil.rmtree(self.cache, ignore_errors=True)
            server = self.serve(self.place(kind))
            server.add_fault(pattern, "corrupt", at=9000, times=1)
            self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said, pattern)
            shutil.rmtree(self.cache)
            server.clear_faults()
            server.add_fault(pattern, "corrupt", at=9000)
            result = self.remotely(server)
            self.assert_remote_refuses(result, pattern.rsplit("/", 1)[-1].strip("*"))
            self.assertTrue(said.startswith(result.stdout.strip()), "a wrong token: " + str(result))

    def test_a_spoilt_cache_is_fetched_again(self):
        for kind in ("expert", "ordinary"):
            shutil.rmtree(self.cache, ignore_errors=True)
            server = self.serve(self.place(kind))
            said = self.assert_ok(self.remotely(server)).stdout
            spoilt = [next((self.folder() / "model").rglob("experts/*.safetensors")),
                      next((self.folder() / "model").rglob("dense.safetensors")),
                      self.folder() / ".dspack-cache/part/model/embed.safetensors"]
            for path in spoilt:
                flip_bit(path, path.stat().st_size // 2)
            before = len(server.log)
            self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said)
            again = server.log[before:]
            self.assertGreaterEqual(len(again), 2, kind)
            before = len(server.log)
            self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said)
            self.assertEqual(server.log[before:], [])

    def test_files_that_vanish_from_the_cache(self):
        server = self.serve(self.place("expert"))
        said = self.assert_ok(self.remotely(server)).stdout
        for path in list((self.folder() / "model").rglob("experts/*.safetensors"))[:5]:
            path.unlink()
        shutil.rmtree(self.folder() / "model/layers/002")
        self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said)

    def test_lost_connections_and_busy_servers_are_overcome(self):
        said = self.local_text()
        for kind in ("reset", "truncate", "503", "429"):
            shutil.rmtree(self.cache, ignore_errors=True)
            server = self.serve(self.place("layer"), random_seed=5)
            server.add_fault("*.safetensors", kind, times=4, chance=0.3)
            self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said, kind)

    def test_wrong_ranges_and_files_that_vanish_are_refused(self):
        for kind in ("wrong_content_range", "ignore_range", "404"):
            shutil.rmtree(self.cache, ignore_errors=True)
            server = self.serve(self.place("expert"))
            server.add_fault("*layers/002/experts/*.safetensors", kind)
            result = self.remotely(server)
            self.assert_remote_refuses(result, "model/layers/002/experts/")
            self.assertEqual(result.stdout.strip(), "")

    def test_an_ordinary_checkpoint_that_changes_is_refused(self):
        server = self.serve(self.place("ordinary"))
        server.add_fault("*.safetensors", "change_etag", skip=12)
        self.assert_remote_refuses(self.remotely(server), "changed on the server")

    def test_an_expert_without_a_digest_that_comes_otherwise_the_second_time_is_refused(self):
        server = self.serve(self.place("ordinary"))
        # What is read ahead depends on time; without it both runs fetch the same.
        little = ("--experts", "24", "--disk", 6_000_000, "--dev", "prefetch=off")
        said = self.assert_ok(self.remotely(server, *little)).stdout
        path, at = self.fetched_twice(server.log)
        shutil.rmtree(self.cache)
        fault = server.add_fault(path, "corrupt", at=at, skip=1)
        result = self.remotely(server, *little)
        self.assertGreater(fault.struck, 0)
        self.assert_remote_refuses(result, "has other bytes than when it was first fetched")
        self.assertTrue(said.startswith(result.stdout.strip()), "a wrong token: " + str(result))

    def fetched_twice(self, log):
        """(file, offset) of the expert's byte that came most often: in another run it comes twice, too."""
        asked = [(request.path, request.range) for request in log if request.range]
        times = {}
        for name, (path, begin, _) in tensors_of(self.data()).items():
            came_with_the_header = begin < read_header(self.data() / path)[1] + PROBE
            if EXPERT.match(name) and not came_with_the_header:
                times[path, begin] = sum(p == path and r[0] <= begin < r[1] for p, r in asked)
        most = max(times, key=times.get)
        self.assertGreater(times[most], 1, "no expert was fetched twice")
        return most


class MaxFetch(Remote):
    def test_it_is_judged_before_weights_are_read(self):
        server = self.serve(self.place("expert"))
        for prompt in (("--tokens", TOKENS), ("-p", "What is the capital of France?")):
            result = self.run_program(server.url, "--cache", self.cache, *prompt, "--max-fetch", "100kB",
                                      program="DSPACK_DSRUN")
            self.assertRegex(result.stderr, r"^dsrun: the \d+ tokens of the prompt are expected to read [\d.]+ MB of "
                                            r"experts, more than --max-fetch allows \(100 kB\); [^\n]+\n$")
            self.assertEqual(result.code, 1)
        weights = [request.path for request in server.log if request.path.endswith(".safetensors")]
        self.assertEqual(weights, [])


class FullDisk(Remote):
    def test_a_run_goes_on_without_keeping_and_says_so_once(self):
        disk = self.scratch / "disk"
        disk.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True)
        if made.returncode != 0:
            self.skipTest("a small disk cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        self.cache = disk / "cache"
        server = self.serve(self.place("expert"))
        said = self.local_text()
        for bound, reason in (((), "stay free unless --disk SIZE bounds this cache"),
                              (("--disk", "1GB"), "No space left on device")):
            for _ in range(2):
                result = self.assert_ok(self.remotely(server, *bound))
                self.assertEqual(result.stdout, said)
                self.assertEqual(result.stderr.count("is not kept"), 1, str(result))
                self.assertIn(reason, result.stderr)
                space = os.statvfs(disk)
                if not bound:  # the disk is small: as much stays free as weights take; headers and journal are little
                    self.assertGreaterEqual(space.f_bavail, space.f_blocks * 2 // 5)


class Kills(Remote):
    def kill_after_requests(self, server, requests, seconds):
        """Ends a run that long after its server was asked so often: by what it has done, not by how fast it is."""
        enough = len(server.log) + requests
        process = self.start(server.url, "--cache", self.cache, "--tokens", TOKENS, "-n", ANSWER_TOKENS,
                             program="DSPACK_DSRUN")
        self.wait_until(lambda: len(server.log) >= enough or process.poll() is not None, "requests")
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kept_parts(self):
        return {(r["part"], t[0]) for r in self.journal() if "tensors" in r and "part" in r for t in r["tensors"]}

    def test_what_was_verified_is_never_fetched_again(self):
        said = self.local_text()
        seed = random.Random(3)
        for kind in ("expert", "ordinary"):
            shutil.rmtree(self.cache, ignore_errors=True)
            server = self.serve(self.place(kind), rate=1_500_000)
            kept = parts = set()
            kills = 0
            while kills < 5 or not (kept or parts):
                self.kill_after_requests(server, seed.randint(1, 30), seed.uniform(0, 0.1))
                kills += 1
                self.assertLess(kills, 50, "nothing is ever kept")
                kept, parts = self.kept_experts(), self.kept_parts()
            server.rate = None
            before = len(server.log)
            self.assertEqual(self.assert_ok(self.remotely(server)).stdout, said)
            if kind == "expert":
                again = {request.path for request in server.log[before:]}
                self.assertFalse(kept & again, "fetched twice")
            after = self.journal()
            files = [record["file"] for record in after if "file" in record]
            self.assertEqual(len(files), len(set(files)))
            claims = [(r["part"], t[0]) for r in after if "tensors" in r and "part" in r for t in r["tensors"]]
            self.assertEqual(len(claims), len(set(claims)))

    def test_an_interrupted_run_goes_on(self):
        server = self.serve(self.place("expert"), rate=300_000)
        process = self.start(server.url, "--cache", self.cache, "--tokens", TOKENS, program="DSPACK_DSRUN")
        self.wait_until(lambda: any("dense" in request.path for request in server.log), "the download")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).code, 130)
        server.rate = None
        self.assertEqual(self.assert_ok(self.remotely(server)).stdout, self.local_text())


class Seal(Remote):
    def seal(self, folder=None, **options):
        return self.run_program("seal", folder or self.folder(), **options)

    def test_what_is_missing_is_said(self):
        server = self.serve(self.place("expert"))
        self.assert_ok(self.remotely(server, tokens=SHORT, count=1))
        self.assert_refused(self.seal(), "are not complete", "model/layers/", "let dsrun fetch the rest")
        self.assertFalse((self.folder() / "manifest.json").exists())
        self.assertEqual(self.assert_ok(self.remotely(server, tokens=SHORT, count=1)).stdout,
                         self.local_text(tokens=SHORT, count=1))

    def test_a_folder_that_is_no_cache_is_refused(self):
        self.assert_refused(self.seal(self.data()), "is no cache of dsrun")


if __name__ == "__main__":
    main()
