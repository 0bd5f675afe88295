// What cuBLASLt is given: inputs rounded to BF16 or E4M3, weights decoded to BF16, scales in the library's layout.
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked: rows of inputs, weights and results begin at multiples of 16 bytes and hold whole pieces of 16 bytes.
#pragma once

#include "format/base/checked.h"
#include "kernels/cuda/linear_blas.h"

namespace dspack::kernels::cuda {

inline constexpr uint32_t kBlasScaleBlock = 128;

/// Where the scales of rounded inputs begin behind their E4M3 codes.
[[nodiscard]] inline uint64_t input_scales_offset(uint32_t rows, uint32_t in) {
  return round_up(uint64_t{rows} * in, 256);
}
/// Of rounded inputs, with their scales.
[[nodiscard]] inline uint64_t blas_input_bytes(BlasPath path, uint32_t rows, uint32_t in) {
  if (path != BlasPath::fp8) return uint64_t{rows} * in * 2;
  return input_scales_offset(rows, in) + ceil_div(in, kBlasScaleBlock) * rows * sizeof(float);
}

/// Scales of a row of 128 x 128 blocks, as far apart as cuBLASLt wants them: a multiple of 4.
[[nodiscard]] inline uint32_t padded_blocks(uint32_t in) {
  return static_cast<uint32_t>(round_up(ceil_div(in, kBlasScaleBlock), 4));
}
[[nodiscard]] inline uint64_t padded_scale_bytes(uint32_t out, uint32_t in) {
  return ceil_div(out, kBlasScaleBlock) * padded_blocks(in) * sizeof(float);
}
/// Whether the scales of a weight with blocks of 128 x 128 are in that layout where they lie.
[[nodiscard]] inline bool has_padded_scales(const Matrix& weight) {
  return ceil_div(weight.in, kBlasScaleBlock) % 4 == 0 && reinterpret_cast<uint64_t>(weight.planes[kScales]) % 16 == 0;
}

/// Input rows for cuBLASLt, one behind the other.
struct RoundInputsTask {
  RowsAt<const float> x;  // [rows, in]
  uint32_t rows = 0;
  uint32_t in = 0;
  void* to = nullptr;       // BF16 or E4M3 [rows, in]
  float* scales = nullptr;  // E4M3: [ceil(in / 128), rows], what the codes of a block are multiples of
};
void run_round_to_bf16(gpu::Stream& stream, const RoundInputsTask& task);
void run_round_to_e4m3(gpu::Stream& stream, const RoundInputsTask& task);

/// to[r] = BF16 of weight row first_row + r: value * scale, rounded to FP32 and then to BF16.
struct DecodeWeightTask {
  Matrix weight;  // f8_e4m3 or bf16
  uint32_t first_row = 0;
  uint32_t rows = 0;
  void* to = nullptr;
};
void run_decode_weight(gpu::Stream& stream, const DecodeWeightTask& task);

/// [blocks, across] -> [blocks, padded], zeros behind each row.
struct PadScalesTask {
  const float* from = nullptr;
  float* to = nullptr;
  uint32_t blocks = 0;
  uint32_t across = 0;
  uint32_t padded = 0;
};
void run_pad_scales(gpu::Stream& stream, const PadScalesTask& task);

}  // namespace dspack::kernels::cuda
