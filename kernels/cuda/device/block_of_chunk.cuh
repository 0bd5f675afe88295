// Which block of scales a chunk of 16 bytes of a row lies in, each chunk whole in one block.
//
// A division by multiplying, since a real one costs as much as the rest of a chunk's overhead: with m = 2^32 / d
// rounded up, n m / 2^32 exceeds n / d by less than n / 2^32, which changes no whole part while n d < 2^32 (Granlund
// and Montgomery, Division by invariant integers using multiplication, 1994). has_aligned_rows sees to that.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/matrix.h"

namespace dspack::kernels::cuda::device {

template <class Stored>
struct BlockOfChunk {
  uint32_t reciprocal;  // 2^32 / chunks of a block, rounded up; 0: all is one block
  uint32_t is_chunk;    // all ones where a block is one chunk, whose reciprocal would not fit

  __device__ __forceinline__ explicit BlockOfChunk(const Matrix& matrix) {
    const bool is_one_block = matrix.planes[kScales] == nullptr || matrix.block_in >= matrix.in;
    const uint32_t chunks = is_one_block ? 0 : matrix.block_in / Stored::kPer16;
    reciprocal = chunks < 2 ? 0 : 0xffffffffU / chunks + 1;
    is_chunk = chunks == 1 ? 0xffffffffU : 0;
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t chunk) const {
    return static_cast<uint32_t>(uint64_t{chunk} * reciprocal >> 32U) + (chunk & is_chunk);
  }
};

}  // namespace dspack::kernels::cuda::device
