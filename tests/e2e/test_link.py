"""`reshard link DIR --out FLAT`: a flat folder that vLLM, SGLang and transformers take for an ordinary checkpoint.

How these find a checkpoint's weights in a local folder is restated here, from their own code:

* vLLM 0.33.0, vllm/model_executor/model_loader/default_loader.py (_prepare_weights) and weight_utils.py
  (filter_duplicate_safetensors_files); repository vllm-project/vllm, also read at commit 00b5ad07.
* SGLang 0.5.23, sglang/srt/model_loader/loader.py (_prepare_weights) and weight_utils.py; repository
  sgl-project/sglang, also read at commit 005cbe0e.
* transformers 5.23.0, modeling_utils.py (_get_resolved_checkpoint_files).
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import safetensors_io
from checkpoints import packed_tiny, write_odd, write_small
from common import INDEX, EndToEnd, main, tree
from sealing import read_manifest, reseal

GROUPINGS = ("expert", "expert:8", "layer", "shard:2MB", "shard:1GB")
RECORD = ".reshard-link.json"


class NotFound(Exception):
    pass


def weight_map(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


def by_vllm(folder):
    """Files at the top alone. A file consolidated*.safetensors means Mistral's format. All that the index names must be
    there, and nothing else counts."""
    top = sorted(folder.glob("*.safetensors"))
    if any(path.name.startswith("consolidated") for path in folder.rglob("*.safetensors")):
        raise NotFound("taken for another format")
    if not top:
        raise NotFound("no weights at the top")
    if not (folder / INDEX).is_file():
        return top
    named = {folder / name for name in weight_map(folder).values()}
    if named - set(top):
        raise NotFound("the index names what is not at the top: %s" % sorted(named - set(top))[:3])
    return [path for path in top if path in named]


def by_sglang(folder):
    """The same, but what the index names need only be a file; of two files without an index, one consolidated, the
    other counts."""
    top = sorted(folder.glob("*.safetensors"))
    if not top:
        raise NotFound("no weights at the top")
    if not (folder / INDEX).is_file():
        return top
    named = {folder / name for name in weight_map(folder).values()}
    if not all(path.is_file() for path in named):
        raise NotFound("the index names what is not there")
    return [path for path in top if path in named]


def by_transformers(folder):
    """model.safetensors if there is one, else what the index names."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    return sorted({folder / name for name in weight_map(folder).values()})


def read_files(paths):
    tensors = {}
    for path in paths:
        for name, value in safetensors_io.parse(path.read_bytes())[0].items():
            if name in tensors:
                raise AssertionError("%s is found twice" % name)
            tensors[name] = value
    return tensors


class Link(EndToEnd):
    def link(self, packed, flat, **options):
        return self.run_program("link", packed, "--out", flat, **options)

    def linked(self, packed, name="flat"):
        flat = self.scratch / name
        result = self.assert_ok(self.link(packed, flat))
        self.assertRegex(result.stdout, r"flat: links to \d+ weight files and \d+ others of [^\n]+\n$")
        self.assertEqual(result.stderr, "")
        return flat

    def packed(self, by="layer", source=None, name="packed"):
        out = self.scratch / name
        self.assert_ok(self.repack(source or self.data(), out, by=by))
        return out

    def private(self, by="layer"):
        return Path(shutil.copytree(packed_tiny(by), self.scratch / "packed"))


class Loaders(Link):
    def test_each_finds_every_tensor_once_with_its_bytes_in_every_grouping(self):
        source = safetensors_io.read_checkpoint(self.data())
        for by in GROUPINGS:
            flat = self.linked(packed_tiny(by), "flat")
            for loader in (by_vllm, by_sglang, by_transformers):
                with self.subTest(by=by, loader=loader.__name__):
                    self.assertEqual(read_files(loader(flat)), source)
            shutil.rmtree(flat)

    def test_why_it_is_needed(self):
        for by in GROUPINGS:
            for loader in (by_vllm, by_sglang):
                with self.assertRaises(NotFound):
                    loader(packed_tiny(by))
            self.assertEqual(len(read_files(by_transformers(packed_tiny(by)))), 2059)

    def test_the_rules_are_understood(self):
        """The rules as they are written down here find the ordinary checkpoint, and see what would break them."""
        source = self.copy_source()
        for loader in (by_vllm, by_sglang, by_transformers):
            self.assertEqual(len(read_files(loader(source))), 2059)
        shutil.copy(source / "model-00001-of-000005.safetensors", source / "extra.safetensors")
        for loader in (by_vllm, by_sglang, by_transformers):
            self.assertEqual(len(loader(source)), 5)
        os.rename(source / "extra.safetensors", source / "consolidated.safetensors")
        with self.assertRaises(NotFound):
            by_vllm(source)

    def test_the_index_has_every_tensor_and_the_right_total(self):
        flat = self.linked(packed_tiny("expert"))
        index = json.loads((flat / INDEX).read_text())
        source = safetensors_io.read_checkpoint(self.data())
        self.assertEqual(set(index["weight_map"]), set(source))
        self.assertEqual(index["metadata"], {"total_size": sum(len(raw) for _, _, raw in source.values())})
        for name, file in index["weight_map"].items():
            self.assertIn(name, safetensors_io.parse((flat / file).read_bytes())[0])

    def test_names_are_flat_and_tell_what_they_are(self):
        names = {path.name for path in self.linked(packed_tiny("expert")).glob("*.safetensors")}
        for name in ("model-embed.safetensors", "model-head.safetensors", "model-layers-000-dense.safetensors",
                     "model-layers-003-experts-005.safetensors"):
            self.assertIn(name, names)
        shards = {path.name for path in self.linked(packed_tiny("shard:2MB"), "2-flat").glob("*.safetensors")}
        self.assertEqual(shards, {"model-%05d-of-%05d.safetensors" % (i + 1, len(shards)) for i in range(len(shards))})

    def test_other_files_are_those_of_the_source(self):
        flat = self.linked(packed_tiny("layer"))
        source = {path.name: path.read_bytes() for path in self.data().iterdir()
                  if path.suffix != ".safetensors" and path.name != INDEX}
        found = {path.name: path.read_bytes() for path in flat.iterdir()
                 if path.suffix != ".safetensors" and path.name not in (INDEX, RECORD)}
        self.assertEqual(found, source)
        self.assert_absent(flat / "manifest.json")
        self.assert_absent(flat / "provenance")

    def test_reshard_and_dsrun_take_it_for_the_checkpoint(self):
        flat = self.linked(packed_tiny("expert:8"))
        result = self.assert_ok(self.run_program("diff", flat, self.data()))
        self.assertIn("2059 tensors equal, 0 differ; 5 companions equal, 0 differ", result.stdout)
        texts = {self.assert_ok(self.run_program(place, "-p", "What is the capital of Spain?", "-n", 8, "--temp", 0,
                                                 program="DSPACK_DSRUN")).stdout for place in (flat, self.data())}
        self.assertEqual(len(texts), 1)

    def test_odd_checkpoints_and_folders_within(self):
        source = write_odd(self.scratch / "source")
        (source / "figures").mkdir()
        (source / "figures" / "one.svg").write_text("<svg/>")
        for by in ("expert", "shard:1MB"):
            packed = self.packed(by, source, "packed-" + by)
            expected = safetensors_io.read_checkpoint(packed)
            flat = self.linked(packed)
            for loader in (by_vllm, by_sglang, by_transformers):
                self.assertEqual(read_files(loader(flat)), expected)
            self.assertEqual((flat / "figures" / "one.svg").read_text(), "<svg/>")
            shutil.rmtree(flat)


class Folder(Link):
    @staticmethod
    def state(folder):
        return {path.name: (path.lstat().st_ino, path.lstat().st_mtime_ns, path.lstat().st_size)
                for path in folder.iterdir()}

    def test_everything_but_index_and_record_is_a_relative_link(self):
        flat = self.linked(packed_tiny("expert"))
        for path in flat.iterdir():
            if path.name in (INDEX, RECORD):
                self.assertFalse(path.is_symlink())
            else:
                self.assertTrue(path.is_symlink() and not os.path.isabs(os.readlink(path)), path)
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["flat"])

    def test_both_folders_can_move_together(self):
        first = self.scratch / "a" / "b"
        first.mkdir(parents=True)
        shutil.copytree(packed_tiny("layer"), first / "packed")
        flat = first / "deep" / "flat"
        self.assert_ok(self.link(first / "packed", flat))
        os.rename(first, self.scratch / "elsewhere")
        moved = self.scratch / "elsewhere" / "deep" / "flat"
        self.assertEqual(len(read_files(by_vllm(moved))), 2059)
        result = self.assert_ok(self.link(self.scratch / "elsewhere" / "packed", moved))
        self.assertRegex(result.stdout, "has the links to .* already")

    def test_through_links_in_the_way_to_either(self):
        packed = self.private()
        (self.scratch / "far" / "off").mkdir(parents=True)
        (self.scratch / "near").symlink_to("far/off")
        (self.scratch / "alias").symlink_to(packed)
        self.assert_ok(self.link(self.scratch / "alias", self.scratch / "near" / "flat"))
        self.assertEqual(len(read_files(by_vllm(self.scratch / "far" / "off" / "flat"))), 2059)

    def test_names_given_in_other_ways(self):
        self.private()
        for packed, flat in ((".", "../1/flat"), ("./packed/", "2/flat/"), ("packed", "./3/../flat")):
            cwd = self.scratch / "packed" if packed == "." else self.scratch
            self.assert_ok(self.link(packed, flat, cwd=cwd))
            self.assertEqual(len(read_files(by_vllm(Path(os.path.normpath(cwd / flat))))), 2059)

    def test_again_is_told_and_changes_nothing(self):
        flat = self.linked(packed_tiny("layer"))
        before = self.state(flat)
        self.assertRegex(self.assert_ok(self.link(packed_tiny("layer"), flat)).stdout, "has the links to .* already")
        self.assertEqual(self.state(flat), before)

    def test_an_earlier_result_is_brought_up_to_date(self):
        flat = self.linked(packed_tiny("expert"))
        self.assertIn("brought up to date", self.assert_ok(self.link(packed_tiny("layer"), flat)).stdout)
        self.assertEqual(len(by_vllm(flat)), 13)
        self.assertEqual(read_files(by_vllm(flat)), safetensors_io.read_checkpoint(self.data()))
        os.remove(flat / "config.json")  # what is missing is put back
        self.assertIn("brought up to date", self.assert_ok(self.link(packed_tiny("layer"), flat)).stdout)
        self.assertTrue((flat / "config.json").is_file())
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["flat"])

    def test_a_folder_with_anything_else_is_left_alone(self):
        def other_link(flat):
            os.remove(flat / "config.json")
            (flat / "config.json").symlink_to("/etc/hostname")

        def own_file(flat):
            os.remove(flat / "config.json")
            (flat / "config.json").write_text("{}")

        changes = {"notes.txt": lambda flat: (flat / "notes.txt").write_text("mine"),
                   "empty": lambda flat: (flat / "empty").mkdir(),
                   "pipe": lambda flat: os.mkfifo(flat / "pipe"),
                   "config.json": other_link, "config.json ": own_file,
                   INDEX: lambda flat: (flat / INDEX).write_text("{}"),
                   RECORD: lambda flat: (flat / RECORD).write_text("no JSON"),
                   "README.md": lambda flat: (flat / RECORD).unlink()}
        for name, change in changes.items():
            with self.subTest(name):
                flat = self.linked(packed_tiny("layer"))
                change(flat)
                before = self.state(flat)
                result = self.link(packed_tiny("expert"), flat)
                self.assert_refused(result, "holds what reshard link did not put there", name.strip())
                self.assertEqual(self.state(flat), before)
                shutil.rmtree(flat)

    def test_places_that_cannot_be(self):
        packed = self.private()
        (self.scratch / "file").write_text("x")
        (self.scratch / "a-link").symlink_to("nowhere")
        (self.scratch / "snapshot").mkdir()
        (self.scratch / "snapshot" / "config.json").symlink_to("../file")  # links alone, but not ours
        before = tree(self.scratch)
        for flat, needle in ((packed / "flat", "inside the source"), (self.scratch, "lies inside of it"),
                             (packed, "inside the source"), (self.scratch / "file", "is not a folder"),
                             (self.scratch / "a-link", "is not a folder"), (self.scratch / "snapshot", "config.json")):
            with self.subTest(flat):
                self.assert_refused(self.link(packed, flat), needle)
        self.assertEqual(tree(self.scratch), before)

    def test_folders_whose_names_are_no_text(self):
        for name in (b"caf\xe9 \xff", "\u202e<b>\n".encode()):
            folder = Path(os.fsdecode(os.fsencode(self.scratch) + b"/" + name))
            folder.mkdir()
            shutil.copytree(packed_tiny("layer"), folder / "packed")
            for text in ("weight files", "already"):
                self.assertIn(text, self.assert_ok(self.link(folder / "packed", folder / "flat")).stdout)
            self.assertEqual(len(read_files(by_vllm(folder / "flat"))), 2059)

    def test_a_folder_of_somebody_else_is_refused_without_being_read(self):
        flat = self.scratch / "flat"
        flat.mkdir()
        with open(flat / "large", "wb") as file:
            file.truncate(1 << 40)
        for record in (None, {"content": {"large": "file x"}}, {"content": []}, []):
            if record is not None:
                (flat / RECORD).write_text(json.dumps(record))
            self.assert_refused(self.link(packed_tiny("layer"), flat), "holds what reshard link did not put there")

    def test_an_empty_folder_is_filled_and_remains_of_a_killed_run_are_cleared(self):
        flat, work = self.scratch / "flat", self.scratch / ".flat.reshard-link"
        flat.mkdir()
        (work / "new").mkdir(parents=True)
        (work / "new" / "half.safetensors").symlink_to("x")
        (work / "old").mkdir()
        self.linked(packed_tiny("layer"))
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["flat"])
        self.assertEqual(len(read_files(by_vllm(flat))), 2059)


class Refusals(Link):
    def test_what_other_loaders_cannot_use(self):
        for name, flags, reason in (("part", ["--include", "layers=1-2"], "a part of the model"),
                                    ("small", ["--compress", "zstd"], "zstd"), ("once", ["--dedupe"], "aliases")):
            with self.subTest(name):
                packed = self.scratch / name
                self.assert_ok(self.repack(self.data(), packed, *flags, by="layer"))
                self.assert_refused(self.link(packed, self.scratch / "flat"), reason)
                self.assert_absent(self.scratch / "flat")

    def reseal(self, packed, change):
        manifest = read_manifest(packed)
        change(manifest)
        reseal(packed, manifest)

    def refused(self, packed, *needles):
        self.assert_refused(self.link(packed, self.scratch / "flat"), *needles)
        self.assert_absent(self.scratch / "flat")
        self.assert_absent(self.scratch / ".flat.reshard-link")

    def test_what_is_not_packed_or_not_complete(self):
        self.refused(self.data(), "not a packed repository", "manifest.json")
        self.refused(self.scratch / "nowhere", "nowhere")
        unfinished = self.private()
        os.remove(unfinished / "manifest.json")
        os.remove(unfinished / INDEX)
        (unfinished / ".reshard").mkdir()
        (unfinished / ".reshard" / "journal").write_text("")
        self.refused(unfinished, "unfinished")

    def test_a_distant_repository(self):
        server = self.serve(packed_tiny("layer"))
        self.refused(server.url, "files of this machine")
        self.assertEqual(server.requests(), [])

    def test_a_file_that_is_missing_or_cut_short(self):
        packed = self.private()
        dense = packed / "model" / "layers" / "003" / "dense.safetensors"
        os.truncate(dense, 5000)
        self.refused(packed, "003/dense.safetensors", "5000 bytes", "reshard verify")
        os.remove(dense)
        self.refused(packed, "003/dense.safetensors", "is missing")

    def test_a_changed_manifest(self):
        packed = self.private()
        with open(packed / "manifest.json", "r+b") as file:
            file.seek(3000)
            file.write(b"X")
        self.refused(packed, "manifest.json")

    def test_names_that_would_meet(self):
        packed = self.private()

        def rename(manifest):
            files = {file["path"]: file for file in manifest["files"]}
            files["model/embed.safetensors"]["path"] = "model/layers-000-dense.safetensors"
            manifest["files"].sort(key=lambda file: file["path"])

        os.rename(packed / "model" / "embed.safetensors", packed / "model" / "layers-000-dense.safetensors")
        self.reseal(packed, rename)
        self.refused(packed, "model/layers-000-dense.safetensors", "model/layers/000/dense.safetensors",
                     "model-layers-000-dense.safetensors")

    def test_companions_that_would_be_taken_for_weights_or_for_ours(self):
        for name, needle in (("consolidated.safetensors", "take it for one"), (RECORD, "begins with a dot")):
            packed = self.private()
            (packed / name).write_text("x")
            entry = {"path": name, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}

            def add(manifest, new=entry):
                manifest["companions"] = sorted(manifest["companions"] + [new], key=lambda each: each["path"])

            self.reseal(packed, add)
            self.refused(packed, name, needle)
            shutil.rmtree(packed)

    def test_a_layer_map_is_linked_with_a_warning(self):
        recipe = self.scratch / "recipe.json"
        recipe.write_text('{"by": "layer", "layer_map": "0-3,2-4"}')
        self.assert_ok(self.run_program(self.data(), "--recipe", recipe, "--out", self.scratch / "packed"))
        result = self.assert_ok(self.link(self.scratch / "packed", self.scratch / "flat"))
        self.assertRegex(result.stderr, r"^warning: [^\n]*layer map \(0-3,2-4\)[^\n]*\n$")
        self.assertEqual(len(read_files(by_vllm(self.scratch / "flat"))), 2059)

    def test_wrong_usage_is_status_2(self):
        for arguments in ([], ["a"], ["--out", "b"], ["a", "b", "--out", "c"]):
            self.assertEqual(self.run_program("link", *arguments).code, 2)
        self.assertGreater(len(self.assert_ok(self.run_program("link", "--help")).stdout), 200)

    def test_a_small_repository_with_hostile_names(self):
        source = write_small(self.scratch / "source")
        (source / "a b\u00e4'\"$(x).txt").write_text("x")
        flat = self.linked(self.packed("expert", source))
        self.assertEqual((flat / "a b\u00e4'\"$(x).txt").read_text(), "x")


if __name__ == "__main__":
    main()
