"""`reshard verify`: silent about what is whole, exact about what is not."""

import json
import shutil

import safetensors_io
from checkpoints import EXPERT_0, SHARDS, packed_tiny, small_tensors, write_small
from common import INDEX, EndToEnd, flip_bit, main, seeded_random
from sealing import reseal


class VerifyTiny(EndToEnd):
    def test_an_undamaged_repository_is_clean(self):
        result = self.assert_ok(self.run_program("verify", packed_tiny()))
        self.assertRegex(result.stdout, r"every digest fits: 337 files, 2059 tensors")
        result = self.assert_ok(self.run_program("verify", packed_tiny(), "--source", self.data(), "--jobs", 1))
        self.assertIn("equal to the source, byte for byte", result.stdout)

    def test_a_flipped_bit_anywhere_is_found(self):
        packed = self.scratch / "packed"
        shutil.copytree(packed_tiny(), packed)
        random = seeded_random()
        files = sorted(path for path in packed.rglob("*") if path.is_file() and path.name != "manifest.json")
        chosen = random.sample(files, 40)
        for path in chosen:
            flip_bit(path, random.randrange(path.stat().st_size), random.randrange(8))
        result = self.run_program("verify", packed)
        self.assertEqual(result.code, 1, str(result))
        named = [line.split(":")[0] for line in result.stdout.splitlines()]
        self.assertEqual(named, sorted(str(path.relative_to(packed)) for path in chosen))
        self.assertIn("40 differences", result.stderr)


class Verify(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.source, self.packed))

    def assert_finding(self, *needles, source=None):
        """One finding, on one line of stdout, that names the file, and the tensor if it can be told."""
        result = self.run_program("verify", self.packed, *(["--source", source] if source else []))
        self.assertEqual(result.code, 1, str(result))
        findings = [line for line in result.stdout.splitlines() if "every digest fits" not in line]
        self.assertEqual(len(findings), 1, str(result))
        self.assertRegex(result.stderr, r"^reshard: [^\n]*1 difference[^\n]*\n$")
        for needle in needles:
            self.assertIn(needle, findings[0], str(result))

    def test_a_flipped_bit_of_a_tensor_names_file_and_tensor(self):
        data_start = safetensors_io.parse((self.packed / EXPERT_0).read_bytes())[1]
        matrices = ["gate_proj", "up_proj", "down_proj"]  # whole pages first, in the order of their use
        for number, part in enumerate(matrices):
            for byte in (0, 4095):
                flip_bit(self.packed / EXPERT_0, data_start + 4096 * number + byte)
                self.assert_finding(EXPERT_0, '"model.layers.1.mlp.experts.0.%s.weight"' % part)
                flip_bit(self.packed / EXPERT_0, data_start + 4096 * number + byte)
        flip_bit(self.packed / EXPERT_0, -1)
        self.assert_finding(EXPERT_0, '"model.layers.1.mlp.experts.0.down_proj.weight_scale_inv"')

    def test_a_flipped_bit_of_a_header_is_found_even_in_its_padding(self):
        for offset in (0, 7, 8, 100, 4095):
            flip_bit(self.packed / EXPERT_0, offset)
            self.assert_finding(EXPERT_0, "header")
            flip_bit(self.packed / EXPERT_0, offset)

    def test_a_flipped_bit_of_any_other_file_names_it(self):
        for name in ("config.json", "README.md", "README.source.md", INDEX, "provenance/headers.json.zst"):
            flip_bit(self.packed / name, 5)
            self.assert_finding(name, "digest")
            flip_bit(self.packed / name, 5)

    def test_a_flipped_bit_of_the_manifest_is_refused(self):
        manifest = self.packed / "manifest.json"
        random = seeded_random()
        size = manifest.stat().st_size
        for offset in [0, size - 1, size - 2] + random.sample(range(size), 40):
            bit = random.randrange(8)
            flip_bit(manifest, offset, bit)
            with self.subTest(offset=offset, bit=bit):
                self.assert_refused(self.run_program("verify", self.packed), manifest)
            flip_bit(manifest, offset, bit)
        self.assert_ok(self.run_program("verify", self.packed))

    def test_files_that_are_missing_cut_or_too_long_are_named(self):
        for name in (EXPERT_0, "config.json", "model/embed.safetensors"):
            content = (self.packed / name).read_bytes()
            (self.packed / name).unlink()
            self.assert_finding(name, "No such file")
            (self.packed / name).write_bytes(content[:-1])
            self.assert_finding(name, "has %d bytes" % (len(content) - 1), str(len(content)))
            (self.packed / name).write_bytes(content + b"\0")
            self.assert_finding(name, "has %d bytes" % (len(content) + 1), str(len(content)))
            (self.packed / name).write_bytes(content)

    def test_a_different_byte_of_the_source_is_found(self):
        flip_bit(self.source / SHARDS[0], -1)
        last = list(small_tensors()[0])[-1]
        self.assert_finding('"%s"' % last, "differs from the source", source=self.source)

    def test_a_different_catalogue_of_the_source_is_found(self):
        more, fewer, shaped = small_tensors(), small_tensors(), small_tensors()
        more[1]["model.layers.1.new"] = ("U8", [1], b"x")
        del fewer[1]["model.norm.weight"]
        shaped[1]["model.norm.weight"] = ("BF16", [2, 4], small_tensors()[1]["model.norm.weight"][2])
        for name, shards, needles in (("more", more, ["model.layers.1.new", "missing"]),
                                      ("fewer", fewer, ["model/head.safetensors", "model.norm.weight", "not in"]),
                                      ("shaped", shaped, ["model/head.safetensors", "model.norm.weight", "shape"])):
            with self.subTest(name):
                self.assert_finding(*needles, source=write_small(self.scratch / name, shards))

    def test_what_is_no_packed_repository_is_refused(self):
        self.assert_refused(self.run_program("verify", self.source), self.source, "not a packed repository")
        self.assert_refused(self.run_program("verify", self.scratch / "nothing"), self.scratch / "nothing")


class HostileManifest(EndToEnd):
    """A manifest from a stranger, with a seal that fits: it must not lead out of its folder nor end the program."""

    def setUp(self):
        super().setUp()
        self.packed = self.scratch / "packed"
        self.assert_ok(self.repack(write_small(self.scratch / "source"), self.packed))
        self.path = self.packed / "manifest.json"
        self.good = json.loads(self.path.read_text())

    def reseal(self, change):
        manifest = json.loads(json.dumps(self.good))
        change(manifest)
        reseal(self.packed, manifest)

    def test_the_seal_is_understood_by_this_test(self):
        self.reseal(lambda manifest: None)
        self.assert_ok(self.run_program("verify", self.packed))

    def test_changes_that_are_refused(self):
        def at(*keys, value):
            def change(manifest):
                for key in keys[:-1]:
                    manifest = manifest[key]
                manifest[keys[-1]] = value
            return change

        cases = {"path with ..": at("files", 0, "path", value="../../etc/passwd"),
                 "absolute path": at("companions", 0, "path", value="/etc/passwd"),
                 "path twice": at("files", 0, "path", value=self.good["files"][1]["path"]),
                 "layout that is not there": at("files", 0, "layout", value=99),
                 "size overflow": at("files", 0, "data_start", value=2**64 - 1),
                 "negative size": at("files", 0, "size", value=-1),
                 "shape overflow": at("layouts", 0, "tensors", 0, "shape", value=[2**40, 2**40]),
                 "shape too large for its offsets": at("layouts", 0, "tensors", 0, "shape", value=[5, 8]),
                 "unknown dtype": at("layouts", 0, "tensors", 0, "dtype", value="F7"),
                 "origin of another type": at("origin", "repository", value=5),
                 "revision of another type": at("origin", "revision", value=[]),
                 "layer of another type": at("files", 0, "layer", value="one"),
                 "layer out of range": at("files", 0, "layer", value=2**40),
                 "digest too short": at("files", 0, "sha256", value="ab"),
                 "major version": at("format", "major", value=2),
                 "requirement": at("requires", value=["time_travel"]),
                 "two files of one expert": at("files", -1, "experts", 0, "expert", value=0),
                 "expert of another layer": at("files", -1, "experts", 0, "layer", value=0),
                 "experts of another type": at("files", -1, "experts", value=1),
                 "expert without its list": at("files", -1, "experts", value=[]),
                 "no files": at("files", value={})}
        for name, change in cases.items():
            with self.subTest(name):
                self.reseal(change)
                for verb in ("verify", "inspect"):
                    self.assert_refused(self.run_program(verb, self.packed), self.path)

    def test_digests_that_lie_are_found(self):
        embed = next(file for file in self.good["files"] if file["path"] == "model/embed.safetensors")
        expert = next(file for file in self.good["files"] if file["path"] == EXPERT_0)
        for file, holder, key in ((embed, embed["row_blocks"][0]["sha256"], 0), (expert, expert["experts"][0], "sha256"),
                                  (expert, expert, "sha256"), (expert, expert["tensors"], 2)):
            with self.subTest(path=file["path"], key=key):
                honest, holder[key] = holder[key], "0" * 64
                self.reseal(lambda manifest: None)
                holder[key] = honest
                result = self.run_program("verify", self.packed)
                self.assertEqual(result.code, 1, str(result))
                self.assertTrue(result.stdout.startswith(file["path"]), str(result))


if __name__ == "__main__":
    main()
