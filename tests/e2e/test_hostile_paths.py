"""Paths from outside, and links on the disk: nothing is written but what the user asked for, and nothing is copied but
what lies in the folder that the user named."""

import hashlib
import json
import os
import shutil
import stat
import sys

import safetensors_io
from checkpoints import SHARDS, packed_tiny, write_small
from common import INDEX, EndToEnd, main, tree
from hub_case import HubCase
from sealing import add_companion, link_tree, read_manifest, reseal, state, zstd_of

TOKENS = "0,5,17"
# Names that other programs believe, or that are ours.
HIDDEN = [".git/config", "a/.hidden/b", ".reshard/x", ".reshard/part/x", ".dspack-cache/journal", ".bashrc", "..a", "...",
          ".config.json.tmp"]


class HostilePaths(EndToEnd):
    def setUp(self):
        super().setUp()
        self.packed = self.scratch / "packed"
        self.turn = 0  # manifests that were shown
        link_tree(packed_tiny("layer"), self.packed)
        self.good = read_manifest(self.packed)
        self.out = self.scratch / "out"

    def dsrun(self, *arguments, **options):
        return self.run_program(*arguments, program="DSPACK_DSRUN", **options)

    def manifest(self):
        return json.loads(json.dumps(self.good))

    def assert_every_verb_refuses(self, *needles, one_of=1):
        """All verbs read the manifest by one function: of `one_of` manifests in a row each verb gets one, in turn, and
        `verify` all."""
        server = self.serve(self.packed)
        place, page, flat = str(self.packed), self.scratch / "page.html", self.scratch / "flat"
        run = ["--tokens", TOKENS, "-n", 1, "--cache", self.scratch / "cache"]
        commands = [("reshard", command) for command in (
            ["verify", place], ["inspect", place], ["inspect", place, "--json"], ["inspect", place, "--html", page],
            ["unpack", place, "--exact", "--out", self.out], ["unpack", place, "--out", self.out],
            ["link", place, "--out", flat], ["verify", place, "--source", self.data()], ["diff", place, self.data()],
            ["unpack", server.url, "--exact", "--out", self.out], ["verify", server.url])]
        commands += [("dsrun", [where, *run]) for where in (place, server.url)]
        self.turn += 1
        before = state(self.scratch)
        for program, command in commands[:1] + commands[1:][self.turn % one_of::one_of]:
            with self.subTest(command[0]):
                result = self.run_program(*command, program="DSPACK_" + program.upper())
                self.assert_refused(result, "manifest.json", *needles, program=program)
        shutil.rmtree(self.scratch / "cache", ignore_errors=True)
        self.assertEqual(state(self.scratch), before)


class Manifests(HostilePaths):
    def test_hidden_companions(self):
        for path in HIDDEN:
            with self.subTest(path):
                manifest = self.manifest()
                add_companion(self.packed, manifest, path, b"[core]\n\tfsmonitor = touch ran; false\n")
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses(path, "begins with a dot", one_of=4)

    def test_hidden_weight_files_and_shards(self):
        def renamed(kind):
            manifest = self.manifest()
            manifest[kind][0]["path"] = ".git/config"
            return manifest

        for kind in ("files", "source"):
            with self.subTest(kind):
                reseal(self.packed, renamed(kind))
                self.assert_every_verb_refuses(".git/config", "begins with a dot")

    def test_the_manifest_s_own_name(self):
        for kind in ("files", "source", "companions"):
            with self.subTest(kind):
                manifest = self.manifest()
                manifest[kind][0]["path"] = "manifest.json"
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses("manifest's own")

    def test_files_that_are_folders_of_others(self):
        for kind, first, second in (("companions", "config.json/x", "config.json"), ("companions", "a", "a/b/c")):
            with self.subTest(first):
                manifest = self.manifest()
                for path in (first, second):
                    if all(entry["path"] != path for entry in manifest[kind]):
                        manifest[kind].append({"path": path, "size": 1, "sha256": "0" * 64})
                reseal(self.packed, manifest)
                self.assert_every_verb_refuses("as a file and as a folder")

    def test_control_characters_of_the_second_set(self):
        manifest = self.manifest()
        manifest["companions"][0]["path"] = "a\u009b31mb"
        reseal(self.packed, manifest)
        self.assert_every_verb_refuses("control character")

    def test_a_shard_that_is_there_twice(self):
        manifest = self.manifest()
        manifest["source"].append(manifest["source"][0])
        reseal(self.packed, manifest)
        self.assert_every_verb_refuses(manifest["source"][0]["path"], "twice")

    def test_kept_headers_of_hidden_shards(self):
        text = zstd_of(json.dumps({".git/config": "{}"}).encode())
        manifest = self.manifest()
        manifest["companions"] = [c for c in manifest["companions"] if c["path"] != "provenance/headers.json.zst"]
        add_companion(self.packed, manifest, "provenance/headers.json.zst", text)
        reseal(self.packed, manifest)
        sums = self.scratch / "sums"
        sums.write_text("%s  x\n" % ("0" * 64))
        for command in (["unpack", self.packed, "--exact", "--out", self.out], ["verify", self.packed, "--sha256", sums]):
            result = self.run_program(*command)  # verify has told before that the files' own digests fit
            self.assertEqual(result.code, 1, str(result))
            for needle in ("headers.json.zst", ".git/config", "begins with a dot"):
                self.assertIn(needle, result.stderr, str(result))
            self.assert_absent(self.out)


class Indexes(EndToEnd):
    def test_hidden_shards(self):
        source = write_small(self.scratch / "source")
        for path in HIDDEN:
            with self.subTest(path):
                safetensors_io.write_index(source, {"a": path})
                result = self.repack(source, self.scratch / "out")
                self.assert_refused(result, source / INDEX, path, "begins with a dot")
                self.assert_absent(self.scratch / "out")


class CacheJournals(EndToEnd):
    def test_hidden_names(self):
        server = self.serve(packed_tiny("expert"))
        cache = self.scratch / "cache"

        def run(*arguments):
            return self.run_program(server.url, "--tokens", TOKENS, "-n", 1, "--cache", cache, program="DSPACK_DSRUN")

        self.assert_ok(run())
        (journal,) = cache.glob("*/.dspack-cache/journal")
        good = journal.read_bytes()
        digest = "0" * 64
        for record in ({"text": ".git/config", "size": 1, "sha256": digest}, {"absent": ".git/config"},
                       {"file": ".git/config", "sha256": digest, "ground": "manifest"}, {"used": [".git/config"]},
                       {"removed": ".git/config"}, {"part": ".git/config", "tensors": []},
                       {"header": ".git/config", "size": 1, "sha256": digest, "file_size": 2, "version": ""}):
            with self.subTest(record):
                line = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
                journal.write_bytes(good + hashlib.sha256(line).hexdigest()[:16].encode() + b" " + line + b"\n")
                self.assert_refused(run(), journal, "begins with a dot", program="dsrun")
        journal.write_bytes(good)
        self.assert_ok(run())


class HubListings(HubCase):
    def write_source(self):
        source = super().write_source()
        (source / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        (source / ".git").mkdir()
        (source / ".git" / "config").write_text("[core]\n")
        return source

    def test_hidden_files_of_a_source_are_no_part_of_it(self):
        self.assert_ok(self.pack())
        self.assertEqual([path.name for path in self.out.rglob(".*")], [])
        self.assert_same_weights()


class SourceLinks(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.secret = self.scratch / "secret"
        self.secret.mkdir()
        (self.secret / "id_ed25519").write_text("PRIVATE KEY\n")
        self.out = self.scratch / "out"

    def refuse(self, source, *needles):
        for arguments in ((), ("--dry-run",), ("--part", "1/2")):
            result = self.run_program(source, "--by", "expert", "--out", self.out, *arguments)
            self.assert_refused(result, "symbolic link", *needles)
            self.assert_absent(self.out)

    def test_a_companion_that_leads_out(self):
        (self.source / "tokenizer.model").symlink_to(self.secret / "id_ed25519")
        self.refuse(self.source, self.source / "tokenizer.model", self.secret / "id_ed25519")
        os.remove(self.source / "tokenizer.model")
        (self.source / "config.json").unlink()
        (self.source / "config.json").symlink_to("../secret/id_ed25519")
        self.refuse(self.source, self.source / "config.json")

    def test_a_link_that_is_too_long_to_be_followed_by_name(self):
        target = "/" * (4090 - len(str(self.secret))) + str(self.secret)[1:] + "/id_ed25519"
        (self.source / "tokenizer.model").symlink_to(target[-4095:])
        self.assertEqual((self.source / "tokenizer.model").read_text(), "PRIVATE KEY\n")
        result = self.repack(self.source, self.out)
        self.assert_refused(result, self.source / "tokenizer.model")
        self.assert_absent(self.out)

    def test_a_shard_that_leads_out(self):
        os.rename(self.source / SHARDS[0], self.secret / "x")
        (self.source / SHARDS[0]).symlink_to("../secret/x")
        self.refuse(self.source, self.source / SHARDS[0])

    def test_a_folder_that_leads_out(self):
        weights = {"a": ("U8", [1], b"x")}
        safetensors_io.write(self.secret / "m.safetensors", weights)
        (self.source / "sub").symlink_to(self.secret)
        safetensors_io.write_index(self.source, {"a": "sub/m.safetensors"})
        self.refuse(self.source, self.source / "sub/m.safetensors")

    def test_the_index_leads_out(self):
        os.rename(self.source / INDEX, self.secret / INDEX)
        (self.source / INDEX).symlink_to(self.secret / INDEX)
        self.refuse(self.source, self.source / INDEX)

    def test_links_that_stay_inside_and_a_folder_that_is_a_link(self):
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, whole))
        store = self.source / "store"
        store.mkdir()
        for name in (SHARDS[0], "config.json"):
            os.rename(self.source / name, store / name)
            (self.source / name).symlink_to("store/" + name)
        shutil.rmtree(store / "none", ignore_errors=True)
        (self.scratch / "alias").symlink_to("source")
        self.assert_ok(self.repack(self.scratch / "alias", self.out))
        self.assertEqual((self.out / "config.json").read_bytes(), (whole / "config.json").read_bytes())
        for path in (whole / "model").rglob("*.safetensors"):
            self.assertEqual((self.out / path.relative_to(whole)).read_bytes(), path.read_bytes())

    def test_a_snapshot_in_the_hub_s_cache(self):
        """As the Hub's client leaves it: links to the repository's blobs, which may be links to a store that is shared."""
        cache = self.scratch / "hub"
        snapshot = cache / "models--o--n" / "snapshots" / ("0" * 40)
        blobs, shared = cache / "models--o--n" / "blobs", cache / "blobs" / "ab"
        for folder in (snapshot, blobs, shared):
            folder.mkdir(parents=True)
        for number, path in enumerate(sorted(self.source.iterdir())):
            content = path.read_bytes()
            if number % 2:
                (shared / path.name).write_bytes(content)
                (blobs / path.name).symlink_to("../../blobs/ab/" + path.name)
            else:
                (blobs / path.name).write_bytes(content)
            (snapshot / path.name).symlink_to("../../blobs/" + path.name)
        self.assert_ok(self.repack(snapshot, self.out))
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, whole))
        self.assert_same_tree(self.out, whole)
        shutil.rmtree(self.out)
        (snapshot / "tokenizer.model").symlink_to(self.secret / "id_ed25519")
        self.refuse(snapshot, snapshot / "tokenizer.model")

    def test_what_is_only_read_may_lie_elsewhere(self):
        """A folder of `reshard link` has nothing but links: it can be looked at and run; packed again is the repository
        that it is made of."""
        packed, flat = packed_tiny("layer"), self.scratch / "flat"
        self.assert_ok(self.run_program("link", packed, "--out", flat))
        self.assert_ok(self.run_program("inspect", flat))
        self.assert_ok(self.run_program("inspect", flat, "--html", self.scratch / "page.html"))
        self.assert_ok(self.run_program("diff", flat, self.data()))
        self.assert_ok(self.run_program("verify", packed, "--source", flat))
        self.assert_ok(self.run_program(flat, "--tokens", TOKENS, "-n", 1, program="DSPACK_DSRUN"))
        self.refuse(flat, flat, packed, "as the source")

    def test_a_packed_repository_with_a_link_is_not_published(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.source, packed))
        key = self.secret / "id_ed25519"
        os.rename(packed / "config.json", key)
        (packed / "config.json").symlink_to(key)
        hub = self.serve_hub()
        result = self.run_program("publish", packed, "--repo", "o/n", env={"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token})
        self.assert_refused(result, packed / "config.json", "symbolic link")


class OwnFiles(EndToEnd):
    """Nothing is written through a link that lies where a file of ours will be."""

    def setUp(self):
        super().setUp()
        self.victim = self.scratch / "victim"
        self.victim.write_text("precious\n")
        self.folder = self.scratch / "victims"
        self.folder.mkdir()
        (self.folder / "x").write_text("precious\n")
        self.work = self.scratch / "work"
        self.work.mkdir()

    def assert_spared(self, result=None, *needles):
        self.assertEqual(self.victim.read_text(), "precious\n", str(result))
        self.assertEqual(tree(self.folder), {"x": hashlib.sha256(b"precious\n").hexdigest()}, str(result))
        if result:
            self.assertEqual(result.code, 1, str(result))
            for needle in ("symbolic link", *needles):
                self.assertIn(str(needle), result.stderr, str(result))

    def plant(self, name, target=None):
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target or self.victim)
        return path

    def dsrun(self, *arguments, **options):
        return self.run_program(*arguments, program="DSPACK_DSRUN", **options)

    def test_temporaries_of_files_that_the_user_names(self):
        commands = {"page.html": ["inspect", self.data(), "--html", self.work / "page.html"],
                    "stats.json": [self.data(), "--tokens", TOKENS, "-n", 1, "--stats", self.work / "stats.json"],
                    "logits.safetensors": ["logits", self.data(), "--tokens", TOKENS, "--out",
                                           self.work / "logits.safetensors"],
                    "recording": ["record", self.data(), "--tokens", TOKENS, "--modules", "lm_head", "--out",
                                  self.work / "recording"]}
        for name, command in commands.items():
            with self.subTest(name):
                run = self.run_program if command[0] == "inspect" else self.dsrun
                for temporary in (name + ".tmp", "." + name + ".tmp"):
                    self.plant(temporary)
                self.assert_ok(run(*command))
                self.assert_spared()
                self.assertTrue((self.work / name).is_file() and not (self.work / name).is_symlink())
                self.assertFalse(os.path.lexists(self.work / ("." + name + ".tmp")))
                os.remove(self.work / name)
                self.plant(name)  # the name itself: the link is replaced
                self.assert_ok(run(*command))
                self.assert_spared()
                self.assertFalse((self.work / name).is_symlink())

    def test_a_folder_in_the_temporary_s_place_is_left_alone(self):
        (self.work / ".page.html.tmp").mkdir()
        (self.work / ".page.html.tmp" / "mine").write_text("x")
        result = self.run_program("inspect", self.data(), "--html", self.work / "page.html")
        self.assert_refused(result, self.work / ".page.html.tmp", "is a folder")
        self.assertTrue((self.work / ".page.html.tmp" / "mine").exists())

    def test_the_recording_of_routes(self):
        trace = self.plant("trace")
        result = self.dsrun(self.data(), "--tokens", TOKENS, "-n", 1, "--trace", trace)
        self.assert_spared(result, trace)

    def test_the_manifest_s_temporary(self):
        """An unfinished folder from somebody else, to be completed here."""
        out = self.work / "out"
        for name in ("manifest.json.tmp", ".manifest.json.tmp"):
            shutil.rmtree(out, ignore_errors=True)
            (out / ".reshard").mkdir(parents=True)
            self.plant("out/" + name)
            self.plant("out/.README.md.tmp")
            self.repack(self.data(), out)
            self.assert_spared()

    def test_work_folders_and_their_files(self):
        """In a run that has begun, and has done nothing yet."""
        server = self.serve(write_small(self.scratch / "small"))
        for shard in SHARDS:
            server.add_fault(shard, "403", skip=1)  # the catalogue's probe passes
        begun = self.scratch / "begun"
        self.assertEqual(self.repack(server.url, begun, "--jobs", 1).code, 1)
        self.assertTrue((begun / ".reshard" / "journal").stat().st_size)
        server.clear_faults()
        for name, target in ((".reshard/lock", None), (".reshard/journal", None), (".reshard", self.folder),
                             (".reshard/part", self.folder), (".reshard/part/model/embed.safetensors", None),
                             (".reshard/part/model", self.folder), ("model", self.folder),
                             ("model/layers", self.folder)):
            with self.subTest(name):
                out = self.work / "out"
                shutil.rmtree(out, ignore_errors=True)
                shutil.copytree(begun, out)
                there = out / name
                shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
                self.plant("out/" + name, target)
                for place in (str(out), str(out) + "/"):
                    self.assert_spared(self.repack(server.url, place), name.split("/")[-1])
                shutil.rmtree(out)

    def test_unpack(self):
        for name, target in ((".reshard", self.folder), (".reshard/lock", None), (".reshard/unpack", None)):
            with self.subTest(name):
                out = self.work / "out"
                shutil.rmtree(out, ignore_errors=True)
                (out / ".reshard").mkdir(parents=True)
                if name == ".reshard":
                    (out / ".reshard").rmdir()
                self.plant("out/" + name, target)
                result = self.run_program("unpack", packed_tiny("layer"), "--out", out)
                if name == ".reshard/unpack":  # read, and no mark of ours
                    self.assertEqual(result.code, 1, str(result))
                    self.assert_spared()
                else:
                    self.assert_spared(result, name.split("/")[-1])
                shutil.rmtree(out)

    def test_link(self):
        for made in (False, True):
            flat = self.work / "flat"
            if made:
                self.assert_ok(self.run_program("link", packed_tiny("layer"), "--out", flat))
            self.plant(".flat.reshard-link", self.folder)
            result = self.run_program("link", packed_tiny("layer"), "--out", flat)
            self.assert_spared(result, ".flat.reshard-link")
            os.remove(self.work / ".flat.reshard-link")

    def test_caches(self):
        server = self.serve(packed_tiny("expert"))
        cache = self.work / "cache"
        command = (server.url, "--tokens", TOKENS, "-n", 1, "--cache", cache)
        self.assert_ok(self.dsrun(*command))
        (folder,) = cache.iterdir()
        for name, target in ((".dspack-cache/lock", None), (".dspack-cache/journal", None),
                             (".dspack-cache", self.folder), (".dspack-cache/part", self.folder)):
            with self.subTest(name):
                shutil.rmtree(folder)
                (folder / ".dspack-cache").mkdir(parents=True)
                if name == ".dspack-cache":
                    (folder / ".dspack-cache").rmdir()
                (folder / name).symlink_to(target or self.victim)
                result = self.dsrun(*command)
                self.assertEqual(result.code, 1, str(result))
                self.assert_spared()

    def test_devices_and_descriptors_are_written_as_they_are(self):
        """As a user who may write to /dev/null but not to /dev; a pipe in its place."""
        null = os.stat("/dev/null")
        if not stat.S_ISCHR(null.st_mode):
            self.skipTest("/dev/null of this machine is no device when the test begins: %s" % (null,))
        pipe = self.work / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        run = [self.data(), "--tokens", TOKENS, "-n", 1]
        self.assert_ok(self.dsrun(*run, "--stats", pipe))
        self.assertIn("experts", json.loads(os.read(reader, 1 << 20)))
        self.assert_ok(self.dsrun(*run, "--trace", pipe))
        self.assertTrue(os.read(reader, 1 << 20).startswith(b"{"))
        result = self.assert_ok(self.dsrun(*run, "--stats", "/dev/stdout"))
        self.assertIn('"experts"', result.stdout)
        result = self.assert_ok(self.dsrun(*run, "--trace", "/dev/fd/2"))
        self.assertIn('"model_type"', result.stderr)
        for arguments in (["--stats", "/dev/null"], ["--trace", "/dev/null"]):
            self.assert_ok(self.dsrun(*run, *arguments))
        self.assert_ok(self.dsrun("logits", self.data(), "--tokens", TOKENS, "--out", "/dev/null"))
        after = os.stat("/dev/null")
        self.assertEqual((after.st_mode, after.st_rdev, after.st_ino), (null.st_mode, null.st_rdev, null.st_ino))
        self.assertTrue(os.path.islink("/dev/stdout"))


if __name__ == "__main__":
    if "DSPACK_RESHARD" not in os.environ:
        sys.exit("run through ctest")
    main()
