// y = x W^T in precision bf16: x rounded to BF16, weights exactly as BF16, FP32 sums. For the instruction set files
// only (see table.inl.h).
//
// The order of sums is that of the tile instructions (Intel, Instruction Set Extensions Programming Reference,
// TDPBF16PS), on every instruction set, so that all have the same bits (where no sum is subnormal, which tiles take for
// zero). Of a step of 32 columns:
//
//   even = x0 w0 + x2 w2 + ..     odd = x1 w1 + x3 w3 + ..     by fma, ascending, from zero
//   block = block + (even + odd)
//
// and of a block of scales: total = fma(block, scale, total).
//
//   outputs ->  16 lanes, one each        x: broadcast, a value for all of them
//   w[k]       [ o0 o1 .. o15 ]           decoded and turned once for all rows of x
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/scales.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

constexpr uint32_t kStep = kRoundedStep;
constexpr uint32_t kTurnedCols = 512;  // of weights, decoded at once: 32 KiB
constexpr uint32_t kRoundedRows = 96;  // of x, that decoded weights serve
constexpr uint32_t kRoundedTile = 4;   // rows of x whose sums are in registers

inline uint64_t padded_steps(uint32_t in) {
  return (uint64_t{in} + kStep - 1) / kStep;
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

inline uint64_t rounded_x_bytes(uint32_t rows, uint32_t in) {
  return uint64_t{rows} * padded_steps(in) * kStep * sizeof(float);
}

inline uint64_t no_scratch_bytes(uint32_t /*in*/) {
  return 0;
}

/// Rows of whole steps, FP32 values that BF16 has.
inline void round_x(const RoundingTask& task) {
  const uint64_t width = padded_steps(task.in) * kStep;
  auto* to = reinterpret_cast<float*>(task.to);
  const uint32_t end = smaller(task.rows, task.groups.end * kRoundedGroup);
  for (uint32_t row = task.groups.begin * kRoundedGroup; row < end; ++row) {
    const float* from = task.x + row * task.x_stride;
    for (uint32_t i = 0; i < task.in; ++i)
      to[row * width + i] = nearest_bf16(from[i]);
    for (uint64_t i = task.in; i < width; ++i)
      to[row * width + i] = 0;
  }
}

/// Some columns of 16 outputs: [column][output].
struct TurnedWeights {
  alignas(64) float values[kTurnedCols][kLanes];
  uint32_t begin = 0;  // column of the matrix
  uint32_t cols = 0;   // whole steps
};

template <class V, class L>
void turn_weights(const MatrixView& matrix, uint32_t output, uint32_t count, TurnedWeights& turned) {
  for (uint32_t o = 0; o < kLanes; ++o) {
    const uint32_t row = output + (o < count ? o : 0);  // rows beyond the last are computed, not stored
    for (uint32_t i = 0; i < turned.cols; i += kLanes) {
      const uint32_t column = turned.begin + i;
      const uint32_t left = column < matrix.in ? matrix.in - column : 0;
      alignas(64) float values[kLanes] = {};
      if (left > 0) {
        const std::byte* from = matrix.planes[kCodes] + row * bytes_for<L>(matrix.in) + bytes_for<L>(column);
        const V decoded = left >= kLanes ? L::template load<V>(from) : load_part<V, L>(from, left);
        V::mul(decoded, V::set(L::kUnit)).store(values);
      }
      for (uint32_t k = 0; k < kLanes; ++k)
        turned.values[i + k][o] = left > k ? values[k] : 0.0F;
    }
  }
}

/// Sums of 16 outputs for some rows of x.
struct RoundedSums {
  alignas(64) float block[kRoundedRows][kLanes];
  alignas(64) float total[kRoundedRows][kLanes];
};

template <class V>
V scales_of_outputs(const MatrixView& matrix, uint32_t output, uint32_t count, uint32_t block) {
  alignas(64) float scale[kLanes];
  for (uint32_t o = 0; o < kLanes; ++o)
    scale[o] = scale_at<V>(matrix, output + (o < count ? o : 0), block);
  return V::load(scale);
}

/// T rows of x from `row` on, whose sums are `at`.
template <class V, uint32_t T>
void rounded_tile(const RoundedTask& task, const TurnedWeights& turned, uint32_t output, uint32_t count, uint32_t row,
                  uint32_t at, RoundedSums& sums) {
  const MatrixView& matrix = task.matrix;
  const uint64_t width = padded_steps(matrix.in) * kStep;
  const float* x[T];
  V block[T];
  for (uint32_t t = 0; t < T; ++t) {
    x[t] = reinterpret_cast<const float*>(task.x) + (row + t) * width + turned.begin;
    block[t] = V::load(sums.block[at + t]);
  }
  for (uint32_t i = 0; i < turned.cols; i += kStep) {
    const uint32_t column = turned.begin + i;
    if (column % matrix.block_in == 0) {
      for (uint32_t t = 0; t < T; ++t)
        block[t] = V::zero();
    }
    V even[T] = {};
    V odd[T] = {};
    for (uint32_t k = 0; k < kStep; k += 2) {
      const V first = V::load(turned.values[i + k]);
      const V second = V::load(turned.values[i + k + 1]);
      for (uint32_t t = 0; t < T; ++t) {
        even[t] = V::fma(first, V::set(x[t][i + k]), even[t]);
        odd[t] = V::fma(second, V::set(x[t][i + k + 1]), odd[t]);
      }
    }
    for (uint32_t t = 0; t < T; ++t)
      block[t] = V::add(block[t], V::add(even[t], odd[t]));
    const bool ends = (column + kStep) % matrix.block_in == 0 || column + kStep >= matrix.in;
    if (!ends) continue;
    const V scale = scales_of_outputs<V>(matrix, output, count, column / matrix.block_in);
    for (uint32_t t = 0; t < T; ++t) {
      float* total = sums.total[at + t];
      V::fma(block[t], scale, column < matrix.block_in ? V::zero() : V::load(total)).store(total);
    }
  }
  for (uint32_t t = 0; t < T; ++t)
    block[t].store(sums.block[at + t]);
}

template <class V, class L>
void rounded_outputs(const RoundedTask& task, uint32_t output, uint32_t count, uint32_t row, uint32_t rows) {
  TurnedWeights turned;
  RoundedSums sums = {};
  const auto width = static_cast<uint32_t>(padded_steps(task.matrix.in) * kStep);
  for (turned.begin = 0; turned.begin < width; turned.begin += turned.cols) {
    turned.cols = smaller(kTurnedCols, width - turned.begin);
    turn_weights<V, L>(task.matrix, output, count, turned);
    uint32_t t = 0;
    for (; t + kRoundedTile <= rows; t += kRoundedTile)
      rounded_tile<V, kRoundedTile>(task, turned, output, count, row + t, t, sums);
    for (; t < rows; ++t)
      rounded_tile<V, 1>(task, turned, output, count, row + t, t, sums);
  }
  for (uint32_t t = 0; t < rows; ++t) {
    float* y = task.y + (row + t) * task.y_stride + (output - task.outputs.begin);
    store_part(V::load(sums.total[t]), y, count);
  }
}

template <class V, class L>
void rounded_rows(const RoundedTask& task) {
  for (uint32_t row = 0; row < task.rows; row += kRoundedRows) {
    const uint32_t rows = smaller(kRoundedRows, task.rows - row);
    for (uint32_t output = task.outputs.begin; output < task.outputs.end; output += kLanes)
      rounded_outputs<V, L>(task, output, smaller(kLanes, task.outputs.end - output), row, rows);
  }
}

template <class V>
consteval RoundedOps make_rounded() {
  return {.x_bytes = rounded_x_bytes,
          .round = round_x,
          .scratch_bytes = no_scratch_bytes,
          .e4m3 = rounded_rows<V, LoadE4m3>,
          .bf16 = rounded_rows<V, LoadBf16>,
          .multiply_adds = multiply_add_rounds<V>};
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
