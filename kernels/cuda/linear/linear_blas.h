// y = weight . x for many rows by cuBLASLt, for precision modes bf16 and fp8: prefill, where NVIDIA's own kernels reach
// a share of the matrix rate that mma.sync cannot (docs/cuda-kernels.md). Routed experts: experts_blas.h.
//
//   path          weights                          inputs                        products
//   bf16          BF16, in place                   rounded to BF16               BF16
//   bf16_decoded  E4M3, or BF16 with scales:       rounded to BF16               BF16
//                 value * scale rounded to BF16,
//                 a slab of rows at a time
//   fp8           E4M3 with scales of 128 x 128,   rounded to E4M3, a scale for  FP8 with block scaling
//                 in place                         each 128 (as linear_tensor)
//
// Sums are FP32 in an order that the library chooses and that may depend on the number of rows: unlike linear_tensor's,
// a value may differ between calls. bf16_decoded rounds weights that linear_tensor multiplies exactly, unless their
// scales are powers of two.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "format/base/size.h"
#include "kernels/arguments.h"
#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// GPU memory in bytes that a queue's products by cuBLASLt share.
struct BlasLimits {
  uint64_t weight_bytes = 64 << 20;   // weights decoded at once
  uint64_t input_bytes = 32 << 20;    // inputs rounded at once
  uint64_t library_bytes = 32 << 20;  // for cuBLASLt, as cublasSetWorkspace() recommends for Hopper and Blackwell
  [[nodiscard]] uint64_t total() const { return weight_bytes + input_bytes + library_bytes; }
};

/// The share of one of several streams in such a part, aligned.
[[nodiscard]] constexpr uint64_t share_of(uint64_t bytes, uint64_t streams) {
  constexpr uint64_t kAlignment = 256;
  return bytes / streams / kAlignment * kAlignment;
}

/// GPU memory that a queue takes for these products at the first one, and keeps; for plans. Pure.
[[nodiscard]] inline uint64_t linear_blas_workspace_bytes(Precision precision, bool has_library) {
  return precision == Precision::exact || !has_library ? 0 : BlasLimits{}.total();
}

/// Capabilities of a card with a library. Pure.
struct BlasCard {
  bool has_block_scaling = false;  // FP8 with a scale for each 128 or 128 x 128: compute capability 9.0, cuBLAS 12.9
};
[[nodiscard]] BlasCard blas_card(const gpu::Properties& properties, size_t library_version);

/// Runs one product in each type that the precision needs, so that the library loads its code: it does so on first use,
/// which a plan cannot count, and once the plan has filled the card there is no memory for it. Call before querying
/// free memory. A type that the library refuses, or lacks memory for now, is skipped; a failure of the device is
/// recorded.
void warm_linear_blas(const gpu::cublaslt::Library& library, Precision precision, const gpu::Properties& properties);

enum class BlasPath { none, bf16, bf16_decoded, fp8 };

struct BlasChoice {
  BlasPath path = BlasPath::none;
  uint32_t rows = 0;          // input rows for cuBLASLt; fp8 leaves up to three to linear_tensor
  uint32_t rows_at_once = 0;  // input rows rounded at once
  uint32_t weight_rows_at_once = 0;
};
/// How the library multiplies by such a weight, for any number of rows. Pure.
[[nodiscard]] BlasPath blas_path_of(const MatrixForm& weight, Precision precision, const BlasCard& card);
/// Rows of a weight that are multiplied at once; 0: none fit. Pure.
[[nodiscard]] uint32_t blas_weight_rows(BlasPath path, const WeightForm& weight, const BlasLimits& limits);
/// Pure: depends on rows, shape, number types, precision, the card, and the alignment of addresses.
[[nodiscard]] BlasChoice choose_linear_blas(const LinearTask& task, Precision precision, const BlasCard& card,
                                            const BlasLimits& limits);

/// The library of a device, with statistics of refused products. Threads: thread-safe.
struct BlasUse {
  explicit BlasUse(std::unique_ptr<gpu::cublaslt::Library> loaded) : library(std::move(loaded)) {}
  std::unique_ptr<gpu::cublaslt::Library> library;
  std::atomic<uint64_t> refused_shapes{0};  // shapes that the library does not multiply
  std::atomic<bool> has_no_memory{false};   // no memory for its workspace
};

struct RoundInputsTask;

/// y = weight . inputs for rounded inputs, with one call of the library per `weight_rows_at_once`.
struct BlasProduct {
  Matrix weight;
  BlasPath path = BlasPath::none;
  uint32_t weight_rows_at_once = 0;
  uint32_t rows = 0;
  const std::byte* inputs = nullptr;    // BF16 or E4M3 [rows, weight.in]
  const float* input_scales = nullptr;  // E4M3 only: [ceil(in / 128), rows]
  RowsAt<float> y;
};

struct ExpertsBlasTask;

/// A queue's products by the library: of one weight, and of a layer's routed experts. Threads: the queue's. Lifetime:
/// borrows the task's addresses until the stream has run; keeps its workspace, since a recorded step may use it.
class LinearBlas {
 public:
  LinearBlas(std::shared_ptr<BlasUse> use, const gpu::Properties& properties, Precision precision,
             const BlasLimits& limits = {})
      : use_(std::move(use)),
        device_(properties.index),
        card_(blas_card(properties, use_->library->version())),
        precision_(precision),
        limits_(limits) {}
  ~LinearBlas();
  LinearBlas(const LinearBlas&) = delete;
  LinearBlas& operator=(const LinearBlas&) = delete;

  /// Enqueues the product if cuBLASLt should compute it and does. False: another kernel must; enqueued work, if any,
  /// only writes y, which that kernel overwrites. While the stream records, only products that have run before use
  /// cuBLASLt: the first product of a shape loads code, which a recording may not survive.
  [[nodiscard]] bool run(gpu::Stream& stream, const LinearTask& task, bool is_recording);

  /// Computes the routed experts' results for each row (experts_blas.h). False: the library does not multiply all of
  /// them, or has no memory for its workspace; enqueued work, if any, only writes memory that other kernels overwrite.
  [[nodiscard]] bool run(gpu::Stream& stream, const ExpertsBlasTask& task);

  /// Allocates the workspace if needed, except while the stream records. False: there is none.
  [[nodiscard]] bool has_workspace(bool is_recording);
  [[nodiscard]] const BlasCard& card() const { return card_; }
  [[nodiscard]] const BlasLimits& limits() const { return limits_; }

 private:
  struct Plan {
    std::unique_ptr<gpu::cublaslt::Matmul> matmul;  // null: refused
    bool has_run = false;
  };
  struct MatmulCall;
  /// A stream with its share of the workspace.
  struct Lane {
    gpu::Stream* stream = nullptr;
    std::byte* weights = nullptr;  // decoded, or their padded scales
    std::byte* own = nullptr;      // workspace for the library
    uint64_t own_bytes = 0;
  };
  using PlanKey = std::pair<gpu::cublaslt::MatmulShape, uint64_t>;  // shape, and bytes of the library's workspace

  /// Rounded inputs, in the workspace.
  [[nodiscard]] std::byte* inputs() const { return workspace_ + limits_.weight_bytes; }
  void drop_old_plans();
  [[nodiscard]] bool run(gpu::Stream& stream, const LinearTask& task, const BlasChoice& choice, bool is_recording);
  [[nodiscard]] BlasProduct product_of(const LinearTask& task, const BlasChoice& choice, uint32_t row) const;
  /// `count` lanes, the first on `stream`, the others on additional streams.
  [[nodiscard]] std::vector<Lane> lanes(gpu::Stream& stream, size_t count);
  /// fork: the other lanes wait for the first one's work so far. join: the first lane waits for the others.
  static void fork(std::span<const Lane> lanes);
  static void join(std::span<const Lane> lanes);
  [[nodiscard]] static MatmulCall part_of(const Lane& lane, const BlasProduct& product, uint32_t out);
  [[nodiscard]] Plan& plan(const Lane& lane, const MatmulCall& part);
  /// Whether the library multiplies all parts of the product.
  [[nodiscard]] bool is_planned(const Lane& lane, const BlasProduct& product, bool is_recording);
  [[nodiscard]] bool multiply(const Lane& lane, const BlasProduct& product);
  /// Rounds inputs for this path to `to`, which has blas_input_bytes.
  static void round_inputs(gpu::Stream& stream, BlasPath path, RoundInputsTask task, std::byte* to);
  static void prepare_weight(const Lane& lane, const BlasProduct& product, uint32_t out);
  void run_rest(gpu::Stream& stream, const LinearTask& task, uint32_t first);

  std::shared_ptr<BlasUse> use_;
  unsigned device_;
  BlasCard card_;
  Precision precision_;
  BlasLimits limits_;
  std::byte* workspace_ = nullptr;  // decoded weights or padded scales, rounded inputs, the library's workspace
  std::map<PlanKey, Plan> plans_;
  std::vector<std::unique_ptr<gpu::Stream>> beside_;
};

// Operands of cuBLASLt: inputs rounded to BF16 or E4M3, weights decoded to BF16, scales in the library's layout. Rows
// of inputs, weights and results begin at multiples of 16 bytes and are whole 16-byte pieces.

inline constexpr uint32_t kBlasScaleBlock = 128;

/// Offset of the scales of rounded inputs, after their E4M3 codes.
[[nodiscard]] inline uint64_t input_scales_offset(uint32_t rows, uint32_t in) {
  return round_up(uint64_t{rows} * in, 256);
}
/// Bytes of rounded inputs, including scales.
[[nodiscard]] inline uint64_t blas_input_bytes(BlasPath path, uint32_t rows, uint32_t in) {
  if (path != BlasPath::fp8) return uint64_t{rows} * in * 2;
  return input_scales_offset(rows, in) + ceil_div(in, kBlasScaleBlock) * rows * sizeof(float);
}

[[nodiscard]] inline float* scales_behind(std::byte* inputs, uint32_t rows, uint32_t in) {
  return reinterpret_cast<float*>(inputs + input_scales_offset(rows, in));
}

/// Whether rows of activations begin at multiples of 16 bytes.
template <class Float>
[[nodiscard]] bool has_whole_pieces(const RowsAt<Float>& rows) {
  constexpr uint64_t kPiece = 16;
  return reinterpret_cast<uint64_t>(rows.data) % kPiece == 0 && rows.stride * sizeof(Float) % kPiece == 0;
}

/// Scales from one row of 128 x 128 blocks to the next in cuBLASLt's layout: a multiple of 4.
[[nodiscard]] inline uint32_t padded_blocks(uint32_t in) {
  return static_cast<uint32_t>(round_up(ceil_div(in, kBlasScaleBlock), 4));
}
[[nodiscard]] inline uint64_t padded_scale_bytes(uint32_t out, uint32_t in) {
  return ceil_div(out, kBlasScaleBlock) * padded_blocks(in) * sizeof(float);
}
/// Whether the stored scales of a weight with blocks of 128 x 128 already have that layout.
[[nodiscard]] inline bool has_padded_scales(const Matrix& weight) {
  return ceil_div(weight.in, kBlasScaleBlock) % 4 == 0 && reinterpret_cast<uint64_t>(weight.planes[kScales]) % 16 == 0;
}

/// Rows of one product, among several products with contiguous inputs.
struct BlasSegment {
  uint32_t first = 0;  // a multiple of kSegmentUnit, as is `rows`
  uint32_t rows = 0;
};
inline constexpr uint32_t kSegmentUnit = 16;

inline constexpr uint32_t kNoSource = UINT32_MAX;

/// Rounds input rows for cuBLASLt, contiguously: rows of x, or of the gated values of x and up.
struct RoundInputsTask {
  RowsAt<const float> x;  // [rows, in], or the rows that `source` selects
  uint32_t rows = 0;
  uint32_t in = 0;
  void* to = nullptr;                // BF16 or E4M3 [rows, in]
  float* scales = nullptr;           // E4M3: factor of each block's codes. One segment after the other,
                                     // [ceil(in / 128), rows of the segment]
  RowsAt<const float> up = {};       // null: x alone
  float limit = kNoLimit;            // with `up`: ExpertMatrices
  const uint32_t* source = nullptr;  // [rows]: row of x and up for each row; kNoSource: zeros. Null: identity
  /// One entry per kSegmentUnit rows; null: all rows belong to one product.
  const BlasSegment* segments = nullptr;
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

/// [blocks, across] -> [blocks, padded], each row zero-padded.
struct PadScalesTask {
  const float* from = nullptr;
  float* to = nullptr;
  uint32_t blocks = 0;
  uint32_t across = 0;
  uint32_t padded = 0;
};
void run_pad_scales(gpu::Stream& stream, const PadScalesTask& task);

}  // namespace dspack::kernels::cuda
