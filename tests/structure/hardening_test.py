#!/usr/bin/env python3
"""What the programs are built with against faults in memory that nobody has found, read from the programs themselves.

Run by CTest with DSPACK_PROGRAMS (paths, with colons between) and DSPACK_READELF, where DSPACK_HARDEN is on."""

import os
import subprocess
import sys
import unittest


class Hardening(unittest.TestCase):
    def setUp(self):
        self.programs = os.environ["DSPACK_PROGRAMS"].split(":")
        self.assertTrue(all(self.programs))

    @staticmethod
    def read(program, flag):
        return subprocess.run([os.environ["DSPACK_READELF"], "-W", flag, program], capture_output=True, text=True,
                              check=True).stdout

    def test_addresses_cannot_be_guessed(self):
        for program in self.programs:
            self.assertRegex(self.read(program, "-h"), r"Type:\s+DYN", program)

    def test_the_linker_leaves_nothing_to_overwrite(self):
        for program in self.programs:
            segments = self.read(program, "-l")
            self.assertIn("GNU_RELRO", segments, program)
            self.assertRegex(segments, r"GNU_STACK[^\n]* RW ", "the stack of %s can be executed" % program)
            self.assertRegex(self.read(program, "-d"), r"\(FLAGS\)[^\n]*BIND_NOW|\(FLAGS_1\)[^\n]*NOW", program)

    def test_indices_are_checked(self):
        for program in self.programs:
            self.assertRegex(self.read(program, "--dyn-syms"), r"glibcxx_assert_fail", program)

    def test_stacks_and_copies_are_checked(self):
        for program in self.programs:
            symbols = self.read(program, "--dyn-syms")
            self.assertRegex(symbols, r"\b__stack_chk_fail\b", program)
            if os.environ.get("DSPACK_OPTIMISED"):
                self.assertRegex(symbols, r"\b__(?!stack)\w+_chk\b", program)


if __name__ == "__main__":
    if not {"DSPACK_PROGRAMS", "DSPACK_READELF"} <= set(os.environ):
        sys.exit("DSPACK_PROGRAMS and DSPACK_READELF are not set; run this through ctest")
    unittest.main(verbosity=2)
