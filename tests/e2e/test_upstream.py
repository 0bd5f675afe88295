"""`reshard verify --upstream` and `--sha256`: the packed bytes are the source's, proved without the source's bytes."""

import hashlib
import json
import shutil

import safetensors_io
from checkpoints import SHARDS, write_small
from common import EndToEnd, flip_bit, main, seeded_random
from sealing import reseal

TOKEN = "hf_secret_of_the_test"
COMMIT = "c0" * 20
GIT_BLOB = "ab" * 20  # what the Hub has for small files: not a SHA-256 of the content


def checksum_list(folder, mark=" "):
    """What `sha256sum` writes for all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "".join("%s %s%s\n" % (hashlib.sha256(path.read_bytes()).hexdigest(), mark, path.relative_to(folder))
                   for path in files)


class Upstream(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "root" / "files")
        self.packed = self.scratch / "packed"
        self.list = self.scratch / "sums"

    def hub(self, *repositories, linked=True, **options):
        """A Hub that keeps shards elsewhere and has no listing, and that elsewhere."""
        storage = self.serve(self.scratch / "root")
        hub = self.serve(self.scratch / "root", commit=COMMIT, **options)
        for server in (hub, storage):
            for repository in repositories:
                for revision in ("main", COMMIT):
                    server.renames["%s/resolve/%s/" % (repository, revision)] = "files/"
        if linked:
            hub.add_fault("*.safetensors", "redirect", to=storage.url, linked=True)
        return hub, storage

    def pack_from(self, hub):
        self.assert_ok(self.repack("o/n", self.packed, env={"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}))

    def verify(self, *arguments, **options):
        return self.run_program("verify", self.packed, *arguments, **options)

    def assert_findings(self, result, *needles):
        """One line of stdout for each needle, beside those about what fits."""
        self.assertEqual(result.code, 1, str(result))
        lines = [line for line in result.stdout.splitlines() if "every digest fits" not in line
                 and not line.endswith(" rebuilt")]
        self.assertEqual(len(lines), len(needles), str(result))
        for line, needle in zip(lines, needles):
            for word in [needle] if isinstance(needle, str) else needle:
                self.assertIn(word, line, str(result))

    def test_the_hub_is_asked_and_sends_no_payload(self):
        hub = self.serve_hub()
        hub.add("o/n", self.source, private=True)
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token}
        self.assert_ok(self.repack("o/n", self.packed, env=env))
        commit = json.loads((self.packed / "manifest.json").read_text())["origin"]["revision"]
        before = len(hub.requests())
        for place, name in ([], "o/n@" + commit), (["o/n"], "o/n@main (commit %s)" % commit[:12]), (["hf://o/n@main"], "o/n@main"):
            result = self.assert_ok(self.verify("--upstream", *place, env=env))
            self.assertIn("2 source shards", result.stdout)
            self.assertIn("as %s" % name, result.stdout)
            for shard in SHARDS:
                digest = hashlib.sha256((self.source / shard).read_bytes()).hexdigest()
                self.assertIn("%s: SHA-256 %s rebuilt\n" % (shard, digest), result.stdout)
        asked = [(request.method, request.path) for request in hub.requests()[before:]]
        head, tree = ("HEAD", "o/n/resolve/main/config.json"), ("GET", "api/models/o/n/tree/" + commit)
        self.assertEqual(asked, [tree, head, tree, head, tree])

    def test_a_hub_without_a_listing_is_asked_file_by_file(self):
        hub, storage = self.hub("o/n", token=TOKEN)
        self.pack_from(hub)
        before = len(hub.requests()), len(storage.requests())
        self.assert_ok(self.verify("--upstream", env={"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}))
        asked = [request for request in hub.requests()[before[0]:] if not request.path.startswith("api/")]
        self.assertEqual({request.method for request in asked}, {"HEAD"})
        self.assertEqual(len(storage.requests()), before[1], "a link was followed")
        self.assertTrue(all(request.authorization == "Bearer " + TOKEN for request in hub.requests()))

    def test_a_repack_believes_neither_the_hub_s_storage_nor_a_server(self):
        hub, storage = self.hub("o/n", token=TOKEN)
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
        hub.clear_faults()
        hub.add_fault("*.safetensors", "redirect", to=storage.url, linked=True, etag="0" * 64)
        self.assert_refused(self.repack("o/n", self.packed, "--jobs", 1, env=env), SHARDS[1], "SHA-256", "o/n@main (commit c0c0c0c0c0c0) declares 0000")
        self.assert_absent(self.packed / "manifest.json")
        self.assertFalse(list(self.packed.glob("model/**/*.safetensors")), "sealed")
        hub.clear_faults()
        shutil.rmtree(self.packed)
        hub.add_fault("*.safetensors", "redirect", to=storage.url, linked=True)
        storage.add_fault("*" + SHARDS[1], "corrupt", at=(self.source / SHARDS[1]).stat().st_size - 1)
        self.assert_refused(self.repack("o/n", self.packed, "--jobs", 1, env=env), SHARDS[1], "SHA-256", "declares")
        self.assertFalse(list(self.packed.glob("model/**/*.safetensors")), "sealed")
        storage.clear_faults()
        result = self.assert_ok(self.repack("o/n", self.packed, env=env))
        self.assertIn("continuing with that commit", result.stderr)

    def test_a_repack_from_a_list(self):
        self.list.write_text(checksum_list(self.source))
        self.assert_ok(self.repack(self.source, self.packed, "--sha256", self.list))
        other = self.scratch / "other"
        self.list.write_text(checksum_list(self.source).replace(SHARDS[1], "another"))
        self.assert_refused(self.repack(self.source, other, "--sha256", self.list), str(self.list), SHARDS[1])
        wrong = "0" * 64 + "  " + SHARDS[0] + "\n" + "0" * 64 + "  " + SHARDS[1] + "\n"
        self.list.write_text(wrong)
        self.assert_refused(self.repack(self.source, other, "--sha256", self.list, "--jobs", 1), SHARDS[1], "0000")
        self.assert_absent(other / "manifest.json")

    def test_a_plain_etag_may_declare_it_too(self):
        hub, _ = self.hub("o/n", linked=False)
        self.pack_from(hub)
        for shard in SHARDS:
            hub.add_fault("*" + shard, "change_etag", etag=hashlib.sha256((self.source / shard).read_bytes()).hexdigest())
        self.assert_ok(self.verify("--upstream", env={"HF_ENDPOINT": hub.url}))

    def test_a_renamed_repository(self):
        hub, storage = self.hub("o/n", "new/name", linked=False)
        self.pack_from(hub)
        hub.add_fault("o/n/*", "redirect", to="", status=307, within="o/n:new/name")
        hub.add_fault("new/name/*.safetensors", "redirect", to=storage.url, linked=True)
        self.assert_ok(self.verify("--upstream", env={"HF_ENDPOINT": hub.url}))

    def test_what_the_hub_declares_differently(self):
        hub, storage = self.hub("o/n", linked=False)
        self.pack_from(hub)
        env = {"HF_ENDPOINT": hub.url}
        hub.add_fault("*" + SHARDS[0], "redirect", to=storage.url, linked=True)
        other = hub.add_fault("*" + SHARDS[1], "redirect", to=storage.url, linked=True, etag="cd" * 32)
        self.assert_findings(self.verify("--upstream", env=env), (SHARDS[1], "cd" * 32, "o/n@%s declares" % COMMIT))
        other.options["etag"] = GIT_BLOB
        self.assert_findings(self.verify("--upstream", env=env), (SHARDS[1], "not declared by o/n@" + COMMIT))
        other.options.update(etag="", size=17)
        self.assert_findings(self.verify("--upstream", env=env), (SHARDS[1], "declares 17"))
        hub.clear_faults()
        hub.add_fault("*" + SHARDS[0], "redirect", to=storage.url, linked=True)
        hub.add_fault("*" + SHARDS[1], "404")
        self.assert_findings(self.verify("--upstream", env=env), (SHARDS[1], "not declared"))

    def test_a_hub_that_declares_nothing_or_does_not_answer(self):
        hub, _ = self.hub("o/n", linked=False)
        self.pack_from(hub)
        env = {"HF_ENDPOINT": hub.url}
        self.assert_refused(self.verify("--upstream", env=env), "o/n@" + COMMIT, "declares none", "--sha256")
        self.assert_refused(self.verify("--upstream", "o/other", env=env), "o/other@main", "declares none")
        hub.add_fault("*", "401")
        self.assert_refused(self.verify("--upstream", env=env), "HTTP 401", "HF_TOKEN")

    def pack_local(self):
        self.assert_ok(self.repack(self.source, self.packed))

    def test_a_list(self):
        self.pack_local()
        for mark in " *":
            self.list.write_text(checksum_list(self.source, mark))
            self.assertIn("as %s declares" % self.list, self.assert_ok(self.verify("--sha256", self.list)).stdout)
        self.list.write_text(checksum_list(self.source).replace("  ", "  ./"))
        self.assert_ok(self.verify("--sha256", self.list, "--source", self.source))

    def test_a_wrong_list(self):
        self.pack_local()
        good = checksum_list(self.source).splitlines(keepends=True)
        digests = {line.split("  ")[1].strip(): line.split()[0] for line in good}
        wrong = "".join(good).replace(digests[SHARDS[0]], digests[SHARDS[1]])
        for text, needles in ((wrong, [(SHARDS[0], digests[SHARDS[0]], digests[SHARDS[1]])]),
                              ("".join(line for line in good if SHARDS[1] not in line), [(SHARDS[1], "not declared")]),
                              ("", [(SHARDS[0], "not declared"), (SHARDS[1], "not declared")]),
                              ("".join(good) + "%s  model-x.safetensors\n" % ("0" * 64), [("model-x", "not a source")]),
                              ("".join(good).replace(digests["config.json"], "1" * 64), [("config.json", "1" * 64)])):
            self.list.write_text(text)
            self.assert_findings(self.verify("--sha256", self.list), *needles)
        self.list.write_text("nonsense\n")
        self.assert_refused(self.verify("--sha256", self.list), self.list, "line 1", "sha256sum")
        self.assert_refused(self.verify("--sha256", self.scratch / "nowhere"), "nowhere")

    def test_folders_declare_by_their_list_only(self):
        self.pack_local()
        server = self.serve(self.source)
        self.assert_refused(self.verify("--upstream"), self.packed, "packed from a folder", "--sha256", "--source")
        for place in (self.source, server.url):
            self.assert_refused(self.verify("--upstream", place), place, "SHA256SUMS", "--sha256", "--source")
        (self.source / "SHA256SUMS").write_text(checksum_list(self.source))
        for place in (self.source, server.url):
            self.assert_ok(self.verify("--upstream", place))
        self.assertEqual(server.requests("*.safetensors"), [])

    def test_of_a_packed_repository_on_a_server(self):
        self.pack_local()
        self.list.write_text(checksum_list(self.source))
        server = self.serve(self.packed)
        self.assert_ok(self.run_program("verify", server.url, "--sha256", self.list, "--jobs", 2))


class Flipped(EndToEnd):
    """One bit anywhere is found, and its file named."""

    def test_in_every_kind_of_file(self):
        source = write_small(self.scratch / "source")
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(source, packed))
        (self.scratch / "sums").write_text(checksum_list(source))
        random = seeded_random()
        for path in sorted(path for path in packed.rglob("*") if path.is_file()):
            size = path.stat().st_size
            for offset in [0, size - 1, *random.sample(range(size), min(size, 6))]:
                bit = random.randrange(8)
                with self.subTest(path=str(path.relative_to(packed)), offset=offset, bit=bit):
                    flip_bit(path, offset, bit)
                    result = self.run_program("verify", packed, "--sha256", self.scratch / "sums")
                    flip_bit(path, offset, bit)
                    self.assertEqual(result.code, 1, str(result))
                    self.assertIn(str(path.relative_to(packed)), result.stdout + result.stderr, str(result))
        self.assert_ok(self.run_program("verify", packed, "--sha256", self.scratch / "sums"))

    def test_in_the_tensors_of_the_trained_checkpoint(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.data(), packed))
        self.assert_ok(self.run_program("verify", packed, "--sha256", self.sums()))
        random = seeded_random()
        files = random.sample(sorted((packed / "model").rglob("*.safetensors")), 8)
        for path in files:
            data_start = safetensors_io.parse(path.read_bytes())[1]
            offset = random.randrange(data_start, path.stat().st_size)
            flip_bit(path, offset)
            result = self.run_program("verify", packed, "--sha256", self.sums())
            flip_bit(path, offset)
            self.assertEqual(result.code, 1, str(result))
            self.assertEqual(result.stdout.count("%s: tensor " % path.relative_to(packed)), 1, "named once: " + str(result))
            self.assertRegex(result.stdout, r"\nmodel-0000.-of-000005.safetensors: SHA-256 is [0-9a-f]{64}, the manifest")

    def sums(self):
        path = self.scratch / "sums"
        if not path.exists():
            path.write_text(checksum_list(self.data()))
        return path


class Forged(EndToEnd):
    """Somebody changed the packed repository and made all of its own digests fit again: `verify` alone cannot tell."""

    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.source, self.packed))
        (self.scratch / "sums").write_text(checksum_list(self.source))
        self.manifest = json.loads((self.packed / "manifest.json").read_text())

    def reseal(self):
        reseal(self.packed, self.manifest)
        self.assert_ok(self.run_program("verify", self.packed))

    def assert_found(self, *needles):
        result = self.run_program("verify", self.packed, "--sha256", self.scratch / "sums")
        self.assertEqual(result.code, 1, str(result))
        for needle in needles:
            self.assertIn(needle, result.stdout + result.stderr, str(result))

    def test_a_weight(self):
        path = "model/head.safetensors"
        flip_bit(self.packed / path, -1)
        content = (self.packed / path).read_bytes()
        file = next(file for file in self.manifest["files"] if file["path"] == path)
        file["sha256"] = hashlib.sha256(content).hexdigest()
        offsets = [t["data_offsets"] for t in self.manifest["layouts"][file["layout"]]["tensors"]]
        file["tensors"] = [hashlib.sha256(content[file["data_start"] + begin:file["data_start"] + end]).hexdigest()
                           for begin, end in offsets]
        self.reseal()
        self.assert_found(SHARDS[1] + ": SHA-256 is ", "the manifest records", "sums declares")

    def test_a_record_of_the_source(self):
        self.manifest["source"][0]["sha256"] = "0" * 64
        self.reseal()
        self.assert_found(SHARDS[0] + ": SHA-256 is ", "the manifest records " + "0" * 64)

    def test_a_companion(self):
        (self.packed / "config.json").write_text("{}")
        entry = next(file for file in self.manifest["companions"] if file["path"] == "config.json")
        entry.update(size=2, sha256=hashlib.sha256(b"{}").hexdigest())
        self.reseal()
        self.assert_found("config.json: SHA-256 is ", "sums declares")

    def test_source_shards_that_were_left_out_or_renamed(self):
        honest = json.dumps(self.manifest)
        self.manifest["source"].pop()
        self.reseal()
        self.assert_found("headers.json.zst")
        self.manifest = json.loads(honest)
        self.manifest["source"][0]["path"] = "other.safetensors"
        self.reseal()
        self.assert_found("headers.json.zst", "other.safetensors")
        self.manifest = json.loads(honest)
        self.manifest["source"][0]["size"] += 1
        self.reseal()
        self.assert_found("headers.json.zst", SHARDS[0])


if __name__ == "__main__":
    main()
