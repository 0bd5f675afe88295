#!/usr/bin/env python3
"""Configurations that nobody builds every day: without the tests, the two programs and nothing of tests/.

Run by CTest with DSPACK_CMAKE (the program) and DSPACK_COMPILER; builds nothing."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Configurations(unittest.TestCase):
    def configure(self, *options):
        folder = tempfile.TemporaryDirectory(prefix="dspack-configure-")
        self.addCleanup(folder.cleanup)
        done = subprocess.run([os.environ["DSPACK_CMAKE"], "-S", str(ROOT), "-B", folder.name, "-DDSPACK_CUDA=OFF",
                               "-DCMAKE_CXX_COMPILER=" + os.environ["DSPACK_COMPILER"], *options],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        commands = (pathlib.Path(folder.name) / "compile_commands.json").read_text(encoding="utf-8")
        for program in ("reshard/cli/main.cpp", "runtime/cli/main.cpp"):
            unity = program.rsplit("/", 1)[0].replace("/cli", "")
            self.assertRegex(commands, "%s|%s/CMakeFiles/[a-z]+\\.dir/Unity" % (program, unity))
        return commands

    def test_without_tests(self):
        self.assertNotIn(str(ROOT / "tests"), self.configure("-DDSPACK_TESTS=OFF"))
        self.assertNotIn(str(ROOT / "tests"), self.configure("-DDSPACK_TESTS=OFF", "-DDSPACK_COMPILE_ONCE=OFF"))


if __name__ == "__main__":
    if not {"DSPACK_CMAKE", "DSPACK_COMPILER"} <= set(os.environ):
        sys.exit("DSPACK_CMAKE and DSPACK_COMPILER are not set; run this through ctest")
    unittest.main(verbosity=2)
