"""Checkpoints that are broken, hostile or not there: refused with one line before anything is written."""

import json
import os
import shutil
import struct

import safetensors_io
from checkpoints import SHARDS, small_tensors, write_small
from common import INDEX, EndToEnd, main

HUGE = 2**40  # bytes of a file that no test machine's disk has room for, several times over


class Bad(EndToEnd):
    def setUp(self):
        super().setUp()
        self.out = self.scratch / "packed"

    def refuse(self, source, *needles, out=None):
        self.assert_refused(self.repack(source, out or self.out), *needles)
        self.assert_absent(out or self.out)


class BadHeaders(Bad):
    def assert_header_refused(self, content, *needles):
        """The bytes as a shard of a checkpoint whose other shard is sound."""
        source = write_small(self.scratch / "source")
        (source / SHARDS[1]).write_bytes(content)
        self.refuse(source, source / SHARDS[1], *needles)
        self.assert_refused(self.run_program("inspect", source), source / SHARDS[1], *needles)
        shutil.rmtree(source)

    def test_broken_files(self):
        tensor = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        good = safetensors_io.with_length({"a": tensor})
        cases = {"empty file": (b"", "too few"), "seven bytes": (b"\0" * 7, "too few"),
                 "one byte is missing": (good + b"abc", "truncated"), "one byte too many": (good + b"abcde", "trailing"),
                 "header cut off": (good[:20], "past the end"),
                 "length huge": (struct.pack("<Q", 2**64 - 1) + b"{}", "over the limit"),
                 "length over the limit": (struct.pack("<Q", 100_000_001) + b"{}", "over the limit"),
                 "length past the end": (struct.pack("<Q", 99_999_999) + b"{}", "past the end"),
                 "not JSON": (safetensors_io.with_length(b"hello"), "JSON"),
                 "no UTF-8": (safetensors_io.with_length(b'{"\xff\xfe":1}'), "JSON"),
                 "zeros": (bytes(64), "JSON"),
                 "an array": (safetensors_io.with_length(b"[]"), "not a JSON object"),
                 "text behind the object": (safetensors_io.with_length(b"{} x"), "JSON"),
                 "nested deeply": (safetensors_io.with_length(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "unknown field"),
                 "arrays nested deeply": (safetensors_io.with_length(b"[" * 3_000_000), "not a JSON object"),
                 "HTML": (b"<!DOCTYPE html><html>not found</html>", "HTML page"),
                 "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
                 "blanks first": (safetensors_io.with_length(b" {}"), "does not begin"),
                 "a byte order mark": (safetensors_io.with_length(b"\xef\xbb\xbf{}"), "does not begin")}
        for name, (content, needle) in cases.items():
            with self.subTest(name):
                self.assert_header_refused(content, needle)

    def test_broken_entries(self):
        def entry(dtype="U8", shape=(4,), offsets=(0, 4), **more):
            return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}

        many = {"t%05d" % i: entry() for i in range(10_000)}
        cases = {"unknown dtype": ({"a": entry("F7")}, '"a"', "F7"),
                 "dtype is a number": ({"a": entry(5)}, '"a"', "dtype"),
                 "shape overflows": ({"a": entry(shape=[2**33, 2**33])}, '"a"', "overflow"),
                 "shape overflows by bits": ({"a": entry("F64", shape=[2**61])}, '"a"', "overflow"),
                 "shape overflows to the right size": ({"a": entry(shape=[2**62, 4, 1])}, '"a"', "overflow"),
                 "shape and offsets differ": ({"a": entry(shape=[5])}, '"a"', "5", "4"),
                 "negative shape": ({"a": entry(shape=[-4])}, '"a"'), "fraction": ({"a": entry(shape=[4.0])}, '"a"'),
                 "shape beyond 64 bits": ({"a": entry(shape=[2**64 + 4])}, '"a"'),
                 "shape is missing": ({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, '"a"', "shape"),
                 "offsets backwards": ({"a": entry(offsets=[4, 0])}, '"a"', "data_offsets"),
                 "one offset": ({"a": entry(offsets=[4])}, '"a"', "data_offsets"),
                 "offsets at the end of the world": ({"a": entry(offsets=[2**64 - 5, 2**64 - 1])}, '"a"'),
                 "half a byte": ({"a": entry("F4", shape=[7])}, '"a"', "whole number"),
                 "unknown field": ({"a": entry(strides=[1])}, '"a"', "strides"),
                 "entry is no object": ({"a": [1]}, '"a"'),
                 "overlap": ({"a": entry(shape=[3], offsets=[0, 3]), "b": entry(shape=[2], offsets=[2, 4])}, '"b"'),
                 "hole": ({"a": entry(shape=[1], offsets=[0, 1]), "b": entry(shape=[2], offsets=[2, 4])}, '"b"', "hole"),
                 "does not start at zero": ({"a": entry(shape=[3], offsets=[1, 4])}, '"a"'),
                 "ten thousand at one place": (many, "overlap"),
                 "metadata of numbers": ({"__metadata__": {"x": 1}, "a": entry()}, "__metadata__"),
                 "metadata is a text": ({"__metadata__": "pt", "a": entry()}, "__metadata__")}
        for name, (header, *needles) in cases.items():
            with self.subTest(name):
                self.assert_header_refused(safetensors_io.with_length(header) + b"abcd", *needles)

    def test_duplicate_keys(self):
        entry = b'{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
        for header in (b'{"a":%s,"a":%s}' % (entry, entry), b'{"\\u0061":%s,"a":%s}' % (entry, entry),
                       b'{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}'):
            with self.subTest(header):
                self.assert_header_refused(safetensors_io.with_length(header) + b"abcd", "duplicate key")

    def test_names_with_control_characters_cannot_forge_output(self):
        header = {"a\n\x1b[2Jreshard: all is well": {"dtype": "F7", "shape": [4], "data_offsets": [0, 4]}}
        self.assert_header_refused(safetensors_io.with_length(header) + b"abcd", "F7")

    def test_ten_thousand_empty_tensors_at_one_place_are_legal(self):
        source = self.scratch / "source"
        source.mkdir()
        safetensors_io.write(source / "model.safetensors",
                             {"model.layers.0.t%05d" % i: ("F32", [0, i], b"") for i in range(10_000)})
        self.assert_ok(self.repack(source, self.out))
        self.assertEqual(safetensors_io.read_checkpoint(self.out), safetensors_io.read_checkpoint(source))


class BadCheckpoints(Bad):
    def test_indexes(self):
        cases = {"missing shard": ({"a": "model-9.safetensors"}, "model-9.safetensors", "missing"),
                 "parent folder": ({"a": "../outside.safetensors"}, "../outside.safetensors", '".."'),
                 "parent folder inside": ({"a": "x/../../y.safetensors"}, '".."'),
                 "absolute": ({"a": "/etc/passwd"}, "/etc/passwd", "absolute"),
                 "empty name": ({"a": ""}, "empty"), "a folder": ({"a": "folder"}, "folder"),
                 "backslash": ({"a": "..\\x"}, "backslash"), "control character": ({"a": "x\ny"}, "control"),
                 "not a name": ({"a": 5}, '"a"'), "no tensors": ({}, "no tensor")}
        safetensors_io.write(self.scratch / "outside.safetensors", {"a": ("U8", [1], b"x")})
        source = write_small(self.scratch / "source")
        (source / "folder").mkdir()
        for name, (weight_map, *needles) in cases.items():
            with self.subTest(name):
                safetensors_io.write_index(source, weight_map)
                self.refuse(source, source, *needles)

    def test_indexes_that_are_no_index(self):
        source = write_small(self.scratch / "source")
        for text in ("", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": "b", "a": "c"}}', "\0\0"):
            with self.subTest(text):
                (source / INDEX).write_text(text)
                self.refuse(source, source / INDEX)

    def test_index_and_shards_that_disagree(self):
        source = write_small(self.scratch / "source")
        weight_map = json.loads((source / INDEX).read_text())["weight_map"]
        moved = dict(weight_map, **{"model.norm.weight": SHARDS[0]})
        safetensors_io.write_index(source, moved)
        self.refuse(source, "model.norm.weight", SHARDS[0])
        safetensors_io.write_index(source, dict(weight_map, invented=SHARDS[0]))
        self.refuse(source, "invented", SHARDS[0])

    def test_of_a_tensor_in_two_shards_the_index_chooses(self):
        shards = small_tensors()
        dtype, shape, own = shards[0]["model.embed_tokens.weight"]
        shards[1]["model.embed_tokens.weight"] = (dtype, shape, bytes(len(own)))
        source = write_small(self.scratch / "source", shards)
        weight_map = json.loads((source / INDEX).read_text())["weight_map"]
        weight_map["model.embed_tokens.weight"] = SHARDS[0]
        safetensors_io.write_index(source, weight_map)
        result = self.assert_ok(self.repack(source, self.out))
        self.assertRegex(result.stderr, r"^warning: 1 tensor of the shards, [^\n]* is not read: [^\n]*\n$")
        self.assertEqual(safetensors_io.read_checkpoint(self.out)["model.embed_tokens.weight"][2], own)

    def test_a_missing_scale(self):
        shards = small_tensors()
        del shards[1]["model.layers.1.mlp.experts.0.up_proj.weight_scale_inv"]
        self.refuse(write_small(self.scratch / "source", shards), SHARDS[0],
                    "model.layers.1.mlp.experts.0.up_proj.weight", "model.layers.1.mlp.experts.0.up_proj.weight_scale_inv")

    def test_a_truncated_shard_of_the_real_checkpoint(self):
        source = self.copy_source()
        shard = source / "model-00003-of-000005.safetensors"
        for size in (shard.stat().st_size - 1, 100_000, 1000, 4):
            os.truncate(shard, size)
            self.refuse(source, shard)

    def test_an_extra_tensor_is_left_out_and_said(self):
        source = write_small(self.scratch / "source")
        weight_map = json.loads((source / INDEX).read_text())["weight_map"]
        del weight_map["model.norm.weight"]
        safetensors_io.write_index(source, weight_map)
        result = self.assert_ok(self.repack(source, self.out))
        self.assertRegex(result.stderr, r"^warning: 1 tensor of the shards, 16 B, is not read: [^\n]*\n$")
        self.assertNotIn("model.norm.weight", safetensors_io.read_checkpoint(self.out))

    def test_layer_and_expert_numbers_at_the_edge(self):
        for number in (999, 65535, 65536, 2**32 - 1, 2**32, 10**30):
            with self.subTest(number):
                name = "model.layers.%d.mlp.experts.%d.up_proj.weight" % (number, number)
                source = write_small(self.scratch / ("s%d" % number), [{name: ("U8", [1], b"x")}, {}])
                result = self.repack(source, self.scratch / ("p%d" % number))
                if result.code == 0:
                    self.assert_ok(self.run_program("verify", self.scratch / ("p%d" % number), "--source", source))
                else:
                    self.assert_refused(result, name)
                    self.assert_absent(self.scratch / ("p%d" % number))

    def test_what_is_no_checkpoint(self):
        empty = self.scratch / "empty"
        empty.mkdir()
        self.refuse(empty, empty, "not a checkpoint", "manifest.json", INDEX)
        (empty / "file").write_text("x")
        self.refuse(empty / "file", empty / "file", "is a file")
        self.refuse(self.scratch / "nowhere", self.scratch / "nowhere", "no such folder")
        self.refuse("hf://only-one-word", "hf://only-one-word", "hf://org/name")

    def test_a_packed_repository_that_lacks_some_of_its_source(self):
        self.assert_ok(self.repack(write_small(self.scratch / "source"), self.scratch / "first", "--include", "layers=0"))
        self.refuse(self.scratch / "first", self.scratch / "first", "leaves out or converts weights")

    def test_companions_with_names_that_the_output_needs(self):
        source = write_small(self.scratch / "source")
        for name in ("model/x.txt", "provenance/headers.json.zst"):
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_text("x")
            self.refuse(source, name)
            shutil.rmtree((source / name).parent)
        (source / "README.source.md").write_text("x")  # where README.md would go as well
        self.refuse(source, "README.source.md")


class BadTargets(Bad):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")

    def test_a_target_that_holds_something_else(self):
        self.out.mkdir()
        (self.out / "mine.txt").write_text("mine")
        self.assert_refused(self.repack(self.source, self.out), self.out, "not empty")
        self.assertEqual([path.name for path in self.out.rglob("*")], ["mine.txt"])
        self.assert_refused(self.repack(self.source, self.source), self.source, "inside the source")
        self.assert_refused(self.repack(self.source, self.out / "mine.txt"), "mine.txt", "not a folder")
        self.assertEqual((self.out / "mine.txt").read_text(), "mine")

    def test_a_target_below_a_file(self):
        self.assert_refused(self.repack(self.source, self.source / "config.json" / "x"), "config.json")

    def test_a_target_where_nothing_can_be_created(self):
        self.assert_refused(self.repack(self.source, "/proc/dspack/packed"), "/proc/dspack")

    def unprivileged(self):
        """Options that start the program as somebody whom permissions bind."""
        if os.geteuid() != 0:
            return {}
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        self.scratch.chmod(0o755)
        try:
            self.assert_ok(self.run_program("--version", **nobody))
        except OSError as error:
            self.skipTest("root may do everything, and nobody else may start the program: %s" % error)
        return nobody

    def test_a_target_that_may_not_be_written(self):
        nobody = self.unprivileged()
        closed = self.scratch / "closed"
        closed.mkdir(mode=0o555)
        for out in (closed, closed / "packed"):
            self.assert_refused(self.repack(self.source, out, **nobody), closed, "Permission denied")
        self.assertEqual(list(closed.iterdir()), [])

    def test_a_source_that_may_not_be_read(self):
        nobody = self.unprivileged()
        self.scratch.chmod(0o777)  # whether the target can be made is tried before
        for name in (SHARDS[0], "config.json", INDEX):
            (self.source / name).chmod(0)
            self.assert_refused(self.repack(self.source, self.out, **nobody), name, "Permission denied")
            (self.source / name).chmod(0o644)
            self.assert_absent(self.out)

    def test_a_pipe_in_the_source_does_not_hang_it(self):
        os.mkfifo(self.source / "pipe")
        result = self.run_program(self.source, "--by", "expert", "--out", self.out, timeout=10)
        if result.code == 0:
            self.assert_ok(self.run_program("verify", self.out))
        else:
            self.assert_refused(result, "pipe")

    def test_too_little_disk(self):
        free = shutil.disk_usage(self.scratch).free
        source = self.scratch / "huge"
        source.mkdir()
        shards = free // HUGE + 2
        try:
            for number in range(shards):
                safetensors_io.write_sparse(source / ("%d.safetensors" % number), {"model.layers.%d.x" % number: HUGE})
        except OSError as error:
            self.skipTest("this file system has no sparse files of %d bytes: %s" % (HUGE, error))
        safetensors_io.write_index(source, {"model.layers.%d.x" % i: "%d.safetensors" % i for i in range(shards)})
        self.refuse(source, self.out, "too little disk")
        result = self.assert_ok(self.repack(source, self.out, "--dry-run"))
        self.assertIn(str(shards), result.stdout)
        self.assert_absent(self.out)


if __name__ == "__main__":
    main()
