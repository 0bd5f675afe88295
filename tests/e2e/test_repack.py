"""Repacking the small checkpoint: what comes out is right, complete, and the same from every place."""

import json
import os
import re
import resource
import shutil
import subprocess
import time

import safetensors_io
from checkpoints import packed_tiny, write_small
from common import INDEX, EndToEnd, answers, free_port, is_sanitized, limit, main, tree

PROBE_BYTES = 64 * 1024  # of every file when it is opened: its size, its version and nearly every header
COMPANIONS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


class Repack(EndToEnd):
    def setUp(self):
        super().setUp()
        self.packed = packed_tiny()
        self.out = self.scratch / "packed"

    def test_every_tensor_is_in_a_valid_file_with_its_own_bytes(self):
        self.assertEqual(list(self.packed.glob("*.safetensors")), [], "loaders would take it for the whole model")
        packed = {}
        for path in sorted(self.packed.rglob("*.safetensors")):
            tensors, data_start = safetensors_io.parse(path.read_bytes())
            self.assertEqual(data_start % 4096, 0, path)
            for name, value in tensors.items():
                self.assertNotIn(name, packed, path)
                packed[name] = value
        source = safetensors_io.read_checkpoint(self.data())
        self.assertEqual(sorted(packed), sorted(source))
        self.assertEqual([name for name in source if source[name] != packed[name]], [])
        self.assertTrue(any(name.startswith("model.layers.5.eh_proj") for name in packed), "the MTP layer is missing")

    def test_each_expert_has_its_own_file_and_nothing_else_is_in_it(self):
        for layer in range(1, 6):
            files = sorted((self.packed / "model/layers" / ("%03d" % layer) / "experts").iterdir())
            self.assertEqual([file.name for file in files], ["%03d.safetensors" % expert for expert in range(64)])
            for expert, file in enumerate(files):
                prefix = "model.layers.%d.mlp.experts.%d." % (layer, expert)
                wanted = {prefix + part + suffix for part in ("gate_proj", "up_proj", "down_proj")
                          for suffix in (".weight", ".weight_scale_inv")}
                self.assertEqual(set(safetensors_io.parse(file.read_bytes())[0]), wanted)

    def test_matrices_of_whole_pages_start_on_a_page(self):
        aligned = 0
        for path in self.packed.rglob("*.safetensors"):
            tensors, at = safetensors_io.parse(path.read_bytes())
            ends_of_pages = False
            for _, _, raw in tensors.values():
                if len(raw) % 4096 == 0 and raw:
                    self.assertFalse(ends_of_pages, "%s: whole pages behind something else" % path)
                    self.assertEqual(at % 4096, 0, path)
                    aligned += 1
                else:
                    ends_of_pages = True
                at += len(raw)
        self.assertGreater(aligned, 900, "every expert has three matrices of whole pages")

    def test_the_index_names_every_tensor_and_its_file(self):
        weight_map = json.loads((self.packed / INDEX).read_text())["weight_map"]
        self.assertEqual(sorted(weight_map), sorted(safetensors_io.read_checkpoint(self.data())))
        for path in set(weight_map.values()):
            names = {name for name, file in weight_map.items() if file == path}
            self.assertEqual(names, set(safetensors_io.parse((self.packed / path).read_bytes())[0]))

    def assert_companions(self, source, packed, names):
        names = {name: name for name in names}
        names.update({"README.md": "README.source.md", INDEX: "provenance/" + INDEX})
        for name, copy in names.items():
            self.assertEqual((packed / copy).read_bytes(), (source / name).read_bytes(), name)
        manifest = json.loads((packed / "manifest.json").read_text())
        listed = {file["path"] for file in manifest["files"] + manifest["companions"]}
        self.assertEqual(listed | {"manifest.json"}, {path for path, kind in tree(packed).items() if kind != "folder"})

    def test_companions_are_copied_byte_for_byte(self):
        self.assert_companions(self.data(), self.packed, COMPANIONS)
        source = write_small(self.scratch / "source")
        odd = {"LICENSE": b"licence\r\n", "modeling_x.py": b"# code\n", "figures/old/a b.png": b"\0\n", "empty": b""}
        for name, content in odd.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
        self.assert_ok(self.repack(source, self.out))
        self.assert_companions(source, self.out, ["config.json", *odd])

    def test_the_number_of_jobs_does_not_show_in_the_result(self):
        for jobs in (1, 8):
            self.assert_ok(self.repack(self.data(), self.scratch / str(jobs), "--jobs", jobs))
            self.assert_same_tree(self.packed, self.scratch / str(jobs))

    def test_a_second_run_finds_the_work_done_and_touches_nothing(self):
        shutil.copytree(self.packed, self.out)
        before = {path: path.stat().st_mtime_ns for path in self.out.rglob("*")}
        again = self.assert_ok(self.repack(self.data(), self.out))
        self.assertIn("complete already", again.stdout)
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in self.out.rglob("*")})

    def test_the_seconds_of_the_summary_count_from_the_beginning(self):
        """Opening a far source may take longer than the rest."""
        for index in (self.data() / INDEX, packed_tiny() / "manifest.json"):
            server = self.serve(index.parent)
            server.add_fault(index.name, "slow", times=1, rate=index.stat().st_size // 3)
            unpacks = index.name == "manifest.json"
            begin = time.monotonic()
            result = self.assert_ok(self.run_program("unpack", server.url, "--out", self.scratch / "plain") if unpacks
                                    else self.repack(server.url, self.out))
            took = time.monotonic() - begin
            seconds = float(re.search(r"; (\d+\.\d) s", result.stdout).group(1))
            self.assertGreater(seconds, 2, str(result))
            self.assertLessEqual(seconds, took + 0.05)

    def test_a_dry_run_tells_the_work_and_does_none(self):
        result = self.assert_ok(self.repack(self.data(), self.out, "--dry-run"))
        shards = list(self.data().glob("*.safetensors"))
        for number in (sum(file.stat().st_size for file in shards), len(shards), 2059, 320, 328):
            self.assertRegex(result.stdout, r"\b%d\b" % number)
        self.assert_absent(self.out)

    def test_a_hundred_thousand_files_want_a_word(self):
        """One header can name millions of experts, of no bytes each."""
        source = self.scratch / "source"
        source.mkdir()
        count = 100_002  # of three layers alike
        safetensors_io.write(source / "model.safetensors", {
            "model.layers.%d.mlp.experts.%d.up_proj.weight" % (number % 3, number // 3): ("U8", [0], b"")
            for number in range(count)})
        (source / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"}))
        self.assertIn("%d weight files" % count, self.assert_ok(self.repack(source, self.out, "--dry-run")).stdout)
        self.assert_refused(self.repack(source, self.out), "%s would get %d weight files" % (self.out, count), "--yes",
                            "--by layer")
        self.assert_absent(self.out)
        process = self.start(source, "--by", "expert", "--out", self.scratch / "many", "--yes")
        self.wait_until((self.scratch / "many" / ".reshard" / "journal").exists, "the run to begin",
                        seconds=300 if is_sanitized() else 30)
        process.kill()
        self.finish(process)

    def test_a_single_file_checkpoint_needs_no_index(self):
        source = self.scratch / "single"
        source.mkdir()
        safetensors_io.write(source / "model.safetensors", {"model.norm.weight": ("BF16", [3], b"abcdef"),
                                                            "model.layers.0.odd": ("U8", [], b"x"),
                                                            "unknown": ("F32", [0, 4], b"")})
        self.assert_ok(self.repack(source, self.out))
        self.assertEqual(safetensors_io.read_checkpoint(self.out), safetensors_io.read_checkpoint(source))

    def test_awkward_output_paths_work(self):
        source = write_small(self.scratch / "source")
        self.assert_ok(self.repack(source, self.out))
        (self.scratch / "dot").mkdir()
        for out in ("new/folders on/the way", "ends with slash/", "./dot/../dot/x", "\u00fcml\u00e4ut"):
            self.assert_ok(self.repack(source, out, cwd=self.scratch))
            self.assert_same_tree(self.out, self.scratch / out)

    def peak_memory_bytes(self, source, out):
        process = self.start(source, "--by", "expert", "--out", out, "--jobs", 2)
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assert_ok(self.finish(process))
        return usage.ru_maxrss * 1024

    def test_memory_does_not_grow_with_the_checkpoint(self):
        small = self.peak_memory_bytes(write_small(self.scratch / "small"), self.scratch / "packed small")
        large = self.scratch / "large"
        large.mkdir()
        safetensors_io.write_sparse(large / "model.safetensors", {"model.layers.0.x": 150_000_000, "lm_head.y": 999_999})
        self.assertLess(self.peak_memory_bytes(large, self.out) - small, 20_000_000)

    def test_few_open_files_are_enough(self):
        process = self.start(self.data(), "--by", "expert", "--out", self.out, "--jobs", 4,
                             before=limit(resource.RLIMIT_NOFILE, 32))
        self.assert_ok(self.finish(process))
        self.assert_same_tree(self.packed, self.out)


class RepackOverHttp(EndToEnd):
    def setUp(self):
        super().setUp()
        self.local = packed_tiny()
        self.out = self.scratch / "packed"

    def test_the_result_is_that_of_the_local_folder_and_each_byte_is_fetched_once(self):
        server = self.serve(self.data())
        self.assert_ok(self.repack(server.url, self.out, "--jobs", 3))
        self.assert_same_tree(self.local, self.out)
        for shard in sorted(self.data().glob("*.safetensors")):
            requests = server.requests(shard.name)
            self.assertTrue(all(r.range and r.status == 206 for r in requests), requests)
            probes = [r for r in requests if r.range == (0, PROBE_BYTES)]
            self.assertLessEqual(len(probes), 2, "one for the catalogue, one when the shard is opened to be read")
            rest = [r.range for r in requests if r.range != (0, PROBE_BYTES)]
            self.assertEqual(rest, [(PROBE_BYTES, shard.stat().st_size)], shard.name)

    def test_connections_are_kept(self):
        server = self.serve(write_small(self.scratch / "source"))
        self.assert_ok(self.repack(server.url + "/", self.out, "--jobs", 1))
        self.assertLessEqual(len({r.connection for r in server.requests()}), 2)

    def test_file_names_are_encoded(self):
        source = write_small(self.scratch / "source")
        weight_map = json.loads((source / INDEX).read_text())["weight_map"]
        names = {old: "a b%%41#?&+\u00fc/%s" % old for old in set(weight_map.values())}
        for old, new in names.items():
            (source / new).parent.mkdir(exist_ok=True)
            (source / old).rename(source / new)
        safetensors_io.write_index(source, {tensor: names[file] for tensor, file in weight_map.items()})
        self.assert_ok(self.repack(self.serve(source).url, self.out))
        self.assertEqual(safetensors_io.read_checkpoint(self.out), safetensors_io.read_checkpoint(source))

    def test_busybox_httpd_serves_as_well(self):
        busybox = shutil.which("busybox")
        applets = subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split() if busybox else []
        if "httpd" not in applets:
            self.skipTest("busybox httpd is not installed (package busybox)")
        address = "127.0.0.1:%d" % free_port()
        httpd = subprocess.Popen([busybox, "httpd", "-f", "-p", address, "-h", str(self.data())])
        self.addCleanup(self.stop, httpd)
        self.wait_until(lambda: answers(address), "busybox httpd")
        self.assert_ok(self.repack("http://%s/" % address, self.out, "--jobs", 2))
        self.assert_same_tree(self.local, self.out)

    def test_verify_and_inspect_read_over_http_too(self):
        server = self.serve(self.local)
        self.assert_ok(self.run_program("verify", server.url, "--source", self.data()))
        self.assertIn("328 files, 2059 tensors", self.assert_ok(self.run_program("inspect", server.url)).stdout)


if __name__ == "__main__":
    main()
