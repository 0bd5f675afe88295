"""Recipes that store the same tensors in another form: equal ones once (dedupe), files in zstd frames (compress)."""

import functools
import json
import shutil
import struct
import subprocess

import safetensors_io
from checkpoints import compressed_tiny, packed_tiny
from common import EndToEnd, RangeServer, flip_bit, main, seeded_random, tree
from sealing import reseal

ALIASES = {"model.layers.5.embed_tokens.weight": "model.embed_tokens.weight",
           "model.layers.5.shared_head.head.weight": "lm_head.weight"}
GROUPINGS = ("expert", "expert:8", "layer", "shard:2MB")


class StoredForms(EndToEnd):
    @staticmethod
    @functools.lru_cache(maxsize=None)
    def wanted_tree():
        return tree(EndToEnd.data())

    def manifest(self, folder):
        return json.loads((folder / "manifest.json").read_text())

    def text_of(self, place, *arguments, home=None):
        result = self.assert_ok(self.run_program(place, "-p", "Once upon", "-n", "16", *arguments, program="DSPACK_DSRUN",
                                                 env={"HOME": str(home or self.scratch)}))
        return result.stdout

    def assert_round_trip(self, packed, turn):
        """What a reader of the format can do ends with the source's own bytes. In turn: of each form and of each grouping
        both halves come."""
        self.assert_ok(self.run_program("verify", packed))
        out = self.scratch / "unpacked"
        if turn % 2:
            self.assert_ok(self.run_program("verify", packed, "--source", self.data()))
            self.assert_ok(self.run_program("unpack", packed, "--exact", "--out", out))
            self.assertEqual(tree(out), self.wanted_tree())
        else:
            self.assert_ok(self.run_program("diff", packed, self.data()))
            self.assert_ok(self.run_program("unpack", packed, "--out", out))
            self.assert_ok(self.run_program("diff", out, self.data()))
        shutil.rmtree(out)


class Dedupe(StoredForms):
    def test_equal_tensors_are_stored_once_and_come_back(self):
        wanted = self.text_of(self.data(), "--mtp", "2")
        for turn, by in enumerate(GROUPINGS):
            with self.subTest(by):
                out = self.scratch / by.replace(":", "-")
                self.assert_ok(self.repack(self.data(), out, "--dedupe", by=by))
                manifest = self.manifest(out)
                self.assertEqual(manifest["aliases"], ALIASES)
                self.assertEqual(manifest["requires"], ["aliases"])
                index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
                self.assertFalse(set(ALIASES) & set(index))
                stored = {name for path in out.rglob("*.safetensors") for name in safetensors_io.parse(path.read_bytes())[0]}
                self.assertFalse(set(ALIASES) & stored)
                self.assertTrue(set(ALIASES.values()) <= stored)
                self.assert_round_trip(out, turn)
                self.assertEqual(self.text_of(out, "--mtp", "2"), wanted)

    def test_across_a_network_and_sealed_from_there(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--dedupe", by="layer"))
        with RangeServer(packed) as server:
            self.assertEqual(self.text_of(server.url), self.text_of(self.data()))

    def test_tensors_that_only_look_equal_are_refused_before_anything_is_sealed(self):
        source = self.copy_source()
        path = source / "model-00004-of-000005.safetensors"
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            offsets = json.loads(file.read(length))["lm_head.weight"]["data_offsets"]
        flip_bit(path, 8 + length + offsets[0] + 5000)  # between the samples
        out = self.scratch / "packed"
        result = self.repack(source, out, "--dedupe")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("without dedupe", result.stderr)
        self.assert_absent(out / "manifest.json")

    def test_aliases_from_outside_are_checked(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed, "--dedupe", by="layer"))
        manifest = self.manifest(packed)
        name = "model.layers.5.embed_tokens.weight"
        for target, reason in (("model.nothing.weight", "no file holds"), (name, "no file holds"),
                               ("model.layers.1.mlp.experts.0.up_proj.weight", "of an expert")):
            with self.subTest(target):
                reseal(packed, {**manifest, "aliases": {name: target}})
                self.assert_refused(self.run_program("verify", packed), "manifest.json", reason)
        reseal(packed, {**manifest, "requires": []})
        self.assert_refused(self.run_program("verify", packed), "aliases")


class Compress(StoredForms):
    def test_files_are_read_as_they_are_meant(self):
        wanted = self.text_of(self.data())
        for turn, by in enumerate(GROUPINGS, 1):
            with self.subTest(by):
                out = compressed_tiny(by)
                manifest = self.manifest(out)
                self.assertEqual(manifest["requires"], ["zstd"])
                self.assertEqual(manifest["recipe"]["compress"], "zstd:1")
                self.assert_absent(out / "model.safetensors.index.json")
                self.assertEqual(list(out.rglob("*.safetensors")), [])
                self.assert_frames(out, manifest)
                self.assert_round_trip(out, turn)
                self.assertEqual(self.text_of(out), wanted)
                self.assertEqual(self.text_of(out, "--experts", "12%"), wanted)

    def assert_frames(self, out, manifest):
        """Frames as the manifest lists them, none across a tensor's bounds, and a table that fits: read by hand."""
        for entry in manifest["files"]:
            stored = (out / (entry["path"] + ".zst")).read_bytes()
            frames = entry["zstd"]["frames"]
            self.assertEqual(len(stored), entry["zstd"]["size"])
            count, flags, magic = struct.unpack("<IBI", stored[-9:])
            self.assertEqual((count, flags, magic), (len(frames), 0, 0x8F92EAB1))
            table = struct.unpack("<%dI" % (2 * count), stored[-9 - 8 * count:-9])
            self.assertEqual(list(table[::2]), frames)
            cuts, at = {0}, 0
            for size in table[1::2]:
                self.assertLessEqual(size, 1 << 20)
                at += size
                cuts.add(at)
            self.assertEqual(at, entry["size"])
            layout = manifest["layouts"][entry["layout"]]["tensors"]
            self.assertTrue({entry["data_start"] + tensor["data_offsets"][0] for tensor in layout} <= cuts)
        some = manifest["files"][0]["path"]
        if shutil.which("zstd"):  # any decoder of zstd makes the ordinary file of it
            whole = subprocess.run(["zstd", "-dc", out / (some + ".zst")], check=True, stdout=subprocess.PIPE).stdout
            self.assertEqual(whole, (packed_tiny(manifest["recipe"]["by"]) / some).read_bytes())

    def test_across_a_network_the_cache_keeps_ordinary_files(self):
        for by in ("expert", "layer"):
            with self.subTest(by):
                packed = self.scratch / ("packed-" + by)
                self.assert_ok(self.repack(self.data(), packed, "--compress", "zstd:3", by=by))
                home = self.scratch / ("home-" + by)
                home.mkdir()
                with RangeServer(packed) as server:
                    wanted = self.text_of(self.data())
                    self.assertEqual(self.text_of(server.url, home=home), wanted)
                    asked = len(server.requests())
                    self.assertEqual(self.text_of(server.url, home=home), wanted)
                    self.assertEqual(len(server.requests()), asked, "the second run asks for nothing")
                    self.assertTrue(all(request.path.endswith((".zst", ".json", ".model"))
                                        for request in server.requests("model/*")))

    def test_every_flipped_bit_is_found(self):
        packed = shutil.copytree(compressed_tiny("layer"), self.scratch / "packed")
        random = seeded_random()
        files = sorted(packed.rglob("*.zst"))
        files = [path for path in files if "model" in path.parts]
        for _ in range(12):
            path = random.choice(files)
            offset = random.randrange(path.stat().st_size)
            flip_bit(path, offset)
            result = self.run_program("verify", packed)
            self.assertEqual(result.code, 1, "%s at byte %d: %s" % (path, offset, result))
            self.assertIn(path.name[:-4], result.stdout)
            flip_bit(path, offset)
        self.assert_ok(self.run_program("verify", packed))

    def test_a_cut_file_is_named(self):
        packed = shutil.copytree(compressed_tiny("layer"), self.scratch / "packed")
        path = packed / "model" / "layers" / "001" / "experts.safetensors.zst"
        path.write_bytes(path.read_bytes()[:-100])
        result = self.run_program(packed, "-p", "Once", "-n", "4", program="DSPACK_DSRUN")
        self.assert_refused(result, path, "truncated", program="dsrun")

    def test_killed_runs_go_on_to_the_same_bytes(self):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.data(), whole, "--compress", "zstd:3", "--dedupe"))
        random = seeded_random()
        out = self.scratch / "packed"
        with RangeServer(self.data(), rate=20_000_000) as server:
            for _ in range(6):
                process = self.start(server.url, "--by", "expert", "--out", out, "--compress", "zstd:3", "--dedupe")
                wait = random.uniform(0.05, 0.6)
                try:
                    process.wait(wait)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self.assert_ok(self.repack(server.url, out, "--compress", "zstd:3", "--dedupe"))
        self.assert_same_tree(out, whole)

    def test_unknown_compressions_are_usage_errors(self):
        for text in ("gzip", "zstd:", "zstd:0", "zstd:20", "zstd:x", ""):
            result = self.repack(self.data(), self.scratch / "out", "--compress", text)
            self.assertEqual(result.code, 2, str(result))
            self.assert_absent(self.scratch / "out")


if __name__ == "__main__":
    main()
