// Matrices and rows as kernels get them: addresses in device memory. Threads: plain values. Lifetime: borrow the
// memory.
#pragma once

#include <cstdint>

#include "format/dtype.h"

namespace dspack::kernels::cuda {

/// A weight matrix [out, in], row-major and dense. Values are data * scale of their block.
struct Matrix {
  const void* data = nullptr;
  const float* scale = nullptr;  // [ceil(out / block_out), ceil(in / block_in)]; null: none
  uint32_t out = 0;
  uint32_t in = 0;
  uint32_t block_out = 1;
  uint32_t block_in = 1;
};

/// Whether a lane may read 16 bytes of a row at once, all of one block: every row begins at a multiple of 16 bytes and
/// no block of scales ends within such a piece.
[[nodiscard]] inline bool has_aligned_rows(const Matrix& matrix, Dtype dtype) {
  constexpr uint64_t kPiece = 16;
  const uint64_t bytes = bits_of(dtype) / 8;
  const bool rows_fit = reinterpret_cast<uint64_t>(matrix.data) % kPiece == 0 && matrix.in * bytes % kPiece == 0;
  // The second condition is that of device::BlockOfChunk; no real matrix is near it.
  const uint64_t block_bytes = matrix.block_in * bytes;
  const bool one_block =
      matrix.scale == nullptr || matrix.block_in >= matrix.in ||
      (block_bytes % kPiece == 0 && matrix.in * bytes / kPiece * (block_bytes / kPiece) < uint64_t{1} << 32U);
  return rows_fit && one_block;
}

/// FP32 activations [rows, cols].
template <class Float>
struct RowsAt {
  Float* data = nullptr;
  uint64_t stride = 0;
};

}  // namespace dspack::kernels::cuda
