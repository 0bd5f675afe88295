"""Every grouping holds the same tensors, is a whole packed repository, and gives the same answers."""

import functools
import json
import re
import shutil
from pathlib import Path

import safetensors_io
from checkpoints import packed_tiny, write_small
from common import INDEX, EndToEnd, flip_bit, main, tree

GROUPINGS = ["expert", "expert:8", "expert:10", "layer", "shard:1MB", "shard:300KiB", "shard:5GB"]
LAYERS, EXPERTS = range(1, 6), 64
QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
EXPERT_NAME = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.")


def manifest_of(folder):
    return json.loads((Path(folder) / "manifest.json").read_text())


def through_the_index(folder):
    """{name: (dtype, shape, bytes)}, each tensor read from the file that the index names for it."""
    weight_map = json.loads((Path(folder) / INDEX).read_text())["weight_map"]
    files = {path: safetensors_io.parse((Path(folder) / path).read_bytes())[0] for path in set(weight_map.values())}
    assert sum(map(len, files.values())) == len(weight_map), "a file holds what the index does not name"
    return {name: files[path][name] for name, path in weight_map.items()}


class Grouping(EndToEnd):
    @staticmethod
    def experts_of(names):
        return sorted({tuple(map(int, match.groups())) for match in map(EXPERT_NAME.match, names) if match})


class Files(Grouping):
    def test_the_index_leads_to_the_sources_bytes(self):
        source = safetensors_io.read_checkpoint(self.data())
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                packed = through_the_index(folder)
                self.assertEqual(sorted(packed), sorted(source))
                self.assertEqual([name for name in source if source[name] != packed[name]], [])
                self.assertEqual(list(folder.glob("*.safetensors")), [], "loaders would take it for the whole model")

    def test_each_verifies_and_is_made_again_alike(self):
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                self.assert_ok(self.run_program("verify", folder, "--source", self.data()))
                self.assertIn("complete already", self.assert_ok(self.repack(self.data(), folder, by=by)).stdout)
                again = self.scratch / "again" / by
                self.assert_ok(self.repack(self.serve(self.data()).url, again, "--jobs", 1, by=by))
                self.assert_same_tree(folder, again)

    def test_experts_are_where_the_grouping_says(self):
        wanted = {
            "expert:8": {"%03d/experts/%03d-%03d" % (layer, first, first + 7)
                         for layer in LAYERS for first in range(0, 64, 8)},
            "expert:10": {"%03d/experts/%03d-%03d" % (layer, first, min(first + 9, 63))
                          for layer in LAYERS for first in range(0, 64, 10)},
            "layer": {"%03d/experts" % layer for layer in LAYERS}}
        for by, names in wanted.items():
            folder = packed_tiny(by)
            files = {"model/layers/%s.safetensors" % name for name in names}
            present = {path for path, kind in tree(folder).items() if kind != "folder" and "experts" in path}
            self.assertEqual(present, files, by)
            for path in files:
                held = self.experts_of(safetensors_io.parse((folder / path).read_bytes())[0])
                numbers = re.search(r"(\d+)-(\d+)\.s", path)
                first, last = map(int, numbers.groups()) if numbers else (0, 63)
                layer = int(path.split("/")[2])
                self.assertEqual(held, [(layer, expert) for expert in range(first, last + 1)], path)

    def test_shards_have_the_size_that_was_asked_for(self):
        for by, limit in (("shard:1MB", 10**6), ("shard:300KiB", 300 * 1024), ("shard:5GB", 5 * 10**9)):
            files = sorted((packed_tiny(by) / "model").iterdir())
            self.assertEqual([file.name for file in files], ["model-%05d-of-%05d.safetensors" % (number + 1, len(files))
                                                             for number in range(len(files))])
            held = [self.experts_of(safetensors_io.parse(file.read_bytes())[0]) for file in files]
            self.assertEqual(sum(held, []), [(layer, expert) for layer in LAYERS for expert in range(EXPERTS)],
                             "each once, in the model's order")
            for file, experts in zip(files, held):
                tensors = safetensors_io.parse(file.read_bytes())[0]
                self.assertTrue(file.stat().st_size <= limit or len(tensors) <= 2, file)
            fullness = sum(file.stat().st_size for file in files) / (limit * len(files))
            self.assertTrue(len(files) == 1 or fullness > 0.8, fullness)

    def test_tensors_of_whole_pages_have_the_sources_order_and_the_others_are_at_the_end(self):
        place = {}
        for number, shard in enumerate(sorted(self.data().glob("*.safetensors"))):
            for at, name in enumerate(safetensors_io.parse(shard.read_bytes())[0]):
                place[name] = (-number, at)  # the last shard comes first
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                for path in folder.rglob("*.safetensors"):
                    tensors, at = safetensors_io.parse(path.read_bytes())
                    order = []
                    for name, (dtype, _, raw) in tensors.items():
                        self.assertEqual(at % (safetensors_io.BITS[dtype] // 8), 0, name)
                        small = len(raw) % 4096 != 0
                        if not small:
                            self.assertEqual(at % 4096, 0, name)
                        order.append((small, -safetensors_io.BITS[dtype] if small else 0, place[name]))
                        at += len(raw)
                    self.assertEqual(order, sorted(order), path)

    def test_digests_of_experts_and_tensors_are_the_same_in_all(self):
        seen = {}
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                manifest = manifest_of(folder)
                experts = {(expert["layer"], expert["expert"]): expert["sha256"]
                           for file in manifest["files"] for expert in file.get("experts", [])}
                tensors = {}
                for file in manifest["files"]:
                    names = [tensor["name"] for tensor in manifest["layouts"][file["layout"]]["tensors"]]
                    if "layer" in file:
                        numbers = [str(expert["expert"]) for expert in file.get("experts", [])]
                        names = [re.sub(r"\{expert(?:\[(\d+)\])?\}", lambda m: numbers[int(m.group(1) or 0)],
                                        name.replace("{layer}", str(file["layer"]))) for name in names]
                    tensors.update(zip(names, file["tensors"]))
                self.assertEqual(len(experts), len(LAYERS) * EXPERTS)
                self.assertEqual(len(tensors), 2059)
                self.assertEqual(seen.setdefault("experts", experts), experts)
                self.assertEqual(seen.setdefault("tensors", tensors), tensors)
                self.assertEqual(seen.setdefault("coverage", manifest["coverage"]), manifest["coverage"])

    def test_groups_that_are_alike_share_a_layout(self):
        # Alike means: in the same order in the source, which lists experts as text (8, 9 and 10 begin with 10) and parts some
        # of them between two shards, each layer elsewhere.
        for by, count in (("expert", 2), ("expert:8", 5), ("expert:10", 5), ("layer", 4)):
            manifest = manifest_of(packed_tiny(by))
            self.assertEqual(len({file["layout"] for file in manifest["files"] if file["part"] == "expert"}), count, by)

    def test_damage_is_found_in_every_grouping(self):
        for by in ("expert:8", "layer", "shard:1MB"):
            folder = shutil.copytree(packed_tiny(by), self.scratch / by)
            for number, file in enumerate(manifest_of(folder)["files"][::3]):
                offset = (9, -1)[number % 2]  # of a grouping both
                flip_bit(folder / file["path"], offset)
                result = self.run_program("verify", folder)
                flip_bit(folder / file["path"], offset)
                self.assertEqual(result.code, 1, str(result))
                self.assertTrue(result.stdout.startswith(file["path"] + ": "), str(result))
            self.assert_ok(self.run_program("verify", folder))


class Recipes(Grouping):
    def test_a_recipe_file_is_what_the_flag_is(self):
        source = write_small(self.scratch / "source")
        recipe = self.scratch / "recipe.json"
        recipe.write_text('{"by": "layer"}\n')
        self.assert_ok(self.repack(source, self.scratch / "flag", by="layer"))
        self.assert_ok(self.run_program(source, "--recipe", recipe, "--out", self.scratch / "file"))
        self.assert_same_tree(self.scratch / "flag", self.scratch / "file")
        self.assertEqual(manifest_of(self.scratch / "file")["recipe"], {"by": "layer"})

    def test_recipes_that_are_none_are_refused_by_name(self):
        recipe = self.scratch / "recipe.json"
        for text, needle in (('{"by":"layer","shrink":true}', '"shrink"'), ("{}", '"by"'), ("", "JSON"),
                             ("[]", "object"), ('{"by":"expert:0"}', "expert:0"), ('{"by":"shard:1"}', "too small")):
            with self.subTest(text):
                recipe.write_text(text)
                result = self.run_program(self.data(), "--recipe", recipe, "--out", self.scratch / "out")
                self.assert_refused(result, recipe, needle)
        recipe.unlink()
        self.assert_refused(self.run_program(self.data(), "--recipe", recipe, "--out", self.scratch / "out"), recipe)
        both = self.run_program(self.data(), "--recipe", recipe, "--by", "layer", "--out", self.scratch / "out")
        self.assertEqual((both.code, both.stdout), (2, ""), str(both))
        self.assert_absent(self.scratch / "out")

    def test_wrong_groupings_are_wrong_usage(self):
        for by in ("expert:0", "expert:x", "expert:", "shard:1", "shard:5xb", "shard:", "Layer", ""):
            with self.subTest(by):
                result = self.repack(self.data(), self.scratch / "out", by=by)
                self.assertEqual((result.code, result.stdout), (2, ""), str(result))
                self.assertRegex(result.stderr, r"^reshard: --by[^\n]*\n$")
        self.assert_absent(self.scratch / "out")

    def test_another_grouping_is_not_mixed_in(self):
        out = packed_tiny("layer")
        self.assert_refused(self.repack(self.data(), out, by="expert"), out, "another recipe")
        self.assert_ok(self.run_program("verify", out))


class PackedAgain(Grouping):
    """A packed repository is a source, and what is made of it is what is made of its own source."""

    def assert_made_alike(self, packed, source, *arguments, by="layer"):
        wanted, made = self.scratch / "of-the-source", self.scratch / "of-the-packed"
        self.assert_ok(self.repack(source, wanted, *arguments, by=by))
        self.assert_ok(self.repack(packed, made, *arguments, by=by))
        self.assert_same_tree(made, wanted)
        self.assert_ok(self.run_program("verify", made, "--source", packed))
        for folder in (wanted, made):
            shutil.rmtree(folder)

    def test_another_grouping_part_and_form(self):
        source, packed = self.data(), packed_tiny()
        self.assert_made_alike(packed, source)
        self.assert_made_alike(packed, source, "--transform", "fp8-to-bf16 role=attention", "--include", "layers=1-2")
        compressed = self.scratch / "compressed"
        self.assert_ok(self.repack(source, compressed, "--compress", "zstd:3"))
        self.assert_made_alike(compressed, source, by="expert")

    def test_fused_experts(self):
        fused = self.data("family") / "mistral-small-4"
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(fused, packed))
        self.assert_made_alike(packed, fused)

    def test_damage_in_it_is_found(self):
        packed = self.scratch / "packed"
        shutil.copytree(packed_tiny(), packed)
        file = packed / "model/layers/002/experts/003.safetensors"
        flip_bit(file, file.stat().st_size - 1)
        made = self.scratch / "made"
        self.assert_refused(self.repack(packed, made, by="layer"), "SHA-256", "manifest.json")
        self.assertFalse((made / "manifest.json").exists())

    def test_one_over_http_is_one_too(self):
        server = self.serve(packed_tiny())
        self.assert_made_alike(server.url, self.data())


class Answers(Grouping):
    def test_dsrun_says_the_same_and_reads_the_same_experts(self):
        read = set()
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                path = self.scratch / "stats.json"
                result = self.assert_ok(self.run_program(folder, "-p", QUESTION, "--stats", path,
                                                         program="DSPACK_DSRUN"))
                self.assertEqual(result.stdout, ANSWER)
                stats = json.loads(path.read_text())
                experts = stats["experts"]
                self.assertEqual(experts["present"], 4 * EXPERTS, "all but the MTP module's")
                self.assertEqual(experts["read"], sum(layer["read"] for layer in experts["layers"]))
                self.assertLess(experts["read"], 0.7 * experts["present"])
                holders = {file["path"] for file in manifest_of(folder)["files"]
                           if any(expert["layer"] < 5 for expert in file.get("experts", []))}
                opened = {file for layer in experts["layers"] for file in layer["opened_files"]}
                self.assertEqual(experts["files"], len(holders))
                self.assertEqual(experts["opened_files"], len(opened))
                self.assertLessEqual(opened, holders)
                read.add((experts["read"], stats["bytes_read"]["total"]))
        self.assertEqual(len(read), 1, "the grouping changed what was read")

    def test_logits_are_the_same_bits(self):
        @functools.lru_cache(maxsize=None)
        def logits(folder):
            path = self.scratch / "logits.safetensors"
            tokens = ",".join(map(str, [0, *range(100, 140)]))
            self.assert_ok(self.run_program("logits", folder, "--tokens", tokens, "--out", path,
                                            program="DSPACK_DSRUN"))
            return path.read_bytes()
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                self.assertEqual(logits(folder), logits(self.data()))

    def test_inspect_has_the_same_totals(self):
        def totals(folder):
            return self.assert_ok(self.run_program("inspect", folder)).stdout.split("\n\n", 1)[1]
        for by in GROUPINGS:
            with self.subTest(by):
                folder = packed_tiny(by)
                self.assertEqual(totals(folder), totals(self.data()))


if __name__ == "__main__":
    main()
