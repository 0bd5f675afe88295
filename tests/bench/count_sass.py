#!/usr/bin/env python3
"""Instructions that an inner loop spends on each byte of weights, from the machine code of the CUDA library.

    cuobjdump -sass build/kernels/cuda/libdspack_cuda.so | c++filt | tests/bench/count_sass.py 'linear_kernel<.*StoredF8'

For each kernel whose name matches: every innermost loop (no backward branch inside) that loads 16 bytes at a time from
the GPU's memory. The loads of scales are narrower, those of activations come from shared memory, so that 16 bytes a load
are weights. The ceiling is what a multiprocessor that issues four instructions of 32 threads a cycle could decode; a
kernel bound by memory needs less than that.
"""
import argparse
import re
import sys
from collections import Counter

FUNCTION = re.compile(r"^\s*Function : (.*)$")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)([.\w]*)\s*(.*?);")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


def functions(lines):
    name, body = None, []
    for line in lines:
        begins, found = FUNCTION.match(line), INSTRUCTION.match(line)
        if begins:
            if name:
                yield name, body
            name, body = begins.group(1), []
        elif found:
            body.append((int(found.group(1), 16), found.group(2), found.group(3), found.group(4)))
    if name:
        yield name, body


def innermost_loops(body):
    """Instructions of each loop, from the target of a backward branch to the branch."""
    spans = []
    for address, operation, _, operands in body:
        target = TARGET.search(operands) if operation == "BRA" else None
        if target and int(target.group(1), 16) < address:
            spans.append((int(target.group(1), 16), address))
    for first, last in spans:
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in spans):
            yield [line for line in body if first <= line[0] <= last]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", help="regular expression of kernels' names")
    parser.add_argument("--multiprocessors", type=int, default=132)
    parser.add_argument("--ghz", type=float, default=1.83)
    args = parser.parse_args()
    lanes = 4 * 32 * args.multiprocessors * args.ghz * 1e9
    for name, body in functions(sys.stdin):
        if not re.search(args.pattern, name):
            continue
        for loop in innermost_loops(body):
            wide = sum(operation == "LDG" and ".128" in kind for _, operation, kind, _ in loop)
            if not wide:
                continue
            commonest = ", ".join("%d %s" % (n, what) for what, n in Counter(op for _, op, _, _ in loop).most_common(7))
            a_byte = len(loop) / (16 * wide)
            print("%s\n    %d instructions, %d bytes: %.2f a byte, ceiling %.2f TB/s (%s)" % (
                re.sub(r"dspack::kernels::cuda::|\(anonymous namespace\)::", "", name), len(loop), 16 * wide, a_byte,
                1e-12 * lanes / a_byte, commonest))


if __name__ == "__main__":
    main()
