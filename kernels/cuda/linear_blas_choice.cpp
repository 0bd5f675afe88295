#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cuda/linear_blas.h"
#include "kernels/cuda/linear_blas_kernels.h"
#include "kernels/cuda/linear_tensor.h"

namespace dspack::kernels::cuda {
namespace {

// linear_tensor reads the weights once for every 64 rows: up to there it is bound by memory, and little is to be won.
constexpr uint32_t kLeastRows = 65;
// Decoding costs about five bytes of memory traffic a weight (one read, two written, two read again): 1.5 ps at 3.35
// TB/s. That is what 512 rows win where linear_tensor runs at 400 and cuBLASLt at 750 TFLOP/s. To be measured.
constexpr uint32_t kLeastRowsDecoded = 512;
constexpr uint32_t kRowUnit = 128;  // of parts: a tile of any of the library's kernels

constexpr size_t kFirstVersionWithBlockScaling = 120'900;
// cuBLAS documentation, "Scaling factors layouts" (M and N multiples of 4) and cublasLtMatmul (dimensions that support
// 16-byte alignment: 16 codes of FP8).
constexpr uint32_t kRowMultiple = 4;
constexpr uint32_t kF8Multiple = 16;

bool is_aligned(const void* place) {
  return reinterpret_cast<uint64_t>(place) % 16 == 0;
}

/// What all paths want: pieces of 16 bytes, for cuBLASLt's best kernels and for the ones that round and decode.
bool has_aligned_places(const LinearTask& task) {
  constexpr uint64_t kFloats = 4;
  return is_aligned(task.x.data) && task.x.stride % kFloats == 0 && is_aligned(task.y.data) &&
         task.y.stride % kFloats == 0 && has_aligned_rows(form_of(task.weight));
}

BlasPath path_for(const LinearTask& task, Precision precision, const BlasCard& card) {
  const MatrixForm weight = form_of(task.weight);
  const bool is_scaled = weight.block_out != 0;
  if (precision == Precision::exact || task.rows < kLeastRows || !has_aligned_places(task)) return BlasPath::none;
  if (weight.coding == Coding::bf16 && !is_scaled) return BlasPath::bf16;
  // linear_tensor does the rows that are left over.
  const bool has_blocks = weight.coding == Coding::f8_e4m3 && is_scaled && weight.block_out == kBlasScaleBlock &&
                          weight.block_in == kBlasScaleBlock && weight.out % kF8Multiple == 0 &&
                          weight.in % kF8Multiple == 0 && fits_tensor_cores(weight);
  if (precision == Precision::fp8 && card.has_block_scaling && has_blocks) return BlasPath::fp8;
  return is_common(weight.coding) && task.rows >= kLeastRowsDecoded ? BlasPath::bf16_decoded : BlasPath::none;
}

/// Parts of `total`, nearly equal, none above `most`; 0: there are none.
uint32_t part_of(uint32_t total, uint64_t most) {
  if (total <= most) return total;
  const uint32_t unit = most >= kRowUnit ? kRowUnit : kRowMultiple;
  const uint64_t whole = most / unit * unit;
  if (whole == 0) return 0;
  return static_cast<uint32_t>(std::min(whole, round_up(ceil_div(total, ceil_div(total, whole)), unit)));
}

}  // namespace

uint64_t linear_blas_workspace_bytes(Precision precision, bool has_library) {
  return precision == Precision::exact || !has_library ? 0 : BlasLimits{}.total();
}

BlasCard blas_card(const gpu::Properties& properties, size_t library_version) {
  // "Scaling Mode Support Overview": 9.0 and no other. Blackwell has other blocks, with scales that are powers of two.
  return {.has_block_scaling =
              properties.major == 9 && properties.minor == 0 && library_version >= kFirstVersionWithBlockScaling};
}

BlasChoice choose_linear_blas(const LinearTask& task, Precision precision, const BlasCard& card,
                              const BlasLimits& limits) {
  const Matrix& weight = task.weight;
  BlasChoice choice{.path = path_for(task, precision, card), .rows = task.rows};
  if (choice.path == BlasPath::none) return {};
  if (choice.path == BlasPath::fp8) choice.rows -= choice.rows % kRowMultiple;
  choice.rows_at_once = part_of(choice.rows, limits.input_bytes / blas_input_bytes(choice.path, 1, weight.in));
  choice.weight_rows_at_once = weight.out;
  if (choice.path == BlasPath::bf16_decoded)
    choice.weight_rows_at_once = part_of(weight.out, limits.weight_bytes / (uint64_t{weight.in} * 2));
  const bool scales_fit =
      choice.path != BlasPath::fp8 || padded_scale_bytes(weight.out, weight.in) <= limits.weight_bytes;
  return choice.rows_at_once > 0 && choice.weight_rows_at_once > 0 && scales_fit ? choice : BlasChoice{};
}

}  // namespace dspack::kernels::cuda
