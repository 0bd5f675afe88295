// The first kernel of attention on tensor cores (mma.m16n8k16, BF16): a block takes 64 or 16 queries through the
// positions of one split, 64 keys at a time. How keys come to shared memory: device/tensor_keys.cuh; what the warps do
// with them: device/tensor_attend.cuh.
//
// Why 64 queries: with V3's 128 heads a key does 242 operations a byte of BF16 cache, so that what bounds the kernel is
// how often a tile goes from shared memory to registers; every query of a block shares that, and 64 x 512 sums in FP32
// are half of the registers there are.
#include "format/base/check.h"
#include "kernels/cuda/device/attend_runs.cuh"
#include "kernels/cuda/device/tensor_attend.cuh"

namespace dspack::kernels::cuda {
namespace {

template <unsigned kQueryTiles>
__device__ __forceinline__ void store_values(const device::AttendRun& run, uint32_t first_query, uint32_t split,
                                             uint32_t column,
                                             const float (&values)[kQueryTiles][device::kColumnsOfWarp / 8][4]) {
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned tile = 0; tile < kQueryTiles; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const uint32_t query = first_query + tile * 16 + lane / 4 + half * 8;
      if (query >= run.queries) continue;
      float* to = run.values + device::slot_of(run, query, split) * run.value_stride;
#pragma unroll
      for (unsigned i = 0; i < device::kColumnsOfWarp / 8; ++i) {
        const uint32_t at = column + i * 8 + lane % 4 * 2;
        if (at < run.latent_dim)
          *reinterpret_cast<float2*>(to + at) = make_float2(values[tile][i][half * 2], values[tile][i][half * 2 + 1]);
      }
    }
  }
}

/// The statistics of every query: the sums of its lanes, then of the parts in their order.
template <AttendChoice kChoice>
__device__ __forceinline__ void store_stats(const device::AttendRun& run, uint32_t first_query, uint32_t split,
                                            uint32_t query_row, uint32_t part, const device::TensorSoftmax& softmax,
                                            const device::TensorShared& shared) {
  using L = device::TensorLayout<kChoice>;
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    float sum = softmax.sum[half];
    sum += gpu::shuffle_xor(sum, 1);
    sum += gpu::shuffle_xor(sum, 2);
    const uint32_t row = query_row + lane / 4 + half * 8;
    if (lane % 4 == 0) shared.maxima[part * L::kTile.queries + row] = sum;
    if (lane % 4 == 0 && part == 0) shared.factors[row] = softmax.maximum[half];
  }
  gpu::block_barrier();  // sums of all parts and maxima are there
  const uint32_t row = gpu::thread_index();
  if (row >= L::kTile.queries || first_query + row >= run.queries) return;
  float sum = 0;
#pragma unroll
  for (unsigned i = 0; i < L::kParts; ++i)
    sum += shared.maxima[i * L::kTile.queries + row];
  float* stats = run.stats + device::slot_of(run, first_query + row, split) * kSplitStats;
  stats[0] = shared.factors[row];
  stats[1] = sum;
}

template <AttendChoice kChoice, class Keys>
__global__ void __launch_bounds__(device::TensorLayout<kChoice>::kThreads) tensor_kernel(device::AttendRun run) {
  using L = device::TensorLayout<kChoice>;
  const uint32_t first_query = gpu::block_index().x * L::kTile.queries;
  const uint32_t split = gpu::block_index().y;
  if (first_query >= run.queries) return;
  const device::BlockPositions block = device::positions_of_block(run, first_query, L::kTile.queries, split);
  if (block.end == 0) return;
  const device::TensorShared shared = device::tensor_shared<kChoice>(run);
  const unsigned warp = gpu::warp_index();
  const unsigned lane = gpu::lane_index();
  const uint32_t query_row = warp % L::kQueryTiles * 16;  // scores
  const uint32_t part = warp / L::kQueryTiles;
  const uint32_t part_column = part * (kTensorPositions / L::kParts);
  const uint32_t value_row = warp / device::kColumnWarps * (L::kValueQueryTiles * 16);  // values
  const uint32_t column = warp % device::kColumnWarps * device::kColumnsOfWarp;
  device::TensorSoftmax softmax;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    softmax.range[half] = device::range_of_query(run, first_query + query_row + lane / 4 + half * 8, split);
    softmax.maximum[half] = device::minus_infinity();
    softmax.sum[half] = 0;
  }
  float values[L::kValueQueryTiles][device::kColumnsOfWarp / 8][4] = {};
  device::load_tensor_queries(run, first_query, L::kTile.queries, shared.queries, shared.row_bytes);
  device::KeyTiles<Keys, L::kTile.stages> tiles(run, block.end, shared.keys, shared.row_bytes);
  tiles.start(block.begin);
  for (uint32_t position = block.begin; position < block.end; position = block.behind(position, kTensorPositions)) {
    const unsigned char* keys = tiles.take(position, block.behind(position, kTensorPositions));
    float scores[L::kScoreTiles][4] = {};
    device::compute_scores(shared.queries, keys, query_row, part_column, shared.row_bytes, run.key_dim / 16, scores);
    float maxima[2];
    device::scale_and_hide(scores, softmax, run.scale, position + part_column, maxima);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      if (lane % 4 == 0) shared.maxima[part * L::kTile.queries + query_row + lane / 4 + half * 8] = maxima[half];
    }
    gpu::block_barrier();  // the maxima of all parts are there
    float factors[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      maxima[half] = softmax.maximum[half];
#pragma unroll
      for (unsigned i = 0; i < L::kParts; ++i)
        maxima[half] =
            device::larger(shared.maxima[i * L::kTile.queries + query_row + lane / 4 + half * 8], maxima[half]);
    }
    device::weigh(scores, maxima, query_row, part_column, shared.weights, softmax, factors);
    if (part == 0 && lane % 4 == 0) {
      shared.factors[query_row + lane / 4] = factors[0];
      shared.factors[query_row + lane / 4 + 8] = factors[1];
    }
    gpu::block_barrier();  // weights and factors are there
    device::add_values(shared, keys, value_row, column, run.latent_dim, values);
  }
  store_values(run, first_query + value_row, split, column, values);
  gpu::block_barrier();  // the last factors have been used
  store_stats<kChoice>(run, first_query, split, query_row, part, softmax, shared);
}

template <AttendChoice kChoice, class Keys>
void run_tensor(gpu::Stream& stream, const MlaAttendTask& task) {
  for_each_run(stream, task, kChoice, [&](const device::AttendRun& run, const gpu::LaunchShape& shape) {
    gpu::launch(stream, shape, tensor_kernel<kChoice, Keys>, run);
  });
}

/// Rounding value by value has nothing to gain from a second tile: it waits for its loads.
template <AttendChoice kCopied, AttendChoice kRounded>
void run_choice(gpu::Stream& stream, const MlaAttendTask& task) {
  if (task.cache_dtype == Dtype::f8_e4m3) return run_tensor<kCopied, device::Fp8TensorKeys>(stream, task);
  const bool is_aligned = reinterpret_cast<uint64_t>(task.cache) % 16 == 0;
  if (task.cache_dtype == Dtype::bf16 && is_aligned) return run_tensor<kCopied, device::CopyKeys>(stream, task);
  if (task.cache_dtype == Dtype::bf16) return run_tensor<kRounded, device::RoundKeys<device::StoredBf16>>(stream, task);
  if (task.cache_dtype == Dtype::f16) return run_tensor<kRounded, device::RoundKeys<device::StoredF16>>(stream, task);
  run_tensor<kRounded, device::RoundKeys<device::StoredF32>>(stream, task);
}

}  // namespace

void attend_tensor(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice) {
  switch (choice) {
    case AttendChoice::tensor_64x2:
      return run_choice<AttendChoice::tensor_64x2, AttendChoice::tensor_64x1>(stream, task);
    case AttendChoice::tensor_64x1:
      return run_choice<AttendChoice::tensor_64x1, AttendChoice::tensor_64x1>(stream, task);
    case AttendChoice::tensor_16x2:
      return run_choice<AttendChoice::tensor_16x2, AttendChoice::tensor_16x1>(stream, task);
    case AttendChoice::tensor_16x1:
      return run_choice<AttendChoice::tensor_16x1, AttendChoice::tensor_16x1>(stream, task);
    case AttendChoice::exact: DSPACK_CHECK(false, "exact attention has no tensor cores");
  }
}

}  // namespace dspack::kernels::cuda
