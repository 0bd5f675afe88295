"""Numbers of a manifest and of what it names that do not fit: refused where they are read, in one line, at once."""

import json
import shutil

from checkpoints import compressed_tiny, packed_tiny, raw, write_small
from common import EndToEnd, main
from sealing import add_companion, link_tree, read_manifest, reseal, state, zstd_of

TOKENS = "0,5,17"
SECONDS = 60  # far above what a refusal takes, also under a sanitizer
MOST = 2**64 - 1


class HostileNumbers(EndToEnd):
    by = "layer"

    def setUp(self):
        super().setUp()
        self.packed = self.scratch / "packed"
        self.turn = 0  # manifests that were shown
        link_tree(packed_tiny(self.by), self.packed)
        self.good = read_manifest(self.packed)
        self.out = self.scratch / "out"

    def manifest(self):
        return json.loads(json.dumps(self.good))

    def commands(self, place):
        page, flat = self.scratch / "page.html", self.scratch / "flat"
        sums = self.scratch / "sums"
        if not sums.exists():
            sums.write_text("%s  x\n" % ("0" * 64))
        return [["verify", place], ["verify", place, "--sha256", sums], ["verify", place, "--source", self.data()],
                ["inspect", place], ["inspect", place, "--json"], ["inspect", place, "--html", page],
                ["unpack", place, "--exact", "--out", self.out], ["unpack", place, "--out", self.out],
                ["link", place, "--out", flat], ["diff", place, self.data()]]

    def assert_every_verb_refuses(self, *needles, one_of=1):
        """All verbs read the manifest by one function: of `one_of` manifests in a row each verb gets one, in turn, and
        `verify` all."""
        server = self.serve(self.packed)
        run = ["--tokens", TOKENS, "-n", 1, "--cache", self.scratch / "cache"]
        commands = [("reshard", command) for command in self.commands(self.packed) + [
            ["verify", server.url], ["unpack", server.url, "--exact", "--out", self.out]]]
        commands += [("dsrun", [place, *run]) for place in (self.packed, server.url)]
        self.turn += 1
        before = state(self.scratch)
        for program, command in commands[:1] + commands[1:][self.turn % one_of::one_of]:
            with self.subTest(" ".join(map(str, command))):
                result = self.run_program(*command, program="DSPACK_" + program.upper(), timeout=SECONDS)
                self.assert_refused(result, "manifest.json", *needles, program=program)
        shutil.rmtree(self.scratch / "cache", ignore_errors=True)
        self.assertEqual(state(self.scratch), before)

    @staticmethod
    def embedding(manifest):
        return next(file for file in manifest["files"] if file["part"] == "embed")


class RowBlocks(HostileNumbers):
    def refuse(self, change, *needles, one_of=1):
        manifest = self.manifest()
        change(self.embedding(manifest)["row_blocks"])
        reseal(self.packed, manifest)
        self.assert_every_verb_refuses("model/embed.safetensors", *needles, one_of=one_of)

    def test_blocks_whose_bytes_wrap(self):
        """2^57 rows of 128 bytes are 2^64: a block of no bytes."""
        digest = self.embedding(self.good)["row_blocks"][0]["sha256"][0]
        for rows in (2**54, 2**57, 2**60, 2**63, MOST - 1, MOST):
            for digests in ([digest], []):
                with self.subTest(rows=rows, digests=len(digests)):
                    self.refuse(lambda blocks: blocks[0].update(rows_per_block=rows, sha256=digests), "embed_tokens",
                                one_of=4)

    def test_blocks_of_no_rows_and_too_many_or_too_few_digests(self):
        digests = self.embedding(self.good)["row_blocks"][0]["sha256"]
        for value in ({"rows_per_block": 0}, {"sha256": []}, {"sha256": digests + digests}, {"tensor": 1},
                      {"tensor": MOST}, {"rows_per_block": 1}):
            with self.subTest(value):
                self.refuse(lambda blocks: blocks[0].update(value), one_of=3)

    def test_blocks_of_one_tensor_twice(self):
        self.refuse(lambda blocks: blocks.append(dict(blocks[0], sha256=["0" * 64] * len(blocks[0]["sha256"]))), "twice")

    def test_a_block_that_is_longer_than_its_tensor_is_none_of_these(self):
        manifest = self.manifest()
        blocks = self.embedding(manifest)["row_blocks"][0]
        layout = manifest["layouts"][self.embedding(manifest)["layout"]]
        rows, columns = layout["tensors"][blocks["tensor"]]["shape"]
        self.assertEqual(len(blocks["sha256"]), 1)
        for per_block in (rows, rows + 1, 2**40):
            blocks["rows_per_block"] = per_block
            reseal(self.packed, manifest)
            self.assert_ok(self.run_program("verify", self.packed))
            server = self.serve(self.packed)
            result = self.run_program(server.url, "--tokens", TOKENS, "-n", 1, "--cache", self.scratch / str(per_block),
                                      program="DSPACK_DSRUN")
            self.assertEqual(self.assert_ok(result).stdout,
                             self.assert_ok(self.run_program(self.data(), "--tokens", TOKENS, "-n", 1,
                                                             program="DSPACK_DSRUN")).stdout)

    def test_rows_of_no_whole_bytes(self):
        """An F4 tensor of three columns: a row is a byte and a half."""
        for by in ("layer", "expert"):
            source = write_small(self.scratch / ("source-" + by),
                                 [{"model.embed_tokens.weight": ("F4", [4, 3], raw(6, 1))},
                                  {"model.norm.weight": ("BF16", [8], raw(16, 4))}])
            shutil.copy(self.data() / "config.json", source)  # dsrun looks there first
            shutil.rmtree(self.packed)
            self.assert_ok(self.repack(source, self.packed, by="shard:1GB"))
            self.good = read_manifest(self.packed)
            manifest = self.manifest()
            tensors = manifest["layouts"][0]["tensors"]
            embed = next(i for i, tensor in enumerate(tensors) if tensor["dtype"] == "F4")
            for rows in (1, 2, 4, 2**62):
                count = 1 if rows >= 4 else 4 // rows
                manifest["files"][0]["row_blocks"] = [{"tensor": embed, "rows_per_block": rows, "sha256": ["0" * 64] * count}]
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses("embed_tokens", "whole bytes", one_of=4)


class Sizes(HostileNumbers):
    def test_sums_that_wrap(self):
        for kind, size in (("companions", MOST), ("companions", 2**63), ("source", MOST), ("source", 2**62 + 1)):
            with self.subTest(kind=kind, size=size):
                manifest = self.manifest()
                manifest[kind][0]["size"] = size
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses(manifest[kind][0]["path"], "no size of a file", one_of=2)

    def test_where_data_begin(self):
        for begin in (0, 8, 2**40, MOST):
            with self.subTest(begin):
                manifest = self.manifest()
                file = self.embedding(manifest)
                payload = file["size"] - file["data_start"]
                file.update(data_start=begin, size=(begin + payload) % 2**64)
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses(file["path"], one_of=2)

    def test_aliases_of_a_large_tensor(self):
        """A hundred names of one tensor of 2^60 bytes: the sum over the model wraps."""
        manifest = self.manifest()
        for file in manifest["files"]:
            file.pop("row_blocks", None)
        file = self.embedding(manifest)
        tensor = manifest["layouts"][file["layout"]]["tensors"][0]
        tensor.update(shape=[2**59], dtype="BF16", data_offsets=[0, 2**60])
        file["size"] = file["data_start"] + 2**60
        manifest["aliases"] = {"copy.%d" % i: tensor["name"] for i in range(100)}
        manifest["requires"] = ["aliases"]
        reseal(self.packed, manifest)
        self.assert_every_verb_refuses("no size of a file")

    def test_a_source_shard_that_is_shorter_than_its_header(self):
        for size in (0, 1, 8, 100):
            with self.subTest(size):
                manifest = self.manifest()
                manifest["source"][0]["size"] = size
                reseal(self.packed, manifest)
                shard = manifest["source"][0]["path"]
                for command in self.commands(self.packed):
                    if command[0] in ("link", "diff") or (command[0] == "unpack" and "--exact" not in command):
                        continue  # these need no source shard
                    result = self.run_program(*command, timeout=SECONDS)
                    self.assertIn(result.code, (0, 1), str(result))
                    self.assertNotIn("internal", result.stderr, str(result))
                    if command[0] == "unpack" or "--sha256" in command:
                        self.assert_one_line(result, shard, "runs past the end of the file")
                        self.assert_absent(self.out)

    def test_kept_headers_that_are_not_of_their_shards(self):
        shard = self.good["source"][0]["path"]
        rest = {source["path"]: "{}" for source in self.good["source"][1:]}
        for header in ("{}", " " * 100, '{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (MOST, MOST),
                       '{"a":{"dtype":"U8","shape":[%d,%d],"data_offsets":[0,4]}}' % (2**40, 2**40),
                       '{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}',
                       '{"a":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}}' % (MOST, MOST)):
            with self.subTest(header[:40]):
                manifest = self.manifest()
                manifest["companions"] = [c for c in manifest["companions"] if not c["path"].endswith(".zst")]
                add_companion(self.packed, manifest, "provenance/headers.json.zst",
                              zstd_of(json.dumps({shard: header, **rest}).encode()))
                reseal(self.packed, manifest)
                for command in (["unpack", self.packed, "--exact", "--out", self.out], ["verify", self.packed, "--sha256", self.sums()]):
                    self.assert_one_line(self.run_program(*command, timeout=SECONDS), shard)
                self.assert_absent(self.out)

    def assert_one_line(self, result, *needles):
        """As assert_refused; `verify --sha256` has told by then that the packed files' own digests fit."""
        self.assertEqual(result.code, 1, str(result))
        self.assertRegex(result.stderr, r"^reshard: [^\n]*\n$", str(result))
        for needle in needles:
            self.assertIn(needle, result.stderr, str(result))

    def sums(self):
        self.commands(self.packed)
        return self.scratch / "sums"


class CompressedFrames(HostileNumbers):
    def setUp(self):
        super().setUp()
        shutil.rmtree(self.packed)
        link_tree(compressed_tiny("layer"), self.packed)
        self.good = read_manifest(self.packed)

    def test_frames_that_do_not_fit(self):
        def largest(frames):
            return max(range(len(frames)), key=lambda i: frames[i])

        changes = {"one more": lambda z: z["frames"].append(1), "one less": lambda z: z["frames"].pop(),
                   "an empty one": lambda z: z["frames"].__setitem__(0, 0),
                   "one of 4 GiB": lambda z: z["frames"].__setitem__(0, 2**32 + z["frames"][0]),
                   "a huge one": lambda z: z["frames"].__setitem__(largest(z["frames"]), MOST),
                   "a size that wraps": lambda z: z.update(size=MOST), "no size": lambda z: z.update(size=0)}
        for name, change in changes.items():
            with self.subTest(name):
                manifest = self.manifest()
                file = next(file for file in manifest["files"] if "zstd" in file)
                change(file["zstd"])
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses(one_of=3)

    def test_a_file_of_many_frames(self):
        manifest = self.manifest()
        file = next(file for file in manifest["files"] if "zstd" in file)
        tensor = manifest["layouts"][file["layout"]]["tensors"][-1]
        begin = tensor["data_offsets"][0]
        end = 2**62 - 2**40
        tensor.update(dtype="U8", shape=[end - begin], data_offsets=[begin, end])
        file["size"] = file["data_start"] + end
        reseal(self.packed, manifest)
        self.assert_every_verb_refuses()


if __name__ == "__main__":
    main()
