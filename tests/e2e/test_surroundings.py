"""A process that was not prepared for the programs: closed streams, no home, other users on the machine."""

import os
import shutil
import subprocess
import time

from checkpoints import packed_tiny
from common import EndToEnd, clean_environment, main, path_from_environment

class Streams(EndToEnd):
    """A stream that is closed must not become a file or a connection, into which messages would then be written."""

    @staticmethod
    def closing(*streams):
        def close():
            for stream in streams:
                os.close(stream)
        return close

    def test_numbers_of_closed_streams_are_not_given_to_files(self):
        server = self.serve(self.data())
        server.add_fault("*00003*", "stall", seconds=3)
        for closed in ((0,), (1,), (2,), (0, 1, 2)):
            for program, arguments in (("DSPACK_RESHARD", ["inspect", server.url]),
                                       ("DSPACK_DSRUN", ["plan", server.url, "--cache", self.scratch / "".join(map(str, closed))])):
                with self.subTest(program=program, closed=closed):
                    process = subprocess.Popen([path_from_environment(program), *map(str, arguments)],
                                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                               stderr=subprocess.DEVNULL, preexec_fn=self.closing(*closed),
                                               env=clean_environment(self.scratch))
                    self.addCleanup(process.wait)
                    self.addCleanup(process.kill)
                    deadline = time.monotonic() + 20
                    sockets = {}
                    while not sockets and time.monotonic() < deadline and process.poll() is None:
                        time.sleep(0.02)
                        sockets = {fd: link for fd, link in self.descriptors(process.pid).items()
                                   if link.startswith("socket:")}
                    self.assertTrue(sockets, "it has not connected")
                    streams = {fd: link for fd, link in self.descriptors(process.pid).items() if fd <= 2}
                    self.assertEqual(streams, dict.fromkeys(range(3), "/dev/null"))
                    process.kill()

    @staticmethod
    def descriptors(pid):
        found = {}
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                found[int(fd)] = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            except FileNotFoundError:
                pass
        return found

    def test_work_is_done_and_lost_output_is_an_error(self):
        reference = self.scratch / "reference"
        self.assert_ok(self.repack(self.data(), reference))
        for closed, code in (((0,), 0), ((1,), 1), ((2,), 0), ((0, 1, 2), 1)):
            with self.subTest(closed=closed):
                out = self.scratch / "out"
                result = self.repack(self.data(), out, before=self.closing(*closed))
                self.assertEqual(result.code, code, str(result))
                if closed == (1,):
                    self.assertRegex(result.stderr, "cannot write to standard output")
                self.assert_same_tree(out, reference)
                shutil.rmtree(out)


class Homes(EndToEnd):
    def environment(self, **extra):
        env = clean_environment(self.scratch, extra)
        for name in ("HOME", "HF_HOME"):
            if name not in extra:
                env.pop(name, None)
        return env

    def run_in(self, folder, program, *arguments, **extra):
        return subprocess.run([path_from_environment(program), *map(str, arguments)], cwd=folder, capture_output=True,
                              text=True, check=False, stdin=subprocess.DEVNULL, env=self.environment(**extra))

    def test_without_a_home_the_present_folder_is_none(self):
        here = self.scratch / "here"
        planted = here / ".cache" / "huggingface"
        planted.mkdir(parents=True)
        (planted / "token").write_text("hf_planted")
        hub = self.serve_hub()
        hub.add("o/n", self.data())
        for home in ({}, {"HOME": ""}, {"HOME": "."}, {"XDG_CACHE_HOME": ".cache"}):
            with self.subTest(home=home):
                result = self.run_in(here, "DSPACK_RESHARD", "inspect", "o/n", HF_ENDPOINT=hub.url, **home)
                self.assertEqual(result.returncode, 0, result.stderr)
                result = self.run_in(here, "DSPACK_DSRUN", "o/n", "--tokens", "5", "-n", "1", HF_ENDPOINT=hub.url, **home)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("--cache", result.stderr)
                self.assertIn("HOME", result.stderr)
                self.assertEqual(sorted(path.name for path in here.rglob("*")), [".cache", "huggingface", "token"])
        self.assertEqual([entry for entry in hub.log.entries() if "hf_planted" in str(entry)], [])
        cache = self.scratch / "cache"
        result = self.run_in(here, "DSPACK_DSRUN", "o/n", "--tokens", "5", "-n", "1", "--cache", cache,
                             HF_ENDPOINT=hub.url)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(any(cache.iterdir()))
        result = self.run_in(here, "DSPACK_DSRUN", packed_tiny(), "--tokens", "5", "-n", "1")
        self.assertEqual(result.returncode, 0, "a local folder needs no cache: " + result.stderr)
        result = self.run_in(here, "DSPACK_RESHARD", "inspect", "o/n", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
        self.assertIn("HOME", result.stderr)

    def test_others_cannot_look_into_a_cache(self):
        hub = self.serve_hub()
        hub.add("o/n", self.data())
        server = self.serve(packed_tiny())
        old = os.umask(0o022)
        self.addCleanup(os.umask, old)
        for place in ("o/n", server.url):
            for cache in (None, self.scratch / "given" / "cache"):
                with self.subTest(place=place, cache=cache):
                    home = self.scratch / ("home-%d" % len(list(self.scratch.iterdir())))
                    home.mkdir()
                    flags = ["--cache", cache] if cache else []
                    result = self.run_in(home, "DSPACK_DSRUN", place, "--tokens", "5", "-n", "1", *flags,
                                         HF_ENDPOINT=hub.url, HOME=str(home))
                    self.assertEqual(result.returncode, 0, result.stderr)
                    root = cache or home / ".cache" / "dspack"
                    made = [path for path in [root, *root.rglob("*")] if path.is_dir()]
                    self.assertGreater(len(made), 2)
                    for folder in made:
                        self.assertEqual(folder.stat().st_mode & 0o777, 0o700, folder)


if __name__ == "__main__":
    main()
