"""`reshard unpack`: the original shards byte for byte, and ordinary ones of another size; whatever interrupts it."""

import json
import shutil
import time

import safetensors_io
from checkpoints import EXPERT_0, SHARDS, packed_tiny, write_odd, write_small
from common import INDEX, EndToEnd, flip_bit, main, seeded_random, tree

KILLS = 6
RATE = 2e7  # bytes per second and connection of the slowed server


class Exact(EndToEnd):
    def unpack(self, place, out, *arguments, **options):
        return self.run_program("unpack", place, "--exact", "--out", out, *arguments, **options)

    def assert_same(self, source, out):
        a, b = tree(source), tree(out)
        self.assertEqual(a, b)

    def test_the_trained_checkpoint_comes_back(self):
        for jobs in (1, 8):
            out = self.scratch / str(jobs)
            result = self.assert_ok(self.unpack(packed_tiny(), out, "--jobs", jobs))
            self.assertIn("5 shards", result.stdout)
            self.assert_same(self.data(), out)
        self.assertIn("already", self.assert_ok(self.unpack(packed_tiny(), out)).stdout)

    def test_out_of_every_grouping(self):
        for grouping in ("expert:7", "layer", "shard:1MB"):
            packed, out = packed_tiny(grouping), self.scratch / ("o-" + grouping)
            self.assert_ok(self.unpack(packed, out))
            self.assert_same(self.data(), out)
            self.assertIn("2059 tensors equal, 0 differ", self.run_program("diff", packed, packed_tiny()).stdout)

    def test_over_http_and_from_the_hub(self):
        server = self.serve(packed_tiny())
        self.assert_ok(self.unpack(server.url, self.scratch / "http"))
        self.assert_same(self.data(), self.scratch / "http")
        hub = self.serve_hub()
        hub.add("me/tiny", packed_tiny("layer"), revision="v1")
        self.assert_ok(self.unpack("me/tiny@v1", self.scratch / "hub", env={"HF_ENDPOINT": hub.url}))
        self.assert_same(self.data(), self.scratch / "hub")

    def test_what_other_writers_may_do(self):
        source = write_odd(self.scratch / "source")
        single = self.scratch / "single"
        single.mkdir()
        shutil.copy(source / "weights" / "odd.safetensors", single / "model.safetensors")
        for number, folder in enumerate((source, single, write_small(self.scratch / "small"))):
            with self.subTest(folder=folder.name):
                packed, out = self.scratch / ("p%d" % number), self.scratch / ("o%d" % number)
                self.assert_ok(self.repack(folder, packed))
                self.assert_ok(self.unpack(packed, out))
                self.assert_same(folder, out)

    def test_random_checkpoints(self):
        random = seeded_random()
        for number in range(10):
            shards = []
            names = ["model.layers.%d.mlp.experts.%d.w%d" % (random.randrange(3), random.randrange(4), i)
                     for i in range(20)] + ["model.norm.weight", "model.embed_tokens.weight", "x.y", "lm_head.weight"]
            random.shuffle(names)
            cut = random.randrange(1, len(names))
            for part in (names[:cut], names[cut:]):
                tensors = {}
                for name in part:
                    dtype, size = random.choice([("U8", 1), ("BF16", 2), ("F32", 4), ("F64", 8)])
                    shape = [random.choice([0, 1, 3, 8, 64]) for _ in range(random.randrange(3))]
                    count = size
                    for dimension in shape:
                        count *= dimension
                    tensors[name] = (dtype, shape, random.randbytes(count))
                shards.append(tensors)
            source = write_small(self.scratch / ("s%d" % number), shards)
            packed, out = self.scratch / ("p%d" % number), self.scratch / ("o%d" % number)
            self.assert_ok(self.repack(source, packed))
            self.assert_ok(self.unpack(packed, out, "--jobs", 3))
            self.assert_same(source, out)
            plain = self.scratch / ("n%d" % number)
            size = random.choice(["1B", "100B", "1KB", "1MB"])
            self.assert_ok(self.run_program("unpack", packed, "--out", plain, "--shard-size", size))
            self.assertEqual(safetensors_io.read_checkpoint(plain), safetensors_io.read_checkpoint(source))

    def test_killed_again_and_again_it_goes_on(self):
        random = seeded_random()
        server = self.serve(packed_tiny(), rate=RATE)
        out = self.scratch / "out"
        began = time.monotonic()
        self.assert_ok(self.unpack(server.url, self.scratch / "undisturbed", "--jobs", 2))
        whole = time.monotonic() - began
        for _ in range(KILLS):
            process = self.start("unpack", server.url, "--exact", "--out", out, "--jobs", 2)
            time.sleep(random.random() * whole / 2)
            process.kill()
            self.finish(process)
            for path in out.glob("*.safetensors"):
                self.assertEqual(path.read_bytes(), (self.data() / path.name).read_bytes(), "named before it was whole")
        self.assert_ok(self.unpack(server.url, out))
        self.assert_same(self.data(), out)

    def test_finished_shards_are_not_made_again(self):
        source = write_small(self.scratch / "source")
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        server = self.serve(packed)
        stuck = server.add_fault("model/head.safetensors", "404")  # the second shard needs it
        out = self.scratch / "out"
        self.assertEqual(self.unpack(server.url, out, "--jobs", 1).code, 1)
        self.assertEqual(stuck.struck, 1)
        self.assertEqual([path.name for path in out.iterdir()], [".reshard"])
        self.assertEqual([path.name for path in (out / ".reshard" / "done").iterdir()], SHARDS[:1])
        server.clear_faults()
        before = (out / ".reshard" / "done" / SHARDS[0]).stat().st_mtime_ns
        result = self.assert_ok(self.unpack(server.url, out))
        self.assertIn("resuming: 1 of 2", result.stderr)
        self.assertEqual((out / SHARDS[0]).stat().st_mtime_ns, before)
        self.assertEqual(len(server.requests("model/embed.safetensors")), 1)
        self.assert_same(source, out)

    def test_a_second_run_is_refused(self):
        server = self.serve(packed_tiny("layer"), rate=RATE)
        slow = server.add_fault("model/embed.safetensors", "slow", rate=2000)
        out = self.scratch / "out"
        first = self.start("unpack", server.url, "--exact", "--out", out)
        self.wait_until(lambda: slow.struck, "the first run to read")
        self.assert_refused(self.unpack(server.url, out), out, "another reshard is working")
        slow.options["rate"] = 1e9
        self.assert_ok(self.finish(first))
        self.assert_same(self.data(), out)


class Refusals(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.source, self.packed))
        self.out = self.scratch / "out"

    def unpack(self, *arguments):
        return self.run_program("unpack", self.packed, "--out", self.out, *arguments)

    def test_damage_is_named_and_does_not_get_a_name(self):
        data_start = safetensors_io.parse((self.packed / EXPERT_0).read_bytes())[1]
        name = "model.layers.1.mlp.experts.0.up_proj.weight"
        for arguments in (["--exact"], []):
            flip_bit(self.packed / EXPERT_0, data_start + 4096 + 5)
            self.assert_refused(self.unpack(*arguments), self.packed, EXPERT_0, name, "differs from its digest")
            self.assertEqual([path.name for path in self.out.iterdir()], [".reshard"])
            flip_bit(self.packed / EXPERT_0, data_start + 4096 + 5)
            self.assert_ok(self.unpack(*arguments))
            shutil.rmtree(self.out)

    def test_other_damage_is_named_too(self):
        for name in ("provenance/headers.json.zst", "config.json", "README.source.md", "provenance/" + INDEX):
            flip_bit(self.packed / name, 3)
            self.assert_refused(self.unpack("--exact"), name, "differs from its digest")
            self.assertIn([path.name for path in self.out.iterdir()] if self.out.exists() else [], ([], [".reshard"]))
            flip_bit(self.packed / name, 3)
            shutil.rmtree(self.out, ignore_errors=True)
        (self.packed / EXPERT_0).rename(self.scratch / "away")
        self.assert_refused(self.unpack("--exact"), EXPERT_0)
        (self.packed / EXPERT_0).write_bytes((self.scratch / "away").read_bytes()[:-1])
        self.assert_refused(self.unpack("--exact"), EXPERT_0, "bytes instead of")

    def test_folders_that_are_not_ours(self):
        self.out.mkdir()
        (self.out / "precious").write_text("x")
        self.assert_refused(self.unpack("--exact"), self.out, "not empty")
        self.assertEqual(sorted(tree(self.out)), ["precious"])
        # A folder of that name which no run of ours has made.
        (self.out / ".reshard").mkdir()
        (self.out / ".reshard" / "lock").write_text("")
        self.assert_refused(self.unpack("--exact"), self.out, "not empty")
        self.assert_refused(self.repack(self.source, self.out), self.out, "not empty")
        self.assertEqual(sorted(tree(self.out)), [".reshard", ".reshard/lock", "precious"])
        for out, reason in ((self.packed / "deep" / "er", "inside the source"), (self.packed, "inside the source"),
                            (self.scratch, "inside of it")):
            self.out = out
            before = tree(self.scratch)
            self.assert_refused(self.unpack(), out, reason)
            self.assertEqual(tree(self.scratch), before)

    def test_unfinished_work_of_another_kind(self):
        server = self.serve(self.packed)
        server.add_fault("model/head.safetensors", "404")
        self.assertEqual(self.run_program("unpack", server.url, "--exact", "--out", self.out).code, 1)
        self.assert_refused(self.unpack(), self.out, "other options")
        self.assert_refused(self.repack(self.source, self.out), self.out, "unfinished unpacking")
        self.assert_refused(self.run_program("verify", self.out), self.out)
        self.assert_ok(self.unpack("--exact"))
        server = self.serve(self.source)
        server.add_fault(SHARDS[1], "404", skip=1)
        other = self.scratch / "other"
        self.assertEqual(self.repack(server.url, other).code, 1)
        self.assert_refused(self.run_program("unpack", self.packed, "--out", other), other, "unfinished repacking")

    def test_what_is_no_packed_repository(self):
        result = self.run_program("unpack", self.source, "--out", self.out)
        self.assert_refused(result, self.source, "not a packed repository")

    def test_wrong_usage(self):
        for arguments in ([], ["--exact", "--shard-size", "5GB"], ["--shard-size", "5"], ["--shard-size", "0"],
                          ["--shard-size", "5GBB"], ["--shard-size", "-5GB"], ["--jobs", "0"]):
            out = ["--out", self.out] if arguments and arguments != ["--shard-size", "5"] else []
            result = self.run_program("unpack", self.packed, *out, *arguments)
            self.assertEqual(result.code, 2, str(result))
        self.assert_absent(self.out)


class Plain(EndToEnd):
    def test_shards_of_a_size_with_their_index(self):
        want = safetensors_io.read_checkpoint(self.data())
        total = sum(len(data) for _, _, data in want.values())
        trees = []
        for jobs in (1, 7):
            out = self.scratch / str(jobs)
            self.assert_ok(self.run_program("unpack", packed_tiny(), "--out", out, "--shard-size", "2MB", "--jobs", jobs))
            trees.append(tree(out))
        self.assertEqual(*trees)
        self.assertEqual(safetensors_io.read_checkpoint(out), want)
        index = json.loads((out / INDEX).read_text())
        self.assertEqual(index["metadata"], {"total_size": total})
        shards = sorted(path.name for path in out.glob("*.safetensors"))
        self.assertEqual(shards, ["model-%05d-of-%05d.safetensors" % (i + 1, len(shards)) for i in range(len(shards))])
        self.assertGreaterEqual(len(shards), total // 2_000_000)
        order = []
        for name in shards:
            tensors, _ = safetensors_io.parse((out / name).read_bytes())
            self.assertLessEqual(sum(len(data) for _, _, data in tensors.values()), 2_000_000)
            self.assertEqual({tensor for tensor, shard in index["weight_map"].items() if shard == name}, set(tensors))
            order.append(tensors)
        self.assertIn("model.embed_tokens.weight", order[0])
        self.assertIn("lm_head.weight", order[-1])
        layers = [int(name.split(".")[2]) for tensors in order for name in tensors if name.startswith("model.layers.")]
        first = [min(int(n.split(".")[2]) for n in tensors if n.startswith("model.layers.")) for tensors in order]
        self.assertEqual(first, sorted(first))
        self.assertEqual(set(layers), set(range(6)))
        for name in ("config.json", "tokenizer.json", "README.md"):
            self.assertEqual((out / name).read_bytes(), (self.data() / name).read_bytes())
        self.assert_absent(out / "provenance")
        again = self.scratch / "again"
        self.assert_ok(self.repack(out, self.scratch / "repacked"))
        self.assert_ok(self.run_program("unpack", self.scratch / "repacked", "--exact", "--out", again))
        self.assertEqual(tree(again), trees[0])

    def test_a_tensor_larger_than_a_shard_and_a_single_file(self):
        source = write_small(self.scratch / "source")
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        want = safetensors_io.read_checkpoint(source)
        for size, count in (("1B", len(want)), ("5GB", 1)):
            out = self.scratch / size
            self.assert_ok(self.run_program("unpack", packed, "--out", out, "--shard-size", size))
            self.assertEqual(len(list(out.glob("*.safetensors"))), count)
            self.assertEqual(safetensors_io.read_checkpoint(out), want)
        self.assertTrue((out / "model.safetensors").exists())
        self.assert_absent(out / INDEX)


if __name__ == "__main__":
    main()
