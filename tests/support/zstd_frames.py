"""zstd frames by hand, without a library (RFC 8878): stored blocks, and blocks that repeat one byte, which make
gigabytes of a few kilobytes."""

import struct

MAGIC = 0xFD2FB528
BLOCK = 128 * 1024  # the largest block
RAW, REPEATED = 0, 1


def block(kind, size, last):
    return struct.pack("<I", (size << 3) | (kind << 1) | last)[:3]


def head(size):
    """A frame header with the content's size in eight bytes, in a single segment (its window is the content)."""
    return struct.pack("<IBQ", MAGIC, 0b11_1_00000, size)


def stored(content):
    """A frame of the content as it is."""
    frame = head(len(content))
    pieces = [content[at:at + BLOCK] for at in range(0, len(content), BLOCK)] or [b""]
    for number, piece in enumerate(pieces):
        frame += block(RAW, len(piece), number == len(pieces) - 1) + piece
    return frame


def repeated(byte, size):
    """A frame of one byte again and again: four bytes a 128 KiB. Its header has a window of 128 KiB, and no size."""
    frame = struct.pack("<IBB", MAGIC, 0, 7 << 3)
    for at in range(0, size, BLOCK):
        frame += block(REPEATED, min(BLOCK, size - at), at + BLOCK >= size) + byte
    return frame

