#!/usr/bin/env python3
"""Reads one expert of a packed repository, checks its digests, and writes it as a safetensors file.

    read_expert.py SOURCE LAYER EXPERT [OUT.safetensors]

SOURCE is a folder, an http(s) folder, or org/name[@revision] on the Hub; only the expert's bytes are read.
"""

import sys

import dspack


def main() -> None:
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    repository = dspack.open(sys.argv[1])
    layer, number = int(sys.argv[2]), int(sys.argv[3])
    for extent in repository.expert(layer, number).extents:
        print("%s: bytes %d to %d" % (extent.path, extent.offset, extent.offset + extent.length - 1))
    tensors = repository.read_expert(layer, number)
    for name, tensor in tensors.items():
        print("%-60s %-8s %-14s %d bytes" % (name, tensor.dtype, list(tensor.shape), len(tensor.data)))
    print("every digest fits")
    if len(sys.argv) == 5:
        with open(sys.argv[4], "wb") as file:
            file.write(dspack.to_safetensors(tensors))


if __name__ == "__main__":
    main()
