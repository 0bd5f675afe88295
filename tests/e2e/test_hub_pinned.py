"""The Hub as source: a name means one commit from beginning to end, and the files are those that the Hub lists."""

import hashlib
import json
import shutil

from checkpoints import SHARDS, raw, small_tensors, write_small
from common import main
from hub_case import HubCase


class Pinned(HubCase):
    def other_source(self):
        """The same tensors with other bytes, and another small file."""
        shards = small_tensors()
        for tensors in shards:
            for name, (dtype, shape, data) in tensors.items():
                tensors[name] = (dtype, shape, raw(len(data), 99))
        folder = write_small(self.scratch / ("other%d" % len(self.hub.commits("o/n"))), shards)
        (folder / "notes.txt").write_text("new\n")
        return folder

    def move_branch(self):
        self.hub.add("o/n", self.other_source(), title="Other weights")

    def break_off(self):
        """Leaves unfinished work: the first shard is refused once the last, which is read first, is done."""
        refused = self.hub.add_fault("GET", "*" + SHARDS[0], "404", skip=1)  # the catalogue's request passes
        self.assert_refused(self.pack("o/n", "--jobs", 1), SHARDS[0])
        self.assert_unfinished(self.out)
        self.assertEqual(refused.struck, 1)
        self.hub.clear_faults()

    def test_a_branch_that_moves_during_the_run(self):
        before = self.commit_of()
        held = self.hub.add_fault("GET", "*" + SHARDS[0], "delay", seconds=1, times=1)
        process = self.start("o/n", "--by", "expert", "--out", self.out, env=self.env())
        self.wait_until(lambda: held.struck > 0, "the first shard to be asked for")
        self.move_branch()
        self.assert_ok(self.finish(process))
        self.assertEqual(self.origin()["revision"], before)
        self.assertFalse((self.out / "notes.txt").exists())
        self.assert_same_weights()

    def test_a_branch_that_moves_between_two_runs(self):
        before = self.commit_of()
        self.break_off()
        self.move_branch()
        result = self.assert_ok(self.pack())
        self.assertIn("unfinished work on o/n@main at commit " + before, result.stderr)
        self.assertIn("resuming: 1 of 2", result.stderr)
        self.assertEqual(self.origin()["revision"], before)
        self.assert_same_weights()
        fresh = self.scratch / "fresh"
        self.assert_ok(self.pack(out=fresh))
        self.assertEqual(self.origin(fresh)["revision"], self.commit_of())
        self.assertEqual((fresh / "notes.txt").read_text(), "new\n")

    def test_unfinished_work_can_be_gone_on_with_by_its_commit(self):
        before = self.commit_of()
        self.break_off()
        self.move_branch()
        self.assertIn("resuming: 1 of 2", self.assert_ok(self.pack("hf://o/n@" + before)).stderr)
        self.assert_same_weights()

    def test_unfinished_work_of_another_revision_is_not_gone_on_with(self):
        self.break_off()
        self.hub.repositories["o/n"].tags["v1"] = self.commit_of()
        self.move_branch()
        self.assertIn("resuming", self.assert_ok(self.pack("o/n@v1")).stderr)  # the same commit, asked for otherwise
        shutil.rmtree(self.out)
        self.hub.add("o/n", self.source)
        before = self.commit_of()
        self.break_off()
        self.move_branch()
        self.hub.repositories["o/n"].branches["next"] = self.commit_of()
        self.assert_refused(self.pack("o/n@next"), str(self.out), "begun from o/n at commit " + before)

    def test_a_commit_that_is_gone(self):
        before = self.commit_of()
        self.break_off()
        self.move_branch()
        del self.hub.repositories["o/n"].history[before]
        self.assert_refused(self.pack(), "/o/n: has no commit " + before, "rewritten",
                            notes=["%s: unfinished work on o/n@main" % self.out])
        self.assert_unfinished(self.out)

    def test_what_is_complete_is_of_its_commit(self):
        before = self.commit_of()
        self.assert_ok(self.pack())
        self.assertIn("complete already", self.assert_ok(self.pack()).stdout)
        self.hub.commit("o/n", {"notes.txt": b"new\n"})
        self.assert_refused(self.pack(), str(self.out), "at commit " + before, "o/n@main is commit " + self.commit_of())
        self.assertIn("complete already", self.assert_ok(self.pack("o/n@" + before)).stdout)

    def test_two_spellings_give_the_same_bytes(self):
        self.assert_ok(self.pack("o/n"))
        other = self.scratch / "by-commit"
        self.assert_ok(self.pack("hf://o/n@" + self.commit_of(), out=other))
        self.assert_same_tree(self.out, other)

    def test_small_files_behind_the_hub_s_own_cache(self):
        self.hub.small_file_redirect = True
        self.assert_ok(self.pack())
        self.assert_same_weights()

    def test_a_repository_without_the_file_that_is_asked_for(self):
        self.hub.commit("o/n", {"config.json": None})
        self.assert_ok(self.pack())
        self.assertEqual(self.asked("HEAD"), [("HEAD", "o/n/resolve/main/config.json")])
        other = self.scratch / "other-out"
        self.hub.add_fault("HEAD", "*", "headers", headers={"X-Repo-Commit": None})  # some servers name it only on success
        self.assert_ok(self.pack(out=other))
        self.assertIn(("GET", "api/models/o/n/revision/main"), self.asked())
        self.assert_same_tree(self.out, other)

    def test_what_is_not_the_hub(self):
        plain = self.serve(self.scratch)
        self.assert_refused(self.pack(env={"HF_ENDPOINT": plain.url}), plain.url + "/o/n", "no such repository")
        self.hub.add_fault("*", "*", "headers", headers={"X-Repo-Commit": None})
        self.assert_refused(self.pack(), "/o/n/resolve/main/config.json", "X-Repo-Commit", "HF_ENDPOINT")
        self.hub.clear_faults()
        self.hub.add_fault("HEAD", "*", "headers", headers={"X-Repo-Commit": "../../../x"})
        self.assert_refused(self.pack(), "X-Repo-Commit")
        self.assert_absent(self.out)

    def test_a_mirror_that_sends_its_clients_elsewhere_is_named_with_the_place(self):
        mirror = self.serve(self.scratch)
        mirror.add_fault("*", "redirect", to=self.hub.url)
        refused = self.pack(env={"HF_ENDPOINT": mirror.url})
        self.assert_refused(refused, mirror.url + "/o/n/resolve/main/config.json",
                            "redirects to \"" + self.hub.url, "HF_ENDPOINT")
        self.assert_absent(self.out)

    def test_an_answer_of_another_commit(self):
        self.hub.add_fault("GET", "*" + SHARDS[1], "headers", headers={"X-Repo-Commit": "ab" * 20})
        self.assert_refused(self.pack(), SHARDS[1], "answers for commit " + "ab" * 20, self.commit_of())
        self.hub.clear_faults()
        self.hub.add_fault("GET", "*" + SHARDS[1], "headers", skip=1, headers={"X-Linked-Etag": '"%s"' % ("ab" * 32)})
        self.assert_refused(self.pack(), SHARDS[1])


class Listing(HubCase):
    def write_source(self):
        folder = write_small(self.scratch / "files")
        for path, text in (("inference/model.py", "x\n"), ("figures/a b+c.txt", "y\n"), ("tokenizer.json", "{}"),
                           ("pytorch_model.bin", "not this one"), (".hidden/x", "nor this")):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    def setUp(self):
        super().setUp()
        self.tree = "*/tree/*"

    def test_all_files_come_page_by_page(self):
        for size in (1, 2, 3, 1000):
            with self.subTest(size):
                self.hub.page_size = size
                before = len(self.hub.requests())
                out = self.scratch / ("by-%d" % size)
                self.assert_ok(self.pack(out=out))
                self.assert_same_weights(out)
                self.assertEqual((out / "inference" / "model.py").read_text(), "x\n")
                self.assertEqual((out / "figures" / "a b+c.txt").read_text(), "y\n")
                self.assertFalse((out / "pytorch_model.bin").exists())
                asked = self.hub.requests()[before:]
                pages = [entry for entry in asked if "/tree/" in entry.path]
                self.assertEqual(len(pages), -(-14 // size), [entry.raw_path for entry in pages])
                self.assertEqual(len([entry for entry in asked if entry.method == "HEAD"]), 1)

    def test_a_digest_that_the_bytes_do_not_have(self):
        listed = self.listing()
        for entry in listed:
            if entry["path"] == SHARDS[0]:
                entry["lfs"]["oid"] = "0" * 64
        self.hub.add_fault("GET", self.tree, "200", body=json.dumps(listed))
        self.assert_refused(self.pack("o/n", "--jobs", 1), SHARDS[0], "0" * 64)
        self.assert_absent(self.out / "manifest.json")
        self.assertFalse(list(self.out.glob("model/**/*.safetensors")), "sealed")

    def test_a_size_that_a_file_does_not_have(self):
        listed = self.listing()
        for entry in listed:
            if entry["path"] == SHARDS[0]:
                entry["size"] = entry["lfs"]["size"] = 17
        self.hub.add_fault("GET", self.tree, "200", body=json.dumps(listed))
        self.assert_refused(self.pack(), SHARDS[0], "the Hub lists it with 17")

    def listing(self):
        found = []
        for path, digest in self.hub.files("o/n").items():
            size = len(self.hub.read("o/n", path))
            entry = {"type": "file", "path": path, "size": size, "oid": "0" * 40}
            if self.hub.is_lfs("o/n", path):
                entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 134}
            found.append(entry)
        return found

    def test_hostile_listings(self):
        def file(path, **more):
            return {"type": "file", "path": path, "size": 1, "oid": "0" * 40, **more}
        bodies = {"no array": "{}", "no JSON": "<html>", "twice": json.dumps([file("a"), file("a")]),
                  "\"..\"": json.dumps([file("../../evil")]), "..": json.dumps([file("a/../../evil")]),
                  "absolute": json.dumps([file("/etc/evil")]), "size": json.dumps([file("a", size=-1)]),
                  "digest": json.dumps([file("a", lfs={"oid": "x", "size": 1})]),
                  "needs this name": json.dumps([file("model/x.txt")])}
        for name, body in bodies.items():
            with self.subTest(name):
                self.hub.clear_faults()
                self.hub.add_fault("GET", self.tree, "200", body=body)
                self.assert_refused(self.pack(), "/o/n/" if name == "needs this name" else "api/models/o/n/tree/")
                self.assert_absent(self.out)
        with self.subTest("without the shards"):
            self.hub.clear_faults()
            self.hub.add_fault("GET", self.tree, "200", body=json.dumps([file("README.md")]))
            self.assert_refused(self.pack(), "the Hub does not list it")
        self.assertFalse((self.scratch / "evil").exists())

    def test_a_mirror_whose_next_page_is_named_at_the_official_host(self):
        self.hub.page_size = 3
        link = '<https://huggingface.co/api/models/o/n/tree/%s?recursive=true&expand=false&cursor=3>; rel="next"'
        fault = self.hub.add_fault("GET", self.tree, "headers", headers={"Link": link % self.commit_of()}, times=1)
        self.assert_ok(self.pack())
        self.assertEqual(fault.struck, 1)
        self.assert_same_weights()

    def test_pages_without_end(self):
        self.hub.page_size = 3
        circle = "%s/api/models/o/n/tree/%s?recursive=true&expand=false" % (self.hub.url, self.commit_of())
        self.hub.add_fault("GET", self.tree, "headers", headers={"Link": '<%s>; rel="next"' % circle})
        self.assert_refused(self.pack(), "go in a circle")
        self.hub.clear_faults()
        elsewhere = self.serve(self.scratch)
        self.hub.add_fault("GET", self.tree, "headers", headers={"Link": '<%s/x>; rel="next"' % elsewhere.url})
        self.assert_refused(self.pack(token=None), "another host")
        self.assertEqual(elsewhere.requests(), [])

    def test_a_server_that_cannot_list(self):
        self.hub.add_fault("GET", "api/*", "404")
        self.assert_ok(self.pack())
        self.assert_same_weight_files()
        self.assertEqual(self.run_program("verify", self.out, "--source", self.source).stdout.splitlines()[1:],
                         ["figures/a b+c.txt: of the source, is missing", "inference/model.py: of the source, is missing"])
        self.assertTrue((self.out / "tokenizer.json").is_file(), "a usual name")
        self.assertFalse((self.out / "inference").exists())
        self.assertEqual(len(self.asked("HEAD")), 1 + len(SHARDS), "what each shard's digest is")

    def test_companions_have_the_digests_that_are_listed(self):
        self.hub.lfs_threshold = 1
        self.hub.commit("o/n", {"tokenizer.json": b'{"large":1}'})
        self.hub.add_fault("GET", "objects/*/" + hashlib.sha256(b'{"large":1}').hexdigest(), "corrupt", at=2, host="storage")
        self.assert_refused(self.pack(), "tokenizer.json", "digest")
        self.assert_absent(self.out / "manifest.json")
        self.hub.clear_faults()
        self.assert_ok(self.pack())


if __name__ == "__main__":
    main()
