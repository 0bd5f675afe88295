"""`dsrun cache` and `reshard cache`: what is kept of distant models, listed, checked and removed."""

import fcntl
import json
import os
import pty
import re
import subprocess

from common import clean_environment, flip_bit, main, path_from_environment
from test_remote import Remote, tensors_of


class CacheVerb(Remote):
    def cache_verb(self, *arguments, program="DSPACK_DSRUN", **options):
        return self.run_program("cache", "--cache", self.cache, *arguments, program=program, **options)

    def listed(self):
        return json.loads(self.assert_ok(self.cache_verb("--json")).stdout)

    def filled(self, kind="ordinary", *arguments):
        server = self.serve(self.place(kind))
        self.assert_ok(self.remotely(server, *arguments))
        return server

    def test_a_folder_that_is_not_there_holds_nothing(self):
        result = self.assert_ok(self.cache_verb())
        self.assertRegex(result.stdout, r"^nothing is kept in \S+; \S+ \wB free\n$")
        self.assert_absent(self.cache)

    def test_the_default_folder(self):
        result = self.assert_ok(self.run_program("cache", program="DSPACK_DSRUN"))
        self.assertIn(str(self.scratch / ".cache" / "dspack"), result.stdout)

    def test_what_was_fetched_is_listed(self):
        server = self.filled()
        for program in ("DSPACK_DSRUN", "DSPACK_RESHARD"):
            lines = self.assert_ok(self.cache_verb(program=program)).stdout.splitlines()
            self.assertEqual(len(lines), 4, lines)
            self.assertRegex(lines[1], r"^ *[\d.]+ \wB +\d+ %  just now +partial +" + server.url)
            self.assertEqual(lines[2].strip(), self.folder().name)
            self.assertRegex(lines[3], r"^[\d.]+ \wB of 1 model in \S+; [\d.]+ \wB free$")
        model, = self.listed()["models"]
        on_disk = sum(path.stat().st_blocks * 512 for path in self.folder().rglob("*") if path.is_file())
        self.assertEqual(model["disk_bytes"], on_disk)
        self.assertEqual((model["state"], model["folder"]), ("partial", self.folder().name))
        self.assertLess(model["present_bytes"], model["model_bytes"])
        payload = sum(end - begin for begin, end in self.tensor_ranges())
        self.assertEqual(model["model_bytes"], payload)

    def tensor_ranges(self):
        return [(begin, end) for _, begin, end in tensors_of(self.data()).values()]

    def test_the_last_use_is_that_of_a_run(self):
        server = self.filled()
        journal = self.folder() / ".dspack-cache" / "journal"
        past = journal.stat().st_mtime - 3 * 86400 - 100
        os.utime(journal, (past, past))
        for _ in range(2):  # a look is no use
            self.assertIn("  3 days ago  ", self.assert_ok(self.cache_verb()).stdout)
        self.assert_ok(self.remotely(server))
        self.assertIn("  just now  ", self.assert_ok(self.cache_verb()).stdout)

    def test_looking_and_checking_change_nothing(self):
        server = self.filled()
        before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in self.cache.rglob("*")}
        self.assert_ok(self.cache_verb())
        self.assert_ok(self.cache_verb("--verify", server.url))
        self.assertEqual({path: (path.stat().st_mtime_ns, path.stat().st_size) for path in self.cache.rglob("*")},
                         before)

    def test_every_kind_of_damage_is_found(self):
        for kind in ("ordinary", "expert", "layer"):
            with self.subTest(kind):
                self.cache = self.scratch / ("cache-" + kind)
                server = self.filled(kind)
                checked = self.assert_ok(self.cache_verb("--verify", server.url[:-2])).stdout
                self.assertRegex(checked, r"^%s\S*: \d+ digests, [\d.]+ MB: as they were when they came\n$"
                                 % server.url[:-2])
                work = self.folder() / ".dspack-cache"
                whole = sorted(path for path in self.folder().rglob("*.safetensors") if work not in path.parents)
                grown = sorted((work / "part").rglob("*.safetensors"))
                texts = sorted(path for path in (work / "origin").rglob("*") if path.is_file())
                self.assertTrue(whole and grown and texts)
                for path in (whole[0], texts[-1]):
                    content = path.read_bytes()
                    flip_bit(path, len(content) - 1)
                    result = self.cache_verb("--verify", server.url)
                    self.assertEqual(result.code, 1, str(result))
                    self.assertIn(path.name, result.stdout)
                    path.write_bytes(content)
                grown[0].unlink()
                result = self.cache_verb("--verify", server.url)
                self.assertEqual(result.code, 1, str(result))
                self.assertRegex(result.stdout, grown[0].name + ": is gone")

    def test_damage_of_a_block_is_found(self):
        server = self.filled()
        records = [record for record in self.journal() if record.get("row_blocks")]
        self.assertTrue(records)
        path = self.folder() / ".dspack-cache" / "part" / records[0]["part"]
        content = path.read_bytes()
        changed = bytearray(content)
        for i in range(len(content) - 4096, len(content)):  # a hole or a block: all blocks of the tensor are tried
            changed[i] ^= 1
        for begin in range(4096, len(content), 4096):
            changed[begin] ^= 1
        path.write_bytes(changed)
        result = self.cache_verb("--verify", server.url)
        self.assertEqual(result.code, 1, str(result))
        self.assertRegex(result.stdout, r"bytes \d+ to \d+ differ from what was fetched")
        self.assertIn("digests differ; a run fetches again", result.stdout)

    def test_removal_asks_or_is_told(self):
        server = self.filled()
        self.assert_refused(self.cache_verb("--remove", server.url), "nobody is there; add --yes", program="dsrun")
        self.assertTrue(self.folder().exists())
        self.assert_refused(self.cache_verb("--remove", "http://nowhere", "--yes"), "is not kept here",
                            program="dsrun")
        result = self.assert_ok(self.cache_verb("--remove", server.url, "--yes"))
        self.assertRegex(result.stdout, r"^removed %s\S* \([\d.]+ MB\)\n$" % server.url)
        self.assertEqual(list(self.cache.iterdir()), [])
        self.assertEqual(self.listed()["models"], [])
        self.assert_ok(self.remotely(server))

    def on_terminal(self, *arguments, typed=""):
        """Standard output, and what the terminal at stdin and stderr showed."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        os.write(ours, typed.encode())
        with subprocess.Popen([path_from_environment("DSPACK_DSRUN"), *map(str, arguments)], stdin=theirs,
                              stdout=subprocess.PIPE, stderr=theirs, env=clean_environment(self.scratch)) as process:
            os.close(theirs)
            said = process.stdout.read().decode()
        self.assertEqual(process.returncode, 0, said)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # nobody has the other end any more
            pass
        return said, shown.decode()

    def test_a_terminal_is_asked(self):
        server = self.filled()
        remove = ("cache", "--cache", self.cache, "--remove", server.url)
        said, shown = self.on_terminal(*remove, typed="n\n")
        self.assertEqual(said, "nothing was removed\n")
        self.assertRegex(shown, r"remove %s\S* \([\d.]+ MB\) from \S+\? \[y/N\] " % server.url)
        self.assertTrue(self.folder().exists())
        said, _ = self.on_terminal(*remove, typed="y\n")
        self.assertTrue(said.startswith("removed "), said)
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_the_first_use_says_where_it_is_kept(self):
        server = self.serve(self.data())
        run = (server.url, "--cache", self.cache, "--tokens", "1", "-n", 1)
        stays = max(os.statvfs(self.scratch).f_blocks * os.statvfs(self.scratch).f_frsize // 20, 10 ** 10)
        shown = self.on_terminal(*run)[1]
        self.assertRegex(shown, r'what is fetched is kept in %s, while ([\d.]+) GB of the disk stay free: --disk SIZE '
                                r'sets the bound, "dsrun cache" lists it' % self.cache)
        self.assertAlmostEqual(float(re.search(r"while ([\d.]+) GB", shown)[1]), stays / 1e9, delta=stays / 1e11)
        self.assertNotIn("is kept in", self.on_terminal(*run)[1])

    def test_what_was_removed_or_checked_as_json(self):
        server = self.filled()
        name = self.listed()["models"][0]["name"]
        checked = json.loads(self.assert_ok(self.cache_verb("--verify", server.url, "--json")).stdout)
        self.assertEqual((checked["name"], checked["damaged"], checked["findings"]), (name, 0, []))
        self.assertGreater(checked["digests"], 100)
        victim = sorted(self.folder().glob("model/**/*.safetensors"))[0]
        flip_bit(victim, -1)
        result = self.cache_verb("--verify", server.url, "--json")
        self.assertEqual((result.code, json.loads(result.stdout)["damaged"]), (1, 1), str(result))
        self.assertIn(victim.name, json.loads(result.stdout)["findings"][0])
        removed = json.loads(self.assert_ok(self.cache_verb("--remove", server.url, "--yes", "--json")).stdout)
        self.assertEqual((removed["name"], removed["folder"] != ""), (name, True))
        self.assertGreater(removed["removed_bytes"], 1_000_000)

    def test_what_is_in_use_stays(self):
        server = self.filled()
        with open(self.folder() / ".dspack-cache" / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("  in use  ", self.assert_ok(self.cache_verb()).stdout)
            for verb in (("--remove", server.url, "--yes"), ("--verify", server.url)):
                self.assert_refused(self.cache_verb(*verb), "another process uses this cache", program="dsrun")
        self.assert_ok(self.cache_verb("--verify", server.url))

    def test_what_is_strange_stays_and_is_named(self):
        server = self.filled()
        folder = self.folder()
        (self.cache / "li\x1b[2Jnk").symlink_to(folder)
        (self.cache / "photos").mkdir()
        (self.cache / "photos" / "keep.jpg").write_text("keep")
        result = self.assert_ok(self.cache_verb())
        self.assertNotIn("\x1b", result.stdout)
        self.assertIn("left alone: photos: no cache of dsrun\n", result.stdout)
        self.assertIn(": a symbolic link\n", result.stdout)
        for name in ("photos", "li\x1b[2Jnk"):
            self.assert_refused(self.cache_verb("--remove", name, "--yes"), "left alone: ", program="dsrun")
        self.assertTrue((self.cache / "photos" / "keep.jpg").exists())
        self.assert_ok(self.cache_verb("--verify", server.url))

    def test_the_folder_of_one_place_is_not_that_of_all(self):
        self.filled()
        self.cache = self.folder()
        self.assert_refused(self.cache_verb(), "is the cache of one place", "--cache " + str(self.cache.parent),
                            program="dsrun")


if __name__ == "__main__":
    main()
