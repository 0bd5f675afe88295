#!/usr/bin/env python3
"""Instructions that an inner loop spends on each byte of weights, from the machine code of the CUDA library.

    cuobjdump -sass build/kernels/cuda/libdspack_cuda.so | c++filt | tests/bench/count_sass.py 'linear_kernel<.*StoredF8'

For each kernel whose name matches: every innermost loop that multiplies what it brings from the GPU's memory 16 bytes at
a time (sass.py), without what a branch skips in most turns, and the bytes that a thread has asked for when it waits for
the first of them. The ceiling is what multiprocessors that issue four instructions of 32 threads a cycle could decode; a
kernel bound by memory needs less than that.
"""
import argparse
import re
import sys
from collections import Counter

import sass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", help="regular expression of kernels' names")
    parser.add_argument("--multiprocessors", type=int, default=132)
    parser.add_argument("--ghz", type=float, default=1.83)
    args = parser.parse_args()
    lanes = 4 * 32 * args.multiprocessors * args.ghz * 1e9
    for name, body in sass.functions(sys.stdin):
        if not re.search(args.pattern, name):
            continue
        for loop in sass.weight_loops(body):
            size, loop_bytes = sass.weight_bytes(loop), sass.bytes_under_way(loop)
            loop = sass.common_path(loop)
            commonest = ", ".join("%d %s" % (n, what) for what, n in Counter(line[1] for line in loop).most_common(7))
            a_byte = len(loop) / size
            print("%s\n    %d instructions, %d bytes: %.2f a byte, ceiling %.2f TB/s; %d bytes under way (%s)" % (
                sass.short(name), len(loop), size, a_byte, 1e-12 * lanes / a_byte, loop_bytes, commonest))


if __name__ == "__main__":
    main()
