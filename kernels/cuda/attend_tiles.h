// Sizes that the attention kernels and the choice of their launches share. Threads: constants and pure functions.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend.h"

namespace dspack::kernels::cuda {

inline constexpr uint32_t kSplitUnit = 64;  // splits are multiples of so many positions
inline constexpr uint32_t kSplitStats = 2;  // floats beside a split's values: its maximum and its sum of weights

/// Floats from the values of one split to the next: rows of whole 16 bytes.
[[nodiscard]] constexpr uint32_t value_stride(uint32_t latent_dim) {
  return (latent_dim + 3) / 4 * 4;
}

// The exact kernel
// ----------------------------------------------------------------------------------------------------

struct ExactTile {
  uint32_t queries = 16;    // of a block
  uint32_t positions = 16;  // in shared memory at once, as FP32
  uint32_t panel = 576;     // values of a key in shared memory at once: all of a key of V3
  uint32_t columns = 512;   // of the values, that a block sums
  uint32_t threads = 256;   // 8 warps: 8 slices of a key's values
};
inline constexpr ExactTile kExactTile;

/// Floats from one key, or query, in shared memory to the next: an odd number of 16-byte pieces, so that eight rows at
/// the same column touch all banks once.
[[nodiscard]] constexpr uint32_t exact_stride(uint32_t key_dim) {
  const uint32_t width = key_dim < kExactTile.panel ? key_dim : kExactTile.panel;
  return ((width + 3) / 4 | 1U) * 4;
}

/// Keys, queries, a score of each slice for each query and position, a factor for each query.
[[nodiscard]] constexpr uint64_t exact_shared_bytes(uint32_t key_dim) {
  const uint64_t rows = uint64_t{kExactTile.queries + kExactTile.positions} * exact_stride(key_dim);
  const uint64_t scores = uint64_t{kExactTile.threads / 32} * kExactTile.queries * kExactTile.positions;
  return (rows + scores + kExactTile.queries) * sizeof(float);
}

// The tensor kernel
// ---------------------------------------------------------------------------------------------------

inline constexpr uint32_t kTensorKeyDim = 576;
inline constexpr uint32_t kTensorColumns = 512;
inline constexpr uint32_t kTensorPositions = 64;  // of a key tile

struct TensorTile {
  uint32_t queries;  // of a block, a multiple of 16
  uint32_t warps;
  uint32_t stages;  // key tiles in shared memory
  /// Parts into which the warps cut the positions of a tile to compute its scores.
  [[nodiscard]] constexpr uint32_t score_parts() const { return warps / (queries / 16); }
};

[[nodiscard]] constexpr TensorTile tensor_tile(AttendChoice choice) {
  switch (choice) {
    case AttendChoice::tensor_64x2: return {.queries = 64, .warps = 8, .stages = 2};
    case AttendChoice::tensor_64x1: return {.queries = 64, .warps = 8, .stages = 1};
    case AttendChoice::tensor_16x2: return {.queries = 16, .warps = 4, .stages = 2};
    default: return {.queries = 16, .warps = 4, .stages = 1};
  }
}

/// Bytes of a query or key in shared memory: BF16, rounded up to 128, within which the 16-byte pieces of a row are
/// permuted (device/tensor_keys.cuh).
[[nodiscard]] constexpr uint32_t tensor_row_bytes(uint32_t key_dim) {
  return (key_dim + 63) / 64 * 128;
}

/// Queries, keys, softmax weights; the maximum of each part and the factor for each query.
[[nodiscard]] constexpr uint64_t tensor_shared_bytes(const TensorTile& tile, uint32_t key_dim) {
  const uint64_t rows = tile.queries + uint64_t{tile.stages} * kTensorPositions;
  const uint64_t weights = uint64_t{tile.queries} * kTensorPositions * 2;
  return rows * tensor_row_bytes(key_dim) + weights + uint64_t{tile.queries} * (tile.score_parts() + 1) * 4;
}

}  // namespace dspack::kernels::cuda
