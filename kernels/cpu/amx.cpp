// Products in precision amx: x rounded to BF16, weights decoded exactly as BF16, FP32 sums, on AMX tiles (AMX-TILE,
// AMX-BF16, besides AVX-512 with BF16 and VBMI).
// Source: Intel, Instruction Set Extensions Programming Reference, chapters 3 and 5 (TDPBF16PS), which gives the order
// of sums. For a step of 32 columns:
//
//   even = x0 w0 + x2 w2 + ..     odd = x1 w1 + x3 w3 + ..     by fma, ascending, from zero
//   block = block + (even + odd)                               subnormal sums are zero
//
// For a scale block: total = fma(block, scale, total).
//
//   C [16 outputs][rows of x]  +=  A [16 outputs][32 columns]  .  B [16 pairs of columns][rows of x]
//
// A is decoded once for some rows of x, each step of 32 columns to a tile of 1 KiB. x is laid out as B when it is
// rounded. Two tiles of A are multiplied with two of B, so that each loaded tile serves two products.
#include <immintrin.h>

#include "kernels/cpu/e4m3_table.inl.h"
#include "kernels/cpu/scales.inl.h"

namespace dspack::kernels {
namespace {

constexpr uint32_t kTile = 16;            // outputs, or rows of x
constexpr uint64_t kTileBytes = 1024;     // a tile of A; also of B if x has 16 rows
constexpr uint32_t kOutputs = 2 * kTile;  // outputs whose weights are decoded at once
constexpr uint32_t kGroups = 4;           // groups of 16 rows of x that decoded weights serve
constexpr uint32_t kStep = kRoundedStep;
constexpr uint32_t kColumns = 128;  // columns of weights decoded at once. More is no faster (measured 2026-11,
                                    // Sapphire Rapids, one row of x: 256 columns 23.9 GB/s, 128 28.7)
// Rows up to this length are prefetched two pieces ahead, longer ones one piece (one piece and two: 4.8 and 5.8
// tokens/s with 2,048 columns, 28.9 and 19.8 GB/s with 7,168; 2026-11).
constexpr uint32_t kShortRow = 4096;
constexpr uint64_t kRowTileBytes = uint64_t{kColumns / kStep} * kTileBytes;  // A for 16 outputs

uint32_t steps_of(uint32_t in) {
  return (in + kStep - 1) / kStep;
}
/// Rows of x in a tile: all groups are as wide as the first.
uint32_t width_of(uint32_t rows) {
  return smaller(rows, kTile);
}
/// Bytes of one group of rows.
uint64_t group_bytes(uint32_t rows, uint32_t in) {
  return uint64_t{steps_of(in)} * kTile * width_of(rows) * sizeof(uint32_t);
}
uint64_t x_bytes(uint32_t rows, uint32_t in) {
  return uint64_t{(rows + kTile - 1) / kTile} * group_bytes(rows, in);
}
/// One piece that is being multiplied and one that is being decoded.
uint64_t scratch_bytes(uint32_t /*in*/) {
  return 4 * kRowTileBytes;
}

__mmask16 first_lanes(uint32_t count) {
  return static_cast<__mmask16>(count >= kTile ? 0xffffU : (1U << count) - 1U);
}

/// Rounds groups of rows to [step][pair of columns][row] of two BF16, zero-padded after the last column and row.
void round_groups(const RoundingTask& task) {
  const uint32_t width = width_of(task.rows);
  const uint32_t steps = steps_of(task.in);
  const __m512i lanes = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                           _mm512_set1_epi32(static_cast<int>(width)));
  for (uint32_t group = task.groups.begin; group < task.groups.end; ++group) {
    std::byte* to = task.to + group * group_bytes(task.rows, task.in);
    for (uint32_t t = 0; t < width; ++t) {
      const uint32_t row = group * kTile + t;
      const bool is_there = row < task.rows;
      const float* from = task.x + (is_there ? row * task.x_stride : 0);
      for (uint32_t step = 0; step < steps; ++step, from += kStep) {
        const uint32_t left = task.in - step * kStep;
        const __mmask16 lows = is_there ? first_lanes(left) : __mmask16{0};
        const __mmask16 highs = is_there && left > kTile ? first_lanes(left - kTile) : __mmask16{0};
        const __m512 low = _mm512_maskz_loadu_ps(lows, from);
        const __m512 high = highs == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(highs, from + kTile);
        const auto pairs = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
        int* place = reinterpret_cast<int*>(to) + (uint64_t{step} * kTile * width + t);
        if (width == 1) {
          _mm512_storeu_si512(place, pairs);
        } else {
          _mm512_i32scatter_epi32(place, lanes, pairs, sizeof(int));
        }
      }
    }
  }
}

constinit const E4m3Table kE4m3(0);

/// Decodes 64 columns of a row to two steps of BF16.
struct FromE4m3 {
  __m512i low[2];
  __m512i high[2];
  FromE4m3() {
    for (uint32_t i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(kE4m3.low + size_t{64} * i);
      high[i] = _mm512_load_si512(kE4m3.high + size_t{64} * i);
    }
  }
  static constexpr uint32_t kBytes = 1;  // bytes per code
  void decode(const std::byte* from, uint32_t columns, std::byte* first, std::byte* second) const {
    const __mmask64 there = columns >= 64 ? ~uint64_t{0} : (uint64_t{1} << columns) - 1;
    // Gives each 16-byte lane eight columns of each step, which the unpacking below makes adjacent.
    const __m512i codes =
        _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), _mm512_maskz_loadu_epi8(there, from));
    const __m512i lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i magnitudes = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i highs = _mm512_or_si512(magnitudes, _mm512_and_si512(codes, _mm512_set1_epi8(-128)));
    _mm512_store_si512(first, _mm512_unpacklo_epi8(lows, highs));
    _mm512_store_si512(second, _mm512_unpackhi_epi8(lows, highs));
  }
};
struct FromBf16 {
  static constexpr uint32_t kBytes = 2;
  static void decode(const std::byte* from, uint32_t columns, std::byte* first, std::byte* second) {
    const auto there = [](uint32_t count) {
      return static_cast<__mmask32>(count >= kStep ? 0xffffffffU : (1U << count) - 1U);
    };
    _mm512_store_si512(first, _mm512_maskz_loadu_epi16(there(columns), from));
    _mm512_store_si512(second, _mm512_maskz_loadu_epi16(there(columns > kStep ? columns - kStep : 0), from + 64));
  }
};

/// Some columns of 32 outputs, of which `count` exist.
struct WeightPanel {
  uint32_t output = 0;
  uint32_t count = 0;
  uint32_t begin = 0;  // columns
  uint32_t end = 0;
};

/// Decodes a piece row by row while another is multiplied, since the tile unit runs asynchronously. `to` is laid out as
/// [row tile][step][output][32 columns].
template <class Decode>
class DecodeAhead {
 public:
  DecodeAhead(const MatrixView& matrix, uint32_t rows_at_once) : matrix_(matrix), rows_at_once_(rows_at_once) {}

  void begin(const WeightPanel& piece, std::byte* to) {
    piece_ = piece;
    to_ = to;
    row_ = 0;
    // After a row's last pieces come the first pieces of the next outputs.
    const uint64_t row_bytes = uint64_t{matrix_.in} * Decode::kBytes;
    const uint32_t ahead = matrix_.in <= kShortRow ? 2 * kColumns : kColumns;
    ahead_ = uint64_t{ahead} * Decode::kBytes;
    if (piece.begin + ahead >= matrix_.in) ahead_ += (kOutputs - 1) * row_bytes;
  }
  void some() {
    const uint32_t end = smaller(row_ + rows_at_once_, kOutputs);
    for (; row_ < end; ++row_)
      decode_row(row_);
  }
  void rest() {
    for (; row_ < kOutputs; ++row_)
      decode_row(row_);
  }

 private:
  void decode_row(uint32_t o) const {
    const uint32_t row = piece_.output + (o < piece_.count ? o : 0);  // outputs beyond the last: computed, not stored
    const std::byte* from = matrix_.planes[kCodes] + uint64_t{row} * matrix_.in * Decode::kBytes;
    std::byte* tile = to_ + o / kTile * kRowTileBytes + uint64_t{o % kTile} * 64;
    for (uint32_t column = piece_.begin; column < piece_.end; column += 2 * kStep) {
      const std::byte* codes = from + uint64_t{column} * Decode::kBytes;
      prefetch(codes, ahead_);  // the hardware prefetcher does not follow 32 rows
      decode_.decode(codes, matrix_.in - column, tile, tile + kTileBytes);
      tile += 2 * kTileBytes;
    }
  }

  const Decode decode_{};
  const MatrixView& matrix_;
  uint32_t rows_at_once_;
  WeightPanel piece_;
  std::byte* to_ = nullptr;
  uint64_t ahead_ = 0;       // bytes
  uint32_t row_ = kOutputs;  // next row to decode; kOutputs: none
};

/// Sums of 32 outputs for some groups of rows: of the current scale block, and of all completed blocks.
struct TileSums {
  alignas(64) float block[kGroups][kOutputs][kTile];
  alignas(64) float total[kGroups][kOutputs][kTile];
  const float* scales[kOutputs];  // scales of each output, by block; missing outputs repeat the first one's
};

/// Once for all columns of these outputs, since finding a row's scales takes a division.
void find_scales(const MatrixView& matrix, const WeightPanel& piece, TileSums& sums) {
  for (uint32_t o = 0; o < kOutputs; ++o) {
    const uint32_t row = piece.output + (o < piece.count ? o : 0);
    sums.scales[o] = reinterpret_cast<const float*>(scales_of_row(matrix, row, 0));
  }
}

/// Addresses and strides of the operands of some steps.
struct Operands {
  const std::byte* weights;
  const std::byte* x;
  uint64_t group;   // bytes between groups of rows
  uint64_t x_step;  // between steps
  int64_t x_row;    // between pairs of columns
};

/// Adds some steps to the sums of G groups at `first` and `second`, `stride` bytes between outputs. Tiles: 0 to 3 are C
/// by [group][row tile], 4 and 5 A, 6 and 7 B; tile numbers must be constants.
template <uint32_t G, class Ahead>
void multiply_steps(Operands at, uint32_t steps, bool begins, int stride, float* first, float* second, Ahead& ahead) {
  const uint32_t row_tile = kTile * static_cast<uint32_t>(stride) / uint32_t{sizeof(float)};  // values
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (G > 1) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, first, stride);
    _tile_loadd(1, first + row_tile, stride);
    if constexpr (G > 1) {
      _tile_loadd(2, second, stride);
      _tile_loadd(3, second + row_tile, stride);
    }
  }
  for (uint32_t step = 0; step < steps; ++step) {
    _tile_loadd(4, at.weights, 64);
    _tile_loadd(5, at.weights + kRowTileBytes, 64);
    _tile_loadd(6, at.x, at.x_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (G > 1) {
      _tile_loadd(7, at.x + at.group, at.x_row);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    ahead.some();
    at.weights += kTileBytes;
    at.x += at.x_step;
  }
  _tile_stored(0, first, stride);
  _tile_stored(1, first + row_tile, stride);
  if constexpr (G > 1) {
    _tile_stored(2, second, stride);
    _tile_stored(3, second + row_tile, stride);
  }
}

/// Bytes between the sums of outputs if x has several rows. For a single row sums are adjacent, 16 outputs in a vector.
constexpr uint32_t kStride = kTile * sizeof(float);

/// Adds a completed block of a single row to the totals.
void scale_single(uint32_t block, TileSums& sums) {
  alignas(64) float scales[kOutputs];
  for (uint32_t o = 0; o < kOutputs; ++o)
    scales[o] = sums.scales[o][block];
  const float* from = sums.block[0][0];
  float* totals = sums.total[0][0];
  for (uint32_t o = 0; o < kOutputs; o += kTile) {
    const __m512 total = block == 0 ? _mm512_setzero_ps() : _mm512_load_ps(totals + o);
    _mm512_store_ps(totals + o, _mm512_fmadd_ps(_mm512_load_ps(from + o), _mm512_load_ps(scales + o), total));
  }
}

/// Multiplies a piece, decoded at `weights`, with G groups of rows from `group` on, whose sums begin at index `at`.
template <uint32_t G, class Ahead>
void multiply_piece(const RoundedTask& task, const WeightPanel& piece, const std::byte* weights, uint32_t group,
                    uint32_t at, TileSums& sums, Ahead& ahead) {
  const MatrixView& matrix = task.matrix;
  const uint32_t width = width_of(task.rows);
  const uint64_t x_row = uint64_t{width} * sizeof(uint32_t);
  Operands operands{.weights = weights,
                    .x = nullptr,
                    .group = group_bytes(task.rows, matrix.in),
                    .x_step = kTile * x_row,
                    .x_row = static_cast<int64_t>(x_row)};
  operands.x = task.x + group * operands.group + piece.begin / kStep * operands.x_step;
  for (uint32_t column = piece.begin; column < piece.end;) {
    const uint32_t block = column / matrix.block_in;
    const uint32_t block_begin = block * matrix.block_in;
    const uint32_t stop = smaller(piece.end, smaller(matrix.in, block_begin + smaller(matrix.block_in, matrix.in)));
    const uint32_t steps = steps_of(stop - column);
    multiply_steps<G>(operands, steps, column == block_begin, static_cast<int>(width == 1 ? sizeof(float) : kStride),
                      sums.block[at][0], sums.block[smaller(at + 1, kGroups - 1)][0], ahead);
    operands.weights += uint64_t{steps} * kTileBytes;
    operands.x += steps * operands.x_step;
    column = stop;
    if (stop != matrix.in && stop % matrix.block_in != 0) break;  // the block continues in the next columns
    if (width == 1) {
      scale_single(block, sums);
      continue;
    }
    for (uint32_t o = 0; o < kOutputs; ++o) {
      const __m512 scale = _mm512_set1_ps(sums.scales[o][block]);
      for (uint32_t g = at; g < at + G; ++g) {
        const __m512 total = block == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums.total[g][o]);
        _mm512_store_ps(sums.total[g][o], _mm512_fmadd_ps(_mm512_load_ps(sums.block[g][o]), scale, total));
      }
    }
  }
}

/// Stores the totals of a group of rows.
void store_group(const RoundedTask& task, const WeightPanel& piece, uint32_t group,
                 const float (&totals)[kOutputs][kTile]) {
  for (uint32_t t = 0; t < smaller(kTile, task.rows - group * kTile); ++t) {
    float* y = task.y + (group * kTile + t) * task.y_stride + (piece.output - task.outputs.begin);
    for (uint32_t o = 0; o < piece.count; ++o)
      y[o] = task.rows == 1 ? totals[o / kTile][o % kTile] : totals[o][t];
  }
}

/// The piece after this one: the next columns, or the first columns of the next outputs.
WeightPanel next_piece(const RoundedTask& task, WeightPanel piece) {
  piece.begin = piece.end;
  if (piece.begin >= task.matrix.in) {
    piece.begin = 0;
    piece.output += piece.count;
    piece.count = smaller(kOutputs, task.outputs.end - piece.output);
  }
  piece.end = smaller(piece.begin + kColumns, task.matrix.in);
  return piece;
}

/// Multiplies the groups of rows [first, end) of x.
template <class Decode>
void multiply_groups(const RoundedTask& task, uint32_t first, uint32_t end) {
  // Rows of the next piece are decoded between the steps of this one, which has four steps per two groups.
  DecodeAhead<Decode> ahead(task.matrix, end - first > 2 ? 4 : 8);
  std::byte* now = task.scratch;
  std::byte* then = task.scratch + 2 * kRowTileBytes;
  TileSums sums = {};
  WeightPanel piece{.output = task.outputs.begin, .count = smaller(kOutputs, task.outputs.end - task.outputs.begin)};
  piece.end = smaller(kColumns, task.matrix.in);
  ahead.begin(piece, now);
  ahead.rest();
  while (piece.count > 0) {
    const WeightPanel next = next_piece(task, piece);
    if (next.count > 0) ahead.begin(next, then);
    if (piece.begin == 0) find_scales(task.matrix, piece, sums);
    for (uint32_t group = first; group < end; group += 2) {
      const uint32_t at = group - first;
      group + 1 < end ? multiply_piece<2>(task, piece, now, group, at, sums, ahead)
                      : multiply_piece<1>(task, piece, now, group, at, sums, ahead);
    }
    ahead.rest();
    for (uint32_t group = first; piece.end == task.matrix.in && group < end; ++group)
      store_group(task, piece, group, sums.total[group - first]);
    piece = next;
    std::byte* done = now;
    now = then;
    then = done;
  }
}

/// Tile configuration, in the layout of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

/// Tiles 4 and 5 hold weights; the others are as wide as x has rows.
void shape_tiles(uint32_t width) {
  TileShapes shapes;
  for (uint32_t i = 0; i < 8; ++i) {
    const bool is_of_weights = i == 4 || i == 5;
    shapes.rows[i] = kTile;
    shapes.row_bytes[i] = static_cast<uint16_t>(is_of_weights ? 64 : width * sizeof(uint32_t));
  }
  _tile_loadconfig(&shapes);
}

template <class Decode>
void tile_rows(const RoundedTask& task) {
  shape_tiles(width_of(task.rows));
  const uint32_t groups = (task.rows + kTile - 1) / kTile;
  for (uint32_t first = 0; first < groups; first += kGroups)
    multiply_groups<Decode>(task, first, smaller(first + kGroups, groups));
  _tile_release();
}

// Peak arithmetic of the tiles: four independent sums with constant operands.
uint64_t tile_rounds(uint64_t rounds) {
  shape_tiles(kTile);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(6);
  for (uint64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 6);
  }
  _tile_release();
  return rounds * 4 * kTile * kTile * kStep;
}

}  // namespace

constinit const RoundedOps kAmxRounded{.x_bytes = x_bytes,
                                       .round = round_groups,
                                       .scratch_bytes = scratch_bytes,
                                       .linear = {nullptr, tile_rows<FromBf16>, nullptr, tile_rows<FromE4m3>},
                                       .multiply_adds = tile_rounds};

}  // namespace dspack::kernels
