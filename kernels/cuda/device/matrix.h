// Matrices and rows as kernels take them: addresses in device memory. Threads: plain values. Lifetime: borrow the
// memory.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace dspack::kernels::cuda {

/// A weight matrix; planes that it lacks are null.
using Matrix = WeightAt<const void*>;

/// The common form of one matrix of every expert in a layer.
struct MatrixForm : WeightForm {
  bool starts_aligned = false;  // every expert's codes begin at a multiple of 16 bytes, scales of packed codes of 8

  [[nodiscard]] bool operator==(const MatrixForm&) const = default;
};

/// Whether a lane may read 16 bytes of a row at once: every row begins at a multiple of 16 bytes, and no scale block
/// ends within such a piece (for four-bit codes: within half of one).
[[nodiscard]] inline bool has_aligned_rows(const MatrixForm& form) {
  const uint32_t piece = codes_in_16_bytes(form.coding);
  const uint32_t run = is_packed(form.coding) ? kPackedRun : piece;
  // The second condition is required by device::BlockOfRun; no real matrix comes near it.
  const bool one_block =
      form.block_out == 0 || form.block_in >= form.in ||
      (form.block_in % run == 0 && uint64_t{form.in / run} * (form.block_in / run) < uint64_t{1} << 32U);
  return form.starts_aligned && form.in % piece == 0 && one_block;
}

[[nodiscard]] inline bool has_scales(const Matrix& matrix) {
  return matrix.planes[kScales] != nullptr;
}

/// The form of one matrix; without scales its blocks are 0.
[[nodiscard]] inline MatrixForm form_of(const Matrix& matrix) {
  const auto begins_at = [&](size_t plane, uint64_t unit) {
    return reinterpret_cast<uint64_t>(matrix.planes[plane]) % unit == 0;
  };
  MatrixForm form{matrix, begins_at(kCodes, 16) && (!is_packed(matrix.coding) || begins_at(kScales, 8))};
  if (!has_scales(matrix)) form.block_out = form.block_in = 0;
  return form;
}

/// Codings that have kernels for every number of tokens, for all steps of experts in one launch, and for tensor cores.
/// The others, which are rare among experts, use generic kernels.
[[nodiscard]] constexpr bool is_common(Coding coding) {
  return coding == Coding::f8_e4m3 || coding == Coding::bf16 || is_packed(coding);
}

/// Tokens that a kernel of linear products or of heads takes at once, for `rows` rows: a power of two, up to 8. Each
/// number needs its own kernel per coding, with the same bits (dot.cuh): rare codings have kernels for 1 and 8,
/// unaligned rows for 8 only. See device::with_tokens.
inline constexpr uint32_t kMaxKernelTokens = 8;
[[nodiscard]] constexpr uint32_t kernel_tokens(Coding coding, bool is_aligned, uint32_t rows) {
  if (!is_aligned) return kMaxKernelTokens;
  if (!is_common(coding)) return rows <= 1 ? 1 : kMaxKernelTokens;
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : kMaxKernelTokens;
}

/// FP32 activations [rows, cols].
template <class Float>
struct RowsAt {
  Float* data = nullptr;
  uint64_t stride = 0;
};

}  // namespace dspack::kernels::cuda
