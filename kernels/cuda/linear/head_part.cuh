// Shared code of both directions of head_linear: the head, rows or columns, and tokens of a block, and the distribution
// of blocks over a GPU.
#pragma once

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/divisor.cuh"
#include "kernels/cuda/linear/head_linear.h"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kHeadThreads = 8 * gpu::kWarpThreads;  // at most, per block

struct HeadPart {
  uint32_t head;
  uint32_t block;  // within the head
  uint32_t first_token;
  uint32_t tokens;  // 0: none left
};

/// Number of blocks per head.
struct HeadBlocks {
  uint32_t count;
  Divisor by_count;

  explicit HeadBlocks(uint32_t blocks_a_head) : count(blocks_a_head), by_count(divisor_of(blocks_a_head)) {}
};

template <unsigned kTokens>
__device__ __forceinline__ HeadPart part_of_block(const HeadLinearTask& task, const HeadBlocks& blocks) {
  const uint64_t group = gpu::block_index().y + uint64_t{gpu::block_index().z} * gpu::grid_blocks().y;
  const uint64_t first = group * kTokens;
  const uint64_t left = first < task.rows ? task.rows - first : 0;
  const uint32_t head = divide(gpu::block_index().x, blocks.by_count);
  return {head, gpu::block_index().x - head * blocks.count, static_cast<uint32_t>(first),
          static_cast<uint32_t>(left < kTokens ? left : kTokens)};
}

__device__ __forceinline__ const float* input_of(const HeadLinearTask& task, uint32_t token, uint32_t head) {
  return task.x + uint64_t{token} * task.x_row_stride + uint64_t{head} * task.x_head_stride;
}
__device__ __forceinline__ float* output_of(const HeadLinearTask& task, uint32_t token, uint32_t head) {
  return task.y + uint64_t{token} * task.y_row_stride + uint64_t{head} * task.y_head_stride;
}

/// Blocks for every head and every group of tokens.
[[nodiscard]] inline HeadLinearChoice spread_heads(const HeadLinearTask& task, uint64_t blocks_a_head) {
  constexpr uint64_t kMaxBlocks = 65'535;  // in y; more follow in z
  HeadLinearChoice choice;
  choice.tokens = kernel_tokens(task.weight.coding, has_aligned_rows(form_of(task.weight)), task.rows);
  choice.blocks_a_head = static_cast<uint32_t>(blocks_a_head);
  const uint64_t token_groups = ceil_div(task.rows, choice.tokens);
  choice.shape.grid_x = static_cast<unsigned>(blocks_a_head * task.heads);
  choice.shape.grid_y = static_cast<unsigned>(std::min(token_groups, kMaxBlocks));
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMaxBlocks));
  choice.shape.threads = kHeadThreads;
  return choice;
}

}  // namespace dspack::kernels::cuda::device
