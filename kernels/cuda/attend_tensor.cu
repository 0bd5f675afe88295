// The first kernel of attention on tensor cores (mma.m16n8k16, BF16): a block takes 64 or 16 queries through the
// positions of one split, 64 keys at a time. How keys come to shared memory: device/tensor_keys.cuh.
//
//   scores  [queries, 64]  = queries . keys     warps: (16 queries) x (a part of the 64 positions)
//   softmax in FP32; weights rounded to BF16 -> shared memory
//   values  [queries, 512] += weights . keys    warps: (32 or 16 queries) x (128 of the 512 columns), in registers
//
// The values are columns of the same tile, read transposed.
//
// At short contexts, where few blocks would have work, a block takes 32 queries: four times 16 positions, and 16
// queries of the values a warp.
//
// Why 64 queries: with V3's 128 heads a key does 242 operations a byte of BF16 cache, so that what bounds the kernel is
// how often a tile goes from shared memory to registers; every query of a block shares that, and 64 x 512 sums in FP32
// are half of the registers there are.
#include "format/base/check.h"
#include "kernels/cuda/device/attend.cuh"
#include "kernels/cuda/device/tensor_keys.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kColumnsOfWarp = 128;  // of the values
inline constexpr unsigned kColumnWarps = kTensorColumns / kColumnsOfWarp;
inline constexpr uint32_t kWeightBytes = kTensorPositions * 2;  // a row of weights in shared memory

/// How a tile is spread over warps, as constants.
template <TensorTile kOf>
struct TensorLayout {
  static constexpr TensorTile kTile = kOf;
  static constexpr unsigned kThreads = kTile.warps * gpu::kWarpThreads;
  static constexpr unsigned kQueryTiles = kTile.queries / 16;
  static constexpr unsigned kParts = kTile.score_parts();
  static constexpr unsigned kScoreTiles = kTensorPositions / kParts / 8;  // of 8 positions, of a warp
  static constexpr unsigned kValueQueryTiles = kQueryTiles * kColumnWarps / kTile.warps;
  static_assert(kScoreTiles % 2 == 0 && kValueQueryTiles * kTile.warps == kQueryTiles * kColumnWarps);
};

struct TensorShared {
  unsigned char* queries;  // [queries, row bytes]
  unsigned char* keys;     // [stages, kTensorPositions, row bytes]
  unsigned char* weights;  // [queries, kTensorPositions] BF16
  float* maxima;           // [parts, queries]; in the end the sums, [kTensorSums, queries]
  float* factors;          // [queries]
};

template <class L>
__device__ __forceinline__ TensorShared tensor_shared() {
  TensorShared shared;
  shared.queries = gpu::shared_memory<unsigned char>();
  shared.keys = shared.queries + L::kTile.queries * kTensorRowBytes;
  shared.weights = shared.keys + L::kTile.stages * kTensorPositions * kTensorRowBytes;
  shared.maxima = reinterpret_cast<float*>(shared.weights + L::kTile.queries * kWeightBytes);
  shared.factors = shared.maxima + kTensorSums * L::kTile.queries;
  return shared;
}

/// Scores of 16 queries with this warp's part of the positions: `steps` of 16 columns each.
template <unsigned kTiles>
__device__ __forceinline__ void compute_scores(const unsigned char* queries, const unsigned char* keys,
                                               uint32_t query_row, uint32_t key_row, uint32_t steps,
                                               float (&scores)[kTiles][4]) {
  constexpr unsigned kGroup = 4;  // steps of 128 bytes
  const unsigned lane = gpu::lane_index();
  const uint32_t my_query = query_row + lane % 16;
  const uint32_t my_key = key_row + lane / 16 * 8 + lane % 8;
  const Pieces of_query(my_query, lane / 16);
  const Pieces of_key(my_key, lane / 8 % 2);
  const unsigned char* query = queries + my_query * kTensorRowBytes;
  const unsigned char* key = keys + my_key * kTensorRowBytes;
  const auto add_step = [&](unsigned step) {
    uint32_t a[4];
    gpu::load_tiles(a, query + of_query.at[step]);
#pragma unroll
    for (unsigned tile = 0; tile < kTiles; tile += 2) {
      uint32_t b[4];
      gpu::load_tiles(b, key + tile * 8 * kTensorRowBytes + of_key.at[step]);
      const uint32_t first[2] = {b[0], b[1]};
      const uint32_t second[2] = {b[2], b[3]};
      gpu::multiply_tile(scores[tile], a, first);
      gpu::multiply_tile(scores[tile + 1], a, second);
    }
  };
#pragma unroll 3  // nine groups of V3
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

/// The two queries whose scores a lane has: rows lane / 4 and lane / 4 + 8 of its tile. Alike in all parts but for the
/// sums, which are those of the lane's own columns, one for each 16 positions: however many of these a part has, the
/// order of a row's sum is one.
template <unsigned kTiles>
struct TensorSoftmax {
  PositionRange range[2];
  float maximum[2];
  float sums[2][kTiles / 2];
};

/// Hides what a query does not see, and finds the maximum of each query in this warp's part.
template <unsigned kTiles>
__device__ __forceinline__ void scale_and_hide(float (&scores)[kTiles][4], const TensorSoftmax<kTiles>& softmax,
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

/// Scores become weights relative to the new maximum, in shared memory; returns the factors of what came before.
template <unsigned kTiles>
__device__ __forceinline__ void weigh(const float (&scores)[kTiles][4], const float (&maxima)[2], uint32_t query_row,
                                      uint32_t first_column, unsigned char* weights, TensorSoftmax<kTiles>& softmax,
                                      float (&factors)[2]) {
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const uint32_t row = query_row + lane / 4 + half * 8;
    // Nothing seen yet: weights and factor are exp of minus infinity, 0.
    const float base = maxima[half] == minus_infinity() ? 0.0F : maxima[half];
    factors[half] = gpu::exponential(softmax.maximum[half] - base);
    softmax.maximum[half] = maxima[half];
    float sums[kTiles / 2] = {};
#pragma unroll
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      float pair[2];
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        pair[i] = gpu::exponential(scores[tile][half * 2 + i] - base);
        sums[tile / 2] += pair[i];
      }
      const uint32_t at = swizzled(row, kWeightBytes, first_column / 8 + tile) + lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(weights + at) = gpu::floats_to_bf16s(pair[0], pair[1]);
    }
#pragma unroll
    for (unsigned i = 0; i < kTiles / 2; ++i)
      softmax.sums[half][i] = gpu::fused_multiply_add(softmax.sums[half][i], factors[half], sums[i]);
  }
}

/// values = values * factor + weights . keys for this warp's queries and columns. Columns after the latent's last are
/// computed of whatever lies there, and not stored.
template <unsigned kQueryTiles>
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
  const unsigned char* weights = shared.weights + (query_row + my_row) * kWeightBytes;
  const unsigned char* key = keys + my_row * kTensorRowBytes + column * 2;
#pragma unroll
  for (unsigned step = 0; step < kTensorPositions / 16; ++step) {
    uint32_t a[kQueryTiles][4];
#pragma unroll
    for (unsigned tile = 0; tile < kQueryTiles; ++tile)
      gpu::load_tiles(a[tile], weights + tile * 16 * kWeightBytes + of_row.at[step]);
#pragma unroll
    for (unsigned pair = 0; pair < kColumnsOfWarp / 16; ++pair) {
      uint32_t b[4];
      gpu::load_tiles_transposed(b, key + step * 16 * kTensorRowBytes + pair / 4 * 128 + of_row.at[pair % 4]);
      const uint32_t first[2] = {b[0], b[1]};
      const uint32_t second[2] = {b[2], b[3]};
#pragma unroll
      for (unsigned tile = 0; tile < kQueryTiles; ++tile) {
        gpu::multiply_tile(values[tile][pair * 2], a[tile], first);
        gpu::multiply_tile(values[tile][pair * 2 + 1], a[tile], second);
      }
    }
  }
}

}  // namespace dspack::kernels::cuda::device

namespace dspack::kernels::cuda {
namespace {

template <unsigned kQueryTiles>
__device__ __forceinline__ void store_values(const device::AttendRun& run, const device::BlockQueries& queries,
                                             uint32_t query_row, uint32_t split, uint32_t column,
                                             const float (&values)[kQueryTiles][device::kColumnsOfWarp / 8][4]) {
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned tile = 0; tile < kQueryTiles; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const uint32_t query = queries.first + query_row + tile * 16 + lane / 4 + half * 8;
      if (query >= queries.end) continue;
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

/// The statistics of every query: the sums of its lanes, then of each 16 positions of a tile in their order.
template <class L>
__device__ __forceinline__ void store_stats(const device::AttendRun& run, const device::BlockQueries& queries,
                                            uint32_t split, uint32_t query_row, uint32_t part,
                                            const device::TensorSoftmax<L::kScoreTiles>& softmax,
                                            const device::TensorShared& shared) {
  constexpr unsigned kSums = L::kScoreTiles / 2;  // of this part
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
  gpu::block_barrier();  // sums of all parts and maxima are there
  const uint32_t row = gpu::thread_index();
  if (row >= L::kTile.queries || queries.first + row >= queries.end) return;
  float sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kTensorSums; ++i)
    sum += shared.maxima[i * L::kTile.queries + row];
  float* stats = run.stats + device::slot_of(run, queries.first + row, split) * kSplitStats;
  stats[0] = shared.factors[row];
  stats[1] = sum;
}

/// A block's work: its queries through one split.
template <class L, class Keys>
__device__ __forceinline__ void attend_block(const device::AttendRun& run, uint32_t group, uint32_t split) {
  const device::BlockQueries queries = device::queries_of_block(run, group, L::kTile.queries);
  if (queries.first >= queries.end) return;
  const device::BlockPositions block = device::positions_of_block(run, queries, L::kTile.queries, split);
  if (block.end == 0) return;
  const device::TensorShared shared = device::tensor_shared<L>();
  const unsigned warp = gpu::warp_index();
  const unsigned lane = gpu::lane_index();
  const uint32_t query_row = warp % L::kQueryTiles * 16;  // scores
  const uint32_t part = warp / L::kQueryTiles;
  const uint32_t part_column = part * (kTensorPositions / L::kParts);
  const uint32_t value_row = warp / device::kColumnWarps * (L::kValueQueryTiles * 16);  // values
  const uint32_t column = warp % device::kColumnWarps * device::kColumnsOfWarp;
  device::TensorSoftmax<L::kScoreTiles> softmax;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    softmax.range[half] = device::range_of_query(run, queries, queries.first + query_row + lane / 4 + half * 8, split);
    softmax.maximum[half] = device::minus_infinity();
#pragma unroll
    for (float& sum : softmax.sums[half])
      sum = 0;
  }
  float values[L::kValueQueryTiles][device::kColumnsOfWarp / 8][4] = {};
  const device::PositionMap map(run, queries.first);
  device::KeyTiles<Keys, L::kTile.stages> tiles(run, map, block.end, shared.keys);
  tiles.start(block.begin);  // the keys are on their way while queries are rounded
  device::load_tensor_queries<L::kTile.queries, L::kThreads>(run, queries, shared.queries);
  for (uint32_t position = block.begin; position < block.end; position = block.behind(position, kTensorPositions)) {
    const unsigned char* keys = tiles.take(position, block.behind(position, kTensorPositions));
    float scores[L::kScoreTiles][4] = {};
    device::compute_scores(shared.queries, keys, query_row, part_column, run.key_dim / 16, scores);
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
    if (column < run.latent_dim) device::add_values(shared, keys, value_row, column, values);
  }
  store_values(run, queries, value_row, split, column, values);
  gpu::block_barrier();  // the last factors have been used
  store_stats<L>(run, queries, split, query_row, part, softmax, shared);
}

/// Blocks of half the queries, where so few blocks are at work that multiprocessors would have none: short contexts.
/// The bits are those of whole blocks.
template <TensorTile kTile>
struct HalvedBlocks {
  static constexpr TensorTile kHalf = {
      .queries = kTile.queries / 2, .warps = kTile.warps, .stages = kTile.stages, .is_halved = false};
  uint32_t groups;
  uint32_t splits;  // that any row has
  __device__ __forceinline__ explicit HalvedBlocks(const device::AttendRun& run) {
    const uint32_t last_row = device::row_of(run, run.queries - 1);
    const bool is_chosen = run.chosen != nullptr;
    const uint32_t of_row = (run.heads - 1) / kHalf.queries + 1;
    groups = is_chosen ? (last_row + 1) * of_row : (run.queries - 1) / kHalf.queries + 1;
    splits = is_chosen ? run.slots : device::splits_of(run, device::positions_of(run, last_row));
  }
  [[nodiscard]] __device__ __forceinline__ bool are_few() const { return uint64_t{groups} * splits <= kTensorBlocks; }
};

template <AttendChoice kChoice>
constexpr TensorTile kTileOf = tensor_tile(kChoice);

template <AttendChoice kChoice, class Keys>
__global__ void __launch_bounds__(kTileOf<kChoice>.warps* gpu::kWarpThreads) tensor_kernel(device::AttendRun run) {
  gpu::let_next_begin();
  gpu::wait_for_previous();
  constexpr TensorTile kTile = kTileOf<kChoice>;
  const uint3 block = gpu::block_index();
  if constexpr (kTile.is_halved) {
    using Halved = HalvedBlocks<kTile>;
    const Halved halved(run);
    if (halved.are_few()) {
      const uint32_t number = block.y * gpu::grid_blocks().x + block.x;
      return attend_block<device::TensorLayout<Halved::kHalf>, Keys>(run, number % halved.groups,
                                                                     number / halved.groups);
    }
  }
  attend_block<device::TensorLayout<kTile>, Keys>(run, block.x, block.y);
}

template <AttendChoice kChoice, class Keys>
void run_tensor(gpu::Stream& stream, const MlaAttendTask& task) {
  for_each_run(stream, task, kChoice, [&](const device::AttendRun& run, const gpu::LaunchShape& shape) {
    gpu::launch_overlapping(stream, shape, tensor_kernel<kChoice, Keys>, run);
  });
}

/// Rounding has nothing to gain from a second tile: it waits for its loads.
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
