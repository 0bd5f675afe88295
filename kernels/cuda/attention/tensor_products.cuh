// The two products of a block of attention on tensor cores (mma.m16n8k16, BF16), with queries and softmax weights
// rounded to BF16 or split into BF16 terms, and the layout of their operands in shared memory.
#pragma once

#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/attention/tensor_keys.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kColumnsOfWarp = 128;  // columns of the values per warp
inline constexpr unsigned kColumnWarps = kTensorColumns / kColumnsOfWarp;

/// The distribution of a tile over warps, as constants.
template <TensorTile kOf>
struct TensorLayout {
  static constexpr TensorTile kTile = kOf;
  static constexpr unsigned kThreads = kTile.warps * gpu::kWarpThreads;
  static constexpr unsigned kQueryTiles = kTile.queries / 16;
  static constexpr unsigned kParts = kTile.score_parts();
  static constexpr unsigned kScoreTiles = kTile.positions / kParts / 8;  // tiles of 8 positions per warp
  static constexpr unsigned kSums = kTensorSums / kParts;                // sums of weights per warp
  static constexpr unsigned kValueQueryTiles = kQueryTiles * kColumnWarps / kTile.warps;
  static constexpr unsigned kTermBytes = kTile.queries * kTensorRowBytes;  // between terms of the queries
  static constexpr unsigned kWeightBytes = kTile.weight_bytes();
  static constexpr unsigned kAllWeightBytes = tensor_weight_bytes(kTile);
  static_assert(kScoreTiles * kParts * 8 == kTile.positions && kSums * kParts == kTensorSums);
  static_assert(kScoreTiles % kSums == 0 && kValueQueryTiles * kTile.warps == kQueryTiles * kColumnWarps);
};

struct TensorShared {
  unsigned char* queries;  // [terms, queries, row bytes]
  unsigned char* keys;     // [stages, positions, row bytes]
  unsigned char* weights;  // [queries, terms, positions] BF16, in rows of weight_bytes; earlier the sums of parts
  float* maxima;           // [parts, queries]; at the end the sums, [kTensorSums, queries]
  float* factors;          // [queries]
};

template <class L>
__device__ __forceinline__ TensorShared tensor_shared() {
  TensorShared shared;
  shared.queries = gpu::shared_memory<unsigned char>();
  shared.keys = shared.queries + L::kTile.terms * L::kTermBytes;
  shared.weights = shared.keys + L::kTile.stages * L::kTile.positions * kTensorRowBytes;
  shared.maxima = reinterpret_cast<float*>(shared.weights + L::kAllWeightBytes);
  shared.factors = shared.maxima + kTensorSums * L::kTile.queries;
  return shared;
}

/// Scores of 16 queries with this warp's part of the positions: `steps` of 16 columns each.
template <unsigned kTiles>
__device__ __forceinline__ void compute_scores(const unsigned char* queries, const unsigned char* keys,
                                               uint32_t query_row, uint32_t key_row, uint32_t steps,
                                               float (&scores)[kTiles][4]) {
  constexpr unsigned kGroup = 4;  // steps in 128 bytes
  const unsigned lane = gpu::lane_index();
  const uint32_t my_query = query_row + lane % 16;
  const uint32_t my_key = key_row + lane / 16 * 8 + lane % 8;
  const Pieces of_query(my_query, lane / 16);
  const Pieces of_key(my_key, lane / 8 % 2);
  const unsigned char* query = queries + my_query * kTensorRowBytes;
  const unsigned char* key = keys + my_key * kTensorRowBytes;
  const auto add_step = [&](unsigned step) {
    uint32_t a[4];
    gpu::ldmatrix_x4(a, query + of_query.at[step]);
#pragma unroll
    for (unsigned tile = 0; tile < kTiles; tile += 2) {
      uint32_t b[4];
      gpu::ldmatrix_x4(b, key + tile * 8 * kTensorRowBytes + of_key.at[step]);
      const uint32_t first[2] = {b[0], b[1]};
      const uint32_t second[2] = {b[2], b[3]};
      gpu::mma_m16n8k16(scores[tile], a, first);
      gpu::mma_m16n8k16(scores[tile + 1], a, second);
    }
  };
#pragma unroll 3  // nine groups for V3
  for (uint32_t group = 0; group < steps / kGroup; ++group) {
#pragma unroll
    for (unsigned step = 0; step < kGroup; ++step)
      add_step(step);
    query += kGroup * 32;
    key += kGroup * 32;
  }
#pragma unroll
  for (unsigned step = 0; step < kGroup - 1; ++step) {
    if (step < steps % kGroup) add_step(step);
  }
}

/// values = values * factor + weights . keys for this warp's queries and columns. Columns after the latent's last are
/// computed from arbitrary data and not stored.
template <class L, unsigned kQueryTiles>
__device__ __forceinline__ void add_values(const TensorShared& shared, const unsigned char* keys, uint32_t query_row,
                                           uint32_t column, float (&values)[kQueryTiles][kColumnsOfWarp / 8][4]) {
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned tile = 0; tile < kQueryTiles; ++tile) {
    const float low = shared.factors[query_row + tile * 16 + lane / 4];
    const float high = shared.factors[query_row + tile * 16 + lane / 4 + 8];
#pragma unroll
    for (auto& value : values[tile]) {
      value[0] *= low;
      value[1] *= low;
      value[2] *= high;
      value[3] *= high;
    }
  }
  const uint32_t my_row = lane % 16;
  const Pieces of_row(my_row, lane / 16);
  const unsigned char* weights = shared.weights + (query_row + my_row) * L::kWeightBytes;
  const unsigned char* key = keys + my_row * kTensorRowBytes + column * 2;
#pragma unroll
  for (unsigned step = 0; step < L::kTile.positions / 16; ++step) {
    uint32_t a[kQueryTiles][4];
#pragma unroll
    for (unsigned tile = 0; tile < kQueryTiles; ++tile)
      gpu::ldmatrix_x4(a[tile], weights + tile * 16 * L::kWeightBytes + of_row.at[step]);
#pragma unroll
    for (unsigned pair = 0; pair < kColumnsOfWarp / 16; ++pair) {
      uint32_t b[4];
      gpu::ldmatrix_x4_trans(b, key + step * 16 * kTensorRowBytes + pair / 4 * 128 + of_row.at[pair % 4]);
      const uint32_t first[2] = {b[0], b[1]};
      const uint32_t second[2] = {b[2], b[3]};
#pragma unroll
      for (unsigned tile = 0; tile < kQueryTiles; ++tile) {
        gpu::mma_m16n8k16(values[tile][pair * 2], a[tile], first);
        gpu::mma_m16n8k16(values[tile][pair * 2 + 1], a[tile], second);
      }
    }
  }
}

/// Split queries: scores of 16 queries with this warp's part of the positions. Each warp of these queries takes a
/// quarter of the columns through all positions, 16 columns of every 64, so that a query's terms are read once for all
/// positions; then the quarters' sums, added in order, are the scores.
///
/// Tensor cores round towards zero, once per instruction. So the products of the first terms are summed separately from
/// those of the other terms, which are 2^-8 of them: nine roundings of FP32 for the 576 columns of V3's keys.
template <class L>
__device__ __forceinline__ void compute_split_scores(const TensorShared& shared, const unsigned char* keys,
                                                     uint32_t query_row, uint32_t part, uint32_t steps,
                                                     float (&scores)[L::kScoreTiles][4]) {
  constexpr unsigned kTerms = L::kTile.terms;
  constexpr unsigned kTiles = L::kTile.positions / 8;
  static_assert(L::kParts == 4 && L::kScoreTiles == 1 && kTiles % 2 == 0);
  const unsigned lane = gpu::lane_index();
  const uint32_t my_query = query_row + lane % 16;
  const uint32_t my_key = lane / 16 * 8 + lane % 8;
  const unsigned char* query = shared.queries + swizzled(my_query, kTensorRowBytes, part * 2 + lane / 16);
  const unsigned char* key = keys + swizzled(my_key, kTensorRowBytes, part * 2 + lane / 8 % 2);
  float first_sums[kTiles][4] = {};
  float other_sums[kTiles][4] = {};
#pragma unroll 3  // nine steps for V3
  for (uint32_t step = part; step < steps; step += L::kParts) {
    uint32_t a[kTerms][4];
#pragma unroll
    for (unsigned term = 0; term < kTerms; ++term)
      gpu::ldmatrix_x4(a[term], query + term * L::kTermBytes);
#pragma unroll
    for (unsigned tile = 0; tile < kTiles; tile += 2) {
      uint32_t b[4];
      gpu::ldmatrix_x4(b, key + tile * 8 * kTensorRowBytes);
      const uint32_t halves[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        gpu::mma_m16n8k16(first_sums[tile + half], a[0], halves[half]);
#pragma unroll
      for (unsigned term = 1; term < kTerms; ++term) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half)
          gpu::mma_m16n8k16(other_sums[tile + half], a[term], halves[half]);
      }
    }
    query += 128;
    key += 128;
  }
  auto* sums = reinterpret_cast<float4*>(shared.weights) + query_row / 16 * kTiles * gpu::kWarpThreads + lane;
  constexpr unsigned kPartStride = L::kQueryTiles * kTiles * gpu::kWarpThreads;
#pragma unroll
  for (unsigned tile = 0; tile < kTiles; ++tile) {
    const auto& first = first_sums[tile];
    const auto& other = other_sums[tile];
    sums[part * kPartStride + tile * gpu::kWarpThreads] =
        make_float4(first[0] + other[0], first[1] + other[1], first[2] + other[2], first[3] + other[3]);
  }
  gpu::block_barrier();  // the sums of all parts are stored
#pragma unroll
  for (unsigned i = 0; i < L::kParts; ++i) {
    const float4 sum = sums[i * kPartStride + part * gpu::kWarpThreads];
    scores[0][0] += sum.x;
    scores[0][1] += sum.y;
    scores[0][2] += sum.z;
    scores[0][3] += sum.w;
  }
}

/// add_values for split weights. The tensor cores sum a tile's products from zero, smallest terms first, and the CUDA
/// cores add the result to the values: so rounding towards zero affects small sums, not the values of thousands of
/// positions.
template <class L, unsigned kQueryTiles>
__device__ __forceinline__ void add_split_values(const TensorShared& shared, const unsigned char* keys,
                                                 uint32_t query_row, uint32_t column,
                                                 float (&values)[kQueryTiles][kColumnsOfWarp / 8][4]) {
  constexpr unsigned kTerms = L::kTile.terms;
  constexpr unsigned kSteps = L::kTile.positions / 16;
  constexpr unsigned kPairs = 2;  // pairs of 16 columns at once: four independent sums
  static_assert(kQueryTiles == 1);
  const unsigned lane = gpu::lane_index();
  const float low = shared.factors[query_row + lane / 4];
  const float high = shared.factors[query_row + lane / 4 + 8];
  const uint32_t my_row = lane % 16;
  const Pieces of_row(my_row, lane / 16);
  const unsigned char* weights = shared.weights + (query_row + my_row) * L::kWeightBytes;
  const unsigned char* key = keys + my_row * kTensorRowBytes + column * 2;
  uint32_t a[kTerms * kSteps][4];
#pragma unroll
  for (unsigned i = 0; i < kTerms * kSteps; ++i)
    gpu::ldmatrix_x4(a[i], weights + i / 4 * 128 + of_row.at[i % 4]);
#pragma unroll
  for (unsigned first = 0; first < kColumnsOfWarp / 16; first += kPairs) {
    uint32_t b[kSteps][kPairs][4];
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step) {
#pragma unroll
      for (unsigned i = 0; i < kPairs; ++i) {
        const unsigned pair = first + i;
        gpu::ldmatrix_x4_trans(b[step][i], key + step * 16 * kTensorRowBytes + pair / 4 * 128 + of_row.at[pair % 4]);
      }
    }
    float sums[kPairs * 2][4] = {};
#pragma unroll
    for (unsigned term = kTerms; term-- > 0;) {
#pragma unroll
      for (unsigned step = 0; step < kSteps; ++step) {
#pragma unroll
        for (unsigned i = 0; i < kPairs; ++i) {
          const uint32_t left[2] = {b[step][i][0], b[step][i][1]};
          const uint32_t right[2] = {b[step][i][2], b[step][i][3]};
          gpu::mma_m16n8k16(sums[i * 2], a[term * kSteps + step], left);
          gpu::mma_m16n8k16(sums[i * 2 + 1], a[term * kSteps + step], right);
        }
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kPairs * 2; ++i) {
      float(&value)[4] = values[0][first * 2 + i];
      value[0] = gpu::fma_rn(value[0], low, sums[i][0]);
      value[1] = gpu::fma_rn(value[1], low, sums[i][1]);
      value[2] = gpu::fma_rn(value[2], high, sums[i][2]);
      value[3] = gpu::fma_rn(value[3], high, sums[i][3]);
    }
  }
}

}  // namespace dspack::kernels::cuda::device
