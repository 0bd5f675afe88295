"""Running a part of a model: what it lacks is read from the place that it was made from, and nothing else is."""

import functools
import hashlib
import json
import re
import shutil

import safetensors_io
from checkpoints import bf16_tiny, packed_tiny
from common import EndToEnd, flip_bit, main
from hub_case import HubCase

GOLDENS = json.loads((HubCase.data("tiny-v3-golden") / "prompts.json").read_text(encoding="utf-8"))["prompts"]
TOKENS = ",".join(map(str, GOLDENS[0]["token_ids"]))
NOWHERE = {"HF_ENDPOINT": "http://no-such-host.invalid"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}
SHARD = "model-00003-of-000005.safetensors"


@functools.lru_cache(maxsize=None)
def shards_of(folder):
    """{SHA-256 of a shard: (where its bytes begin, [(begin, end, name of a tensor)])}"""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        places = [(start + info["data_offsets"][0], start + info["data_offsets"][1], name)
                  for name, info in header.items() if name != "__metadata__"]
        found[hashlib.sha256(data).hexdigest()] = start, places
    return found


def in_mtp(name):
    return name.startswith("model.layers.5.")


class Parts(HubCase):
    """`o/n` on the Hub is the trained checkpoint; `self.part` what is made of a part of it."""

    def setUp(self):
        EndToEnd.setUp(self)  # HubCase's packs the source; here one packed copy does for all cases
        self.source, self.whole = self.data(), packed_tiny()
        self.hub = self.serve_hub()
        self.hub.add("o/n", self.source)
        self.part = self.scratch / "part"
        self.cache = self.scratch / "cache"

    def make(self, *recipe, place="o/n", by="expert"):
        self.assert_ok(self.pack(place, *recipe, out=self.part, by=by))
        self.begin = len(self.hub.requests())

    def run_model(self, place, *arguments, env=None, token="", **options):
        return self.run_program(place, "--tokens", TOKENS, "-n", 12, "--cache", self.cache, *arguments,
                                program="DSPACK_DSRUN", env={**self.env(token), **(env or {})}, **options)

    def run_part(self, *arguments, place="origin", **options):
        return self.run_model(self.part, "--absent-from", place, *arguments, **options)

    said = []  # the text of the whole model

    def assert_text(self, result):
        if not self.said:
            whole = self.run_program(self.data(), "--tokens", TOKENS, "-n", 12, program="DSPACK_DSRUN")
            self.said.append(self.assert_ok(whole).stdout)
        self.assertEqual(self.assert_ok(result).stdout, self.said[0], str(result))
        return result

    def assert_fails(self, result, *words):
        self.assertEqual(result.code, 1, str(result))
        for word in words:
            self.assertIn(word, result.stderr, str(result))

    def local_names(self):
        manifest = json.loads((self.part / "manifest.json").read_text())
        if "zstd" not in manifest["requires"]:
            return set(safetensors_io.read_checkpoint(self.part)) | set(manifest.get("aliases", {}))
        flat = self.scratch / "flat"
        self.assert_ok(self.run_program("unpack", self.part, "--out", flat))
        return set(safetensors_io.read_checkpoint(flat))

    def touched(self):
        """Names of tensors of which bytes were sent since the part was made."""
        names = set()
        for entry in self.hub.requests()[self.begin:]:
            if entry.host != "storage" or entry.range is None:
                continue
            start, places = shards_of(self.source)[entry.path.rpartition("/")[2]]
            begin, end = entry.range
            if begin < start:
                continue  # a header, with what the probe of an unknown file brings along
            names |= {name for first, last, name in places if begin < last and first < end}
        return names

    def assert_only_absent_asked(self):
        local, touched = self.local_names(), self.touched()
        self.assertEqual(sorted(touched & local), [])
        self.assertTrue(touched)
        return touched

    def assert_asks_nothing(self, run):
        before = len(self.hub.requests())
        result = run()
        self.assertEqual([entry.raw_path for entry in self.hub.requests()[before:]], [])
        return result

    def stats(self, *arguments, **options):
        path = self.scratch / "stats.json"
        self.assert_text(self.run_part("--stats", path, *arguments, **options))
        return json.loads(path.read_text())


class FromTheHub(Parts):
    def check(self, *recipe, **options):
        self.make(*recipe, **options)
        self.assert_text(self.run_part())
        touched = self.assert_only_absent_asked()
        stats = self.assert_asks_nothing(self.stats)
        self.assertEqual(stats["network"]["requests"], 0)
        return touched

    def test_layers_are_absent(self):
        touched = self.check("--include", "layers=2-3")
        self.assertIn("lm_head.weight", touched)
        self.assertTrue(any(name.startswith("model.layers.4.mlp.experts.") for name in touched))

    def test_experts_are_absent(self):
        touched = self.check("--exclude", "experts=16-63")
        self.assertTrue(all(re.search(r"\.experts\.(1[6-9]|[2-6]\d)\.", name) for name in touched), touched)

    def test_only_experts_are_there(self):
        touched = self.check("--include", "experts=0-31", by="layer")
        self.assertIn("model.embed_tokens.weight", touched)

    def test_single_tensors_are_absent(self):
        touched = self.check("--exclude", "role=router", "--exclude", "role=norm", "--exclude", "role=embed", by="layer")
        self.assertIn("model.layers.3.mlp.gate.weight", touched)
        self.assertFalse(any(".experts." in name for name in touched), touched)

    def test_an_expert_that_is_half_there_comes_whole_from_the_origin(self):
        self.make("--exclude", "name=*.experts.1[0-9].up_proj.*")
        self.assert_text(self.run_part())
        touched = self.touched()
        self.assertTrue(touched)
        self.assertTrue(all(re.search(r"\.experts\.1\d\.", name) for name in touched), touched)
        self.assert_text(self.assert_asks_nothing(self.run_part))

    def test_compressed_and_with_equal_tensors_once(self):
        self.check("--include", "layers=0-3", "--exclude", "experts=0-15", "--compress", "zstd", "--dedupe")

    def test_without_the_mtp_module(self):
        self.make("--include", "layers=2-5", "--drop-mtp")
        self.assert_text(self.run_part("--mtp", "auto"))
        self.assertFalse([name for name in self.assert_only_absent_asked() if in_mtp(name)])

    def test_drafts_of_an_absent_module(self):
        self.make("--include", "layers=0-4")
        self.assert_text(self.run_part("--mtp", 1))
        self.assertTrue([name for name in self.assert_only_absent_asked() if in_mtp(name)])

    def test_the_commit_counts_not_the_name(self):
        self.make("--include", "layers=2-3")
        broken = bytearray((self.data() / SHARD).read_bytes())
        broken[-1000:] = bytes(1000)
        self.hub.commit("o/n", {SHARD: bytes(broken)})
        self.assert_text(self.run_part())

    def test_one_cache_with_the_whole_model(self):
        self.make("--include", "layers=2-3")
        self.assert_text(self.run_model("hf://o/n@" + self.commit_of()))
        self.assert_text(self.assert_asks_nothing(self.run_part))

    def test_from_a_local_snapshot(self):
        self.make("--include", "layers=2-3")
        self.fill_cache()
        self.assertIn("read from the local snapshot", self.assert_text(self.run_part()).stderr)
        self.assertEqual(self.touched(), set())
        self.assert_text(self.assert_asks_nothing(lambda: self.run_part(env=OFFLINE)))

    def test_a_private_origin(self):
        self.hub.add("o/private", self.data(), private=True)
        self.assert_ok(self.pack("o/private", "--include", "layers=2-3", out=self.part, token=None))
        self.assert_fails(self.run_part(), "no such repository", "HF_TOKEN")
        self.assert_text(self.run_part(token=None))
        self.assertEqual(self.hub.token_leaks(), [])

    def test_without_a_network(self):
        self.make("--include", "layers=2-3")
        self.assert_fails(self.run_part(env=OFFLINE), "HF_HUB_OFFLINE is set")
        self.assert_text(self.run_part())
        for env in (OFFLINE, NOWHERE):
            self.assert_text(self.assert_asks_nothing(lambda env=env: self.run_part(env=env)))

    def test_little_room_for_what_is_absent(self):
        self.make("--exclude", "experts=16-63")
        self.assert_fails(self.run_model("hf://o/n", "--disk", "400KB"), "--disk 400 kB")
        stats = self.stats("--disk", "400KB")
        self.assertLessEqual(stats["network"]["cache_size_bytes"], 400_000)

    def test_what_the_cache_has_spoilt_is_fetched_again(self):
        self.make("--exclude", "experts=16-63")
        self.assert_text(self.run_part())
        kept = sorted(self.cache.glob("*/model/layers/*/experts/*.safetensors"))
        self.assertTrue(kept)
        for path in kept:
            flip_bit(path, -100)
        self.assertEqual(self.stats()["network"]["refetches"], len(kept))

    def test_a_part_that_is_distant_itself(self):
        self.make("--include", "layers=2-3")
        self.hub.add("o/part", self.part)
        run = functools.partial(self.run_model, "hf://o/part", "--absent-from", "origin")
        self.assert_fails(self.run_model("hf://o/part"), "--absent-from origin")
        self.assert_text(run())
        before = len(self.hub.requests(host="storage"))
        self.assert_text(run())
        self.assertEqual(len(self.hub.requests(host="storage")), before)

    def test_plan_says_what_is_absent(self):
        self.make("--include", "layers=2-3")
        arguments = ["plan", self.part, "--absent-from", "origin", "--cache", self.cache]
        supposed = (*arguments, "--gpu-memory", "1GB")  # of which nothing is measured
        result = self.assert_ok(self.run_program(*supposed, program="DSPACK_DSRUN", env=self.env()))
        self.assertRegex(result.stdout, r"absent: 192 experts \(\d.*\) and \d+ other tensors \(.*\), read from hf://o/n@")
        arguments += ["--json", "--threads", 1]  # what is measured takes so much less of the processor
        result = self.assert_ok(self.run_program(*arguments, program="DSPACK_DSRUN", env=self.env()))
        absent = json.loads(result.stdout)["absent"]
        self.assertEqual(absent["experts"], 192)
        whole, part = (json.loads((folder / "manifest.json").read_text())["coverage"] for folder in (self.whole, self.part))
        self.assertEqual(absent["expert_bytes"] + absent["other_bytes"], whole["payload_bytes"] - part["payload_bytes"])


class Converted(Parts):
    def logits(self, place, *arguments):
        out = self.scratch / "logits.safetensors"
        self.assert_ok(self.run_program("logits", place, "--tokens", TOKENS, "--out", out, *arguments,
                                        program="DSPACK_DSRUN", env=self.env()))
        return out.read_bytes()

    def check(self, transform, layers, source=HubCase.data(), place="o/n"):
        """A part that was converted, and the rest as released: equal to a whole of which that part was converted."""
        self.make("--include", "layers=" + layers, "--transform", transform, place=place)
        mixed = self.scratch / "mixed"
        self.assert_ok(self.repack(source, mixed, "--transform", "%s layers=%s" % (transform, layers)))
        self.assertEqual(self.logits(self.part, "--absent-from", "origin", "--cache", self.cache), self.logits(mixed))

    def test_bf16_to_fp8(self):
        """Of a source without a quantization_config, which the part has got."""
        self.hub.add("o/bf16", bf16_tiny())
        self.check("bf16-to-fp8", "2-3", source=bf16_tiny(), place="o/bf16")

    def test_fp8_to_bf16(self):
        self.check("fp8-to-bf16", "2-3")

    def test_fp8_to_f32(self):
        self.check("fp8-to-f32", "0-1")

    def test_scales_to_e8m0(self):
        self.check("scales-to-e8m0", "1-4")


class OtherPlaces(Parts):
    def setUp(self):
        super().setUp()
        self.make("--include", "layers=2-3", place=self.data())

    def test_nothing_is_fetched_without_the_option(self):
        self.assert_fails(self.run_model(self.part), "is absent", "--absent-from PLACE", "holds a part of the model")
        shutil.rmtree(self.part)
        self.make("--include", "layers=2-3")
        self.assert_asks_nothing(lambda: self.assert_fails(
            self.run_model(self.part), "is absent", "--absent-from origin", "hf://o/n@" + self.commit_of()))

    def test_a_folder_cannot_say_where_it_was(self):
        self.assert_fails(self.run_part(), "does not record the folder or address", "--absent-from PLACE")

    def test_local_folders(self):
        for place in (self.data(), packed_tiny(), packed_tiny("layer")):
            self.assert_text(self.run_part(place=place))
        self.assertFalse(self.cache.exists(), "nothing of a folder is kept")

    def test_distant_ones(self):
        server = self.serve(self.data())
        self.hub.add("o/packed", packed_tiny("layer"))
        for place in (server.url, "o/n", "hf://o/packed"):
            self.assert_text(self.run_part(place=place))
        before = len(server.log)
        self.assert_text(self.run_part(place=server.url))
        self.assertEqual(len(server.log), before)

    def test_the_other_part(self):
        rest = self.scratch / "rest"
        self.assert_ok(self.repack(self.data(), rest, "--exclude", "layers=2-3"))
        self.assert_text(self.run_part(place=rest))
        shutil.rmtree(rest)
        self.assert_ok(self.repack(self.data(), rest, "--exclude", "layers=2-4"))
        self.assert_fails(self.run_part(place=rest), "is absent")

    def changed(self, name, change):
        """A copy of the checkpoint with other bytes in its third shard."""
        folder = self.copy_source(name)
        path = folder / SHARD
        data = bytearray(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        path.write_bytes(change(data, start))
        return folder

    def test_another_checkpoint(self):
        def header(data, start):
            return data[:start].replace(b'"BF16"', b'"F16" ', 1) + data[start:]

        def size(data, start):
            return safetensors_io.with_length(bytes(data[8:start]) + b" " * 8) + data[start:]

        says = "is not what %s was made from: its %s has" % (self.part, SHARD)
        for change, reason in ((header, "another header"), (size, "and that of the part's source")):
            folder = self.changed(change.__name__, change)
            for place in (folder, self.serve(folder).url):
                self.assert_fails(self.run_part(place=place), says, reason)
        self.assert_fails(self.run_part(place=self.data("family/v2-lite")), "is not what %s was made from" % self.part,
                          "it has no model-00001-of-000005.safetensors")

    def test_a_model_of_the_same_shape_has_other_bytes(self):
        folder = self.copy_source("tuned")
        for path in folder.glob("*.safetensors"):
            data = path.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            path.write_bytes(data[:start] + data[start:].translate(bytes(byte ^ 1 for byte in range(256))))
        self.hub.add("o/tuned", folder)
        packed = self.scratch / "tuned-packed"
        self.assert_ok(self.repack(folder, packed))
        for place in (folder, self.serve(folder).url, "o/tuned", packed):
            self.assert_fails(self.run_part(place=place), "is not what %s was made from" % self.part, "SHA-256")

    def test_what_is_no_part(self):
        for place in (packed_tiny(), self.data()):
            self.assert_fails(self.run_model(place, "--absent-from", self.data()), "is no part of a model")
        self.assert_fails(self.run_part(place=self.scratch / "no-such-folder"), "no-such-folder")
        self.assert_fails(self.run_part(place=self.part), "has none of the tensors that", "lacks")


if __name__ == "__main__":
    main()
