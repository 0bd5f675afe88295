// Activations rounded for the tensor cores, once for all blocks that multiply them: BF16, or in precision fp8 E4M3
// codes stored as BF16 (exactly) with a scale for each 128 (tokens/rounding.cuh).
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "format/base/size.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

inline constexpr uint32_t kRoundedBlock = 128;  // values that share a scale

/// Rounded rows, contiguous.
struct RoundedRows {
  uint16_t* values = nullptr;  // BF16 [rows, columns], 16-byte aligned; zeros after the last value of a row
  float* scales = nullptr;     // [rows, columns / kRoundedBlock], factors of E4M3 codes; or null
  uint32_t columns = 0;        // a multiple of kRoundedBlock
};

/// The rounding of inputs for such weights: precision fp8 rounds inputs of E4M3 weights to E4M3, others to BF16.
[[nodiscard]] constexpr Precision input_rounding(Coding weights, Precision precision) {
  return weights == Coding::f8_e4m3 ? precision : Precision::bf16;
}

/// Bytes of rounded rows, in either rounding. Monotonic in both numbers.
[[nodiscard]] inline uint64_t rounded_bytes(uint64_t rows, uint32_t in) {
  const uint64_t blocks = ceil_div(in, kRoundedBlock);
  return rows * blocks * (kRoundedBlock * sizeof(uint16_t) + sizeof(float));
}
/// memory: rounded_bytes, 16-byte aligned; null: no addresses. rounding: bf16 or fp8 (input_rounding).
[[nodiscard]] inline RoundedRows lay_out_rounded(void* memory, uint64_t rows, uint32_t in, Precision rounding) {
  const auto columns = static_cast<uint32_t>(round_up(in, kRoundedBlock));
  if (memory == nullptr) return {.columns = columns};
  auto* values = static_cast<uint16_t*>(memory);
  auto* scales = reinterpret_cast<float*>(values + rows * columns);
  return {.values = values, .scales = rounding == Precision::fp8 ? scales : nullptr, .columns = columns};
}

struct RoundRowsTask {
  RowsAt<const float> x;  // [rows, in]
  uint32_t rows = 0;
  uint32_t in = 0;
  RoundedRows to;
};
void run_round_rows(gpu::Stream& stream, const RoundRowsTask& task);
[[nodiscard]] gpu::LaunchShape choose_round_rows_launch(uint32_t rows, uint32_t in);

}  // namespace dspack::kernels::cuda
