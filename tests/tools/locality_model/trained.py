"""FP8 weights as training leaves them, as far as their statistics go: within a block of 128 x 128 normally distributed,
and scaled so that the largest magnitude of the block is E4M3's, 448. Random bytes, which others of these tools write,
cannot be compressed; of these a byte carries some 6.5 bits.
"""

import zlib

import numpy as np

BLOCK = 128
LARGEST = 448.0


def e4m3_of_f16():
    """E4M3 bits of the nearest number, ties to even, by the bits of an F16 within its range."""
    magnitudes = np.array([mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0**(exponent - 7)
                           for exponent in range(16) for mantissa in range(8)][:127])  # the last one would be NaN
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    sizes = np.nan_to_num(np.abs(values), nan=0.0, posinf=LARGEST)
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    below, above = np.searchsorted(middles, sizes, "left"), np.searchsorted(middles, sizes, "right")
    nearest = np.where(below % 2 == 0, below, above)
    return (nearest | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


class TrainedWeights:
    """Bytes of FP8 tensors, by seed and name."""

    def __init__(self, seed):
        self.seed, self.table = seed, e4m3_of_f16()

    def write(self, file, name, shape):
        random = np.random.Generator(np.random.SFC64([self.seed, zlib.crc32(name.encode())]))
        rows, columns = shape
        begins = np.arange(0, columns, BLOCK)
        for row in range(0, rows, BLOCK):
            weights = random.standard_normal((min(BLOCK, rows - row), columns), np.float32)
            largest = np.maximum.reduceat(np.abs(weights).max(axis=0), begins)
            weights *= np.repeat(LARGEST / largest, BLOCK)[:columns]
            file.write(self.table[weights.astype(np.float16).view(np.uint16)])
