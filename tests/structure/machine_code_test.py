"""What tests/bench/sass.py finds in machine code, on listings of a few lines: so that a change of the tool shows also where
there is no cuobjdump, and check_sass.py cannot pass because it sees nothing."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))

import check_sass  # noqa: E402
import sass  # noqa: E402


def listing(*instructions):
    """As cuobjdump prints a function."""
    lines = ["\t\tFunction : a_kernel"]
    lines += ["        /*%04x*/                   %s ;" % (16 * i, text) for i, text in enumerate(instructions)]
    return lines


def body_of(*instructions):
    (name, body), = sass.functions(listing(*instructions))
    assert name == "a_kernel"
    return body


# Four loads of 16 bytes, of which the compiler has moved two behind the first use.
SUNK = ["MOV R1, c[0x0][0x28]", "LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "LDG.E.128.CONSTANT R8, desc[UR4][R2.64+0x200]",
        "FFMA R20, R4, R21, R20", "LDG.E.128.CONSTANT R12, desc[UR4][R2.64+0x400]",
        "LDG.E.128.CONSTANT R16, desc[UR4][R2.64+0x600]", "FFMA R20, R12, R21, R20", "@P0 BRA 0x10"]
AHEAD = [SUNK[i] for i in (0, 1, 2, 4, 5, 3, 6, 7)]
# Two stages of two pieces; a branch skips the step to the next row in most turns.
RING = ["MOV R1, c[0x0][0x28]", "DEPBAR.LE SB0, 0x1", "LDS.128 R4, [R30]", "LDS.128 R8, [R30+0x200]",
        "LDGSTS.E.BYPASS.128 [R31], desc[UR4][R2.64], !P1", "@!P1 LDGSTS.E.BYPASS.128 [R31+0x200], desc[UR4][R12.64]",
        "LDGDEPBAR", "@!P2 BRA 0xa0", "IMAD R2, R2, R3, R2", "IMAD R12, R12, R3, R12", "FFMA R20, R4, R21, R20",
        "@P0 BRA 0x10"]


class MachineCode(unittest.TestCase):
    def loop_of(self, instructions):
        loops = sass.weight_loops(body_of(*instructions))
        self.assertEqual(len(loops), 1)
        return loops[0]

    def test_loads_that_were_moved_to_their_use_are_not_under_way(self):
        self.assertEqual(sass.weight_bytes(self.loop_of(SUNK)), 64)
        self.assertEqual(sass.bytes_under_way(self.loop_of(SUNK)), 32)
        self.assertEqual(sass.bytes_under_way(self.loop_of(AHEAD)), 64)

    def test_a_load_that_overwrites_what_is_under_way_ends_it(self):
        again = [SUNK[0], SUNK[1], SUNK[1].replace("R4,", "R6,"), "FFMA R20, R4, R21, R20", SUNK[-1]]
        self.assertEqual(sass.bytes_under_way(self.loop_of(again)), 32)

    def test_a_ring_has_its_stages_under_way(self):
        self.assertEqual(sass.weight_bytes(self.loop_of(RING)), 32)
        self.assertEqual(sass.bytes_under_way(self.loop_of(RING)), 64)
        at_once = [line.replace("0x1", "0x0") if "DEPBAR.LE" in line else line for line in RING]
        self.assertEqual(sass.bytes_under_way(self.loop_of(at_once)), 32)

    def test_what_a_branch_skips_is_not_on_the_common_path(self):
        loop = self.loop_of(RING)
        self.assertEqual(len(sass.common_path(loop)), len(loop) - 2)
        multiplies = [line.replace("IMAD", "FFMA") for line in RING]
        self.assertEqual(sass.common_path(self.loop_of(multiplies)), self.loop_of(multiplies))
        loads = [line.replace("IMAD R2, R2, R3, R2", "LDG.E R2, desc[UR4][R3.64]") for line in RING]
        self.assertEqual(sass.common_path(self.loop_of(loads)), self.loop_of(loads))
        divides = [line.replace("IMAD R12, R12, R3, R12", "MUFU.RCP R12, R12") for line in loads]
        self.assertEqual(len(sass.common_path(self.loop_of(divides))), len(self.loop_of(divides)) - 2)

    def test_the_check_finds_what_is_not_kept(self):
        promise = check_sass.Promise("linear", "a_kernel", 256, 48 * check_sass.KIB, 4)

        def faults(instructions, registers=64):
            return check_sass.check(promise, 90, ("a_kernel", registers, 0, body_of(*instructions)))[0]

        self.assertEqual(faults(RING), [])
        self.assertIn("under way", " ".join(faults([SUNK[0], SUNK[1], SUNK[3], SUNK[-1]])))
        self.assertIn("registers leave room for 2 blocks", " ".join(faults(RING, registers=128)))
        self.assertIn("spilled", " ".join(faults([*RING[:-1], "LDL R20, [R1]", RING[-1]])))
        self.assertIn("no loop", " ".join(faults(RING[:-1])))
        self.assertEqual(check_sass.check(promise, 89, ("a_kernel", 64, 0, body_of(*RING)))[0], [])


if __name__ == "__main__":
    unittest.main()
