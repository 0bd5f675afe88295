// Products in precision bf16 by AVX-512's instruction for them (AVX512-BF16, besides F, BW, VL, DQ and VBMI): the bits
// of linear.inl.h for rounded x (unless an operand or a sum is subnormal, which the instruction takes for zero).
//
// VDPBF16PS takes pairs: sum = fma(low, low', fma(high, high', sum)) (Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 2; the same on Zen 4). A group is 32 columns; lane l has column l in its high half and
// column l + 16 in its low half, so that its sum takes them in ascending order.
//
//   few rows of x   codes stream from memory through registers, output after output: rows of weights are read at the
//                   memory's rate only one after the other, and x as BF16 leaves room for them in the L1 cache
//   more            some columns of a few outputs are decoded once for all rows
#include "kernels/cpu/avx512.inl.h"
#include "kernels/cpu/e4m3_table.inl.h"
#include "kernels/cpu/scales.inl.h"

namespace dspack::kernels {
namespace {

using Groups = uint32_t[kLanes];  // 32 columns as pairs

constexpr uint32_t kGroup = kRoundedStep;  // columns
constexpr uint32_t kPieceGroups = 32;      // groups of weights decoded at once: 2 KiB for an output
constexpr uint32_t kOutputs = 6;           // outputs whose weights are decoded at once
constexpr uint32_t kTileRows = 2;          // 12 sums and 12 totals, 2 + 1 operands, of 32 registers
constexpr uint32_t kStreamRows = 4;        // with two outputs 8 sums and 8 totals, 2 + 1 operands
constexpr uint32_t kMostStreamed = 8;      // most rows by which weights stream
constexpr uint32_t kLongBlock = 512;       // columns
constexpr uint32_t kRowsAtOnce = 96;       // rows that decoded weights serve; their sums take 74 KiB

uint32_t groups_of(uint32_t in) {
  return (in + kGroup - 1) / kGroup;
}
uint64_t x_bytes(uint32_t rows, uint32_t in) {
  return uint64_t{rows} * groups_of(in) * sizeof(Groups);
}

__m512bh pairs(__m512i values) {
  return reinterpret_cast<__m512bh>(values);
}

__mmask16 first_lanes(uint32_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffffU : (1U << count) - 1U);
}

/// Words i and i + 16 of a vector, in the low and the high half of lane i: exchanged, so that i is in the high half.
__m512i pair_words(__m512i words) {
  alignas(64) static constexpr uint16_t kPlaces[32] = {16, 0, 17, 1, 18, 2,  19, 3,  20, 4,  21, 5,  22, 6,  23, 7,
                                                       24, 8, 25, 9, 26, 10, 27, 11, 28, 12, 29, 13, 30, 14, 31, 15};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kPlaces), words);
}

/// Rounds rows to [group][lane] pairs, zero-padded after the last column.
void round_rows(const RoundingTask& task) {
  const uint32_t groups = groups_of(task.in);
  const uint32_t end = smaller(task.rows, task.groups.end * kRoundedGroup);
  for (uint32_t row = task.groups.begin * kRoundedGroup; row < end; ++row) {
    const float* from = task.x + row * task.x_stride;
    std::byte* to = task.to + uint64_t{row} * groups * sizeof(Groups);
    for (uint32_t i = 0; i < task.in; i += kGroup, to += sizeof(Groups)) {
      const uint32_t left = task.in - i;
      const __m512 first = _mm512_maskz_loadu_ps(first_lanes(left), from + i);
      const __m512 second =
          left <= kLanes ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(first_lanes(left - kLanes), from + i + kLanes);
      _mm512_storeu_si512(to, pair_words(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first))));
    }
  }
}

constinit const E4m3Table kE4m3(0);

/// Decodes 64 columns, of which n > 0 exist, to two groups; the rest become zeros.
struct FromE4m3 {
  static constexpr uint32_t kColumns = 64;
  static constexpr uint32_t kGroups = 2;
  static constexpr uint64_t bytes(uint64_t columns) { return columns; }

  __m512i places, low[2], high[2];
  FromE4m3() {
    // Orders the bytes so that unpacking yields the pairs of lane i: column i + 16, and column i.
    alignas(64) static constexpr uint8_t kPlaces[64] = {
        16, 0,  17, 1,  18, 2,  19, 3,  48, 32, 49, 33, 50, 34, 51, 35,  //
        20, 4,  21, 5,  22, 6,  23, 7,  52, 36, 53, 37, 54, 38, 55, 39,  //
        24, 8,  25, 9,  26, 10, 27, 11, 56, 40, 57, 41, 58, 42, 59, 43,  //
        28, 12, 29, 13, 30, 14, 31, 15, 60, 44, 61, 45, 62, 46, 63, 47};
    places = _mm512_load_si512(kPlaces);
    for (uint32_t i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(kE4m3.low + size_t{64} * i);
      high[i] = _mm512_load_si512(kE4m3.high + size_t{64} * i);
    }
  }
  void decode(const std::byte* from, uint32_t n, __m512i (&to)[kGroups]) const {
    const __m512i stored =
        n >= kColumns ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8((uint64_t{1} << n) - 1, from);
    const __m512i codes = _mm512_permutexvar_epi8(places, stored);
    const __m512i lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i magnitudes = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i highs = _mm512_ternarylogic_epi32(magnitudes, codes, _mm512_set1_epi8(-128), 0xf8);  // a | (b & c)
    to[0] = _mm512_unpacklo_epi8(lows, highs);
    to[1] = _mm512_unpackhi_epi8(lows, highs);
  }
};

struct FromBf16 {
  static constexpr uint32_t kColumns = 32;
  static constexpr uint32_t kGroups = 1;
  static constexpr uint64_t bytes(uint64_t columns) { return 2 * columns; }
  static void decode(const std::byte* from, uint32_t n, __m512i (&to)[kGroups]) {
    const __m512i stored = n >= kColumns ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((1U << n) - 1U, from);
    to[0] = pair_words(stored);
  }
};

template <class From>
const std::byte* codes_at(const MatrixView& matrix, uint32_t output, uint32_t column) {
  return matrix.planes[kCodes] + output * From::bytes(matrix.in) + From::bytes(column);
}
const float* scales_of(const MatrixView& matrix, uint32_t output) {
  return reinterpret_cast<const float*>(scales_of_row(matrix, output, 0));
}

/// The products of T rows of x, from `row` on, with O outputs, `apart` outputs from each other.
template <class From, uint32_t O, uint32_t T>
void stream(const From& from, const RoundedTask& task, uint32_t row, uint32_t output, uint32_t apart) {
  const MatrixView& matrix = task.matrix;
  const uint64_t stride = groups_of(matrix.in) * sizeof(Groups);
  const float* scales[O];
  for (uint32_t o = 0; o < O; ++o)
    scales[o] = scales_of(matrix, output + o * apart);
  Vec512 total[O][T] = {};
  for (uint32_t begin = 0, block = 0; begin < matrix.in; begin += matrix.block_in, ++block) {
    const uint32_t columns = smaller(matrix.block_in, matrix.in - begin);
    const std::byte* x = task.x + row * stride + begin / kGroup * sizeof(Groups);
    const std::byte* codes[O];
    for (uint32_t o = 0; o < O; ++o)
      codes[o] = codes_at<From>(matrix, output + o * apart, begin);
    Vec512 sum[O][T] = {};
    uint32_t i = 0;
    for (; i + From::kColumns <= columns; i += From::kColumns, x += From::kGroups * sizeof(Groups)) {
#pragma GCC unroll 4
      for (uint32_t o = 0; o < O; ++o) {
        prefetch_run(codes[o] + From::bytes(i));
        __m512i weights[From::kGroups];
        from.decode(codes[o] + From::bytes(i), From::kColumns, weights);
#pragma GCC unroll 2
        for (uint32_t g = 0; g < From::kGroups; ++g) {
#pragma GCC unroll 4
          for (uint32_t t = 0; t < T; ++t) {
            const __m512i values = _mm512_loadu_si512(x + t * stride + g * sizeof(Groups));
            sum[o][t].v = _mm512_dpbf16_ps(sum[o][t].v, pairs(weights[g]), pairs(values));
          }
        }
      }
    }
    for (; i < columns; i += kGroup, x += sizeof(Groups)) {
#pragma GCC unroll 4
      for (uint32_t o = 0; o < O; ++o) {
        __m512i weights[From::kGroups];
        from.decode(codes[o] + From::bytes(i), smaller(kGroup, columns - i), weights);
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t)
          sum[o][t].v = _mm512_dpbf16_ps(sum[o][t].v, pairs(weights[0]), pairs(_mm512_loadu_si512(x + t * stride)));
      }
    }
    for (uint32_t o = 0; o < O; ++o) {
      const Vec512 scale = Vec512::set(scales[o][block]);
      for (uint32_t t = 0; t < T; ++t)
        total[o][t] = Vec512::fma(sum[o][t], scale, total[o][t]);
    }
  }
  for (uint32_t o = 0; o < O; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      task.y[(row + t) * task.y_stride + output + o * apart - task.outputs.begin] = total[o][t].sum();
  }
}

/// All rows from `row` on, T at a time. The codes of the outputs stay in the L1 cache.
template <class From, uint32_t O, uint32_t T>
void stream_rows(const From& from, const RoundedTask& task, uint32_t row, uint32_t output, uint32_t apart) {
  if constexpr (T > 0) {
    for (; row + T <= task.rows; row += T)
      stream<From, O, T>(from, task, row, output, apart);
    stream_rows<From, O, T - 1>(from, task, row, output, apart);
  }
}

/// Streams O outputs at a time, from O equal parts of the range, then the rest one by one.
template <class From, uint32_t O, uint32_t T>
void stream_outputs(const From& from, const RoundedTask& task) {
  const RowRange range = task.outputs;
  const uint32_t apart = (range.end - range.begin) / O;
  for (uint32_t output = range.begin; output < range.begin + apart; ++output)
    stream_rows<From, O, T>(from, task, 0, output, apart);
  for (uint32_t output = range.begin + O * apart; output < range.end; ++output)
    stream_rows<From, 1, T>(from, task, 0, output, 1);
}

/// Consecutive groups of a piece in one scale block.
struct Segment {
  float scales[kOutputs] = {};
  uint32_t begin = 0, end = 0;  // groups, counted from the piece's first
  bool begins = false;          // at the start of a block
  bool ends = false;
};

/// Some columns of a few outputs.
struct Piece {
  alignas(64) Groups weights[kOutputs][kPieceGroups];
  // Sums of a block that continues in the next piece, and totals of all blocks before it.
  alignas(64) float block[kRowsAtOnce][kOutputs][kLanes];
  alignas(64) float total[kRowsAtOnce][kOutputs][kLanes];
  Segment segments[kPieceGroups];
  uint32_t segment_count = 0;
};

uint64_t scratch_bytes(uint32_t /*in*/) {
  return sizeof(Piece);
}

/// Outputs beyond the last repeat the first: they are computed but not stored.
template <class From>
void decode_piece(const From& from, const MatrixView& matrix, uint32_t output, uint32_t count, uint32_t first,
                  uint32_t groups, Piece& piece) {
  const uint32_t begin = first * kGroup;
  const uint32_t end = smaller(begin + groups * kGroup, matrix.in);
  // Prefetches the codes to decode next: the same outputs' next columns, or the next outputs' first.
  const bool is_last = end == matrix.in;
  const uint64_t ahead = is_last ? kOutputs * From::bytes(matrix.in) - From::bytes(begin) : From::bytes(end - begin);
  for (uint32_t o = 0; o < kOutputs; ++o) {
    Groups* to = piece.weights[o];
    for (uint32_t column = begin; column < end; column += From::kColumns, to += From::kGroups) {
      const std::byte* codes = codes_at<From>(matrix, output + (o < count ? o : 0), column);
      prefetch<2>(codes, ahead);
      __m512i weights[From::kGroups];
      from.decode(codes, end - column, weights);
      for (uint32_t g = 0; g < From::kGroups; ++g)
        _mm512_store_si512(to[g], weights[g]);
    }
  }
  const uint32_t per_block = groups_of(smaller(matrix.block_in, matrix.in));
  piece.segment_count = 0;
  for (uint32_t group = first; group < first + groups;) {
    const uint32_t block = group / per_block;
    const uint32_t block_end = smaller((block + 1) * per_block, groups_of(matrix.in));
    const uint32_t stop = smaller(block_end, first + groups);
    Segment& segment = piece.segments[piece.segment_count++];
    segment.begin = group - first;
    segment.end = stop - first;
    segment.begins = group == block * per_block;
    segment.ends = stop == block_end;
    for (uint32_t o = 0; o < kOutputs; ++o)
      segment.scales[o] = scales_of(matrix, output + (o < count ? o : 0))[block];
    group = stop;
  }
}

/// T rows of x, at `x` from the piece's first group on, `stride` bytes apart, whose sums begin at index `row`.
template <uint32_t T>
void multiply_tile(Piece& piece, const std::byte* x, uint64_t stride, uint32_t row, bool is_first) {
  const Segment* const last = piece.segments + piece.segment_count;
  Vec512 sum[kOutputs][T], all[kOutputs][T];
  for (uint32_t o = 0; o < kOutputs; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      all[o][t] = is_first ? Vec512::zero() : Vec512::load(piece.total[row + t][o]);
  }
  for (const Segment* segment = piece.segments; segment != last; ++segment) {
    const uint32_t end = segment->end;
    if (segment->begins) {
      for (uint32_t o = 0; o < kOutputs; ++o) {
        for (uint32_t t = 0; t < T; ++t)
          sum[o][t] = Vec512::zero();
      }
    } else {
      for (uint32_t o = 0; o < kOutputs; ++o) {
        for (uint32_t t = 0; t < T; ++t)
          sum[o][t] = Vec512::load(piece.block[row + t][o]);
      }
    }
    for (uint32_t g = segment->begin; g < end; ++g) {
      __m512i values[T];
#pragma GCC unroll 8
      for (uint32_t t = 0; t < T; ++t)
        values[t] = _mm512_loadu_si512(x + t * stride + g * sizeof(Groups));
#pragma GCC unroll 8
      for (uint32_t o = 0; o < kOutputs; ++o) {
        const __m512bh weights = pairs(_mm512_load_si512(piece.weights[o][g]));
#pragma GCC unroll 8
        for (uint32_t t = 0; t < T; ++t)
          sum[o][t].v = _mm512_dpbf16_ps(sum[o][t].v, weights, pairs(values[t]));
      }
    }
    if (segment->ends) {
      for (uint32_t o = 0; o < kOutputs; ++o) {
        const Vec512 scale = Vec512::set(segment->scales[o]);
        for (uint32_t t = 0; t < T; ++t)
          all[o][t] = Vec512::fma(sum[o][t], scale, all[o][t]);
      }
    } else {
      for (uint32_t o = 0; o < kOutputs; ++o) {
        for (uint32_t t = 0; t < T; ++t)
          sum[o][t].store(piece.block[row + t][o]);
      }
    }
  }
  for (uint32_t o = 0; o < kOutputs; ++o) {
    for (uint32_t t = 0; t < T; ++t)
      all[o][t].store(piece.total[row + t][o]);
  }
}

/// Some outputs for some rows of x.
template <class From>
void multiply_outputs(const From& from, const RoundedTask& task, uint32_t output, uint32_t count, RowRange rows) {
  Piece& piece = *reinterpret_cast<Piece*>(task.scratch);
  const uint32_t groups = groups_of(task.matrix.in);
  const uint64_t stride = groups * sizeof(Groups);
  for (uint32_t first = 0; first < groups; first += kPieceGroups) {
    decode_piece(from, task.matrix, output, count, first, smaller(kPieceGroups, groups - first), piece);
    const std::byte* x = task.x + rows.begin * stride + first * sizeof(Groups);
    for (uint32_t row = 0; row < rows.end - rows.begin; row += kTileRows) {
      if (row + kTileRows <= rows.end - rows.begin)
        multiply_tile<kTileRows>(piece, x + row * stride, stride, row, first == 0);
      else
        multiply_tile<1>(piece, x + row * stride, stride, row, first == 0);
    }
  }
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    float* y = task.y + row * task.y_stride + (output - task.outputs.begin);
    for (uint32_t o = 0; o < count; ++o)
      y[o] = Vec512::load(piece.total[row - rows.begin][o]).sum();
  }
}
static_assert(kTileRows == 2);

template <class From>
void multiply_rows(const RoundedTask& task) {
  const From from;
  if (task.rows == 1) {
    // Long blocks are one chain of dependent sums: several outputs at a time keep the processor busy.
    const bool is_long = smaller(task.matrix.block_in, task.matrix.in) > kLongBlock;
    return is_long ? stream_outputs<From, 4, 1>(from, task) : stream_outputs<From, 1, 1>(from, task);
  }
  if (task.rows <= kMostStreamed) return stream_outputs<From, 2, kStreamRows>(from, task);
  for (uint32_t row = 0; row < task.rows; row += kRowsAtOnce) {
    const RowRange rows{row, smaller(row + kRowsAtOnce, task.rows)};
    for (uint32_t output = task.outputs.begin; output < task.outputs.end; output += kOutputs)
      multiply_outputs(from, task, output, smaller(kOutputs, task.outputs.end - output), rows);
  }
}

// Peak arithmetic of the instruction: independent sums with constant operands.
uint64_t dot_rounds(uint64_t rounds) {
  constexpr uint32_t kChains = 16;
  __m512 sums[kChains];
  for (__m512& sum : sums)
    sum = _mm512_setzero_ps();
  const __m512bh factors = pairs(_mm512_set1_epi32(0x3f803f80));
  for (uint64_t round = 0; round < rounds; ++round) {
    for (__m512& sum : sums)
      sum = _mm512_dpbf16_ps(sum, factors, factors);
  }
  // Stores to a volatile, so that the compiler cannot remove the computation.
  for (const __m512& sum : sums) {
    volatile float seen = _mm512_cvtss_f32(sum);
    (void)seen;
  }
  return rounds * kChains * kLanes * 2;
}

}  // namespace

constinit const RoundedOps kAvx512Bf16Rounded{
    .x_bytes = x_bytes,
    .round = round_rows,
    .scratch_bytes = scratch_bytes,
    .linear = {nullptr, multiply_rows<FromBf16>, nullptr, multiply_rows<FromE4m3>},
    .multiply_adds = dot_rounds};

}  // namespace dspack::kernels
