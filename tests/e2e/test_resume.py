"""Going on after a break, and refusing to where it would mix what does not belong together."""

import hashlib
import json
import os
import resource
import shutil

import safetensors_io
from checkpoints import EXPERT_0, SHARDS, small_tensors, write_small
from common import EndToEnd, flip_bit, limit, main, tree


class Resume(EndToEnd):
    """Every case starts from a run that lost its connection after one of two shards."""

    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))
        self.out = self.scratch / "packed"
        self.journal = self.out / ".reshard" / "journal"

    def break_off(self):
        """Leaves an unfinished output; the first shard is refused once the last, which is read first, is done. Returns its
        server."""
        server = self.serve(self.source)
        refused = server.add_fault(SHARDS[0], "403", skip=1)  # the catalogue's probe passes
        self.assert_refused(self.repack(server.url, self.out, "--jobs", 1), SHARDS[0], "403")
        self.assert_unfinished(self.out)
        self.assertEqual(refused.struck, 1)
        server.clear_faults()
        server.log.clear()
        return server

    def test_a_finished_shard_is_not_fetched_again(self):
        server = self.break_off()
        result = self.assert_ok(self.repack(server.url, self.out))
        self.assertIn("resuming: 1 of 2 source shards are done", result.stderr)
        self.assertEqual(len(server.requests(SHARDS[1])), 1, "only its header is needed again")
        self.assert_same_tree(self.out, self.whole)

    def test_a_torn_last_record_is_dropped(self):
        for lost in (1, 2, 40):
            with self.subTest(lost=lost):
                server = self.break_off()
                os.truncate(self.journal, self.journal.stat().st_size - lost)
                self.assert_ok(self.repack(server.url, self.out))
                self.assert_same_tree(self.out, self.whole)
                shutil.rmtree(self.out)

    def test_garbage_at_the_end_is_dropped(self):
        server = self.break_off()
        with open(self.journal, "ab") as file:
            file.write(b"0123456789abcdef {\"file\":0,\"sha2")
        self.assert_ok(self.repack(server.url, self.out))
        self.assert_same_tree(self.out, self.whole)

    def test_zeros_at_the_end_are_dropped(self):
        server = self.break_off()
        for tail in (bytes(4096), b"\0\n\0\n" + bytes(500), b"\n"):
            with self.subTest(tail=tail[:8]):
                complete = self.journal.read_bytes()
                self.journal.write_bytes(complete + tail)
                copy = shutil.copytree(self.out, self.scratch / "copy")
                self.assertIn("resuming: 1 of 2", self.assert_ok(self.repack(server.url, copy)).stderr)
                self.assert_same_tree(copy, self.whole)
                shutil.rmtree(copy)
                self.journal.write_bytes(complete)

    def test_another_version_of_the_program_is_refused(self):
        server = self.break_off()
        first, rest = self.journal.read_bytes().split(b"\n", 1)
        identity = json.loads(first[17:])
        identity["program"] = "0.0.1"
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        self.journal.write_bytes(hashlib.sha256(text).hexdigest()[:16].encode() + b" " + text + b"\n" + rest)
        self.assert_refused(self.repack(server.url, self.out), self.journal, "begun by version 0.0.1",
                            "remove the output folder")

    def test_an_empty_journal_starts_anew_only_where_there_is_nothing_else(self):
        server = self.break_off()
        os.truncate(self.journal, 0)
        before = tree(self.out)
        self.assert_refused(self.repack(server.url, self.out), self.out, "not the unfinished work of an earlier run")
        self.assertEqual(tree(self.out), before)
        for path in self.out.iterdir():
            if path.name != ".reshard":
                shutil.rmtree(path)
        shutil.rmtree(self.out / ".reshard" / "part", ignore_errors=True)
        self.assert_ok(self.repack(server.url, self.out))
        self.assert_same_tree(self.out, self.whole)

    def test_damage_inside_the_journal_is_refused(self):
        server = self.break_off()
        lines = self.journal.read_bytes().splitlines(keepends=True)
        self.assertGreater(len(lines), 2)
        for number in range(len(lines) - 1):
            with self.subTest(line=number):
                flip_bit(self.journal, sum(map(len, lines[:number])) + 30)
                before = self.journal.read_bytes()
                self.assert_refused(self.repack(server.url, self.out), self.journal, "damaged at byte")
                self.assertEqual(self.journal.read_bytes(), before, "the evidence was changed")
                flip_bit(self.journal, sum(map(len, lines[:number])) + 30)
        self.assert_ok(self.repack(server.url, self.out))

    def test_another_source_is_refused(self):
        self.break_off()
        tensors = small_tensors()
        tensors[0]["model.layers.0.new"] = ("U8", [1], b"x")
        other = write_small(self.scratch / "other", tensors)
        self.assert_refused(self.repack(other, self.out), self.journal, "another source", "remove the output folder")
        self.assert_refused(self.repack(other, self.whole), self.whole, "another source")

    def test_a_source_that_has_changed_is_refused(self):
        server = self.break_off()
        os.utime(self.source / SHARDS[0], (1, 1))  # a new ETag; the bytes may well be others
        self.assert_refused(self.repack(server.url, self.out), self.journal, "the source has changed")

    def test_a_local_source_that_has_changed_is_refused(self):
        (self.source / "zzz.txt").write_text("x" * 100_000)  # the last companion, and the only file that is too large
        result = self.repack(self.source, self.out, before=limit(resource.RLIMIT_FSIZE, 50_000))
        self.assert_refused(result, "zzz.txt", "File too large")
        self.assertTrue(self.journal.exists(), "the break came too early for this case")
        os.utime(self.source / SHARDS[1], (1, 1))
        self.assert_refused(self.repack(self.source, self.out), self.journal, "the source has changed")

    def test_a_change_during_the_run_is_refused(self):
        server = self.serve(self.source)
        server.add_fault(SHARDS[1], "change_etag", skip=1)
        self.assert_refused(self.repack(server.url, self.out), SHARDS[1], "changed")
        self.assert_unfinished(self.out)

    def test_a_change_in_the_middle_of_a_shard_is_refused(self):
        big = dict(small_tensors()[0])
        big["model.layers.0.big"] = ("U8", [200000], bytes(200000))
        source = write_small(self.scratch / "big", [big, small_tensors()[1]])
        server = self.serve(source)
        server.add_fault(SHARDS[0], "truncate", min_bytes=100000, times=1)
        server.add_fault(SHARDS[0], "change_etag", min_bytes=1000, skip=2)
        self.assert_refused(self.repack(server.url, self.out, "--jobs", 1), SHARDS[0], "changed")
        self.assert_unfinished(self.out)

    def test_partial_files_that_were_damaged_are_never_sealed(self):
        server = self.break_off()
        # Expert 0's scales came with the second shard, its matrices will come with the first.
        flip_bit(self.out / ".reshard" / "part" / EXPERT_0, -1)
        self.assert_refused(self.repack(server.url, self.out), EXPERT_0, "reads back differently", notes=["resuming: "])
        self.assert_absent(self.out / "manifest.json")

    def test_a_sealed_file_that_was_removed_is_made_again_or_refused_with_its_name(self):
        server = self.break_off()
        sealed = sorted((self.out / "model").rglob("*.safetensors"))
        self.assertGreater(len(sealed), 0)
        sealed[0].unlink()
        result = self.repack(server.url, self.out)
        if result.code == 0:
            self.assert_same_tree(self.out, self.whole)
        else:
            self.assert_refused(result, sealed[0], "reshard repair %s" % self.out)

    def test_an_output_inside_the_source_is_refused(self):
        # The next run would take what is there for a part of the source.
        inside = self.source / "packed"
        self.assert_refused(self.repack(self.source, inside), inside, "inside the source")
        self.assert_absent(inside)

    def test_a_folder_that_only_looks_like_work_in_progress_is_taken_over(self):
        (self.out / ".reshard").mkdir(parents=True)  # killed before the journal was begun
        self.assert_ok(self.repack(self.source, self.out))
        self.assert_same_tree(self.out, self.whole)

    def test_every_file_is_valid_after_a_resume(self):
        self.assert_ok(self.repack(self.break_off().url, self.out))
        self.assertEqual(safetensors_io.read_checkpoint(self.out), safetensors_io.read_checkpoint(self.source))


if __name__ == "__main__":
    main()
