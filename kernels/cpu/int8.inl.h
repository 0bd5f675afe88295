// Products in precision int8: x in eight bits, each 32 columns with a scale, by integer codes. For the instruction set
// files only (see table.inl.h).
//
// The result is defined without regard to instructions, so that it has the same bits on each:
//   x         for each group of 32 columns, counted from 0: scale = max |x| / 127 and q = x * (127 / max |x|), rounded
//             to the nearest, ties to even. Groups below 2^-100 are zeros; one with an infinity or NaN is NaN.
//   sums      sum = sum over a group's columns of q * (code - zero point), an exact integer
//   y         four chains: group g adds fma(sum, weight scale * scale, chain) to chain g mod 4, groups ascending, up to
//             a multiple of four with zeros; y = (chain 0 + chain 2) + (chain 1 + chain 3).
// Zero points are taken from the sums: sum of q * (code - zero) = sum of q * code - zero * sum of q.
//
// Few rows of x stream the weights (int8_stream.inl.h). More rows share pieces of weights, laid out so that a lane is
// an output and no sum crosses lanes.
//
// V has, besides what table.inl.h lists (of bytes 64, of sums 16):
//   Bytes Sums load_bytes set_sums add_sums bits_of of_bits floats_of
//   kInt8Vectors x kInt8Rows   sums of a tile that fit the registers beside as many totals and the operands; 1, 2 or 4
//                              rows
//   kInt8StreamRows   rows that are multiplied by a streamed weight at once; up to twice as many stream the weights
//   low_nibbles high_nibbles   four-bit codes as dot_nibbles takes them
//   byte_codes     eight-bit codes as dot_bytes takes them; kByteZero is their zero point then
//   dot_nibbles dot_bytes(codes, x, sums)   adds the four products of each lane
//   times_short    products of lanes; first factors fit 15 bits, second ones 16
//   pair_quarters  of two vectors, the sums of quarters 0 and 1 and of quarters 2 and 3
//   sum_quarters   of four vectors, the sum of each quarter: lane 4 o + q is quarter q of vector o
//   quarters       four values from each of four addresses; all_quarters, from one
//   each_quarter   each of four values in a quarter
#pragma once

#include "kernels/cpu/int8_stream.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Some runs of a few outputs, and the chains of some rows.
template <class V>
struct Int8Piece {
  static constexpr uint32_t kRuns = 8;
  static constexpr uint32_t kGroups = kRuns * kRunGroups;
  static constexpr uint32_t kVectors = V::kInt8Vectors;
  static constexpr uint32_t kOutputs = kVectors * kLanes;
  static constexpr uint32_t kRows = 96;  // that share decoded weights: 24 KiB of chains a vector of outputs
  static_assert(kGroups % kLanes == 0 && kGroups <= kScaleWindow);
  alignas(64) typename V::Bytes weights[kGroups][8][kVectors];
  // Indexed by scale block; block[group] is a group's. Zero points are integers in the place of FP32.
  alignas(64) float scales[kGroups][kOutputs];
  alignas(64) float zeros[kGroups][kOutputs];
  uint8_t block[kGroups];
  alignas(64) float chains[kRows][kRunGroups][kOutputs];
};

template <class V>
uint64_t int8_scratch_bytes(uint32_t /*in*/) {
  static_assert(sizeof(Int8Piece<V>) <= kPanelScratchBytes);
  return sizeof(Int8Piece<V>);
}

/// Values of blocks for 16 outputs.
template <class V>
struct BlockSquares {
  alignas(64) float at[kLanes][kScaleWindow];

  /// Sixteen blocks from `first` on, so that a vector has all outputs of one.
  template <size_t kOutputs>
  void transpose(uint32_t first, float (*to)[kOutputs], uint32_t vector) const {
    V rows[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i)
      rows[i] = V::load(at[i] + first);
    V::transpose(rows);
    for (uint32_t i = 0; i < kLanes; ++i)
      rows[i].store(to[first + i] + vector * kLanes);
  }
};

/// Outputs beyond the last repeat the first: they are computed but not stored.
template <class V, class Codes>
void decode_runs(const MatrixView& matrix, uint32_t output, uint32_t count, uint32_t first, uint32_t runs,
                 Int8Piece<V>& piece) {
  using Piece = Int8Piece<V>;
  const uint64_t row_bytes = (uint64_t{matrix.in} * Codes::kRunBytes + kRunColumns - 1) / kRunColumns;
  // Prefetches the codes to decode next: the same outputs' next runs, or the next outputs' first.
  const uint64_t begin = uint64_t{first} * Codes::kRunBytes;
  const uint64_t ahead =
      first + runs == runs_of(matrix.in) ? Piece::kOutputs * row_bytes - begin : uint64_t{runs} * Codes::kRunBytes;
  for (uint32_t run = 0; run < runs; ++run) {
    for (uint32_t square = 0; square < Codes::kSquares; ++square) {
      const uint64_t at = uint64_t{first + run} * Codes::kRunBytes + 64 * square;
      for (uint32_t vector = 0; vector < Piece::kVectors; ++vector) {
        V rows[kLanes];
        for (uint32_t i = 0; i < kLanes; ++i) {
          const uint32_t o = vector * kLanes + i;
          const std::byte* const from = matrix.planes[kCodes] + (output + (o < count ? o : 0)) * row_bytes + at;
          prefetch<2>(from, ahead);
          alignas(64) std::byte padded[64];
          const bool is_whole = at + 64 <= row_bytes;
          if (!is_whole) {
            __builtin_memset(padded, 0, sizeof padded);
            if (at < row_bytes) __builtin_memcpy(padded, from, row_bytes - at);
          }
          rows[i] = V::of_bits(V::load_bytes(is_whole ? from : padded));
        }
        Codes::lay_out(rows, square, piece.weights + size_t{run} * kRunGroups, vector);
      }
    }
  }
  const ScaleBlocks blocks(matrix);
  const uint32_t first_block = first * kRunGroups / blocks.groups;
  uint32_t block = 0;
  uint32_t left = blocks.groups - first * kRunGroups % blocks.groups;  // groups of the block
  for (uint32_t group = 0; group < runs * kRunGroups; ++group) {
    piece.block[group] = static_cast<uint8_t>(block);
    if (--left == 0) {
      ++block;
      left = blocks.groups;
    }
  }
  // Groups that pad the last run may be in a block that does not exist; they meet zeros, and need any finite scale.
  const uint32_t count_here = smaller(piece.block[runs * kRunGroups - 1] + 1U, blocks.count - first_block);
  for (uint32_t vector = 0; vector < Piece::kVectors; ++vector) {
    BlockSquares<V> scales, zeros;
    for (uint32_t i = 0; i < kLanes; ++i) {
      const uint32_t o = vector * kLanes + i;
      decode_blocks<V, Codes>(matrix, output + (o < count ? o : 0), first_block, count_here, scales.at[i], zeros.at[i]);
    }
    for (uint32_t at = 0; at < count_here; at += kLanes) {
      scales.transpose(at, piece.scales, vector);
      if constexpr (Codes::kHasZeros) zeros.transpose(at, piece.zeros, vector);
    }
  }
  for (uint32_t group = 0; group < runs * kRunGroups; ++group)
    piece.block[group] = static_cast<uint8_t>(smaller(piece.block[group], count_here - 1));
}

/// T rows of x from `row` on, which are laid out together, for the piece's runs; their chains begin at index `at`.
template <class V, class Codes, uint32_t T>
void int8_tile(Int8Piece<V>& piece, const RoundedTask& task, uint32_t row, uint32_t at, uint32_t first, uint32_t runs) {
  constexpr uint32_t kVectors = V::kInt8Vectors;
  using X = QuantRows<kQuantRows>;
  X x(task.x + row / kQuantRows * X::bytes(task.matrix.in), runs_of(task.matrix.in));
  x.codes += size_t{first} * X::kRunCodes + size_t{4} * (row % kQuantRows);
  x.scales += size_t{first} * X::kRunScales + row % kQuantRows;
  x.minus += size_t{first} * X::kRunScales + row % kQuantRows;
#pragma GCC unroll 4
  for (uint32_t chain = 0; chain < kRunGroups; ++chain) {
    V totals[T][kVectors];
    for (uint32_t t = 0; t < T; ++t) {
      for (uint32_t v = 0; v < kVectors; ++v)
        totals[t][v] = first == 0 ? V::zero() : V::load(piece.chains[at + t][chain] + v * kLanes);
    }
    for (uint32_t run = 0; run < runs; ++run) {
      const uint32_t group = run * kRunGroups + chain;
      const int8_t* const values = x.codes + size_t{run} * X::kRunCodes;
      const size_t of_group = size_t{group} * kQuantRows;
      const uint32_t block = piece.block[group];
      typename V::Sums sums[T][kVectors];
#pragma GCC unroll 4
      for (uint32_t t = 0; t < T; ++t) {
        const int32_t minus = x.minus[of_group + t];
        for (uint32_t v = 0; v < kVectors; ++v) {
          if constexpr (Codes::kHasZeros) {
            const auto zeros = V::load(piece.zeros[block] + v * kLanes);
            sums[t][v] = V::times_short(V::bits_of(zeros), V::set_sums(minus));
          } else {
            sums[t][v] = V::set_sums(Codes::kZero * minus);
          }
        }
      }
#pragma GCC unroll 8
      for (uint32_t word = 0; word < Codes::kWords; ++word) {
        const int8_t* const from = values + size_t{Codes::x_of_word(chain, word)} * kQuantRows;
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t) {
          int32_t four = 0;
          __builtin_memcpy(&four, from + size_t{4} * t, sizeof four);
          const auto spread = __builtin_bit_cast(typename V::Bytes, V::set_sums(four));
#pragma GCC unroll 2
          for (uint32_t v = 0; v < kVectors; ++v)
            sums[t][v] = Codes::dot(piece.weights[group][word][v], spread, sums[t][v]);
        }
      }
#pragma GCC unroll 4
      for (uint32_t t = 0; t < T; ++t) {
        const V scale = V::set(x.scales[of_group + t]);
        for (uint32_t v = 0; v < kVectors; ++v)
          totals[t][v] =
              V::fma(V::floats_of(sums[t][v]), V::mul(V::load(piece.scales[block] + v * kLanes), scale), totals[t][v]);
      }
    }
    for (uint32_t t = 0; t < T; ++t) {
      for (uint32_t v = 0; v < kVectors; ++v)
        totals[t][v].store(piece.chains[at + t][chain] + v * kLanes);
    }
  }
}

/// The last rows, fewer than a tile's.
template <class V, class Codes, uint32_t T>
void int8_last_tile(Int8Piece<V>& piece, const RoundedTask& task, uint32_t rows, uint32_t row, uint32_t at,
                    uint32_t first, uint32_t runs) {
  if constexpr (T > 0) {
    if (rows == T) return int8_tile<V, Codes, T>(piece, task, row, at, first, runs);
    int8_last_tile<V, Codes, T - 1>(piece, task, rows, row, at, first, runs);
  }
}

template <class V, class Codes>
void int8_pieces(const RoundedTask& task, RowRange rows) {
  using Piece = Int8Piece<V>;
  constexpr uint32_t kTile = V::kInt8Rows;
  Piece& piece = *reinterpret_cast<Piece*>(task.scratch);
  const uint32_t runs = runs_of(task.matrix.in);
  const uint32_t row_count = rows.end - rows.begin;
  for (uint32_t output = task.outputs.begin; output < task.outputs.end; output += Piece::kOutputs) {
    const uint32_t count = smaller(Piece::kOutputs, task.outputs.end - output);
    for (uint32_t first = 0; first < runs; first += Piece::kRuns) {
      const uint32_t some = smaller(Piece::kRuns, runs - first);
      decode_runs<V, Codes>(task.matrix, output, count, first, some, piece);
      uint32_t at = 0;
      for (; at + kTile <= row_count; at += kTile)
        int8_tile<V, Codes, kTile>(piece, task, rows.begin + at, at, first, some);
      int8_last_tile<V, Codes, kTile - 1>(piece, task, row_count - at, rows.begin + at, at, first, some);
    }
    for (uint32_t at = 0; at < row_count; ++at) {
      float* const y = task.y + (rows.begin + at) * task.y_stride + (output - task.outputs.begin);
      for (uint32_t v = 0; v * kLanes < count; ++v) {
        const auto chain = [&](uint32_t c) { return V::load(piece.chains[at][c] + v * kLanes); };
        const V sum = V::add(V::add(chain(0), chain(2)), V::add(chain(1), chain(3)));
        store_part(sum, y + size_t{v} * kLanes, smaller(kLanes, count - v * kLanes));
      }
    }
  }
}

template <class V, class L>
void int8_rows(const RoundedTask& task) {
  using Codes = IntegerCodes<V, L>;
  if (task.rows <= kMostStreamed<V>) return int8_stream_outputs<V, Codes>(task);
  for (uint32_t row = 0; row < task.rows; row += Int8Piece<V>::kRows)
    int8_pieces<V, Codes>(task, {row, smaller(row + Int8Piece<V>::kRows, task.rows)});
}

/// Peak arithmetic: independent sums. One factor changes with the round, or compilers would multiply but once.
template <class V>
uint64_t int8_rounds(uint64_t rounds) {
  constexpr uint32_t kSums = 2 + V::kInt8Vectors * V::kInt8Rows;
  typename V::Sums sums[kSums];
  for (auto& sum : sums)
    sum = V::set_sums(0);
  for (uint64_t round = 0; round < rounds; ++round) {
    const auto x = __builtin_bit_cast(typename V::Bytes, V::set_sums(static_cast<int32_t>(round & 0x7fU)));
#pragma GCC unroll 16
    for (uint32_t i = 0; i < kSums; ++i) {
      const auto codes = __builtin_bit_cast(typename V::Bytes, V::set_sums(static_cast<int32_t>(0x0102'0304U + i)));
      sums[i] = V::dot_nibbles(codes, x, sums[i]);
    }
  }
  for (const auto& sum : sums) {  // a volatile, so that the compiler cannot remove the computation
    volatile float seen = V::floats_of(sum).first();
    (void)seen;
  }
  return rounds * kSums * 4 * kLanes;
}

template <class V>
consteval RoundedOps make_int8_products() {
  RoundedOps ops{.x_bytes = int8_x_bytes<V>,
                 .round = quantise_rows<V>,
                 .scratch_bytes = int8_scratch_bytes<V>,
                 .multiply_adds = int8_rounds<V>};
  ops.linear[static_cast<size_t>(Coding::i8)] = int8_rows<V, LoadI8>;
  ops.linear[static_cast<size_t>(Coding::i4)] = int8_rows<V, LoadI4>;
  ops.linear[static_cast<size_t>(Coding::u4)] = int8_rows<V, LoadU4>;
  return ops;
}

template <class V>
constexpr RoundedOps kInt8Products = make_int8_products<V>();

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
