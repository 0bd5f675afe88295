// Expands the latent cache to keys and values of some heads at all positions, in BF16, for per-head attention
// (attend_expanded.h):
//
//   latents of a slice of positions -> BF16;  kv_b's rows of the heads . latents -> FP32 -> BF16 [heads, positions, ..]
//
// Threads: enqueues. Lifetime: the addresses are borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/dtype.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

struct ExpandedKeysTask {
  Matrix kv_b;                  // [all heads * head_dim, latent_dim]; no scale spans two heads
  const void* cache = nullptr;  // [positions] rows of cache_dtype; FP8: 16-byte aligned
  Dtype cache_dtype = Dtype::f32;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;  // even
  uint32_t head_dim = 0;  // a key without its rotary part, then a value; a multiple of 4
  uint32_t positions = 0;
  uint32_t first_head = 0;
  uint32_t heads = 0;
  uint32_t slice = 0;            // positions expanded at once
  std::byte* latents = nullptr;  // rounded_bytes of a slice
  float* made = nullptr;         // [slice, heads, head_dim]
  uint16_t* keys = nullptr;      // [heads, positions, head_dim], overwritten
  uint16_t* ropes = nullptr;     // [positions, rope_dim], written when first_head is 0
};
/// Precondition: fits_tensor_cores of kv_b.
void make_expanded_keys(gpu::Stream& stream, const ExpandedKeysTask& task);

}  // namespace dspack::kernels::cuda
