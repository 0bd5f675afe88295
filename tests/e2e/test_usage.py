"""The command line itself: help, versions, mistakes and their exit status; and `reshard inspect`."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import safetensors_io
from checkpoints import packed_tiny, write_small
from common import EndToEnd, exact_size, main


class Usage(EndToEnd):
    def test_help_goes_to_stdout(self):
        for arguments in (["--help"], ["-h"], ["inspect", "--help"], ["verify", "--help"],
                          ["unpack", "--help"], ["diff", "--help"]):
            result = self.assert_ok(self.run_program(*arguments))
            self.assertGreater(len(result.stdout), 200)
            self.assertEqual(result.stderr, "")
        text = self.run_program("--help").stdout
        for word in ("--by", "--out", "--jobs", "--dry-run", "inspect", "verify", "unpack", "diff", "HF_ENDPOINT", "Exit status"):
            self.assertIn(word, text)

    def test_the_version_is_one_line(self):
        self.assertRegex(self.assert_ok(self.run_program("--version")).stdout, r"^reshard \(dspack\) \d+\.\d+\.\d+\ncommit ")

    def test_wrong_usage_is_status_2(self):
        out = ["--by", "expert", "--out", self.scratch / "packed"]
        cases = [[], ["--unknown"], [*out, "--unknown"], ["--by"], ["--by", "expert"], ["--out", "x"],
                 *[[*out, "--jobs", jobs] for jobs in ("0", "-1", "257", "many", "", "1.5", "99999999999999999999")],
                 [*out, "source", "another source"], ["inspect"], ["inspect", "a", "b"], ["verify"],
                 ["verify", "a", "--source"], ["inspect", "a", "--by", "expert", "--unknown"]]
        for arguments in cases:
            with self.subTest(arguments):
                result = self.run_program(*arguments)
                self.assertEqual(result.code, 2, str(result))
                self.assertEqual(result.stdout, "", str(result))
                self.assertNotEqual(result.stderr, "", str(result))
        self.assert_absent(self.scratch / "packed")

    def test_verbs_and_headings_are_in_the_help_of_both_programs(self):
        for program, parts in (("DSPACK_RESHARD", ("Recipe:", "Network and jobs:", "\n  publish ", "\n  diff ")),
                               ("DSPACK_DSRUN", ("Sampling:", "Memory:", "Device:", "\n  plan ", "\n  replay "))):
            text = self.assert_ok(self.run_program("--help", program=program)).stdout
            for part in ("Verbs (", "Development:", "Exit status", *parts):
                self.assertIn(part, text)

    def test_settings_for_developers_list_themselves(self):
        for program, verb, key in (("DSPACK_RESHARD", [], "retries"), ("DSPACK_RESHARD", ["verify"], "retries"),
                                   ("DSPACK_DSRUN", [], "mtp-hidden"), ("DSPACK_DSRUN", ["replay"], "policy")):
            listed = self.assert_ok(self.run_program(*verb, "--dev", "help", program=program))
            self.assertRegex(listed.stdout, "\n  %s=" % key)
            for word in ("unknown=1", key, "=", ""):
                with self.subTest([program, verb, word]):
                    result = self.run_program(*verb, "x", "--dev", word, program=program)
                    self.assertEqual((result.code, result.stdout), (2, ""), str(result))
                    self.assertIn(key, result.stderr)

    def test_a_dry_run_needs_no_output_folder_and_leaves_nothing(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.data())  # from inside the source, too
        result = self.assert_ok(self.run_program(".", "--by", "expert", "--dry-run"))
        self.assertIn("328 weight files", result.stdout)

    def test_an_unknown_grouping_is_refused_before_anything_is_asked_of_a_server(self):
        server = self.serve(self.data())
        result = self.run_program(server.url, "--by", "layers", "--out", self.scratch / "packed")
        self.assertEqual(result.code, 2, str(result))
        self.assertRegex(result.stderr, r'^[^\n]*--by[^\n]*"layers"[^\n]*"expert"[^\n]*\n$')
        self.assertEqual(server.requests(), [])
        self.assert_absent(self.scratch / "packed")


class Inspect(EndToEnd):
    def test_text_has_the_totals(self):
        sources = safetensors_io.read_checkpoint(self.data())
        payload = sum(len(raw) for _, _, raw in sources.values())
        for place, kind in ((self.data(), "checkpoint"), (packed_tiny(), "packed repository")):
            text = self.assert_ok(self.run_program("inspect", place)).stdout
            self.assertIn("%d tensors, %s, 6 layers, 320 routed experts" % (len(sources), exact_size(payload)), text)
            self.assertIn("\n%s: " % kind, text)
            dtypes = {}
            for dtype, _, raw in sources.values():
                count, size = dtypes.get(dtype, (0, 0))
                dtypes[dtype] = count + 1, size + len(raw)
            for dtype, (count, size) in dtypes.items():
                self.assertRegex(text, r"\n  %s +%d +%d\n" % (dtype, count, size))
            for layer in range(6):
                mine = [len(raw) for name, (_, _, raw) in sources.items() if name.startswith("model.layers.%d." % layer)]
                self.assertRegex(text, r"\n  %d +%d +%d +%d " % (layer, len(mine), sum(mine), 64 if layer else 0))

    def entries(self, place):
        lines = self.assert_ok(self.run_program("inspect", place, "--json")).stdout.split("\n")[:-1]
        return {entry["name"]: entry for entry in map(json.loads, lines)}

    def test_json_leads_to_every_tensors_bytes(self):
        sources = safetensors_io.read_checkpoint(self.data())
        for place in (self.data(), packed_tiny()):
            entries = self.entries(place)
            self.assertEqual(set(entries), set(sources))
            for name, (dtype, shape, raw) in sources.items():
                entry = entries[name]
                self.assertEqual(set(entry), {"name", "dtype", "shape", "file", "range"})
                self.assertEqual((entry["dtype"], entry["shape"]), (dtype, shape))
                with open(entry["file"], "rb") as file:
                    file.seek(entry["range"][0])
                    self.assertEqual(file.read(entry["range"][1] - entry["range"][0]), raw, name)

    def test_json_over_http_gives_urls_and_ranges(self):
        sources = safetensors_io.read_checkpoint(self.data())
        server = self.serve(self.data())
        entries = self.entries(server.url)
        self.assertEqual(set(entries), set(sources))
        for name in list(sources)[::200] + ["model.norm.weight"]:
            begin, end = entries[name]["range"]
            request = urllib.request.Request(entries[name]["url"], headers={"Range": "bytes=%d-%d" % (begin, end - 1)})
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request) as answer:
                self.assertEqual(answer.read(), sources[name][2], name)

    def test_headers_cost_one_request_a_shard(self):
        server = self.serve(self.data())
        self.assert_ok(self.run_program("inspect", server.url))
        for shard in self.data().glob("*.safetensors"):
            requests = server.requests(shard.name)
            header_bytes = safetensors_io.parse(shard.read_bytes())[1]
            self.assertEqual(len(requests), 1 if header_bytes <= 64 * 1024 else 2, shard.name)

    def test_awkward_names_stay_one_line_each(self):
        source = self.scratch / "source"
        source.mkdir()
        names = ["a\nb", 'quo"te', "\x1b[31mred", "\u00e4\u2028\U0001f600", "", "x" * 10_000]
        safetensors_io.write(source / "model.safetensors", {name: ("U8", [1], b"x") for name in names})
        self.assertEqual(set(self.entries(source)), set(names))

    def test_a_full_disk_behind_stdout_is_an_error(self):
        with open("/dev/full", "wb") as full:
            for arguments in (["inspect", self.data(), "--json"], ["inspect", write_small(self.scratch / "s")]):
                process = subprocess.run([self.start("--version").args[0], *map(str, arguments)], stdout=full,
                                         stderr=subprocess.PIPE, timeout=60)
                self.assertEqual(process.returncode, 1, "output was lost and nobody was told")

    def test_a_closed_stderr_does_not_crash_it(self):
        process = self.start("inspect", self.scratch / "nowhere", before=lambda: os.close(2))
        self.assertEqual(self.finish(process).code, 1)

    def test_a_reader_that_leaves_ends_it(self):
        process = self.start("inspect", self.data(), "--json")
        process.stdout.read(10)
        process.stdout.close()
        process.stdout = None
        self.assertIn(process.wait(timeout=60), (1, -signal.SIGPIPE))
        self.assertFalse(re.search("terminate|Sanitizer", process.stderr.read().decode()))


if __name__ == "__main__":
    main()
