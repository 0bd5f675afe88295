"""Checkpoints of every family of names: grouped by expert, back again byte for byte, and what is said of unknown ones."""

import atexit
import functools
import hashlib
import json
import re
import resource
import shutil
import struct
import tempfile
from pathlib import Path

import safetensors_io
from checkpoints import packed_of, write_small
from common import INDEX, EndToEnd, is_sanitized, limit, main, tree
from name_families import FAMILIES, Family

GROUPINGS = ["expert", "expert:2", "layer", "shard:20KB", "shard:1GB"]
QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
EXPERT_FILE = re.compile(r"model/(layers|mtp)/(\d{3})/experts/(\d{3})\.safetensors$")


@functools.lru_cache(maxsize=None)
def shared(name):
    """A family, and a checkpoint of it; to be read only."""
    scratch = Path(tempfile.mkdtemp(prefix="dspack-e2e-shared-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    family = FAMILIES[name]()
    return family, family.write(scratch / "source")


class Families(EndToEnd):
    def written(self, name):
        family = FAMILIES[name]()
        return family, family.write(self.scratch / name / "source")

    def inspected(self, place):
        """(layers, experts, {role: tensors}, {layer: experts})"""
        text = self.assert_ok(self.run_program("inspect", place)).stdout
        layers, experts = re.search(r"(\d+) layers, (\d+) routed experts", text).groups()
        roles = dict(re.findall(r"^  ([a-z_]+) +(\d+) +\d+$", text.split("dtype")[0], re.M))
        per_layer = re.findall(r"^  (\S+) +\d+ +\d+ +(\d+) +\d+$", text, re.M)
        return (int(layers), int(experts), {role: int(count) for role, count in roles.items()},
                {layer: int(count) for layer, count in per_layer})

    def check_inspect(self, family, place):
        _, experts, roles, layers = self.inspected(place)
        self.assertEqual(roles, family.roles)
        self.assertEqual(experts, len(family.experts))
        found = {layer: sum(1 for key in family.experts if key[0] == layer) for layer in layers}
        self.assertEqual(layers, found)
        self.assertEqual(sum(found.values()), experts)

    def check_files(self, family, packed):
        """Grouped by expert: a file for each expert, with its tensors and no others."""
        found = {}
        for path in packed.rglob("*.safetensors"):
            match = EXPERT_FILE.search(str(path))
            if not match:
                continue
            stack, layer, expert = match.group(1), int(match.group(2)), int(match.group(3))
            label = "mtp.%d" % layer if stack == "mtp" else str(layer)
            found[label, expert] = set(safetensors_io.parse(path.read_bytes())[0])
        self.assertEqual(found, family.experts)


class RoundTrip(Families):
    def test_every_family_in_every_grouping(self):
        """Back again and compared in turn: of each family and of each grouping both."""
        for turn, name in enumerate(FAMILIES):
            family, source = self.written(name)
            wanted, before = family.packed(), tree(source)
            self.check_inspect(family, source)
            for by in GROUPINGS:
                turn += 1
                with self.subTest(name, by=by):
                    packed = self.scratch / name / by
                    result = self.assert_ok(self.repack(source, packed, by=by))
                    self.assertEqual(result.stderr, "")
                    self.assertEqual(safetensors_io.read_checkpoint(packed), wanted)
                    self.assert_ok(self.run_program("verify", packed, "--source", source))
                    self.check_inspect(family, packed)
                    if turn % 2:
                        self.assert_ok(self.run_program("diff", source, packed))
                        continue
                    out = self.scratch / name / ("exact-" + by)
                    self.assert_ok(self.run_program("unpack", packed, "--exact", "--out", out))
                    self.assertEqual(before, tree(out))
            self.check_files(family, self.scratch / name / "expert")

    def test_the_rebuilt_shards_have_the_declared_digests(self):
        for name in FAMILIES:
            with self.subTest(name):
                _, source = self.written(name)
                packed, sums = self.scratch / name / "packed", self.scratch / name / "sums"
                self.assert_ok(self.repack(source, packed, by="layer"))
                sums.write_text("".join("%s  %s\n" % (hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
                                        for path in sorted(source.iterdir())))
                self.assert_ok(self.run_program("verify", packed, "--sha256", sums))
                list_of_others = sums.read_text().replace(" model-00002", " other-00002").replace(
                    " consolidated-00002", " other-00002")
                sums.write_text(list_of_others)
                self.assertEqual(self.run_program("verify", packed, "--sha256", sums).code, 1)

    def test_unpacking_gives_the_names_that_other_programs_know(self):
        for name in FAMILIES:
            with self.subTest(name):
                family, source = shared(name)
                packed = packed_of(source)
                for size in ("2KB", "1GB"):
                    out = self.scratch / name / size
                    self.assert_ok(self.run_program("unpack", packed, "--out", out, "--shard-size", size))
                    self.assertEqual(safetensors_io.read_checkpoint(out), family.tensors)
                    if size == "2KB":
                        weight_map = json.loads((out / INDEX).read_text())["weight_map"]
                        self.assertEqual(set(weight_map), set(family.tensors))
                    self.assert_ok(self.run_program("diff", out, packed))

    def test_from_a_server_it_is_the_same(self):
        for name in FAMILIES:
            with self.subTest(name):
                family, source = self.written(name)
                here, there = self.scratch / name / "here", self.scratch / name / "there"
                self.assert_ok(self.repack(source, here))
                server = self.serve(source)
                self.assert_ok(self.repack(server.url, there))
                self.assert_same_tree(here, there)
                self.check_inspect(family, server.url)
                remote = self.serve(there)
                self.assert_ok(self.run_program("unpack", remote.url, "--exact", "--out", self.scratch / name / "out"))
                self.assertEqual(tree(source), tree(self.scratch / name / "out"))

    def test_alike_files_share_a_layout(self):
        """Alike: but for the numbers of layer and expert the same tensors, in the order in which the source has them."""
        for name in FAMILIES:
            with self.subTest(name):
                packed = packed_of(shared(name)[1])
                manifest = json.loads((packed / "manifest.json").read_text())
                kinds = {}
                for file in manifest["files"]:
                    if file["part"] == "expert":
                        tensors = safetensors_io.parse((packed / file["path"]).read_bytes())[0]
                        kind = tuple((re.sub(r"(?<=\.)\d+(?=\.)", "#", tensor), dtype, tuple(shape))
                                     for tensor, (dtype, shape, _) in tensors.items())
                        kinds.setdefault(kind, set()).add(file["layout"])
                self.assertEqual([len(layouts) for layouts in kinds.values()], [1] * len(kinds))
                self.assertEqual(len(set.union(*kinds.values())), len(kinds))

    def test_a_flipped_bit_is_found_in_a_slice(self):
        _, source = self.written("gpt-oss")
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        path = packed / "model/layers/001/experts/003.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        result = self.run_program("verify", packed, "--source", source)
        self.assertEqual(result.code, 1)
        self.assertIn("model.layers.1.mlp.experts.3.", result.stdout)
        result = self.run_program("unpack", packed, "--exact", "--out", self.scratch / "out")
        self.assert_refused(result, "model/layers/001/experts/003.safetensors", "differs from its digest",
                            notes=["reshard: "] * (len(result.stderr.splitlines()) - 1))


class Manifests(Families):
    def requirements(self, name):
        return json.loads((packed_of(shared(name)[1]) / "manifest.json").read_text())["requires"]

    def test_a_reader_is_told_what_it_must_know(self):
        for name in FAMILIES:
            wanted = {"deepseek": [], "kimi": [], "gpt-oss": ["fused_experts"],
                      "llama4": ["name_families", "fused_experts"],
                      "qwen-pictures": ["name_families", "fused_experts"]}.get(name, ["name_families"])
            self.assertEqual(self.requirements(name), wanted, name)

    def test_what_other_loaders_would_misread_has_no_index(self):
        for name in FAMILIES:
            family, source = shared(name)
            packed = packed_of(source)
            self.assertEqual((packed / INDEX).exists(), not family.fused, name)
            self.assertTrue((packed / "provenance" / family.index).is_file())
            self.assertFalse((packed / "consolidated.safetensors.index.json").exists())


NOT_READ = "other programs do not know the names of slices"
OWN = {"deepseek-own": "`deepseek_v4` alone", "mistral-own": "`mistral_large4` alone"}


class WhoReadsThem(Families):
    """Card, `link` and `inspect` say the same of who else reads a family's names."""

    def setUp(self):
        super().setUp()
        self.packed = {}
        for name in FAMILIES:
            family, source = shared(name)
            self.packed[name] = family, packed_of(source, "layer")
            (self.scratch / name).mkdir()

    def test_the_card(self):
        for name, (family, packed) in self.packed.items():
            with self.subTest(name):
                card = (packed / "README.md").read_text()
                self.assertEqual(NOT_READ in card, bool(family.fused))
                self.assertEqual("reshard unpack . --out FOLDER" in card, bool(family.fused))
                self.assertEqual("from_pretrained" in card, not family.fused)
                self.assertEqual("reshard link" in card, not family.fused and name != "mistral-own")
                self.assertEqual("dsrun ." in card, name != "mistral-own")
                for own, words in OWN.items():
                    self.assertEqual(words in card, own == name)
                if name == "mistral-own":
                    self.assertIn("files again:\n\n```\nreshard unpack . --exact --out FOLDER\n```\n", card)

    def test_inspect(self):
        for name, (family, packed) in self.packed.items():
            with self.subTest(name):
                text = self.assert_ok(self.run_program("inspect", packed)).stdout
                self.assertEqual(NOT_READ + "; reshard unpack makes" in text, bool(family.fused))
                self.assertEqual("other programs cannot read it" in text, bool(family.fused))
                for own, words in OWN.items():
                    self.assertEqual(words in text, own == name)
                source = self.assert_ok(self.run_program("inspect", shared(name)[1])).stdout
                self.assertEqual("other programs need the result of reshard unpack" in source, bool(family.fused))
                page = self.assert_ok(self.run_program("inspect", packed, "--html", "-")).stdout
                self.assertEqual(NOT_READ in page, bool(family.fused))

    def test_link(self):
        """Names of other models are no hindrance: a link is refused only where nobody would know the tensors."""
        for name, (family, packed) in self.packed.items():
            with self.subTest(name):
                flat = self.scratch / name / "flat"
                result = self.run_program("link", packed, "--out", flat)
                if family.fused:
                    self.assert_refused(result, NOT_READ, "reshard unpack makes an ordinary checkpoint")
                    self.assert_absent(flat)
                    continue
                self.assert_ok(result)
                self.assertEqual(safetensors_io.read_checkpoint(flat), family.tensors)
                self.assertRegex(result.stderr, r"^warning: [^\n]*%s[^\n]*\n$" % OWN[name] if name in OWN else "^$")


class Refused(Families):
    def test_experts_of_no_known_family(self):
        tensors = {"transformer.blocks.%d.ffn.experts.mlp.%s" % (layer, part): ("U8", [4, 2], bytes(8))
                   for layer in range(2) for part in ("w1", "v1")}
        source = write_small(self.scratch / "source", [tensors, {"model.norm.weight": ("U8", [1], b"x")}])
        said = ["4 tensors speak of experts", '"transformer.blocks.N.ffn.experts.mlp.w1"',
                '"transformer.blocks.0.ffn.experts.mlp.w1"']
        for by in ("expert", "expert:2", "layer"):
            self.assert_refused(self.repack(source, self.scratch / "packed", by=by), "no routed experts recognised", "--by shard:",
                                *said)
            self.assert_absent(self.scratch / "packed")
        result = self.assert_ok(self.repack(source, self.scratch / "packed", by="shard:5GB"))
        for words in said:
            self.assertIn(words, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assert_ok(self.run_program("verify", self.scratch / "packed", "--source", source))
        self.assertIn(said[0], self.assert_ok(self.run_program("inspect", source)).stderr)

    def test_some_experts_of_no_known_family_are_told(self):
        family, _ = self.written("mixtral")
        family.add("other", "talker.model.layers.0.mlp.experts.3.up_proj.weight", [3])
        source = family.write(self.scratch / "source")
        result = self.assert_ok(self.repack(source, self.scratch / "packed"))
        self.assertRegex(result.stderr, r'^warning: 1 tensor speaks of experts [^\n]*"talker\.model\.layers\.N[^\n]*\n$')
        self.check_inspect(family, self.scratch / "packed")

    def test_what_only_looks_fused_stays_whole(self):
        prefix = "model.layers.0.mlp.experts."
        tensors = {prefix + "gate_up_proj": ("U8", [4, 2, 3], bytes(range(24))),
                   prefix + "down_proj": ("U8", [6, 2, 2], bytes(range(24)))}
        source = write_small(self.scratch / "source", [tensors, {"model.norm.weight": ("U8", [1], b"x")}])
        said = ["layer 0", prefix + "gate_up_proj", "[4,2,3]", "[6,2,2]"]
        self.assert_refused(self.repack(source, self.scratch / "packed"), *said)
        result = self.assert_ok(self.repack(source, self.scratch / "packed", by="shard:5GB"))
        self.assertEqual(result.stderr.count("\n"), 1)
        for words in said:
            self.assertIn(words, result.stderr)
        self.assert_ok(self.run_program("unpack", self.scratch / "packed", "--exact", "--out", self.scratch / "out"))
        self.assertEqual(tree(source), tree(self.scratch / "out"))

    def test_a_dense_model_has_nothing_to_warn_of(self):
        tensors = {"model.layers.%d.mlp.up_proj.weight" % layer: ("U8", [4], bytes(4)) for layer in range(2)}
        source = write_small(self.scratch / "source", [tensors, {"model.norm.weight": ("U8", [1], b"x")}])
        for by in ("expert", "layer"):
            result = self.assert_ok(self.repack(source, self.scratch / by, by=by))
            self.assertEqual(result.stderr, "")
            self.assertTrue((self.scratch / by / "model/layers/001/dense.safetensors").is_file())

    def test_absurd_numbers_of_experts_take_no_memory(self):
        for shape in ([2**40, 1, 1], [2**40, 2**20, 0], [0, 2**40, 2**20]):
            with self.subTest(shape):
                folder = self.scratch / str(shape[0] + shape[2])
                folder.mkdir()
                size = shape[0] * shape[1] * shape[2]
                header = {"model.layers.0.mlp.experts.down_proj":
                          {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}
                raw = json.dumps(header).encode()
                with open(folder / "model.safetensors", "wb") as file:
                    file.write(struct.pack("<Q", len(raw)) + raw)
                    file.truncate(8 + len(raw) + size)
                # A sanitizer needs more for its shadow; the address sanitizer refuses such sizes of itself.
                bounded = None if is_sanitized() else limit(resource.RLIMIT_AS, 2**30)
                result = self.run_program("inspect", folder, before=bounded)
                self.assertIn("0 routed experts", self.assert_ok(result).stdout)
                self.assertIn("cannot be cut", result.stderr)
                self.assert_refused(self.repack(folder, self.scratch / "out"), "cannot be cut")

    def test_dsrun_runs_the_names_that_it_knows_and_refuses_others(self):
        """The trained checkpoint under DeepSeek's own names is refused. Where its experts' tensors are stacked, slices
        have V3's names again, and it is the very model that was trained."""
        tensors = safetensors_io.read_checkpoint(self.data())
        own, fused = Family("own"), Family("fused")
        stacks = {}
        for name, (dtype, shape, raw) in tensors.items():
            own.tensors[name.replace("model.layers.", "layers.").replace("mlp.experts.", "ffn.experts.")] = (dtype, shape, raw)
            match = re.fullmatch(r"(model\.layers\.\d+\.mlp\.experts\.)(\d+)\.(.*)", name)
            if match:
                stacks.setdefault((match.group(1) + match.group(3), dtype, tuple(shape)), {})[int(match.group(2))] = raw
            else:
                fused.tensors[name] = (dtype, shape, raw)
        for (name, dtype, shape), parts in stacks.items():
            fused.tensors[name] = (dtype, [len(parts), *shape], b"".join(parts[number] for number in sorted(parts)))
        for name, family in (("own", own), ("fused", fused)):
            source = family.write(self.scratch / name)
            for path in self.data().iterdir():
                if path.suffix != ".safetensors" and path.name != INDEX:
                    shutil.copy(path, source)
            packed = self.scratch / (name + "-packed")
            self.assert_ok(self.repack(source, packed, by="layer"))
            self.assert_ok(self.run_program("verify", packed, "--source", source))
            for folder in (source, packed):
                with self.subTest(folder.name):
                    result = self.run_program(folder, "-p", QUESTION, program="DSPACK_DSRUN")
                    if name == "own":
                        self.assert_refused(result, "layers.", "does not know", program="dsrun")
                    else:
                        self.assertEqual(self.assert_ok(result).stdout, ANSWER)


if __name__ == "__main__":
    main()
