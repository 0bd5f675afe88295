#include "kernels/cuda/attention/expanded_keys.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/linear/linear.h"

namespace dspack::kernels::cuda {
namespace {

/// A slice of positions.
struct SliceRun {
  const void* cache;
  RoundedRows latents;
  const float* made;  // result of kv_b
  uint16_t* keys;
  uint16_t* ropes;
  uint32_t first_head;
  uint32_t heads;
  uint32_t latent_dim;
  uint32_t rope_dim;
  uint32_t head_dim;
  uint32_t positions;
  uint32_t begin;
  uint32_t rows;
  Fp8Row fp8_row;
};

template <class Stored>
struct PlainRows {
  static __device__ __forceinline__ float value(const SliceRun& run, uint64_t position, uint32_t column) {
    return Stored::decode_one(run.cache, position * (run.latent_dim + run.rope_dim) + column);
  }
};
struct Fp8Rows {
  static __device__ __forceinline__ float value(const SliceRun& run, uint64_t position, uint32_t column) {
    const auto* row = static_cast<const uint8_t*>(run.cache) + position * run.fp8_row.bytes;
    return device::fp8_row_value(row, run.fp8_row, run.latent_dim, column);
  }
};

/// A warp rounds one row of the slice: its latent, zero-padded, and if first_head is 0 its rotary key.
template <class Cached>
__global__ void round_slice_kernel(SliceRun run) {
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t row = gpu::block_index().x * warps + gpu::warp_index();
  if (row >= run.rows) return;  // all lanes of a warp
  const uint64_t position = run.begin + row;
  auto* latent = reinterpret_cast<uint32_t*>(run.latents.values + uint64_t{row} * run.latents.columns);
  const auto latent_value = [&](uint32_t column) {
    return column < run.latent_dim ? Cached::value(run, position, column) : 0.0F;
  };
  for (uint32_t pair = gpu::lane_index(); pair < run.latents.columns / 2; pair += gpu::kWarpThreads)
    latent[pair] = gpu::floats_to_bf16s(latent_value(2 * pair), latent_value(2 * pair + 1));
  if (run.first_head > 0) return;
  auto* rope = reinterpret_cast<uint32_t*>(run.ropes + position * run.rope_dim);
  for (uint32_t pair = gpu::lane_index(); pair < run.rope_dim / 2; pair += gpu::kWarpThreads) {
    const uint32_t column = run.latent_dim + 2 * pair;
    rope[pair] = gpu::floats_to_bf16s(Cached::value(run, position, column), Cached::value(run, position, column + 1));
  }
}

/// A warp rounds kv_b's result for one position and one head.
__global__ void pack_slice_kernel(SliceRun run) {
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t row = gpu::block_index().x * warps + gpu::warp_index();
  if (row >= run.rows) return;  // all lanes of a warp
  const uint32_t head = gpu::block_index().y;
  const uint32_t dim = run.head_dim;
  const float* from = run.made + (uint64_t{row} * run.heads + head) * dim;
  auto* to = reinterpret_cast<uint2*>(run.keys + (uint64_t{head} * run.positions + run.begin + row) * dim);
  for (uint32_t four = gpu::lane_index(); four < dim / 4; four += gpu::kWarpThreads) {
    const float4 x = *reinterpret_cast<const float4*>(from + four * 4);
    to[four] = make_uint2(gpu::floats_to_bf16s(x.x, x.y), gpu::floats_to_bf16s(x.z, x.w));
  }
}

/// `count` rows of a matrix from `first` on. No scale block may span rows on both sides of `first`.
Matrix rows_of(const Matrix& matrix, uint32_t first, uint32_t count) {
  Matrix part = matrix;
  part.out = count;
  const auto skip = [&](size_t plane, uint64_t bytes) {
    part.planes[plane] = static_cast<const std::byte*>(matrix.planes[plane]) + bytes;
  };
  skip(kCodes, first * code_bytes(matrix.coding, matrix.in));
  if (matrix.block_out > 0 && has_scales(matrix))
    skip(kScales, first / matrix.block_out * ceil_div(matrix.in, matrix.block_in) * scale_bytes(matrix.scale));
  return part;
}

template <class Cached>
void make_keys(gpu::Stream& stream, const ExpandedKeysTask& task) {
  constexpr unsigned kRowsOfBlock = 4;
  constexpr unsigned kThreads = kRowsOfBlock * gpu::kWarpThreads;
  const Matrix kv_b = rows_of(task.kv_b, task.first_head * task.head_dim, task.heads * task.head_dim);
  SliceRun run{.cache = task.cache,
               .latents = {},
               .made = task.made,
               .keys = task.keys,
               .ropes = task.ropes,
               .first_head = task.first_head,
               .heads = task.heads,
               .latent_dim = task.latent_dim,
               .rope_dim = task.rope_dim,
               .head_dim = task.head_dim,
               .positions = task.positions,
               .begin = 0,
               .rows = 0,
               .fp8_row = fp8_row({task.latent_dim, task.rope_dim})};
  for (; run.begin < task.positions; run.begin += task.slice) {
    run.rows = std::min(task.slice, task.positions - run.begin);
    run.latents = lay_out_rounded(task.latents, run.rows, task.latent_dim, Precision::bf16);
    const auto blocks = static_cast<unsigned>(ceil_div(run.rows, kRowsOfBlock));
    gpu::launch(stream, {.grid_x = blocks, .threads = kThreads}, round_slice_kernel<Cached>, run);
    linear_tensor(stream, {.weight = kv_b,
                           .x = run.latents,
                           .y = {.data = task.made, .stride = uint64_t{task.heads} * task.head_dim},
                           .rows = run.rows});
    gpu::launch(stream, {.grid_x = blocks, .grid_y = task.heads, .threads = kThreads}, pack_slice_kernel, run);
  }
}

}  // namespace

void make_expanded_keys(gpu::Stream& stream, const ExpandedKeysTask& task) {
  switch (task.cache_dtype) {
    case Dtype::f8_e4m3: return make_keys<Fp8Rows>(stream, task);
    case Dtype::bf16: return make_keys<PlainRows<device::StoredBf16>>(stream, task);
    case Dtype::f16: return make_keys<PlainRows<device::StoredF16>>(stream, task);
    default: return make_keys<PlainRows<device::StoredF32>>(stream, task);
  }
}

}  // namespace dspack::kernels::cuda
