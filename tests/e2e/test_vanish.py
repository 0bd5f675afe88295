"""Local weights that vanish, shrink or change while the model runs: a clear error that names the file, never a wrong word."""

import json
import os
import re
import resource
import shutil
import subprocess
import unittest

from checkpoints import packed_tiny
from common import EndToEnd, Result, clean_environment, limit, main, path_from_environment
from test_budget import FLOOR, SANITIZED

FIRST, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
SECOND = "Tell me a tale."
# At most half of them are weights: far fewer than there are experts, so that files are opened again and again.
OPEN_FILES = 64


class Vanish(EndToEnd):
    def setUp(self):
        super().setUp()
        self.folder = shutil.copytree(packed_tiny(), self.scratch / "packed")

    def ask_first(self, *arguments):
        """(a run that waits for its second question, what it said to the first; nothing if it did not begin)"""
        command = [path_from_environment("DSPACK_DSRUN"), str(self.folder), *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=clean_environment(self.scratch),
                                   preexec_fn=limit(resource.RLIMIT_NOFILE, OPEN_FILES))
        process.command = command
        self.addCleanup(self.stop, process)
        process.stdin.write(FIRST.encode() + b"\n")
        process.stdin.flush()
        return process, process.stdout.readline().decode()

    def answer_one(self, *arguments):
        """A run that has answered one question and waits for the next."""
        process, said = self.ask_first(*arguments)
        self.assertEqual(said, ANSWER)
        return process

    def assert_second_refused(self, process, *needles):
        stdout, stderr = process.communicate(SECOND.encode() + b"\n", timeout=60)
        result = Result(process.command, process.returncode, stdout, stderr)
        self.assertEqual(result.code, 1, str(result))
        self.assertTrue(self.tale().startswith(result.stdout.strip()), "a wrong word: " + str(result))
        *_, last = result.stderr.rstrip("\n").split("\n")
        self.assertTrue(last.startswith("dsrun: "), str(result))
        for needle in needles:
            self.assertIn(needle, last, str(result))

    def tale(self):
        """What an undisturbed run answers to both questions, the first apart."""
        whole = subprocess.run([path_from_environment("DSPACK_DSRUN"), str(packed_tiny())],
                               input=(FIRST + "\n" + SECOND + "\n").encode(), capture_output=True, check=True,
                               env=clean_environment(self.scratch)).stdout.decode()
        self.assertTrue(whole.startswith(ANSWER))
        return whole[len(ANSWER):]

    def expert_files(self):
        return sorted((self.folder / "model").rglob("experts/*.safetensors"))

    def test_experts_that_vanish(self):
        process = self.answer_one("--experts", FLOOR)
        for path in self.expert_files():
            path.unlink()
        self.assert_second_refused(process, str(self.folder / "model" / "layers"), "experts", "fetch it")

    def test_experts_that_shrink(self):
        for method in ("buffered", "mmap"):
            with self.subTest(method=method):
                shutil.rmtree(self.folder)
                shutil.copytree(packed_tiny(), self.folder)
                process = self.answer_one("--experts", FLOOR, "--dev", "io=%s" % method)
                for path in self.expert_files():
                    os.truncate(path, 5000)
                self.assert_second_refused(process, str(self.folder / "model" / "layers"), "experts")

    def test_experts_that_shrink_where_they_are_in_use(self):
        stats = self.scratch / "stats.json"
        self.assert_ok(self.run_program(self.folder, "-p", FIRST, "--stats", stats, program="DSPACK_DSRUN"))
        process = self.answer_one("--dev", "io=in-place", "--dev", "prefetch=off")
        for layer in json.loads(stats.read_text())["experts"]["layers"]:
            for name in layer["opened_files"]:  # mapped already
                os.truncate(self.folder / name, 0)
        self.assert_second_refused(process, str(self.folder / "model" / "layers"), "cut short")

    def test_experts_that_change(self):
        process = self.answer_one("--experts", FLOOR, "--verify")
        for path in self.expert_files():
            with open(path, "r+b") as file:
                file.seek(6000)
                file.write(os.urandom(64))
        self.assert_second_refused(process, "experts", "SHA-256")

    @unittest.skipIf(SANITIZED, "SKIPPED: a sanitized process differs from run to run by more than all layers take")
    def test_layers_that_are_read_in_every_pass(self):
        stats = self.scratch / "stats.json"
        refused = self.run_program(self.folder, "-p", FIRST, "--ctx", 256, "--ram", "1MB", program="DSPACK_DSRUN")
        floor = int(re.search(r"at least (\d+) bytes", refused.stderr).group(1))
        for more in range(0, 2_000_000, 50_000):
            budget = ("--ctx", 256, "--ram", floor + more)
            if self.run_program(self.folder, "-p", FIRST, "--stats", stats, *budget, program="DSPACK_DSRUN").code == 0:
                break
        plan = json.loads(stats.read_text())["memory_plan"]
        self.assertTrue(plan["streamed_layers"], plan)
        # What a process takes of itself differs from run to run; all layers would take a megabyte.
        for margin in range(100_000, 500_000, 50_000):
            process, said = self.ask_first("--ctx", 256, "--ram", floor + more + margin)
            if said:
                break
        self.assertEqual(said, ANSWER)
        for path in (self.folder / "model").rglob("dense.safetensors"):
            os.truncate(path, 5000)
        self.assert_second_refused(process, "dense.safetensors")


if __name__ == "__main__":
    main()
