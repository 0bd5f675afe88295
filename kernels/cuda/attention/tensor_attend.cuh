// A block of the first kernel of attention on tensor cores: takes some queries through the positions of one split, a
// tile of keys at a time. Loading of keys: tensor_keys.cuh; the products: tensor_products.cuh.
//
//   scores  [queries, positions] = queries . keys   warps: (16 queries) x (a part of the positions, or of the columns)
//           softmax in FP32; weights rounded to BF16, or split -> shared memory
//   values  [queries, 512] += weights . keys        warps: (32 or 16 queries) x (128 of the 512 columns), in registers
//
// The values are columns of the same tile, read transposed.
#pragma once

#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/attention/tensor_keys.cuh"
#include "kernels/cuda/attention/tensor_products.cuh"

namespace dspack::kernels::cuda::device {

/// State of the two queries whose scores a lane has: rows lane / 4 and lane / 4 + 8 of its tile. The same in all parts,
/// except the sums, which are over the lane's own columns, one for each quarter of a tile's positions: so the order of
/// a row's sum does not depend on the number of quarters per part.
template <unsigned kSums>
struct TensorSoftmax {
  PositionRange range[2];
  float maximum[2];
  float sums[2][kSums];
};

/// Masks the positions that a query does not see, and finds the maximum of each query in this warp's part.
template <unsigned kTiles, unsigned kSums>
__device__ __forceinline__ void scale_and_hide(float (&scores)[kTiles][4], const TensorSoftmax<kSums>& softmax,
                                               float scale, uint32_t first_position, float (&maxima)[2]) {
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    maxima[half] = minus_infinity();
#pragma unroll
    for (unsigned tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const uint32_t position = first_position + tile * 8 + gpu::lane_index() % 4 * 2 + i;
        float& score = scores[tile][half * 2 + i];
        score = softmax.range[half].holds(position) ? score * scale : minus_infinity();
        maxima[half] = larger(score, maxima[half]);
      }
    }
    maxima[half] = larger(gpu::shuffle_xor(maxima[half], 1), maxima[half]);
    maxima[half] = larger(gpu::shuffle_xor(maxima[half], 2), maxima[half]);
  }
}

/// Turns scores into weights relative to the new maximum, in shared memory; returns the factors for the earlier sums.
template <class L>
__device__ __forceinline__ void weigh(const float (&scores)[L::kScoreTiles][4], const float (&maxima)[2],
                                      uint32_t query_row, uint32_t first_column, unsigned char* weights,
                                      TensorSoftmax<L::kSums>& softmax, float (&factors)[2]) {
  constexpr unsigned kTiles = L::kScoreTiles;
  constexpr unsigned kTerms = L::kTile.terms;
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const uint32_t row = query_row + lane / 4 + half * 8;
    // If nothing has been seen yet, weights and factor are exp of minus infinity, 0.
    const float base = maxima[half] == minus_infinity() ? 0.0F : maxima[half];
    factors[half] = gpu::exponential(softmax.maximum[half] - base);
    softmax.maximum[half] = maxima[half];
    float sums[L::kSums] = {};
#pragma unroll
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      float pair[2];
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        pair[i] = gpu::exponential(scores[tile][half * 2 + i] - base);
        sums[tile / (kTiles / L::kSums)] += pair[i];
      }
      uint32_t terms[kTerms];
      split_pair(pair[0], pair[1], terms);
#pragma unroll
      for (unsigned term = 0; term < kTerms; ++term) {
        const uint32_t piece = term * (L::kTile.positions / 8) + first_column / 8 + tile;
        *reinterpret_cast<uint32_t*>(weights + swizzled(row, L::kWeightBytes, piece) + lane % 4 * 4) = terms[term];
      }
    }
#pragma unroll
    for (unsigned i = 0; i < L::kSums; ++i)
      softmax.sums[half][i] = gpu::fma_rn(softmax.sums[half][i], factors[half], sums[i]);
  }
}

template <unsigned kQueryTiles>
__device__ __forceinline__ void store_values(const AttendRun& run, const BlockQueries& queries, uint32_t query_row,
                                             uint32_t split, uint32_t column,
                                             const float (&values)[kQueryTiles][kColumnsOfWarp / 8][4]) {
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned tile = 0; tile < kQueryTiles; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const uint32_t query = queries.first + query_row + tile * 16 + lane / 4 + half * 8;
      if (query >= queries.end) continue;
      float* to = run.values + slot_of(run, query, split) * run.value_stride;
#pragma unroll
      for (unsigned i = 0; i < kColumnsOfWarp / 8; ++i) {
        const uint32_t at = column + i * 8 + lane % 4 * 2;
        if (at < run.latent_dim)
          *reinterpret_cast<float2*>(to + at) = make_float2(values[tile][i][half * 2], values[tile][i][half * 2 + 1]);
      }
    }
  }
}

/// Stores the statistics of every query: sums over lanes, then over the quarters of a tile's positions in order.
template <class L>
__device__ __forceinline__ void store_stats(const AttendRun& run, const BlockQueries& queries, uint32_t split,
                                            uint32_t query_row, uint32_t part, const TensorSoftmax<L::kSums>& softmax,
                                            const TensorShared& shared) {
  constexpr unsigned kSums = L::kSums;
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const uint32_t row = query_row + lane / 4 + half * 8;
#pragma unroll
    for (unsigned i = 0; i < kSums; ++i) {
      float sum = softmax.sums[half][i];
      sum += gpu::shuffle_xor(sum, 1);
      sum += gpu::shuffle_xor(sum, 2);
      if (lane % 4 == 0) shared.maxima[(part * kSums + i) * L::kTile.queries + row] = sum;
    }
    if (lane % 4 == 0 && part == 0) shared.factors[row] = softmax.maximum[half];
  }
  gpu::block_barrier();  // sums of all parts and maxima are stored
  const uint32_t row = gpu::thread_index();
  if (row >= L::kTile.queries || queries.first + row >= queries.end) return;
  float sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kTensorSums; ++i)
    sum += shared.maxima[i * L::kTile.queries + row];
  float* stats = run.stats + slot_of(run, queries.first + row, split) * kSplitStats;
  stats[0] = shared.factors[row];
  stats[1] = sum;
}

/// A block's work: its queries through one split.
template <class L, class Keys>
__device__ __forceinline__ void attend_block(const AttendRun& run, uint32_t group, uint32_t split) {
  const BlockQueries queries = queries_of_block(run, group, L::kTile.queries);
  if (queries.first >= queries.end) return;
  const BlockPositions block = positions_of_block(run, queries, L::kTile.queries, split);
  if (block.end == 0) return;
  const TensorShared shared = tensor_shared<L>();
  const unsigned warp = gpu::warp_index();
  const unsigned lane = gpu::lane_index();
  const uint32_t query_row = warp % L::kQueryTiles * 16;  // for scores
  const uint32_t part = warp / L::kQueryTiles;
  const uint32_t part_column = part * (L::kTile.positions / L::kParts);
  const uint32_t value_row = warp / kColumnWarps * (L::kValueQueryTiles * 16);  // for values
  const uint32_t column = warp % kColumnWarps * kColumnsOfWarp;
  TensorSoftmax<L::kSums> softmax;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    softmax.range[half] = range_of_query(run, queries, queries.first + query_row + lane / 4 + half * 8, split);
    softmax.maximum[half] = minus_infinity();
#pragma unroll
    for (float& sum : softmax.sums[half])
      sum = 0;
  }
  float values[L::kValueQueryTiles][kColumnsOfWarp / 8][4] = {};
  const PositionMap map(run, queries.first);
  KeyTiles<Keys, L::kTile.stages> tiles(run, map, block.end, shared.keys);
  tiles.start(block.begin);  // the keys are copied while queries are rounded or split
  load_tensor_queries<L::kTile.queries, L::kTile.terms, L::kThreads>(run, queries, shared.queries);
  constexpr uint32_t kPositions = L::kTile.positions;
  constexpr bool kIsSplit = L::kTile.terms > 1;
  static_assert(Keys::kPositions == kPositions);
  for (uint32_t position = block.begin; position < block.end; position = block.behind(position, kPositions)) {
    const unsigned char* keys = tiles.take(position, block.behind(position, kPositions));
    float scores[L::kScoreTiles][4] = {};
    if constexpr (kIsSplit) {
      compute_split_scores<L>(shared, keys, query_row, part, run.key_dim / 16, scores);
    } else {
      compute_scores(shared.queries, keys, query_row, part_column, run.key_dim / 16, scores);
    }
    float maxima[2];
    scale_and_hide(scores, softmax, run.scale, position + part_column, maxima);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      if (lane % 4 == 0) shared.maxima[part * L::kTile.queries + query_row + lane / 4 + half * 8] = maxima[half];
    }
    gpu::block_barrier();  // the maxima of all parts are stored
    float factors[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      maxima[half] = softmax.maximum[half];
#pragma unroll
      for (unsigned i = 0; i < L::kParts; ++i)
        maxima[half] = larger(shared.maxima[i * L::kTile.queries + query_row + lane / 4 + half * 8], maxima[half]);
    }
    weigh<L>(scores, maxima, query_row, part_column, shared.weights, softmax, factors);
    if (part == 0 && lane % 4 == 0) {
      shared.factors[query_row + lane / 4] = factors[0];
      shared.factors[query_row + lane / 4 + 8] = factors[1];
    }
    gpu::block_barrier();  // weights and factors are stored
    if (column >= run.latent_dim) continue;
    if constexpr (kIsSplit) {
      add_split_values<L>(shared, keys, value_row, column, values);
    } else {
      add_values<L>(shared, keys, value_row, column, values);
    }
  }
  store_values(run, queries, value_row, split, column, values);
  gpu::block_barrier();  // the last factors have been used
  store_stats<L>(run, queries, split, query_row, part, softmax, shared);
}

}  // namespace dspack::kernels::cuda::device
