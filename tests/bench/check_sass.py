#!/usr/bin/env python3
"""Whether the machine code of the decode kernels keeps what their sources promise.

    tests/bench/check_sass.py build/kernels/cuda/libdspack_cuda.so           every architecture in a library or cubin
    tests/bench/check_sass.py --compile kernels/cuda/linear/linear.cu -- nvcc ...   what this compiler makes of some sources
    tests/bench/check_sass.py --table FILE...                                the figures, as rows of a table

For each kernel below, of FP8 and BF16 weights (experts: of FP4, too):
  * no innermost loop that multiplies accesses spilled registers;
  * registers, and shared memory for the largest of V3's shapes, let as many of its blocks run on a multiprocessor as
    the kernel is made for;
  * these have asked for enough bytes of weights when they wait for the first, whatever the compiler made of the source:
    what a multiprocessor's share of memory brings in 0.8 us, the memory's latency under load.
cuobjdump (PATH, beside nvcc, or CUOBJDUMP) reads the code; without it, or without code, the check is skipped and says
so. Status: 0 kept, 1 not, 77 skipped.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import sass

SKIPPED = 77
KIB = 1024
REGISTERS = 65536  # of a multiprocessor
RESERVED = KIB     # of shared memory, for each block


@dataclass
class Card:
    shared: int     # bytes of a multiprocessor
    under_way: int  # bytes that it must have asked for


# By architecture: the largest bandwidth of a multiprocessor among the cards of it (A100 2.04 TB/s / 108, RTX 3090
# 0.94 / 82, RTX 4090 1.01 / 128, H200 4.8 / 132, B200 8 / 148, RTX 5090 1.79 / 170) times 0.8 us, rounded up to KiB.
CARDS = {
    80: Card(164 * KIB, 15 * KIB), 86: Card(100 * KIB, 9 * KIB), 89: Card(100 * KIB, 7 * KIB),
    90: Card(228 * KIB, 29 * KIB), 100: Card(228 * KIB, 43 * KIB), 120: Card(100 * KIB, 9 * KIB),
}


@dataclass
class Promise:
    source: str        # of kernels/cuda
    pattern: str       # of the kernel's name; WEIGHTS stands for what the weights may be
    threads: int       # of a block
    shared: int        # bytes of a block, of the largest of V3's shapes
    blocks: int = 1    # that registers are for
    at_most: int = 32  # that the grid of V3's shape has for a multiprocessor
    is_deep: bool = True  # False: no loop over weights brings them from the GPU's memory, or not so many are needed
    is_elsewhere: bool = False  # cards with less shared memory than this take another kernel


WEIGHTS = r"(?:StoredF8|Stored16<TwoBf16>|StoredPlainBf16)"
PROMISES = [
    Promise("linear", "^linear_kernel<WEIGHTS, 1u, true>", 256, 48 * KIB + 64, 4),
    Promise("linear", "^linear_kernel<WEIGHTS, 2u, true>", 256, 48 * KIB + 128, 3),
    Promise("linear", "^linear_kernel<WEIGHTS, 4u, true>", 256, 56 * KIB + 256, 2),
    Promise("linear", "^linear_kernel<WEIGHTS, 8u, true>", 256, 56 * KIB + 512, 2),
    Promise("experts", "^(?:fused_kernel|product_kernel)<.*ExactTiles<WEIGHTS, true, 1u>", 256, 44 * KIB, 4),
    Promise("experts", "^(?:fused_kernel|product_kernel)<.*ExactTiles<WEIGHTS, true, 2u>", 256, 48 * KIB, 2),
    Promise("experts", "^(?:fused_kernel|product_kernel)<.*ExactTiles<WEIGHTS, true, 4u>", 256, 64 * KIB, 2),
    Promise("experts_tensor", "^fused_tensor_kernel<WEIGHTS", 128, 97 * KIB, 3),
    Promise("linear_tensor", "^tensor_kernel<WEIGHTS, 1u, 1u, (?:true|false), 3u", 256, 97 * KIB, 3),
    Promise("linear_tensor", "^tensor_kernel<WEIGHTS, 1u, 1u, (?:true|false), 5u", 256, 97 * KIB, 2),
    Promise("linear_tensor", "^tensor_each_kernel<WEIGHTS", 256, 97 * KIB, 2),
    Promise("linear_tensor", "^tensor_kernel<WEIGHTS, [248]u", 256, 68 * KIB, 1, is_deep=False),
    Promise("head_linear", "^plain_kernel<WEIGHTS, [12]u, true>", 256, 20 * KIB, 4, at_most=4),
    Promise("head_linear", "^plain_kernel<WEIGHTS, [48]u, true>", 256, 32 * KIB, 2),
    Promise("head_linear", "^transposed_kernel<WEIGHTS, [124]u, true>", 256, 22 * KIB, 2, is_deep=False),
    Promise("attend_exact", "^exact_kernel<", 256, 83 * KIB, 2, is_deep=False),
    Promise("attend_tensor", r"^tensor_kernel<\(AttendChoice\)[12]", 256, 226 * KIB, 1, is_deep=False, is_elsewhere=True),
    Promise("attend_tensor", r"^tensor_kernel<\(AttendChoice\)[34]", 128, 93 * KIB, 2, is_deep=False),
    Promise("attend_split", r"^split_kernel<\(AttendChoice\)5", 256, 197 * KIB, 1, is_deep=False, is_elsewhere=True),
    Promise("attend_split", r"^split_kernel<\(AttendChoice\)6", 128, 135 * KIB, 1, is_deep=False, is_elsewhere=True),
    Promise("experts_tensor", "^fused_tensor_kernel<Stored4<NibbleE2m1>", 128, 97 * KIB, 3),
    Promise("experts", "^fused_kernel<.*ExactTiles<Stored4<NibbleE2m1>, true, 1u>", 256, 44 * KIB, 4),
    Promise("window_attend", "^window_attend_kernel<", 256, 0, 1, is_deep=False),
    Promise("window_attend", "^add_parts_kernel", 512, 0, 2, is_deep=False),
    Promise("compress", "^compress_kernel", 512, 3 * KIB, 2, is_deep=False),
    Promise("streams", "^read_streams_kernel", 1024, 9 * KIB, 1, is_deep=False),
]


def find_cuobjdump():
    asked = os.environ.get("CUOBJDUMP")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return asked or shutil.which("cuobjdump") or shutil.which(os.path.join(os.path.dirname(nvcc), "cuobjdump"))


def skip(reason):
    print("SKIPPED: the machine code was not checked: " + reason)
    sys.exit(SKIPPED)


def architectures(cuobjdump, path):
    said = subprocess.run([cuobjdump, "-lelf", path], capture_output=True, text=True).stdout
    return sorted({int(found) for found in re.findall(r"sm_(\d+)", said)})


def dump(cuobjdump, path, architecture):
    """[(name, registers, stack bytes, body)] of the kernels of one architecture."""
    chosen = ["-arch", "sm_%d" % architecture]
    found = sass.resources([cuobjdump, *chosen], path)
    names = sass.demangled(list(found))
    with subprocess.Popen([cuobjdump, *chosen, "-sass", path], stdout=subprocess.PIPE, text=True) as process:
        for name, body in sass.functions(process.stdout):
            if name in found:
                yield (names[name], *found[name], body)


def blocks_of(promise, registers, shared_of_card):
    of_warp = -(-registers // 8) * 8 * 32
    by_registers = REGISTERS // (of_warp * promise.threads // 32)
    return by_registers, min(by_registers, shared_of_card // (promise.shared + RESERVED), promise.at_most)


def check(promise, architecture, kernel):
    """What a kernel does not keep, and its figures."""
    name, registers, stack, body = kernel
    card = CARDS[architecture]
    by_registers, blocks = blocks_of(promise, registers, card.shared)
    loops = sass.weight_loops(body)
    faults = []
    if any(line[1] in sass.SPILLS for loop in sass.product_loops(body) for line in loop):
        faults.append("spilled registers are accessed in a loop that multiplies")
    if blocks == 0 and not promise.is_elsewhere:
        faults.append("%d bytes of shared memory are more than there are" % promise.shared)
    if by_registers < promise.blocks:
        faults.append("%d registers leave room for %d blocks on a multiprocessor, of %d" % (
            registers, by_registers, promise.blocks))
    if promise.is_deep and not loops:
        faults.append("there is no loop over weights")
    under_way = min((sass.bytes_under_way(loop) for loop in loops), default=0) * promise.threads * blocks
    if promise.is_deep and loops and under_way < card.under_way:
        faults.append("%.1f KiB are under way on a multiprocessor, of %.1f" % (
            under_way / KIB, card.under_way / KIB))
    a_byte = [len(sass.common_path(loop)) / sass.weight_bytes(loop) for loop in loops]
    row = "| `%s` | %d | %d | %d | %.0f | %d | %.0f | %.2f |" % (
        name, architecture, registers, stack, promise.shared / KIB, blocks, under_way / KIB, max(a_byte, default=0))
    return faults, row


def check_file(cuobjdump, path, sources, print_row):
    """Faults of a file: for each of its architectures, of the kernels that come from some sources."""
    count = 0
    found = architectures(cuobjdump, path)
    if not found:
        sys.exit("%s: has no machine code of a GPU; was it built for one?" % path)
    for architecture in found:
        if architecture not in CARDS:
            print("sm_%d: not in this check's table of cards" % architecture)
            continue
        unseen = [promise for promise in PROMISES if promise.source in sources]
        for kernel in dump(cuobjdump, path, architecture):
            for promise in PROMISES:
                if promise.source not in sources or not re.search(promise.pattern.replace("WEIGHTS", WEIGHTS), kernel[0]):
                    continue
                unseen = [other for other in unseen if other is not promise]
                faults, row = check(promise, architecture, kernel)
                print_row(row)
                for fault in faults:
                    count += 1
                    print("sm_%d: %s: %s" % (architecture, kernel[0], fault))
                break
        for promise in unseen:
            count += 1
            print("sm_%d: no kernel of %s.cu matches %s" % (architecture, promise.source, promise.pattern))
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="library or cubins; behind --compile: the compiler and its flags")
    parser.add_argument("--compile", nargs="+", default=[], metavar="SOURCE")
    parser.add_argument("--sources", nargs="+", help="whose kernels the files have; a library has all")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        skip("there is no cuobjdump (PATH, beside nvcc, or CUOBJDUMP)")
    print_row = print if args.table else lambda row: None
    print_row("| kernel | sm | registers | stack, bytes | shared, KiB | blocks | under way, KiB | instructions a byte |\n"
              "|---|---|---|---|---|---|---|---|")
    faults = 0
    if args.compile:
        if not args.files or not shutil.which(args.files[0]):
            skip("there is no nvcc")
        with tempfile.TemporaryDirectory() as folder:
            for source in args.compile:
                cubin = os.path.join(folder, "code.cubin")
                subprocess.run([*args.files, "-cubin", source, "-o", cubin], check=True)
                faults += check_file(cuobjdump, cubin, [os.path.basename(source).removesuffix(".cu")], print_row)
    else:
        if not args.files:
            skip("no CUDA library was named")
        sources = args.sources or {promise.source for promise in PROMISES}
        for path in args.files:
            faults += check_file(cuobjdump, path, sources, print_row)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
