"""The number formats of weights and the conversions between them, written down a second time from their definitions:
OCP's 8-bit floating point for E4M3, IEEE 754's rounding to nearest, ties to even, DeepSeek-V3's block scales
(inference/kernel.py: weight_dequant is value times scale in FP32, act_quant is scale = largest magnitude / 448), OCP's
microscaling formats for E8M0. Exact arithmetic: fractions, or products that fit a double."""

import array
import bisect
import collections
import itertools
import math
import struct
import sys
from fractions import Fraction

BLOCK = 128
F32 = struct.Struct("<f")


def e4m3_value(code):
    """Sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0**(exponent - 10))


E4M3 = [e4m3_value(code) for code in range(256)]
E4M3_MIDDLES = [(low + high) / 2 for low, high in zip(E4M3[:126], E4M3[1:127])]  # ascending; exact in doubles


def nearest_e4m3(value):
    """The code of the nearest of all values; of two as near, the one whose mantissa is even. Beyond 448: that."""
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    size = abs(value)
    code = bisect.bisect_left(E4M3_MIDDLES, size)
    if code < len(E4M3_MIDDLES) and size == E4M3_MIDDLES[code]:
        code += code % 2
    return sign | code


def rounded(value, precision):
    """The nearest value of a binary format with so many bits of mantissa (the first one included) and FP32's exponents;
    ties to even. Of a fraction or a double, as a double that holds it."""
    if value == 0:
        return 0.0
    if isinstance(value, float):  # the same steps: scaling by a power of two is exact, and so is round() of a double
        quantum = 2.0 ** (max(math.frexp(value)[1] - 1, -126) - (precision - 1))
        return round(value / quantum) * quantum
    exact = Fraction(value)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - (precision - 1))
    return float(round(exact / quantum) * quantum)  # round() of a fraction takes the even one of two as near


def rounded_quotient(value, divisor):
    """The integer nearest to the exact quotient of two doubles, ties to even."""
    quotient = value / divisor
    if abs(quotient) < 1e6 and abs(abs(quotient % 1) - 0.5) > 1e-9:  # a double is this much nearer than any tie
        return round(quotient)
    return round(Fraction(value) / Fraction(divisor))


def to_f32(value):
    if isinstance(value, float):  # C's conversion of a double rounds so
        return F32.unpack(F32.pack(value))[0]
    return rounded(value, 24)


def all_to_f32(values):
    return f32_values(struct.pack("<%df" % len(values), *values))


def f32_quotients(values, divisor):
    """The FP32 values nearest to the exact quotients of FP32 values, ties to even. A quotient of two numbers of 24 bits
    that is no tie between two of 24 bits differs from each tie by more than 2^-50 of itself, and the double that stands
    for it by less: to round to a double first decides nothing."""
    return all_to_f32([value / divisor for value in values])


def to_bf16(value):
    return rounded(value, 8)


def f32_bytes(value, negative):
    raw = struct.pack("<f", value)
    return raw[:3] + bytes([raw[3] | (0x80 if negative else 0)])


def f32_values(raw):
    return list(struct.unpack("<%df" % (len(raw) // 4), raw))


def bf16_value(code):
    return struct.unpack("<f", struct.pack("<I", code << 16))[0]


def bf16_values(raw):
    """The upper halves of FP32 values."""
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[::2], raw[1::2]
    return f32_values(wide)


def bf16_codes(raw):
    codes = array.array("H", raw)
    if sys.byteorder == "big":
        codes.byteswap()
    return codes


class Loss:
    """Sums over values of (stored - meant)^2 and meant^2; each summand is exact or rounded once."""

    def __init__(self):
        self.errors, self.values = [], []

    def add(self, stored, meant, count):
        self.errors.append(count * (stored - meant) ** 2)
        self.values.append(count * meant ** 2)

    def join(self, other):
        self.errors.append(math.fsum(other.errors))
        self.values.append(math.fsum(other.values))

    def relative_rms(self):
        error = math.fsum(self.errors)
        return math.sqrt(error / math.fsum(self.values)) if error else 0.0


def blocks(rows, columns):
    """(first row, last row, first column, last column, number) of each block, row by row."""
    per_row = -(-columns // BLOCK)
    for top in range(0, rows, BLOCK):
        for left in range(0, columns, BLOCK):
            yield (top, min(top + BLOCK, rows), left, min(left + BLOCK, columns),
                   top // BLOCK * per_row + left // BLOCK)


def dequantised(raw, shape, scales, dtype):
    """The bytes of FP8 values times their blocks' scales (doubles), as BF16 or F32, and what rounding cost."""
    rows, columns = shape
    width = 2 if dtype == "BF16" else 4
    out = bytearray(rows * columns * width)
    loss = Loss()
    for top, bottom, left, right, number in blocks(rows, columns):
        segments = [raw[row * columns + left:row * columns + right] for row in range(top, bottom)]
        planes = [bytearray(256) for _ in range(width)]
        counts = collections.Counter(b"".join(segments))
        meant = [E4M3[code] * scales[number] for code in counts]  # 4 bits by 24: exact in a double
        stored = all_to_f32(meant)
        if dtype == "BF16":
            stored = [math.copysign(to_bf16(value), value) for value in stored]
        made = struct.pack("<%df" % len(stored), *stored)
        for place, plane in enumerate(planes, 4 - width):
            for code, byte in zip(counts, made[place::4]):
                plane[code] = byte
        for one, value, count in zip(stored, meant, counts.values()):
            loss.add(one, value, count)
        for row, segment in zip(range(top, bottom), segments):
            begin, end = (row * columns + left) * width, (row * columns + right) * width
            for place, plane in enumerate(planes):
                out[begin + place:end:width] = segment.translate(bytes(plane))
    return bytes(out), loss


def quantised(raw, shape):
    """The FP8 bytes of BF16 values, the F32 bytes of their blocks' scales, and what rounding cost."""
    rows, columns = shape
    codes = bf16_codes(raw)
    out = bytearray(rows * columns)
    scales = b""
    loss = Loss()
    for top, bottom, left, right, _ in blocks(rows, columns):
        segments = [codes[row * columns + left:row * columns + right] for row in range(top, bottom)]
        counts = collections.Counter(itertools.chain.from_iterable(segments))
        largest = max(abs(bf16_value(code)) for code in counts)
        scale = f32_quotients([largest], 448.0)[0] if largest else 1.0
        scales += struct.pack("<f", scale)
        values = [bf16_value(code) for code in counts]
        table = dict(zip(counts, map(nearest_e4m3, f32_quotients(values, scale))))
        for value, (code, count) in zip(values, counts.items()):
            loss.add(E4M3[table[code]] * scale, value, count)
        for row, segment in zip(range(top, bottom), segments):
            out[row * columns + left:row * columns + right] = bytes(map(table.__getitem__, segment))
    return bytes(out), scales, loss


def int8_rows(values, columns, narrow):
    """Codes and scales of rows of numbers, one scale a row: largest magnitude / 127, through narrow(); codes to the
    nearest, ties to even. Returns the codes' bytes and the scales."""
    codes, scales = bytearray(), []
    for first in range(0, len(values), columns):
        row = values[first:first + columns]
        scale = narrow(max(map(abs, row)) / 127) or 1.0
        scales.append(scale)
        codes += bytes(max(-128, min(127, rounded_quotient(value, scale))) & 0xff for value in row)
    return bytes(codes), scales


def int8_values(codes, columns, scales):
    """What int8_rows() means: two's complement times the row's scale, as doubles."""
    return [(code - 256 if code >= 128 else code) * scales[i // columns] for i, code in enumerate(codes)]


def e8m0_codes(raw):
    """The E8M0 bytes of F32 scales that are all powers of two from 2^-127 to 2^127; None if one is not."""
    codes = bytearray()
    for value in f32_values(raw):
        mantissa, exponent = math.frexp(value)  # value = mantissa * 2^exponent, 0.5 <= mantissa < 1
        if mantissa != 0.5 or not 0 <= exponent - 1 + 127 <= 254:
            return None
        codes.append(exponent - 1 + 127)
    return bytes(codes)


# Four bits: two codes a byte, the first in the low half.

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def e2m1_value(code):
    return -E2M1[code & 7] if code & 8 else E2M1[code & 7]


E2M1_MIDDLES = [(low + high) / 2 for low, high in zip(E2M1, E2M1[1:])]


def nearest_e2m1(value):
    """The code of the nearest value; of two as near, the even code."""
    size = abs(value)
    code = bisect.bisect_left(E2M1_MIDDLES, size)
    if code < len(E2M1_MIDDLES) and size == E2M1_MIDDLES[code]:
        code += code % 2
    return code | 8 if value < 0 else code


def packed_rows(codes, columns, bits, unit=1):
    """Rows of codes, low bits of a byte first, each row filled up with zeros to whole units of bytes."""
    out = bytearray()
    for first in range(0, len(codes), columns):
        number = sum(code << (bits * i) for i, code in enumerate(codes[first:first + columns]))
        out += number.to_bytes(-(-columns * bits // (8 * unit)) * unit, "little")
    return bytes(out)


def groups_of(values, columns, group):
    """The groups of each row, one row after the other; the last of a row may be shorter."""
    for first in range(0, len(values), columns):
        for begin in range(first, first + columns, group):
            yield values[begin:min(begin + group, first + columns)]


def grouped_integers(values, columns, group, bits, narrow, zeros):
    """Codes without sign, scales and zero points of groups: what code is least and largest, the value's nearest code.
    Without `zeros` the zero point is the middle. Returns them and what they mean."""
    most = 2**bits - 1
    codes, scales, points, meant = [], [], [], []
    for one in groups_of(values, columns, group):
        low, high = min(0.0, *one), max(0.0, *one)
        scale = narrow((high - low) / most if zeros else max(high, -low) / (most // 2)) or 1.0
        point = max(1, min(most, round(-low / scale))) if zeros else (most + 1) // 2
        scales.append(scale)
        points.append(point)
        for value in one:
            codes.append(max(0, min(most, rounded_quotient(value, scale) + point)))
            meant.append((codes[-1] - point) * scale)
    return codes, scales, points, meant


def grouped_e2m1(values, columns, group, scale_of):
    """Codes and what they mean; scale_of(group) gives what is stored and what that means."""
    codes, stored, meant = [], [], []
    for one in groups_of(values, columns, group):
        kept, scale = scale_of(one)
        stored.append(kept)
        for value in one:
            codes.append(nearest_e2m1(value / scale))
            meant.append(e2m1_value(codes[-1]) * scale)
    return codes, stored, meant


def mx_scale(group):
    """E8M0: the power of two with which the largest magnitude is below 8."""
    largest = max(map(abs, group))
    exponent = math.frexp(largest)[1] - 3 if largest else 0
    return exponent + 127, 2.0**exponent


def nv_scale(one, times):
    """E4M3 times, or over, the scale for all, rounded to FP32 as a program would."""
    def scale_of(group):
        wanted = max(map(abs, group)) / 6
        code = max(1, nearest_e4m3(wanted / one if times else wanted * one))
        return code, to_f32(Fraction(E4M3[code]) * Fraction(one) if times else Fraction(E4M3[code]) / Fraction(one))
    return scale_of
