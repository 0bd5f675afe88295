// Attention over the latent cache (MlaAttendArgs of kernels/ops.h) on CUDA: multi-query attention with keys [latent |
// rope] and values [latent], split over the positions ("flash decoding").
//
//   cache   0 ......... 63 | 64 ....... 127 | ..            a split: a multiple of 64 positions (exact, split: 32)
//              split 0     |    split 1     |  split 2
//             m, l, O          m, l, O         m, l, O       maximum, sum of weights, weighted values
//                    \            |            /
//                      merged in this order -> out
//
// A query is one head of one row; number q is head q % heads of row q / heads. With a choice, positions are indices
// into a row's list through which keys are fetched; everything else is the same. The splits of a row follow from the
// number of positions that it sees and the number of heads, and the grid from the largest possible position: one
// recorded graph serves every position, and blocks of splits that a row does not have return at once. In precisions
// exact and split a value depends only on its row. Cache rows that a query does not see, but another query of the call
// does, must be finite (they are multiplied by 0).
//
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked (kernels/checks.h).
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Inputs of the choice of launches.
struct AttendShape {
  uint32_t rows = 0;  // most rows of one call
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t position_limit = 0;  // most positions that a row sees
  bool is_chosen = false;       // each row sees its own positions, so a block serves one row
  bool has_bf16_keys = false;   // in the cache, 16-byte aligned
};

struct MlaAttendTask : MlaAttendAt<AddressOf> {
  float* partial = nullptr;  // attend_scratch_bytes, 256-byte aligned
};
[[nodiscard]] AttendShape shape_of(const MlaAttendTask& task);

/// FP32 on CUDA cores (`exact`), or tensor cores: with queries, keys and softmax weights rounded to BF16 (`tensor`), or
/// with FP32 queries and weights split into BF16 terms and unrounded BF16 keys (`split`). The numbers are queries per
/// block, and key tiles in shared memory (with two, one is loaded while the other is used).
enum class AttendChoice { exact, tensor_64x2, tensor_64x1, tensor_16x2, tensor_16x1, split_32x2, split_16x2 };
/// The kernel for a precision: `tensor` for bf16 and fp8, `split` for split with BF16 keys, if dimensions are multiples
/// of 16, at most V3's, and the tiles fit; else `exact`. Many queries per block, since each loaded key then serves
/// many; 16 if there are no more. Cards with 99 KiB of shared memory per block cannot hold two tiles besides split
/// queries; with one tile, whose loads stall, `split` would be no faster than `exact`.
[[nodiscard]] AttendChoice attend_choice(const AttendShape& shape, Precision precision,
                                         const gpu::Properties& properties);

/// Whether the card has the shared memory for any `split` choice.
[[nodiscard]] bool fits_split(const gpu::Properties& properties);

/// Division of a call's positions into splits, and the memory it needs. Pure.
struct AttendSplits {
  uint32_t most = 1;        // most splits of a row; each has a multiple of split_unit positions
  uint32_t slots = 1;       // splits that a row below the limit can have
  uint32_t rows_a_run = 1;  // rows that fit the scratch at once
  uint64_t scratch_bytes = 0;
};
[[nodiscard]] AttendSplits attend_splits(const AttendShape& shape, AttendChoice choice);
/// Launch of the first of the two kernels.
[[nodiscard]] gpu::LaunchShape attend_launch(const AttendShape& shape, AttendChoice choice);

/// Scratch for any choice, for calls of this shape or with fewer rows or positions.
[[nodiscard]] uint64_t attend_scratch_bytes(const AttendShape& shape);

/// FP32 arithmetic; the cache is decoded exactly.
void attend_exact(gpu::Stream& stream, const MlaAttendTask& task);
/// Queries, keys and softmax weights rounded to BF16; scores, softmax and sums in FP32. `choice` is `tensor`. A call of
/// many queries (kUnsplitQueries) does not split rows, so its rounding differs from that of calls of few rows.
void attend_tensor(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice);
/// No product is rounded; sums in FP32, in the order and with the rounding of the tensor cores. `choice` is `split`,
/// and shape_of(task) has BF16 keys.
void attend_split(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice);

/// From this number of queries on a GPU is busy without splits, whose partial results would cost more traffic than the
/// cache.
inline constexpr uint32_t kUnsplitQueries = 8192;

// Sizes that the kernels and the choice of their launches share
// ----------------------------------------------------------------------------------------------------

inline constexpr uint32_t kMaxSplits = 128;  // per row
inline constexpr uint32_t kSplitStats = 2;   // floats per split besides its values: its maximum and its sum of weights

/// Floats between the values of consecutive splits: rows are whole 16-byte pieces.
[[nodiscard]] constexpr uint32_t value_stride(uint32_t latent_dim) {
  return (latent_dim + 3) / 4 * 4;
}

/// Constants of the exact kernel.
inline constexpr uint32_t kExactSplitUnit = 32;  // positions
struct ExactTile {
  uint32_t queries = 16;    // queries per block
  uint32_t positions = 16;  // in shared memory at once, as FP32
  uint32_t panel = 576;     // values of a key in shared memory at once: all of a key of V3
  uint32_t columns = 512;   // columns of the values that a block sums
  uint32_t threads = 256;   // 8 warps: 8 slices of a key's values
};
inline constexpr ExactTile kExactTile;

/// Floats between keys, or queries, in shared memory: an odd number of 16-byte pieces, so that eight rows at the same
/// column touch all banks once.
[[nodiscard]] constexpr uint32_t exact_stride(uint32_t key_dim) {
  const uint32_t width = key_dim < kExactTile.panel ? key_dim : kExactTile.panel;
  return ((width + 3) / 4 | 1U) * 4;
}

/// Keys, queries, the slices' scores for each query and position, a factor for each query.
[[nodiscard]] constexpr uint64_t exact_shared_bytes(uint32_t key_dim) {
  const uint64_t rows = uint64_t{kExactTile.queries + kExactTile.positions} * exact_stride(key_dim);
  const uint64_t scores = uint64_t{kExactTile.threads / 32} * kExactTile.queries * kExactTile.positions;
  return (rows + scores + kExactTile.queries) * sizeof(float);
}

// Constants of the tensor kernels.
inline constexpr uint32_t kTensorKeyDim = 576;
inline constexpr uint32_t kTensorColumns = 512;
inline constexpr uint32_t kTensorPositions = 64;  // positions per key tile
inline constexpr uint32_t kSplitPositions = 32;   // same for split queries, whose terms need more memory
inline constexpr uint32_t kTensorSums = 4;  // sums of weights per query: one for each quarter of a tile's positions
/// Blocks that run at once on an H100 (132 multiprocessors): a block of 64 queries, or of 32 split ones, occupies a
/// multiprocessor alone.
inline constexpr uint32_t kTensorBlocks = 128;
/// BF16 terms of a split FP32 value: 3 x 8 significant bits are its 24.
inline constexpr uint32_t kSplitTerms = 3;

struct TensorTile {
  uint32_t queries;    // queries per block, a multiple of 16
  uint32_t positions;  // positions per key tile
  uint32_t terms;      // BF16 terms of a query's value, and of a weight
  uint32_t warps;
  uint32_t stages;  // key tiles in shared memory
  bool is_halved;   // blocks take half the queries if that still makes at most kTensorBlocks blocks
  /// Parts into which the warps divide a tile's positions to compute its scores. With several terms, where reading
  /// queries dominates, they divide the columns instead and add the partial sums.
  [[nodiscard]] constexpr uint32_t score_parts() const { return warps / (queries / 16); }
  /// Bytes of a query's weights in shared memory, one term after the other.
  [[nodiscard]] constexpr uint32_t weight_bytes() const { return (terms * positions * 2 + 127) / 128 * 128; }
  /// Bytes of the partial sums over columns, in FP32.
  [[nodiscard]] constexpr uint32_t part_bytes() const {
    return terms == 1 ? 0 : score_parts() * queries * positions * 4;
  }
};

[[nodiscard]] constexpr TensorTile tensor_tile(AttendChoice choice) {
  constexpr TensorTile kMany = {
      .queries = 64, .positions = kTensorPositions, .terms = 1, .warps = 8, .stages = 2, .is_halved = true};
  constexpr TensorTile kFew = {
      .queries = 16, .positions = kTensorPositions, .terms = 1, .warps = 4, .stages = 2, .is_halved = false};
  constexpr TensorTile kSplit = {
      .queries = 32, .positions = kSplitPositions, .terms = kSplitTerms, .warps = 8, .stages = 2, .is_halved = false};
  const auto with = [](TensorTile tile, uint32_t queries, uint32_t warps, uint32_t stages) {
    tile.queries = queries;
    tile.warps = warps;
    tile.stages = stages;
    return tile;
  };
  switch (choice) {
    case AttendChoice::tensor_64x2: return kMany;
    case AttendChoice::tensor_64x1: return with(kMany, 64, 8, 1);
    case AttendChoice::tensor_16x2: return kFew;
    case AttendChoice::split_32x2: return kSplit;
    case AttendChoice::split_16x2: return with(kSplit, 16, 4, 2);
    default: return with(kFew, 16, 4, 1);
  }
}

/// Splits are multiples of this number of positions: few for exact, so that also at short contexts two exact blocks
/// share each multiprocessor; whole tiles for the tensor kernels.
[[nodiscard]] constexpr uint32_t split_unit(AttendChoice choice) {
  return choice == AttendChoice::exact ? kExactSplitUnit : tensor_tile(choice).positions;
}

/// Bytes of a query's term or a key in shared memory: BF16, rounded up to 128, with a row's 16-byte pieces swizzled
/// (attention/tensor_keys.cuh).
[[nodiscard]] constexpr uint32_t tensor_row_bytes(uint32_t key_dim) {
  return (key_dim + 63) / 64 * 128;
}
/// Bytes between queries or keys, for any length, so that the addresses of all operands are constants.
inline constexpr uint32_t kTensorRowBytes = tensor_row_bytes(kTensorKeyDim);

/// Bytes of the weights, which reuse the memory of the scores' partial sums.
[[nodiscard]] constexpr uint32_t tensor_weight_bytes(const TensorTile& tile) {
  const uint32_t weights = tile.queries * tile.weight_bytes();
  return weights > tile.part_bytes() ? weights : tile.part_bytes();
}

/// Queries, keys, softmax weights; the maximum of each part, at the end the sums, and the factor for each query.
[[nodiscard]] constexpr uint64_t tensor_shared_bytes(const TensorTile& tile) {
  const uint64_t rows = uint64_t{tile.queries} * tile.terms + uint64_t{tile.stages} * tile.positions;
  return rows * kTensorRowBytes + tensor_weight_bytes(tile) + uint64_t{tile.queries} * (kTensorSums + 1) * 4;
}

}  // namespace dspack::kernels::cuda
