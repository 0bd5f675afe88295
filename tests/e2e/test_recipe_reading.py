"""Recipes that take a part: what is read of the source and what is not, and how a run goes on that was killed."""

import json

import safetensors_io
from checkpoints import packed_tiny, raw, write_small
from common import INDEX, exact_size, main
from selecting import TINY, RecipeCase, in_layers, ranges_of

PROBE = 65536  # bytes of a distant file that are asked for when it is opened


class Reading(RecipeCase):
    """What is asked of a server: of each shard its header, and the ranges that are wanted."""

    def body_bytes(self, server, name):
        return sum(request.sent for request in server.requests(name))

    def assert_read(self, server, source, names, wanted):
        for name in names:
            ranges = ranges_of(source / name, wanted)
            requests = [request for request in server.requests(name) if request.method == "GET"]
            probes = [request for request in requests if request.range[0] == 0]
            size = (source / name).stat().st_size
            header = 8 + int.from_bytes((source / name).read_bytes()[:8], "little")
            asked = sum(end - begin for begin, end in ranges)
            # Opened once for its header and once more if something is wanted; a header longer than that is asked for.
            most = asked + (2 if ranges else 1) * min(PROBE, size) + max(0, header - PROBE)
            self.assertLessEqual(self.body_bytes(server, name), most, name)
            self.assertLessEqual(len(probes), 2 if ranges else 1, name)
            for begin, end in ranges:
                self.assertTrue(any(r.range[0] <= max(begin, PROBE) and r.range[1] >= end for r in requests)
                                or end <= PROBE, "%s: %d to %d" % (name, begin, end))

    def test_no_more_than_is_wanted(self):
        for number, (arguments, wanted) in enumerate([
                (["--include", "layers=3"], in_layers(3)),
                (["--include", "layers=2 experts=5"], lambda n: n.startswith("model.layers.2.mlp.experts.5.")),
                (["--include", "role=embed"], lambda n: n == "model.embed_tokens.weight")]):
            with self.subTest(arguments=arguments):
                server = self.serve(self.data())
                out = self.scratch / str(number)
                self.assert_ok(self.repack(server.url, out, *arguments))
                self.assert_holds(out, self.data(), wanted)
                self.assert_read(server, self.data(), TINY, wanted)
                # The same from the disk, and the same again with more at a time.
                local, many = self.scratch / ("local%d" % number), self.scratch / ("many%d" % number)
                self.assert_ok(self.repack(self.data(), local, *arguments))
                self.assert_ok(self.repack(server.url, many, *arguments, "--jobs", 8))
                self.assert_same_tree(out, local)
                self.assert_same_tree(out, many)

    def test_tensors_of_no_bytes_at_the_borders_of_what_is_read(self):
        shards = [{"a.none": ("U8", [0, 5], b""), "a.gap": ("U8", [200_000], raw(200_000, 1)), "a.two": ("F32", [0], b""),
                   "a.some": ("U8", [3], b"abc"), "b.none": ("F32", [7, 0], b""), "z.gap": ("U8", [100_000], raw(100_000, 2)),
                   "a.last": ("U8", [0], b"")},
                  {"a.only": ("BF16", [0], b""), "b.more": ("U8", [70_000], raw(70_000, 3))}]
        source = write_small(self.scratch / "source", shards)
        for number, pattern in enumerate(("?.[nstl]*", "a.none", "a.only", "a.last", "b.none", "a.some")):
            with self.subTest(pattern=pattern):
                empty = pattern not in ("?.[nstl]*", "a.some")
                server = self.serve(source)
                for place, name in ((source, "local"), (server.url, "http")):
                    out = self.scratch / ("%s%d" % (name, number))
                    self.assert_ok(self.repack(place, out, "--include", "name=" + pattern))
                    wanted = safetensors_io.read_checkpoint(out)
                    self.assert_verified(out, source)
                    self.assertEqual(sum(len(value[2]) for value in wanted.values()) == 0, empty)
                self.assert_same_tree(self.scratch / ("local%d" % number), self.scratch / ("http%d" % number))

    def test_a_dry_run_tells_what_would_be_read(self):
        def dry_run(*arguments):
            return self.assert_ok(self.run_program(self.data(), "--by", "expert", *arguments, "--dry-run")).stdout

        text = dry_run("--include", "layers=3")
        read = sum(end - begin for name in TINY for begin, end in ranges_of(self.data() / name, in_layers(3)))
        self.assertIn("to read  %s in 0 requests of whole shards and " % exact_size(read), text)
        self.assertIn("to keep  406 tensors and 64 routed experts of these", text)
        text = dry_run("--transform", "fp8-to-bf16")
        scales = [len(data) for name, (_, _, data) in safetensors_io.read_checkpoint(self.data()).items()
                  if name.endswith("_scale_inv")]
        self.assertIn("         %s of scales once more, in %d requests" % (exact_size(sum(scales)), len(scales)), text)
        self.assertNotIn("to keep", text)

    def test_a_list_of_digests_says_nothing_about_parts_and_that_is_told(self):
        sums = self.scratch / "SHA256SUMS"
        whole = {shard["path"]: shard["sha256"] for shard in self.manifest(packed_tiny())["source"]}
        sums.write_text("".join("%s  %s\n" % (digest, path) for path, digest in whole.items()))
        result = self.assert_ok(self.repack(self.data(), self.out, "--include", "layers=3", "--sha256", sums))
        self.assertIn("5 of 5 shards are not read whole", result.stderr)
        # Of one that is read whole it says what it always does.
        sums.write_text(sums.read_text().replace(whole[TINY[1]], "0" * 64))
        header = json.loads((self.data() / INDEX).read_text())["weight_map"]
        names = [name for name, path in header.items() if path == TINY[1]]
        arguments = [part for name in names for part in ("--include", "name=" + name)]
        self.assert_refused(self.repack(self.data(), self.scratch / "x", *arguments, "--sha256", sums), TINY[1], "0000",
                            notes=["warning: 4 of 5 shards"])

    def test_a_file_that_changes_between_header_and_bytes_is_refused(self):
        source = self.copy_source()
        server = self.serve(source)
        server.add_fault(TINY[3], "change_etag", skip=1, etag='"another"')
        self.assert_refused(self.repack(server.url, self.out, "--include", "layers=3-4"), TINY[3], "changed")
        self.assert_absent(self.out / "manifest.json")


class Interrupted(RecipeCase):
    ARGUMENTS = ["--include", "layers=1-4", "--exclude", "experts=10-19"]

    def wanted(self, name):
        expert = int(name.split(".")[5]) if ".mlp.experts." in name else None
        return in_layers(1, 2, 3, 4)(name) and expert not in range(10, 20)

    def test_killed_within_each_shard_and_gone_on(self):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), whole, *self.ARGUMENTS))
        self.assert_holds(whole, self.data(), self.wanted)
        names = [name for name in TINY if ranges_of(self.data() / name, self.wanted)]
        self.assertGreater(len(names), 3)
        for name in reversed(names):  # as they are read
            server = self.serve(self.data())
            slow = server.add_fault(name, "slow", min_bytes=PROBE + 1, rate=100_000)
            process = self.start(server.url, "--by", "expert", "--out", self.out, *self.ARGUMENTS, "--jobs", 1)
            self.wait_until(lambda: slow.struck, "shard " + name)
            process.kill()
            self.finish(process)
            self.assert_unfinished(self.out)
        server = self.serve(self.data())
        result = self.assert_ok(self.repack(server.url, self.out, *self.ARGUMENTS))
        self.assertIn("resuming: ", result.stderr)
        self.assert_same_tree(self.out, whole)
        for name in names[1:]:
            self.assertEqual(len(server.requests(name)), 1, "%s is done: its header alone is needed" % name)

    def test_another_selection_does_not_go_on_with_it(self):
        server = self.serve(self.data())
        refused = server.add_fault(TINY[3], "403", skip=1)
        self.assert_refused(self.repack(server.url, self.out, *self.ARGUMENTS, "--jobs", 1), "403")
        self.assertTrue(refused.struck)
        server.clear_faults()
        self.assert_refused(self.repack(server.url, self.out, "--include", "layers=1-4"), "another recipe")
        self.assert_ok(self.repack(server.url, self.out, *self.ARGUMENTS))


if __name__ == "__main__":
    main()
