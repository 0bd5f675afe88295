"""`reshard repair`: what a packed repository has lost is fetched again, that alone, and the result is what was sealed."""

import hashlib
import json
import os
import random
import shutil
import signal

import safetensors_io
from checkpoints import EXPERT_0, SHARDS, packed_tiny, raw, small_tensors, write_small
from common import INDEX, EndToEnd, flip_bit, main, seeded_random, tree
from hub_case import HubCase

GAP_BYTES = 64 * 1024  # that is read along rather than asked for apart


def stored_files(packed):
    """All files but the manifest, as relative paths."""
    return sorted(str(path.relative_to(packed)) for path in packed.rglob("*")
                  if path.is_file() and path.name != "manifest.json")


def damage(packed, names, rng):
    """Loses, cuts and flips the files in turn, and overwrites pages with zeros; returns what was done."""
    done = {}
    for number, name in enumerate(names):
        path = packed / name
        size = path.stat().st_size
        kind = ("lost", "cut", "flipped", "zeroed", "longer")[number % 5]
        if kind == "lost" or size == 0:
            path.unlink()
        elif kind == "cut":
            os.truncate(path, rng.randrange(size))
        elif kind == "flipped":
            flip_bit(path, rng.randrange(size), rng.randrange(8))
        elif kind == "zeroed":
            with open(path, "r+b") as file:
                file.seek(size // 2)
                file.write(b"\0" * (size - size // 2))
        else:
            with open(path, "ab") as file:
                file.write(b"more")
        done[name] = kind
    return done


class RepairTiny(EndToEnd):
    """The trained small checkpoint: 5 shards of 3 MB."""

    def setUp(self):
        super().setUp()
        self.packed = self.scratch / "packed"

    def pack(self, *arguments, by="expert"):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), whole, *arguments, by=by))
        shutil.copytree(whole, self.packed)
        return whole

    def repair(self, *arguments, **options):
        return self.run_program("repair", self.packed, *arguments, **options)

    def test_ten_damaged_files_and_no_byte_more_than_they_need(self):
        shutil.copytree(packed_tiny(), self.packed)
        experts = ["model/layers/003/experts/%03d.safetensors" % number for number in range(8)]
        others = ["config.json", "README.md"]
        damage(self.packed, experts + others, random.Random(1))
        findings = self.run_program("verify", self.packed)
        self.assertEqual(findings.code, 1)
        self.assertIn("differences found; reshard repair %s" % self.packed, findings.stderr)
        self.assertEqual(len({line.split(":")[0] for line in findings.stdout.splitlines()}), 10)
        server = self.serve(self.data())
        result = self.assert_ok(self.repair("--source", server.url))
        self.assertRegex(result.stdout, r"repaired, 10 of 337 files \(\d+ tensors fetched")
        self.assert_same_tree(self.packed, packed_tiny())
        headers, wanted, holders = {}, 0, set()
        for path in sorted(self.data().glob("*.safetensors")):
            tensors, headers[path.name] = safetensors_io.parse(path.read_bytes())
            for name, (dtype, shape, content) in tensors.items():
                if any(".layers.3.mlp.experts.%d." % number in name for number in range(8)):
                    wanted += len(content)
                    holders.add(path.name)
        sent = {name: sum(request.sent for request in server.requests(name)) for name in headers}
        self.assertLess(len(holders), len(headers), "the case shows nothing")
        for name, data_start in headers.items():
            if name not in holders:
                self.assertLessEqual(sent[name], max(data_start, 1 << 20), "%s holds nothing of them" % name)
        self.assertLess(sum(sent[name] - headers[name] for name in holders),
                        wanted + GAP_BYTES * len(holders) * 2)
        self.assert_ok(self.run_program("verify", self.packed, "--source", self.data()))
        self.assert_ok(self.run_program("diff", self.packed, packed_tiny()))
        server.log.clear()
        self.assertIn("nothing to repair", self.assert_ok(self.repair("--source", server.url)).stdout)
        self.assertEqual(server.requests(), [], "a sound repository needs no source")

    def test_every_grouping_and_every_recipe(self):
        rng = seeded_random()
        cases = [("layer",), ("shard:1MB",), ("expert:3",), ("expert", "--compress", "zstd"),
                 ("layer", "--compress", "zstd:3"), ("expert", "--drop-mtp"), ("layer", "--dedupe"),
                 ("layer", "--include", "layers=2-3"), ("expert", "--transform", "fp8-to-bf16"),
                 ("layer", "--transform", "fp8-to-bf16 role=attention", "--drop-mtp", "--compress", "zstd")]
        for by, *arguments in cases:
            with self.subTest(by=by, arguments=arguments):
                whole = self.pack(*arguments, by=by)
                weights = [name for name in stored_files(self.packed) if name.startswith("model/")]
                others = [name for name in stored_files(self.packed) if not name.startswith("model/")]
                chosen = others + rng.sample(weights, min(10, len(weights)))
                done = damage(self.packed, chosen, rng)
                result = self.repair("--source", self.data())
                self.assertEqual(result.code, 0, "%s\n%s" % (result, done))
                self.assert_same_tree(self.packed, whole)
                for folder in (whole, self.packed):
                    shutil.rmtree(folder)

    def test_all_files_but_the_manifest(self):
        whole = self.pack("--transform", "fp8-to-bf16", by="layer")
        for path in self.packed.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "manifest.json":
                path.unlink()
        self.assert_ok(self.repair("--source", self.data()))
        self.assert_same_tree(self.packed, whole)

    def test_from_another_copy_of_the_packed_repository(self):
        for by, *arguments in (("expert",), ("layer", "--compress", "zstd"), ("expert", "--transform", "fp8-to-bf16")):
            with self.subTest(by=by, arguments=arguments):
                whole = self.pack(*arguments, by=by)
                server = self.serve(whole)
                rng = seeded_random()
                chosen = rng.sample(stored_files(self.packed), 8)
                damage(self.packed, chosen, rng)
                self.assert_ok(self.repair("--source", server.url))
                self.assert_same_tree(self.packed, whole)
                stored = {name.removesuffix(".zst") for name in chosen}
                for request in server.requests("model/*"):
                    self.assertIn(request.path.removesuffix(".zst"), stored, "another file was read")
                for folder in (whole, self.packed):
                    shutil.rmtree(folder)

    def test_from_a_packed_repository_of_another_grouping(self):
        whole = self.pack(by="expert")
        other = self.scratch / "other"
        self.assert_ok(self.repack(self.data(), other, by="layer"))
        damage(self.packed, ["model/layers/003/experts/%03d.safetensors" % n for n in range(5)] + ["tokenizer.json"],
               random.Random(2))
        self.assert_ok(self.repair("--source", other))
        self.assert_same_tree(self.packed, whole)

    def test_a_file_of_many_tensors_keeps_those_that_are_sound(self):
        whole = self.pack(by="layer")
        path = max((self.packed / "model").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
        flip_bit(path, -1)
        inode = path.stat().st_ino
        result = self.assert_ok(self.repair("--source", self.data()))
        self.assertIn("(1 tensor fetched", result.stdout)
        self.assert_same_tree(self.packed, whole)
        self.assertEqual(path.stat().st_ino, inode, "the file was made anew")

    def test_quick_looks_at_presence_and_size_alone(self):
        shutil.copytree(packed_tiny(), self.packed)
        first, second, third = ("model/layers/002/experts/%03d.safetensors" % number for number in (1, 2, 3))
        flip_bit(self.packed / first, -1)
        self.assertIn("is there, by name and size", self.assert_ok(self.repair("--quick")).stdout)
        (self.packed / second).unlink()
        os.truncate(self.packed / third, 100)
        self.assertIn("repaired, 2 of", self.assert_ok(self.repair("--quick", "--source", self.data())).stdout)
        found = self.run_program("verify", self.packed)
        self.assertEqual([line.split(":")[0] for line in found.stdout.splitlines()], [first])

    def test_killed_and_interrupted_it_goes_on(self):
        whole = self.pack(by="layer")
        for path in (self.packed / "model").rglob("*.safetensors"):
            os.truncate(path, 5000)
        before = sum(path.stat().st_size for path in (whole / "model").rglob("*.safetensors"))
        for end, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, None)):
            server = self.serve(self.data(), rate=2_000_000)
            process = self.start("repair", self.packed, "--source", server.url, "--jobs", 2)
            self.wait_until(lambda: sum(r.sent for r in server.requests("*.safetensors")) > 2_000_000, "some progress")
            process.send_signal(end)
            result = self.finish(process)
            self.assertNotEqual(result.code, 0)
            if code is not None:
                self.assertEqual(result.code, code, str(result))
            server.stop()
        fast = self.serve(self.data())
        self.assert_ok(self.repair("--source", fast.url))
        self.assert_same_tree(self.packed, whole)
        self.assertLess(sum(r.sent for r in fast.requests("*.safetensors")), before * 3 / 4,
                        "what was fetched before was fetched again")

    def test_another_source_is_refused(self):
        shutil.copytree(packed_tiny(), self.packed)
        lost = self.packed / "model/layers/003/experts/007.safetensors"
        lost.unlink()
        left = tree(self.packed)
        other = self.copy_source("other")
        for path in other.glob("*.safetensors"):
            content = path.read_bytes()
            start = safetensors_io.parse(content)[1]
            path.write_bytes(content[:start] + content[start:].translate(bytes(byte ^ 1 for byte in range(256))))
        small = write_small(self.scratch / "small")
        for source, needles in ((other, ("is not the one", "007.safetensors")), (small, ("does not hold",)),
                                (self.scratch / "nothing", ("nothing",)), (self.packed, ("lies inside",))):
            with self.subTest(source=source):
                self.assert_refused(self.repair("--source", source), *needles)
                now = {path: digest for path, digest in tree(self.packed).items() if not path.startswith(".reshard")}
                self.assertEqual(now, left)
        self.assert_refused(self.repair(), "--source")
        self.assert_ok(self.repair("--source", self.data()))
        self.assert_same_tree(self.packed, packed_tiny())

    def test_a_source_whose_small_files_have_changed_is_named(self):
        shutil.copytree(packed_tiny(), self.packed)
        (self.packed / "config.json").unlink()
        (self.packed / "model/layers/003/experts/007.safetensors").unlink()
        other = self.copy_source("other")
        (other / "config.json").write_text("{}")
        result = self.repair("--source", other)
        self.assertEqual(result.code, 1, str(result))
        self.assertRegex(result.stdout, r"^config\.json: [^\n]*differs from its digest: [^\n]*\n$")
        self.assertIn("1 file could not be recovered", result.stderr)
        self.assertTrue((self.packed / "model/layers/003/experts/007.safetensors").exists())
        self.assert_ok(self.repair("--source", self.data()))
        self.assert_same_tree(self.packed, packed_tiny())

    def test_what_a_link_leads_to_is_left_alone(self):
        shutil.copytree(packed_tiny(), self.packed)
        name = "model/layers/003/experts/007.safetensors"
        elsewhere = self.scratch / "elsewhere.safetensors"
        shutil.move(self.packed / name, elsewhere)
        (self.packed / name).symlink_to(elsewhere)
        flip_bit(elsewhere, -1)
        spoilt = elsewhere.read_bytes()
        self.assert_ok(self.repair("--source", self.data()))
        self.assertEqual(elsewhere.read_bytes(), spoilt)
        self.assertFalse((self.packed / name).is_symlink())
        self.assert_same_tree(self.packed, packed_tiny())

    def test_without_a_manifest_it_says_so(self):
        shutil.copytree(packed_tiny(), self.packed)
        flip_bit(self.packed / "manifest.json", 1000)
        self.assert_refused(self.repair("--source", self.data()), "manifest.json", "copy this file from another copy")
        (self.packed / "manifest.json").unlink()
        self.assert_refused(self.repair("--source", self.data()), "manifest.json", "copy it from another copy")
        self.assert_refused(self.run_program("repair", self.scratch / "nothing"), "not a folder on this machine")
        self.assert_refused(self.run_program("repair", "http://127.0.0.1:1/x"), "not a folder on this machine")


class Unfinished(EndToEnd):
    """A run that lost its connection after one of two shards, of which the last is read first."""

    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.out = self.scratch / "packed"
        self.journal = self.out / ".reshard" / "journal"

    def break_off(self, *arguments, shards=None):
        shutil.rmtree(self.out, ignore_errors=True)
        if not self.whole.exists():
            self.assert_ok(self.repack(self.source, self.whole, *arguments))
        server = self.serve(self.source)
        server.add_fault(SHARDS[0], "403", skip=1)  # the catalogue's probe passes
        self.assert_refused(self.repack(server.url, self.out, "--jobs", 1, *arguments), SHARDS[0], "403")
        self.assert_unfinished(self.out)
        server.clear_faults()
        server.log.clear()
        return server

    def assert_repaired(self, server, *needles):
        result = self.assert_ok(self.run_program("repair", self.out))
        for needle in needles:
            self.assertIn(needle, result.stdout, str(result))
        self.assert_same_tree(self.out, self.whole)
        self.assert_ok(self.run_program("verify", self.out, "--source", self.source))

    def test_lost_cut_and_flipped_files(self):
        """There are two partial files and two sealed ones: of each kind one gets half of the changes, one the others."""
        for form, arguments in enumerate(((), ("--compress", "zstd"))):
            shutil.rmtree(self.whole, ignore_errors=True)
            server = self.break_off(*arguments)
            made = [path for path in self.out.rglob("*.safetensors*") if path.is_file()]
            self.assertGreater(len(made), 3)
            self.assertTrue(any(".reshard" in str(path) for path in made), "no partial file")
            self.assertTrue(any(".reshard" not in str(path) for path in made), "no sealed file")
            for number, path in enumerate(sorted(path.relative_to(self.out) for path in made)):
                for change in ("lose", "cut", "flip", "zero")[(number + form) % 2::2]:
                    with self.subTest(path=path, change=change, arguments=arguments):
                        server = self.break_off(*arguments)
                        target = self.out / path
                        if change == "lose":
                            target.unlink()
                        elif change == "cut":
                            os.truncate(target, target.stat().st_size * 2 // 3)
                        elif change == "flip":
                            flip_bit(target, target.stat().st_size * 2 // 3)
                        else:
                            target.write_bytes(b"\0" * target.stat().st_size)
                        self.assert_repaired(server)

    def test_all_that_was_made_is_lost(self):
        server = self.break_off()
        for path in list(self.out.rglob("*.safetensors")):
            path.unlink()
        self.assert_repaired(server)

    def test_a_sound_one_is_completed_and_its_shard_not_read_again(self):
        server = self.break_off()
        self.assert_repaired(server, "sealed; 0 files repaired")
        self.assertEqual(len(server.requests(SHARDS[1])), 1, "only its header is needed again")

    def test_a_journal_that_is_damaged_inside(self):
        server = self.break_off()
        lines = self.journal.read_bytes().splitlines(keepends=True)
        self.assertGreater(len(lines), 2)
        for number in range(1, len(lines) - 1):
            with self.subTest(line=number):
                server = self.break_off()
                flip_bit(self.journal, sum(map(len, lines[:number])) + 30)
                self.assert_refused(self.repack(server.url, self.out), self.journal, "reshard repair %s" % self.out)
                self.assert_repaired(server)
        server = self.break_off()
        flip_bit(self.journal, 30)
        self.assertEqual(self.run_program("repair", self.out, "--source", server.url).code, 1)

    def test_the_command_that_began_it_names_repair(self):
        server = self.break_off()
        sealed = next(path for path in (self.out / "model").rglob("*.safetensors"))
        sealed.unlink()
        self.assert_refused(self.repack(server.url, self.out), sealed, "reshard repair %s" % self.out)
        self.assert_repaired(server)


class Begun(EndToEnd):
    """A run that lost its connection in the midst of a shard, of which the journal has the beginning."""

    MATRIX = 64 * 4096

    def setUp(self):
        super().setUp()
        tensors = [{"model.layers.0.mlp.%s.weight" % name: ("U8", [self.MATRIX], raw(self.MATRIX, ord(name)))
                    for name in names} for names in ("abc", "de")]
        self.source = write_small(self.scratch / "source", tensors)
        self.whole = self.scratch / "whole"
        self.out = self.scratch / "packed"
        self.journal = self.out / ".reshard" / "journal"
        self.assert_ok(self.repack(self.source, self.whole, by="layer"))

    def break_off(self):
        shutil.rmtree(self.out, ignore_errors=True)
        server = self.serve(self.source)
        server.add_fault(SHARDS[0], "truncate", min_bytes=self.MATRIX)
        self.assert_refused(self.repack(server.url, self.out, "--jobs", 1, "--dev", "retries=0", by="layer"), SHARDS[0])
        server.clear_faults()
        server.log.clear()
        begun = [json.loads(line[17:]) for line in self.journal.read_text().splitlines() if '"begun"' in line]
        self.assertEqual([(len(record["tensors"]), len(record["open"])) for record in begun], [(1, 1)])
        part, = (self.out / ".reshard" / "part").rglob("*.safetensors")
        return server, part

    def assert_goes_on(self, server, sent):
        """`sent`: of the shard that was broken off, in matrices."""
        self.assert_ok(self.run_program("repair", self.out))
        self.assert_same_tree(self.out, self.whole)
        self.assert_ok(self.run_program("verify", self.out, "--source", self.source))
        requests = [request for request in server.requests(SHARDS[0]) if request.range[0] != 0]  # a probe begins there
        self.assertAlmostEqual(sum(request.sent for request in requests) / self.MATRIX, sent, delta=0.3)

    def at_matrix(self, part, number, share):
        """An offset in the file, whose matrices are d, e, a, b, c."""
        return part.stat().st_size - (5 - number) * self.MATRIX + int(share * self.MATRIX)

    def test_a_sound_one_goes_on_where_it_was(self):
        server, _ = self.break_off()
        self.assert_goes_on(server, 1.5)

    def test_a_lost_or_cut_file_is_made_again(self):
        server, part = self.break_off()
        part.unlink()
        self.assert_refused(self.repack(server.url, self.out, by="layer"), "is gone; reshard repair %s" % self.out)
        self.assert_goes_on(server, 3)
        server, part = self.break_off()
        os.truncate(part, self.at_matrix(part, 4, 0))
        self.assert_refused(self.repack(server.url, self.out, by="layer"), "is cut; reshard repair %s" % self.out)
        self.assert_goes_on(server, 3)

    def test_what_differs_is_fetched_again(self):
        for number, share, sent, why in ((0, 0.5, 1.5, "of the other shard"), (2, 0.5, 2.5, "a whole tensor"),
                                         (3, 0.2, 3, "the tensor under way"), (3, 0.9, 1.5, "what has not come yet")):
            with self.subTest(why=why):
                server, part = self.break_off()
                flip_bit(part, self.at_matrix(part, number, share))
                self.assert_goes_on(server, sent)

    def test_records_that_do_not_follow_one_another(self):
        server, _ = self.break_off()
        lines = self.journal.read_bytes().splitlines(keepends=True)
        number = next(n for n, line in enumerate(lines) if b'"begun"' in line)
        flip_bit(self.journal, sum(map(len, lines[:number])) + 30)
        with open(self.journal, "ab") as journal:  # of a run that went on
            text = json.dumps({"at": 3 * self.MATRIX, "begun": 0, "first": 2, "open": [], "tensors": []},
                              separators=(",", ":"), sort_keys=True)
            journal.write(("%s %s\n" % (hashlib.sha256(text.encode()).hexdigest()[:16], text)).encode())
        self.assert_refused(self.repack(server.url, self.out, by="layer"), self.journal, "reshard repair %s" % self.out)
        self.assert_goes_on(server, 3)


class RepairFromHub(HubCase):
    def test_the_commit_that_was_packed_is_asked_without_a_word(self):
        self.assert_ok(self.pack())
        whole = shutil.copytree(self.out, self.scratch / "as-it-was")
        before = self.commit_of()
        tensors = small_tensors()
        tensors[0]["model.embed_tokens.weight"] = ("BF16", [4, 8], bytes(64))
        write_small(self.scratch / "new", tensors)
        self.hub.commit("o/n", {SHARDS[0]: (self.scratch / "new" / SHARDS[0]).read_bytes(), "config.json": b"{}"})
        self.assertNotEqual(self.commit_of(), before)
        for name in (EXPERT_0, "model/embed.safetensors", "config.json", "README.md", "provenance/headers.json.zst"):
            (self.out / name).unlink()
        self.assert_ok(self.run_program("repair", self.out, env=self.env()))
        self.assert_same_tree(self.out, whole)


class CompleteAlready(EndToEnd):
    def test_only_after_a_look_at_every_file(self):
        source = write_small(self.scratch / "source")
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        whole = tree(packed)
        for name in (EXPERT_0, "config.json", INDEX):
            content = (packed / name).read_bytes()
            for change in ("lose", "cut"):
                with self.subTest(name=name, change=change):
                    (packed / name).unlink()
                    if change == "cut":
                        (packed / name).write_bytes(content[:-1])
                    self.assert_refused(self.repack(source, packed), name, "reshard repair %s" % packed)
                    self.assert_refused(self.repack(source, packed, "--part", "1/2"), name, "reshard repair")
                    self.assert_ok(self.run_program("repair", packed, "--source", source))
                    self.assertEqual(tree(packed), whole)
        self.assertIn("complete already", self.assert_ok(self.repack(source, packed)).stdout)


class Companions(EndToEnd):
    """`verify --source` compares the files that hold no weights, too."""

    def verify(self, packed, source):
        return self.run_program("verify", packed, "--source", source)

    def test_other_missing_and_new_files_are_found(self):
        packed = packed_tiny()
        for change, finding in (
                (lambda folder: (folder / "config.json").write_text("{}"), "config.json: differs from the source's"),
                (lambda folder: flip_bit(folder / "tokenizer.json", 20), "tokenizer.json: differs from the source's"),
                (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: is not in the source"),
                (lambda folder: (folder / "vocab.txt").write_text("x"), "vocab.txt: of the source, is missing")):
            with self.subTest(finding=finding):
                source = self.copy_source()
                change(source)
                for place in (source, self.serve(source).url):
                    if "vocab" in finding and place != source:
                        continue  # a plain server does not list what it has
                    result = self.verify(packed, place)
                    self.assertEqual(result.code, 1, str(result))
                    found = [line for line in result.stdout.splitlines() if "every digest fits" not in line]
                    self.assertEqual(found, [finding], str(result))
                shutil.rmtree(source)
        self.assertIn("other files", self.assert_ok(self.verify(packed, self.data())).stdout)

    def test_a_config_that_the_recipe_changes(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--transform", "fp8-to-bf16", by="layer"))
        self.assert_ok(self.verify(packed, self.data()))
        source = self.copy_source()
        text = (source / "config.json").read_text()
        (source / "config.json").write_text(text.replace("{", '{"new":1,', 1))
        result = self.verify(packed, source)
        self.assertEqual(result.code, 1)
        self.assertIn("config.json: differs from the source's", result.stdout)
        self.assertIn("config.json: is not what the recipe makes", result.stdout)


if __name__ == "__main__":
    main()
