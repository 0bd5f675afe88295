// y = x W^T for many rows of x. For the instruction set files only (see table.inl.h).
//
// The weights of some outputs are decoded once for all rows, and laid out so that a vector holds 16 outputs and no sum
// crosses lanes. The order of sums is that of linear.inl.h, whose lane l sums the columns i = l (mod 16) of a block:
// here every lane class l is summed separately, for 16 outputs in one vector, and the 16 classes are added last.
//
//   unit      up to 16 columns of one scale block; a ragged end is padded with zeros
//   window    some units of all columns, decoded for kPanelOutputs outputs:  weights[class][unit][output]
//   x         packed once per product:                                [group of rows][class][unit][row of the group]
//
// Per step a tile loads a vector for every 16 outputs and one value of x for every row. Block sums and totals of one
// class stay in registers across a window.
#pragma once

#include "kernels/cpu/linear.inl.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/scales.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

// A class of a window (16 KiB) fits the L1 cache; the window (256 KiB), the sums (384 KiB and more) and the active part
// of x fit L2.
constexpr uint32_t kPanelOutputs = 64;
constexpr uint32_t kPanelUnits = 64;
// One extra cache line per class: addresses a multiple of 4 KiB apart map to the same L1 set.
constexpr size_t kClassValues = size_t{kPanelUnits} * kPanelOutputs + kLanes;

template <class L>
constexpr uint32_t kUnitsOfLine = 64 * 8 / (L::kBits * kLanes) > 0 ? 64 * 8 / (L::kBits * kLanes) : 1;

/// The division of a matrix's columns into units.
struct Units {
  uint32_t in = 0;
  uint32_t block_in = 0;
  uint32_t per_block = 0;
  uint32_t count = 0;

  Units(uint32_t columns, uint32_t block) : in(columns), block_in(smaller(block, columns)) {
    per_block = (block_in + kLanes - 1) / kLanes;
    count = columns / block_in * per_block + (columns % block_in + kLanes - 1) / kLanes;
  }
  [[nodiscard]] uint32_t column(uint32_t unit) const { return unit / per_block * block_in + unit % per_block * kLanes; }
  [[nodiscard]] uint32_t columns(uint32_t unit) const {
    const uint32_t block_end = smaller((unit / per_block + 1) * block_in, in);
    return smaller(kLanes, block_end - column(unit));
  }
};

inline uint64_t packed_values(uint32_t rows, uint32_t in, uint32_t block_in, uint32_t group) {
  return uint64_t{(rows + group - 1) / group} * group * Units(in, block_in).count * kLanes;
}

template <class V>
uint64_t panel_x_values(uint32_t rows, uint32_t in, uint32_t block_in) {
  return packed_values(rows, in, block_in, V::kPanelTileRows);
}

template <class V>
void pack_x(const PackingTask& task) {
  constexpr uint32_t kGroup = V::kPanelTileRows;
  const Units units(task.in, task.block_in);
  const uint64_t class_values = uint64_t{units.count} * kGroup;
  for (uint32_t group = task.groups.begin; group < task.groups.end; ++group) {
    float* to = task.to + size_t{group} * kLanes * class_values;
    for (uint32_t t = 0; t < kGroup; ++t) {
      const uint32_t row = group * kGroup + t;
      const float* from = task.x + row * task.x_stride;
      for (uint32_t unit = 0; unit < units.count; ++unit) {
        alignas(64) float values[kLanes] = {};
        if (row < task.rows) {
          const uint32_t n = units.columns(unit);
          const float* first = from + units.column(unit);
          (n == kLanes ? V::load(first) : load_part<V, LoadF32>(bytes_of(first), n)).store(values);
        }
        for (uint32_t l = 0; l < kLanes; ++l)
          to[l * class_values + uint64_t{unit} * kGroup + t] = values[l];
      }
    }
  }
}

/// Consecutive units of a window in one scale block.
struct Segment {
  uint32_t begin = 0, end = 0;  // unit indices within the window
  bool begins = false;          // at the start of a block
  bool ends = false;
};

struct PanelScratch {
  alignas(64) float weights[kLanes][kClassValues];       // [unit][output]
  alignas(64) float scales[kPanelUnits][kPanelOutputs];  // by segment
  // Sums of a block that continues in the next window, and totals of all blocks before it.
  alignas(64) float block[kLanes][kMaxPanelRows][kPanelOutputs];
  alignas(64) float total[kLanes][kMaxPanelRows][kPanelOutputs];
  Segment segments[kPanelUnits];
  uint32_t segment_count = 0;
};
static_assert(sizeof(PanelScratch) <= kPanelScratchBytes);

/// The zero points of `outputs` outputs in `block`; zero for the remaining lanes.
template <class V>
V zeros_of_unit(const MatrixView& matrix, uint32_t output, uint32_t outputs, uint32_t block) {
  alignas(64) float zeros[kLanes] = {};
  for (uint32_t o = 0; o < outputs; ++o)
    zeros[o] = static_cast<float>(static_cast<uint8_t>(matrix.planes[kZeros][scale_index(matrix, output + o, block)]));
  return V::load(zeros);
}

/// Decodes a square, 16 columns of 16 outputs `row_bytes` apart, to its place in each class.
template <class V, class L>
inline void decode_square(const std::byte* from, size_t row_bytes, float* to) {
  V rows[kLanes];
#pragma GCC unroll 16
  for (uint32_t o = 0; o < kLanes; ++o)
    rows[o] = L::template load<V>(from + o * row_bytes);
  V::transpose(rows);
#pragma GCC unroll 16
  for (uint32_t l = 0; l < kLanes; ++l)
    rows[l].store(to + l * kClassValues);
}

/// Same for fewer columns or outputs; the rest become arbitrary numbers.
template <class V, class L>
void decode_part(const MatrixView& matrix, uint32_t output, uint32_t outputs, uint32_t column, uint32_t columns,
                 float* to) {
  V rows[kLanes];
  for (uint32_t o = 0; o < kLanes; ++o)
    rows[o] = o < outputs ? load_part<V, L>(weight_at<L>(matrix, output + o, column), columns) : V::zero();
  V::transpose(rows);
  if constexpr (facts_of(L::kCoding).has_zeros) {
    const V zeros = zeros_of_unit<V>(matrix, output, outputs, column / matrix.block_in);
    for (V& row : rows)
      row = V::sub(row, zeros);
  }
  for (uint32_t l = 0; l < kLanes; ++l)
    rows[l].store(to + l * kClassValues);
}

/// Decodes the squares of a line (64 bytes of each of 16 outputs, from `column` on). Transposes the codes, four bytes
/// at a time, before decoding: a fraction of the moves that transposing values would take.
template <class V, class L>
inline void decode_squares(const MatrixView& matrix, uint32_t output, uint32_t column, float* to) {
  constexpr uint32_t kColumns = 32 / L::kBits;  // columns in four bytes
  constexpr bool kHasZeros = facts_of(L::kCoding).has_zeros;
  const std::byte* from = weight_at<L>(matrix, output, column);
  const size_t row_bytes = bytes_for<L>(matrix.in);
  V codes[kLanes];
#pragma GCC unroll 16
  for (uint32_t o = 0; o < kLanes; ++o)
    codes[o] = V::load_f32(from + o * row_bytes);
  V::transpose(codes);
  [[maybe_unused]] V zeros = V::zero();
  for (uint32_t i = 0; i < kLanes; ++i) {
    const uint32_t first = i * kColumns;  // first column within the line
    V values[kColumns];
    L::template columns<V>(codes[i], values);
    if constexpr (kHasZeros) {
      const uint32_t at = column + first;
      if (i == 0 || at % matrix.block_in == 0) zeros = zeros_of_unit<V>(matrix, output, kLanes, at / matrix.block_in);
      for (uint32_t c = 0; c < kColumns; ++c)
        values[c] = V::sub(values[c], zeros);
    }
    float* unit = to + size_t{first / kLanes} * kPanelOutputs;
#pragma GCC unroll 8
    for (uint32_t c = 0; c < kColumns; ++c)
      values[c].store(unit + (first % kLanes + c) * kClassValues);
  }
}

/// Decodes `unit_count` units from `first` on, for `count` outputs from `output` on.
template <class V, class L>
void decode_window(const MatrixView& matrix, const Units& units, uint32_t first, uint32_t unit_count, uint32_t output,
                   uint32_t count, PanelScratch& scratch) {
  const size_t row_bytes = bytes_for<L>(matrix.in);
  // Prefetches the weights to decode next: the hardware prefetcher cannot follow that many rows at once.
  const bool is_last = first + unit_count >= units.count;
  // Units are adjacent in the row.
  [[maybe_unused]] const bool are_dense = units.block_in % kLanes == 0 || units.block_in == matrix.in;
  const size_t ahead = is_last ? kPanelOutputs * row_bytes - bytes_for<L>(units.column(first))
                               : bytes_for<L>(size_t{kPanelUnits} * kLanes);
  for (uint32_t o = 0; o < count; o += kLanes) {
    const uint32_t outputs = smaller(kLanes, count - o);
    for (uint32_t unit = 0; unit < unit_count;) {
      const uint32_t columns = units.columns(first + unit);
      const std::byte* from = weight_at<L>(matrix, output + o, units.column(first + unit));
      float* to = scratch.weights[0] + size_t{unit} * kPanelOutputs + o;
      if (unit % kUnitsOfLine<L> == 0) {
        for (uint32_t row = 0; row < outputs; ++row)
          prefetch<2>(from + row * row_bytes, ahead);
      }
      if constexpr (L::kHasColumns) {
        constexpr uint32_t kUnits = kUnitsOfLine<L>;
        const uint32_t column = units.column(first + unit);
        if (are_dense && outputs == kLanes && unit + kUnits <= unit_count && column + kUnits * kLanes <= matrix.in) {
          decode_squares<V, L>(matrix, output + o, column, to);
          unit += kUnits;
          continue;
        }
      }
      if (L::kBits >= 8 && columns == kLanes && outputs == kLanes) {
        decode_square<V, L>(from, row_bytes, to);
      } else {
        decode_part<V, L>(matrix, output + o, outputs, units.column(first + unit), columns, to);
      }
      ++unit;
    }
  }
}

/// Divides a window into segments, and decodes their scales.
template <class V, class L>
void cut_window(const MatrixView& matrix, const Units& units, uint32_t first, uint32_t unit_count, uint32_t output,
                uint32_t count, PanelScratch& scratch) {
  scratch.segment_count = 0;
  for (uint32_t unit = first; unit < first + unit_count;) {
    const uint32_t block = unit / units.per_block;
    const uint32_t block_end = smaller((block + 1) * units.per_block, units.count);
    const uint32_t end = smaller(block_end, first + unit_count);
    Segment& segment = scratch.segments[scratch.segment_count];
    segment.begin = unit - first;
    segment.end = end - first;
    segment.begins = unit == block * units.per_block;
    segment.ends = end == block_end;
    ++scratch.segment_count;
    unit = end;
  }
  for (uint32_t o = 0; o < kPanelOutputs; ++o) {
    alignas(64) float window[kScaleWindow] = {};
    if (o < count)
      decode_scales<V>(matrix, output + o, first / units.per_block, scratch.segment_count, L::kUnit, window);
    for (uint32_t s = 0; s < scratch.segment_count; ++s)
      scratch.scales[s][o] = window[s];
  }
}
static_assert(kPanelUnits <= kScaleWindow);

/// One class of a window for K vectors of outputs and T rows. Keeps everything but the stored vectors in locals, since
/// the compiler must assume that stores alias; and indexes sums only by variables of plain loops, which unroll, so that
/// the arrays stay in registers.
template <class V, uint32_t K, uint32_t T>
inline void panel_tile(const float* weights, const float* x, const PanelScratch& scratch, const float* scales,
                       bool is_first, float* block, float* total) {
  constexpr uint32_t kGroup = V::kPanelTileRows;
  const Segment* segments = scratch.segments;
  const uint32_t count = scratch.segment_count;
  V sum[K][T], all[K][T];
  for (uint32_t k = 0; k < K; ++k) {
    for (uint32_t t = 0; t < T; ++t)
      all[k][t] = is_first ? V::zero() : V::load(total + size_t{t} * kPanelOutputs + size_t{k} * kLanes);
  }
  for (uint32_t s = 0; s < count; ++s) {
    const Segment segment = segments[s];
    if (segment.begins) {
      for (uint32_t k = 0; k < K; ++k) {
        for (uint32_t t = 0; t < T; ++t)
          sum[k][t] = V::zero();
      }
    } else {
      for (uint32_t k = 0; k < K; ++k) {
        for (uint32_t t = 0; t < T; ++t)
          sum[k][t] = V::load(block + size_t{t} * kPanelOutputs + size_t{k} * kLanes);
      }
    }
    const float* w = weights + size_t{segment.begin} * kPanelOutputs;
    const float* const end = weights + size_t{segment.end} * kPanelOutputs;
    for (const float* value = x + size_t{segment.begin} * kGroup; w != end; w += kPanelOutputs, value += kGroup) {
      V weight[K];
      for (uint32_t k = 0; k < K; ++k)
        weight[k] = V::load(w + size_t{k} * kLanes);
      for (uint32_t t = 0; t < T; ++t) {
        const V all_x = V::set(value[t]);
#pragma GCC unroll 8  // even for K = 1, or GCC 12 keeps sums of four registers in memory
        for (uint32_t k = 0; k < K; ++k)
          sum[k][t] = V::fma(weight[k], all_x, sum[k][t]);
      }
    }
    if (segment.ends) {
      for (uint32_t k = 0; k < K; ++k) {
        const V scale = V::load(scales + size_t{s} * kPanelOutputs + size_t{k} * kLanes);
        for (uint32_t t = 0; t < T; ++t)
          all[k][t] = V::fma(sum[k][t], scale, all[k][t]);
      }
    } else {
      for (uint32_t k = 0; k < K; ++k) {
        for (uint32_t t = 0; t < T; ++t)
          sum[k][t].store(block + size_t{t} * kPanelOutputs + size_t{k} * kLanes);
      }
    }
  }
  for (uint32_t k = 0; k < K; ++k) {
    for (uint32_t t = 0; t < T; ++t)
      all[k][t].store(total + size_t{t} * kPanelOutputs + size_t{k} * kLanes);
  }
}

/// Computes `rows` rows, at most T.
template <class V, uint32_t T>
void panel_class(uint32_t l, uint32_t vectors, uint32_t row, uint32_t rows, const float* x, bool is_first,
                 PanelScratch& scratch) {
  if constexpr (T > 1) {
    if (rows < T) return panel_class<V, T - 1>(l, vectors, row, rows, x, is_first, scratch);
  }
  constexpr uint32_t kTile = V::kPanelVectors;
  uint32_t o = 0;
  for (; o + kTile * kLanes <= vectors * kLanes; o += kTile * kLanes)
    panel_tile<V, kTile, T>(scratch.weights[l] + o, x, scratch, &scratch.scales[0][o], is_first,
                            &scratch.block[l][row][o], &scratch.total[l][row][o]);
  for (; o < vectors * kLanes; o += kLanes)
    panel_tile<V, 1, T>(scratch.weights[l] + o, x, scratch, &scratch.scales[0][o], is_first, &scratch.block[l][row][o],
                        &scratch.total[l][row][o]);
}

/// Sums the 16 classes of 16 outputs in the order in which V::sum adds lanes.
template <class V>
V sum_classes(const PanelScratch& scratch, uint32_t row, uint32_t output) {
  V sums[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l)
    sums[l] = V::load(&scratch.total[l][row][output]);
  for (uint32_t apart = kLanes / 2; apart > 0; apart /= 2) {
    for (uint32_t l = 0; l < apart; ++l)
      sums[l] = V::add(sums[l], sums[l + apart]);
  }
  return sums[0];
}

template <class V, class L>
void panel_outputs(const PanelTask& task, uint32_t output, uint32_t count, PanelScratch& scratch) {
  constexpr uint32_t kGroup = V::kPanelTileRows;
  const MatrixView& matrix = task.matrix;
  const Units units(matrix.in, matrix.block_in);
  const uint64_t class_values = uint64_t{units.count} * kGroup;
  const uint32_t vectors = (count + kLanes - 1) / kLanes;
  for (uint32_t first = 0; first < units.count; first += kPanelUnits) {
    const uint32_t some = smaller(kPanelUnits, units.count - first);
    decode_window<V, L>(matrix, units, first, some, output, count, scratch);
    cut_window<V, L>(matrix, units, first, some, output, count, scratch);
    for (uint32_t l = 0; l < kLanes; ++l) {
      for (uint32_t row = 0; row < task.rows; row += kGroup) {
        const float* x = task.x + (uint64_t{row / kGroup} * kLanes + l) * class_values + uint64_t{first} * kGroup;
        panel_class<V, kGroup>(l, vectors, row, smaller(kGroup, task.rows - row), x, first == 0, scratch);
      }
    }
  }
  for (uint32_t row = 0; row < task.rows; ++row) {
    float* y = task.y + row * task.y_stride + (output - task.outputs.begin);
    for (uint32_t o = 0; o < count; o += kLanes) {
      const V sum = sum_classes<V>(scratch, row, o);
      if (o + kLanes <= count) {
        sum.store(y + o);
      } else {
        store_part(sum, y + o, count - o);
      }
    }
  }
}

template <class V, class L>
void panel_rows(const PanelTask& task) {
  auto& scratch = *reinterpret_cast<PanelScratch*>(task.scratch);
  for (uint32_t output = task.outputs.begin; output < task.outputs.end; output += kPanelOutputs)
    panel_outputs<V, L>(task, output, smaller(kPanelOutputs, task.outputs.end - output), scratch);
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
