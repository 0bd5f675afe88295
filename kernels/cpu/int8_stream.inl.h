// Products in precision int8 of one row of x, or a few, by weights that stream from memory. For the instruction set
// files only (see table.inl.h).
//
// A run of 128 columns is four groups, one a quarter of the vectors; four outputs at a time, so that the sums of 16
// groups fill a vector.
#pragma once

#include "kernels/cpu/int8_codes.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Values of blocks, bits of FP32 or of integers, for four outputs.
struct BlockWindow {
  alignas(64) float at[4][kScaleWindow];
};

/// values_of_run for blocks that end within runs.
template <class V>
V values_of_ragged_run(const BlockWindow& window, uint32_t group, uint32_t groups_of_block) {
  alignas(64) float values[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t block = (group + l % kRunGroups) / groups_of_block;
    values[l] = block < kScaleWindow ? window.at[l / kRunGroups][block] : 0.0F;
  }
  return V::load(values);
}

/// One value for each of four outputs and each of the four groups of a run. `group`: the run's first.
template <class V>
inline V values_of_run(const BlockWindow& window, uint32_t group, uint32_t groups_of_block) {
  const auto& w = window.at;
  if (groups_of_block == 1) return V::quarters(w[0] + group, w[1] + group, w[2] + group, w[3] + group);
  if (groups_of_block % kRunGroups != 0) return values_of_ragged_run<V>(window, group, groups_of_block);
  const uint32_t block = group / groups_of_block;
  return V::each_quarter(w[0][block], w[1][block], w[2][block], w[3][block]);
}

/// The products of T rows of x, from `row` on, with four outputs.
template <class V, class Codes, uint32_t T>
void int8_stream(const RoundedTask& task, const uint32_t (&outputs)[4], uint32_t row) {
  const MatrixView& matrix = task.matrix;
  const uint32_t runs = runs_of(matrix.in);
  const uint64_t stride = QuantRows<1>::bytes(matrix.in);
  const QuantRows<1> x(task.x + row * stride, runs);
  const ScaleBlocks blocks(matrix);
  const uint64_t row_bytes = (uint64_t{matrix.in} * Codes::kRunBytes + kRunColumns - 1) / kRunColumns;
  const std::byte* codes[4];  // codes of the next run
  for (uint32_t o = 0; o < 4; ++o)
    codes[o] = matrix.planes[kCodes] + outputs[o] * row_bytes;
  const uint32_t whole_runs = matrix.in / kRunColumns;
  alignas(64) std::byte padded[4][Codes::kRunBytes];
  // Windows of blocks that are whole runs; each run of the row is in one of them.
  BlockWindow scales, zeros;
  V chains[T] = {};
  for (uint32_t first = 0; first < blocks.count; first += kScaleWindow) {
    const uint32_t count = smaller(kScaleWindow, blocks.count - first);
    if (count < kScaleWindow) {
      scales = {};
      if constexpr (Codes::kHasZeros) zeros = {};
    }
    for (uint32_t o = 0; o < 4; ++o)
      decode_blocks<V, Codes>(matrix, outputs[o], first, count, scales.at[o], zeros.at[o]);
    const uint32_t first_run = first * blocks.groups / kRunGroups;
    const uint32_t end = smaller(runs, (first + kScaleWindow) * blocks.groups / kRunGroups);
    const uint32_t runs_of_block = blocks.groups % kRunGroups == 0 ? blocks.groups / kRunGroups : 1;
    V scale = V::zero();
    typename V::Sums zero = V::set_sums(Codes::kZero);
    uint32_t left = 0;  // runs of the block
    for (uint32_t run = first_run; run < end; ++run) {
      if (left == 0) {
        const uint32_t group = (run - first_run) * kRunGroups;
        scale = values_of_run<V>(scales, group, blocks.groups);
        if constexpr (Codes::kHasZeros) zero = V::bits_of(values_of_run<V>(zeros, group, blocks.groups));
        left = runs_of_block;
      }
      --left;
      const int8_t* const values = x.codes + size_t{run} * kRunColumns;
      typename V::Sums sums[T][4];
      if (run == whole_runs) {
        __builtin_memset(padded, 0, sizeof padded);
        for (uint32_t o = 0; o < 4; ++o) {
          __builtin_memcpy(padded[o], codes[o], row_bytes - uint64_t{run} * Codes::kRunBytes);
          codes[o] = padded[o];
        }
      }
#pragma GCC unroll 4
      for (uint32_t o = 0; o < 4; ++o) {
        for (uint32_t line = 0; line < Codes::kRunBytes; line += 64)
          prefetch_run(codes[o] + line);
        const typename Codes::Run decoded(codes[o]);
        codes[o] += Codes::kRunBytes;
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; ++t)
          sums[t][o] = decoded.dot(values + t * stride);
      }
      const auto* const from = reinterpret_cast<const std::byte*>(x.scales + size_t{run} * kRunGroups);
      const auto* const minus = reinterpret_cast<const std::byte*>(x.minus + size_t{run} * kRunGroups);
#pragma GCC unroll 4
      for (uint32_t t = 0; t < T; ++t) {
        const auto quarters = [&](const std::byte* four) {
          return V::all_quarters(reinterpret_cast<const float*>(four + t * stride));
        };
        const auto offset = V::times_short(zero, V::bits_of(quarters(minus)));
        const auto sum = V::add_sums(V::sum_quarters(sums[t][0], sums[t][1], sums[t][2], sums[t][3]), offset);
        chains[t] = V::fma(V::floats_of(sum), V::mul(scale, quarters(from)), chains[t]);
      }
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    alignas(64) float all[kLanes];
    chains[t].store(all);
    float* const y = task.y + (row + t) * task.y_stride;
    for (uint32_t o = 0; o < 4; ++o) {
      const float* const quarter = all + size_t{4} * o;
      y[outputs[o] - task.outputs.begin] = (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
    }
  }
}

/// All rows from `row` on by four outputs, T at a time. The codes of the outputs stay in the L1 cache.
template <class V, class Codes, uint32_t T>
void int8_stream_rows(const RoundedTask& task, const uint32_t (&outputs)[4], uint32_t row) {
  if constexpr (T > 0) {
    for (; row + T <= task.rows; row += T)
      int8_stream<V, Codes, T>(task, outputs, row);
    int8_stream_rows<V, Codes, T - 1>(task, outputs, row);
  }
}

/// Four outputs at a time, from four equal parts of the range (TileOutputs says why).
template <class V, class Codes>
void int8_stream_outputs(const RoundedTask& task) {
  const RowRange range = task.outputs;
  const uint32_t apart = (range.end - range.begin) / 4;
  for (uint32_t output = range.begin; output < range.begin + apart; ++output)
    int8_stream_rows<V, Codes, V::kInt8StreamRows>(task,
                                                   {output, output + apart, output + 2 * apart, output + 3 * apart}, 0);
  const uint32_t rest = range.begin + 4 * apart;
  const uint32_t last = range.end - 1;
  if (rest <= last)
    int8_stream_rows<V, Codes, V::kInt8StreamRows>(task, {rest, smaller(rest + 1, last), smaller(rest + 2, last), last},
                                                   0);
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
