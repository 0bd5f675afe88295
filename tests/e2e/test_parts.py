"""reshard --part i/n and reshard seal: several processes share a run, and what comes out is what one process makes."""

import shutil

from common import EndToEnd, main, seeded_random
from hub_case import HubCase
from name_families import FAMILIES

COUNT = 3


class PartCase(EndToEnd):
    def part(self, number, source, out, *arguments, count=COUNT, **options):
        return self.repack(source, out, "--part", "%d/%d" % (number, count), *arguments, **options)

    def seal(self, out, *arguments, **options):
        return self.run_program("seal", out, *arguments, **options)


class Parts(PartCase):
    def setUp(self):
        super().setUp()
        self.out = self.scratch / "packed"

    def test_processes_at_the_same_time_make_what_one_makes(self):
        for by in ("expert", "expert:8", "layer", "shard:2MB"):
            with self.subTest(by=by):
                whole, out = self.scratch / ("whole " + by), self.scratch / ("parts " + by)
                self.assert_ok(self.repack(self.data(), whole, by=by))
                running = [self.start(self.data(), "--by", by, "--out", out, "--part", "%d/5" % number)
                           for number in range(1, 6)]
                for number, process in enumerate(running, 1):
                    self.assertIn("part %d/5 is done" % number, self.assert_ok(self.finish(process)).stdout)
                self.assert_absent(out / "manifest.json")
                self.assertIn(": sealed, 2059 tensors", self.assert_ok(self.seal(out)).stdout)
                self.assert_same_tree(out, whole)
                self.assertIn("packed repository already", self.assert_ok(self.seal(out)).stdout)
                self.assertIn("complete already", self.assert_ok(self.part(1, self.data(), out, count=5, by=by)).stdout)

    def test_a_part_that_has_lost_files_is_made_again(self):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), whole))
        for number in range(1, COUNT + 1):
            self.assert_ok(self.part(number, self.data(), self.out))
        lost = [path for path in (self.out / ".reshard" / "parts" / "2-of-3").rglob("*.safetensors")]
        sealed = sorted((self.out / "model").rglob("*.safetensors"))
        self.assertGreater(len(lost), 0)
        for path in (lost[0], sealed[len(sealed) // 2]):
            path.unlink()
        self.assertEqual(self.seal(self.out).code, 1)
        self.assert_refused(self.run_program("repair", self.out), "remove its folder below", self.out / ".reshard/parts",
                            notes=["%s: is unfinished" % self.out])
        for number in (1, 2):
            shutil.rmtree(self.out / ".reshard" / "parts" / ("%d-of-3" % number))
            self.assert_ok(self.part(number, self.data(), self.out))
        if self.seal(self.out).code != 0:  # the sealed one was the third part's
            shutil.rmtree(self.out / ".reshard" / "parts" / "3-of-3")
            self.assert_ok(self.part(3, self.data(), self.out))
            self.assert_ok(self.seal(self.out))
        self.assert_same_tree(self.out, whole)

    def test_recipes_are_shared_as_well(self):
        for recipe in (["--transform", "fp8-to-bf16"], ["--include", "layers=2-3"], ["--dedupe", "--compress", "zstd"],
                       ["--drop-mtp", "--transform", "bf16-to-fp8 role=attention"]):
            with self.subTest(recipe=recipe):
                whole, out = self.scratch / "whole", self.scratch / "parts"
                self.assert_ok(self.repack(self.data(), whole, *recipe))
                for number in (3, 1, 2):
                    self.assert_ok(self.part(number, self.data(), out, *recipe))
                self.assert_ok(self.seal(out))
                self.assert_same_tree(out, whole)
                shutil.rmtree(whole)
                shutil.rmtree(out)

    def test_every_name_family(self):
        for name, make in FAMILIES.items():
            with self.subTest(family=name):
                source = make().write(self.scratch / ("source " + name))
                whole, out = self.scratch / ("whole " + name), self.scratch / ("parts " + name)
                self.assert_ok(self.repack(source, whole))
                for number in (1, 2):
                    self.assert_ok(self.part(number, source, out, count=2))
                self.assert_ok(self.seal(out))
                self.assert_same_tree(out, whole)

    def test_a_part_reads_its_own_shards_only(self):
        server = self.serve(self.data())
        self.assert_ok(self.part(2, server.url, self.out))
        read = {path.name for path in self.data().glob("*.safetensors")
                if any(entry.sent > 1_000_000 for entry in server.requests(path.name))}
        self.assertEqual(read, {"model-00003-of-000005.safetensors"})
        dry = self.assert_ok(self.part(2, server.url, self.out, "--dry-run")).stdout
        self.assertRegex(dry, r"part     2/3: 1 of 5 source shards, [\d.]+ \wB \(\d+ bytes\); \d+ files wholly, 2 with other parts\n")

    def test_killed_parts_and_a_killed_seal_go_on(self):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), whole, by="layer"))
        random = seeded_random()
        kills = 0
        for number in (1, 2, 3):
            for _ in range(3):
                server = self.serve(self.data(), rate=2_000_000)
                running = self.start(server.url, "--by", "layer", "--out", self.out, "--part", "%d/3" % number)
                self.wait_until(lambda: any(entry.sent > 100_000 for entry in server.log) or
                                running.poll() is not None, "a request of a shard")
                self.wait_until(lambda: random.random() < 0.05 or running.poll() is not None, "a moment")
                running.kill()
                kills += running.wait() != 0
                server.__exit__()
            server = self.serve(self.data())
            self.assert_ok(self.part(number, server.url, self.out, by="layer"))
        self.assertGreater(kills, 0)
        self.assert_refused(self.seal(self.out, "--source", self.scratch / "nothing"), "nothing")
        for _ in range(5):
            running = self.start("seal", self.out, "--source", server.url)
            self.wait_until(lambda: random.random() < 0.2 or running.poll() is not None, "a moment")
            running.kill()
            running.wait()
        self.assert_ok(self.seal(self.out, "--source", server.url))
        self.assert_same_tree(self.out, whole)

    def test_folders_of_several_machines_are_put_together(self):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), whole))
        for number in (1, 2, 3):
            machine = self.scratch / ("machine %d" % number)
            self.assert_ok(self.part(number, self.data(), machine / "packed"))
            if number != 2:
                shutil.copytree(machine / "packed", self.out, dirs_exist_ok=True)
        self.assert_refused(self.seal(self.out), "part 2/3 was not started here")
        shutil.copytree(self.scratch / "machine 2" / "packed", self.out, dirs_exist_ok=True)
        self.assert_ok(self.seal(self.out))
        self.assert_same_tree(self.out, whole)

    def test_the_source_may_have_moved(self):
        source = self.copy_source()
        for number in (1, 2, 3):
            self.assert_ok(self.part(number, source.name, self.out, cwd=self.scratch))  # a relative path
        moved = source.rename(self.scratch / "moved")
        self.assert_refused(self.seal(self.out), source)
        self.assert_ok(self.seal(self.out, "--source", moved))
        self.assert_ok(self.run_program("verify", self.out, "--source", moved))

    def test_what_does_not_belong_together_is_refused(self):
        self.assert_ok(self.part(1, self.data(), self.out))
        self.assert_refused(self.part(1, self.data(), self.out, count=2), "parts 1/2 and 1/3", "one count")
        shutil.rmtree(self.out / ".reshard/parts/1-of-2")
        self.assert_refused(self.part(2, self.data(), self.out, by="layer"), "another recipe")
        self.assert_refused(self.repack(self.data(), self.out), "holds parts of a repack", "reshard seal")
        for part in ("0/3", "4/3", "1", "x", "1/0"):
            result = self.repack(self.data(), self.out, "--part", part)
            self.assertEqual(result.code, 2, str(result))
            self.assertIn("I/N", result.stderr)


class HubParts(HubCase, PartCase):
    """Parts that begin at different times must pack one commit."""

    def test_parts_and_seal_stay_with_the_commit_that_the_first_began_with(self):
        before = self.commit_of()
        first = self.assert_ok(self.part(1, "o/n", self.out, count=2, env=self.env()))
        self.assertEqual(first.stderr, "")
        notes = self.scratch / "notes"
        notes.mkdir()
        (notes / "notes.txt").write_text("new\n")
        self.hub.add("o/n", notes, title="Another small file")
        self.assertNotEqual(self.commit_of(), before)
        later = self.assert_ok(self.part(2, "o/n", self.out, count=2, env=self.env()))
        self.assertIn("continuing with that commit", later.stderr)
        self.assert_ok(self.seal(self.out, env=self.env()))
        self.assertEqual(self.origin()["revision"], before)
        self.assertFalse((self.out / "notes.txt").exists())
        self.assert_same_weights()
        fresh = self.scratch / "fresh"
        self.assert_ok(self.pack("o/n@" + before, out=fresh))
        self.assert_same_tree(self.out, fresh)

    def test_parts_of_two_commits_are_not_mixed(self):
        before = self.commit_of()
        one, two = self.scratch / "one", self.scratch / "two"
        self.assert_ok(self.part(1, "o/n", one, count=2, env=self.env()))
        (self.source / "notes.txt").write_text("new\n")
        self.hub.add("o/n", self.source, title="Another small file")
        self.assert_ok(self.part(2, "o/n", two, count=2, env=self.env()))
        shutil.copytree(two, one, dirs_exist_ok=True)
        self.assert_refused(self.seal(one, env=self.env()), "begun from o/n at commit")
        self.assertNotEqual(self.commit_of(), before)


if __name__ == "__main__":
    main()
