// y = x W^T in precision bf16: x rounded to BF16, weights decoded exactly as BF16, FP32 sums. For the instruction set
// files only (see table.inl.h).
//
// The order of sums is that of the AMX tile instructions (Intel, Instruction Set Extensions Programming Reference,
// TDPBF16PS) on every instruction set, so all have the same bits (unless a sum is subnormal, which tiles flush to
// zero). For a step of 32 columns:
//
//   even = x0 w0 + x2 w2 + ..     odd = x1 w1 + x3 w3 + ..     by fma, ascending, from zero
//   block = block + (even + odd)
//
// For a scale block: total = fma(block, scale, total).
//
//   outputs ->  16 lanes, one each        x: broadcast, one value to all lanes
//   w[k]       [ o0 o1 .. o15 ]           decoded and transposed once for all rows of x
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/scales.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

constexpr uint32_t kStep = kRoundedStep;
constexpr uint32_t kTurnedCols = 512;  // columns of weights decoded at once: 32 KiB as FP32
constexpr uint32_t kRoundedRows = 96;  // rows of x that decoded weights serve

inline uint32_t steps_of(uint32_t in) {
  return (in + kStep - 1) / kStep;
}

/// The nearest BF16, ties to even, as FP32; NaN stays NaN.
inline float nearest_bf16(float value) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U;
  bits = is_nan ? (bits & 0xffff0000U) | 0x00400000U : rounded;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// Arithmetic of a step: multiplies a Value of x with a vector of Values of 16 outputs. In this form a Value is one
/// column, an FP32 number that BF16 represents exactly.
template <class Vector>
struct FloatTerms {
  using V = Vector;
  using Value = float;
  static constexpr uint32_t kValues = kStep;  // Values per step
  static constexpr uint32_t kTile = 4;        // rows of x whose sums are in registers

  /// Rounds one step of a row, of which n columns exist; the rest become zeros.
  static void round(const float* x, uint32_t n, Value* to) {
    for (uint32_t i = 0; i < kStep; ++i)
      to[i] = i < n ? nearest_bf16(x[i]) : 0;
  }
  template <uint32_t T>
  static void add_step(const Value (*weights)[kLanes], const Value* const (&x)[T], V (&even)[T], V (&odd)[T]) {
    for (uint32_t k = 0; k < kStep; k += 2) {
      const V first = V::load(weights[k]);
      const V second = V::load(weights[k + 1]);
      for (uint32_t t = 0; t < T; ++t) {
        even[t] = V::fma(first, V::set(x[t][k]), even[t]);
        odd[t] = V::fma(second, V::set(x[t][k + 1]), odd[t]);
      }
    }
  }
};

/// Decodes and transposes kColumns columns of 16 outputs, from `rows` + `offset` on, of which n exist; the rest become
/// zeros.
template <class Vector, class L>
struct TurnFloats {
  using Terms = FloatTerms<Vector>;
  static constexpr uint32_t kColumns = kLanes;
  static constexpr uint64_t bytes(uint32_t columns) { return bytes_for<L>(columns); }
  static void turn(const std::byte* const (&rows)[kLanes], uint64_t offset, uint32_t n, float (*to)[kLanes]) {
    Vector values[kLanes];
    for (uint32_t o = 0; o < kLanes; ++o) {
      const std::byte* from = rows[o] + offset;
      const Vector codes = n == kLanes ? L::template load<Vector>(from) : load_part<Vector, L>(from, n);
      values[o] = Vector::mul(codes, Vector::set(L::kUnit));
    }
    Vector::transpose(values);
    for (uint32_t l = 0; l < kLanes; ++l)
      (l < n ? values[l] : Vector::zero()).store(to[l]);
  }
};

template <class Terms>
uint64_t rounded_width(uint32_t in) {
  return uint64_t{steps_of(in)} * Terms::kValues;
}
template <class Terms>
uint64_t rounded_x_bytes(uint32_t rows, uint32_t in) {
  return rows * rounded_width<Terms>(in) * sizeof(typename Terms::Value);
}

inline uint64_t no_scratch_bytes(uint32_t /*in*/) {
  return 0;
}

/// Pads rows to whole steps.
template <class Terms>
void round_x(const RoundingTask& task) {
  const uint64_t width = rounded_width<Terms>(task.in);
  const uint32_t end = smaller(task.rows, task.groups.end * kRoundedGroup);
  for (uint32_t row = task.groups.begin * kRoundedGroup; row < end; ++row) {
    auto* to = reinterpret_cast<typename Terms::Value*>(task.to) + row * width;
    for (uint32_t i = 0; i < task.in; i += kStep, to += Terms::kValues)
      Terms::round(task.x + row * task.x_stride + i, smaller(kStep, task.in - i), to);
  }
}

/// Some columns of 16 outputs, decoded and transposed.
template <class Terms>
struct TurnedWeights {
  alignas(64) typename Terms::Value values[kTurnedCols / kStep * Terms::kValues][kLanes];  // [step][value][output]
  alignas(64) float scales[kTurnedCols / kStep][kLanes];  // scales of the blocks that end in these columns
  const float* scale_rows[kLanes];                        // scales of each output, by block
  uint32_t begin = 0;                                     // first column in the matrix
  uint32_t cols = 0;                                      // a whole number of steps
};

/// Once for all columns of some outputs, since finding a row's scales takes a division. Outputs beyond the last repeat
/// the first: they are computed but not stored.
template <class Terms>
void find_scales(const MatrixView& matrix, uint32_t output, uint32_t count, TurnedWeights<Terms>& turned) {
  for (uint32_t o = 0; o < kLanes; ++o) {
    const std::byte* scales = scales_of_row(matrix, output + (o < count ? o : 0), 0);
    turned.scale_rows[o] = reinterpret_cast<const float*>(scales);
  }
}

/// Whether a scale block ends with the step at `column`.
inline bool ends_block(const MatrixView& matrix, uint32_t column) {
  return (column + kStep) % matrix.block_in == 0 || column + kStep >= matrix.in;
}

template <class Turn>
void turn_weights(const MatrixView& matrix, uint32_t output, uint32_t count,
                  TurnedWeights<typename Turn::Terms>& turned) {
  constexpr uint32_t kValues = Turn::kColumns * Turn::Terms::kValues / kStep;
  uint32_t ended = 0;
  for (uint32_t column = turned.begin; column < turned.begin + turned.cols; column += kStep) {
    if (!ends_block(matrix, column)) continue;
    for (uint32_t o = 0; o < kLanes; ++o)
      turned.scales[ended][o] = turned.scale_rows[o][column / matrix.block_in];
    ++ended;
  }
  const std::byte* rows[kLanes];
  for (uint32_t o = 0; o < kLanes; ++o)
    rows[o] = matrix.planes[kCodes] + (output + (o < count ? o : 0)) * Turn::bytes(matrix.in);
  // Sixteen rows are contiguous. While they are transposed the next sixteen are prefetched in address order into L2,
  // which has room for both. One row of x then gets 16 GB/s; without prefetch, or with prefetch line by line of 16
  // rows, or into L1, 9 to 12 (V3's [2048, 7168], one thread, Zen 4, 2026-11).
  constexpr uint64_t kSquareBytes = kLanes * Turn::bytes(Turn::kColumns);
  const uint64_t run_bytes = kLanes * Turn::bytes(matrix.in);
  auto* to = turned.values;
  for (uint32_t i = 0; i < turned.cols; i += Turn::kColumns, to += kValues) {
    const uint32_t column = turned.begin + i;
    const uint32_t left = column < matrix.in ? matrix.in - column : 0;
    for (uint64_t line = 0; line < kSquareBytes; line += 64)
      prefetch<2>(rows[0], run_bytes + kLanes * Turn::bytes(column) + line);
    Turn::turn(rows, Turn::bytes(column), smaller(Turn::kColumns, left), to);
  }
}

/// Sums of 16 outputs for some rows of x.
struct RoundedSums {
  alignas(64) float block[kRoundedRows][kLanes];
  alignas(64) float total[kRoundedRows][kLanes];
};

/// Computes T rows of x from `row` on, whose sums begin at index `at`.
template <class Terms, uint32_t T>
void rounded_tile(const RoundedTask& task, const TurnedWeights<Terms>& turned, uint32_t row, uint32_t at,
                  RoundedSums& sums) {
  using V = typename Terms::V;
  using Value = typename Terms::Value;
  const MatrixView& matrix = task.matrix;
  const uint64_t width = rounded_width<Terms>(matrix.in);
  const Value* x[T];
  V block[T];
  for (uint32_t t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const Value*>(task.x) + (row + t) * width + turned.begin / kStep * Terms::kValues;
    block[t] = V::load(sums.block[at + t]);
  }
  const Value(*weights)[kLanes] = turned.values;
  const float(*scales)[kLanes] = turned.scales;
  for (uint32_t i = 0; i < turned.cols; i += kStep, weights += Terms::kValues) {
    const uint32_t column = turned.begin + i;
    if (column % matrix.block_in == 0) {
      for (uint32_t t = 0; t < T; ++t)
        block[t] = V::zero();
    }
    V even[T];
    V odd[T];
    for (uint32_t t = 0; t < T; ++t)
      even[t] = odd[t] = V::zero();
    Terms::template add_step<T>(weights, x, even, odd);
    for (uint32_t t = 0; t < T; ++t) {
      block[t] = V::add(block[t], V::add(even[t], odd[t]));
      x[t] += Terms::kValues;
    }
    if (!ends_block(matrix, column)) continue;
    const V scale = V::load(*scales++);
    for (uint32_t t = 0; t < T; ++t) {
      float* total = sums.total[at + t];
      V::fma(block[t], scale, column < matrix.block_in ? V::zero() : V::load(total)).store(total);
    }
  }
  for (uint32_t t = 0; t < T; ++t)
    block[t].store(sums.block[at + t]);
}

/// Computes `rows` rows, at most T.
template <class Terms, uint32_t T>
void rounded_some(const RoundedTask& task, const TurnedWeights<Terms>& turned, uint32_t row, uint32_t rows, uint32_t at,
                  RoundedSums& sums) {
  if constexpr (T > 1) {
    if (rows < T) return rounded_some<Terms, T - 1>(task, turned, row, rows, at, sums);
  }
  rounded_tile<Terms, T>(task, turned, row, at, sums);
}

template <class Turn>
void rounded_outputs(const RoundedTask& task, uint32_t output, uint32_t count, uint32_t row, uint32_t rows) {
  using Terms = typename Turn::Terms;
  TurnedWeights<Terms> turned;
  RoundedSums sums;
  find_scales(task.matrix, output, count, turned);
  const uint32_t width = steps_of(task.matrix.in) * kStep;
  for (turned.begin = 0; turned.begin < width; turned.begin += turned.cols) {
    turned.cols = smaller(kTurnedCols, width - turned.begin);
    turn_weights<Turn>(task.matrix, output, count, turned);
    for (uint32_t t = 0; t < rows; t += Terms::kTile)
      rounded_some<Terms, Terms::kTile>(task, turned, row + t, rows - t, t, sums);
  }
  for (uint32_t t = 0; t < rows; ++t) {
    float* y = task.y + (row + t) * task.y_stride + (output - task.outputs.begin);
    store_part(Terms::V::load(sums.total[t]), y, count);
  }
}

template <class Turn>
void rounded_rows(const RoundedTask& task) {
  for (uint32_t row = 0; row < task.rows; row += kRoundedRows) {
    const uint32_t rows = smaller(kRoundedRows, task.rows - row);
    for (uint32_t output = task.outputs.begin; output < task.outputs.end; output += kLanes)
      rounded_outputs<Turn>(task, output, smaller(kLanes, task.outputs.end - output), row, rows);
  }
}

template <class TurnE4m3, class TurnBf16>
consteval RoundedOps make_rounded(uint64_t (*multiply_adds)(uint64_t rounds)) {
  using Terms = typename TurnE4m3::Terms;
  return {.x_bytes = rounded_x_bytes<Terms>,
          .round = round_x<Terms>,
          .scratch_bytes = no_scratch_bytes,
          .e4m3 = rounded_rows<TurnE4m3>,
          .bf16 = rounded_rows<TurnBf16>,
          .multiply_adds = multiply_adds};
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
