// Four-bit codes for the tensor cores. A product takes one scale per row, but 16 columns as the lanes read them are
// from four runs of 32 with different scales; so the lanes of a row exchange words until each product's columns are
// within one run.
//
//   lane q of a row's four lanes reads            after the exchange it holds
//   columns  32 q .. 32 q + 31, four words        columns 32 r + 8 q .. + 7 of each run r of 32, one word
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/decode.cuh"

namespace dspack::kernels::cuda::device {

/// Columns that each of the four lanes of a chunk reads contiguously, and that two products multiply.
inline constexpr unsigned kRunColumns = 32;

/// Word r of the result is word q of lane r of the four, where q is this lane.
__device__ __forceinline__ uint4 exchange_words(const uint4& words) {
  const bool is_odd = (gpu::lane_index() & 1U) != 0;
  const unsigned even = gpu::shuffle_xor(is_odd ? words.x : words.y, 1);
  const unsigned odd = gpu::shuffle_xor(is_odd ? words.z : words.w, 1);
  const uint4 pairs = is_odd ? make_uint4(even, words.y, odd, words.w) : make_uint4(words.x, even, words.z, odd);
  const bool is_upper = (gpu::lane_index() & 2U) != 0;
  const unsigned first = gpu::shuffle_xor(is_upper ? pairs.x : pairs.z, 2);
  const unsigned second = gpu::shuffle_xor(is_upper ? pairs.y : pairs.w, 2);
  return is_upper ? make_uint4(first, second, pairs.z, pairs.w) : make_uint4(pairs.x, pairs.y, first, second);
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, unsigned index) {
  return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

/// Offset to subtract from 128 + code, for TwoCodes; zero points are integers below 128.
__device__ __forceinline__ uint32_t offset_of_zero(uint32_t zero) {
  return 0x43004300U | zero << 16U | zero;
}

/// Decodes two codes, in the low bits of the halves of a word, to BF16, exactly.
template <class Stored>
struct TwoCodes;
template <>
struct TwoCodes<StoredI4> {
  static __device__ __forceinline__ uint32_t decode(uint32_t codes, uint32_t /*offset*/) {
    return gpu::subtract_bf16s(0x43004300U | codes, 0x43084308U);  // 128 + code, minus 128 + 8
  }
};
template <>
struct TwoCodes<StoredU4> {
  static __device__ __forceinline__ uint32_t decode(uint32_t codes, uint32_t offset) {
    return gpu::subtract_bf16s(0x43004300U | codes, offset);
  }
};
template <>
struct TwoCodes<StoredE2m1> {
  // As BF16 s 000000ee m000000 it is 2^-126 times its value, subnormal or not.
  static __device__ __forceinline__ uint32_t decode(uint32_t codes, uint32_t /*offset*/) {
    const uint32_t magnitude = (codes & 0x00070007U) << 6U;
    return gpu::multiply_bf16s((codes & 0x00080008U) << 12U | magnitude, 0x7e807e80U);
  }
};

/// Eight codes of a row for two products, four for each.
struct RunWeights {
  uint2 products[2];
};
template <class Stored>
__device__ __forceinline__ RunWeights decode_run(uint32_t word, uint32_t offset) {
  uint32_t apart[4];  // code i and code i + 4
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    apart[i] = TwoCodes<Stored>::decode(word >> 4 * i & 0x000f000fU, offset);
  constexpr uint32_t kLow = 0x5410;
  constexpr uint32_t kHigh = 0x7632;
  return {{make_uint2(gpu::prmt(apart[0], apart[1], kLow), gpu::prmt(apart[2], apart[3], kLow)),
           make_uint2(gpu::prmt(apart[0], apart[1], kHigh), gpu::prmt(apart[2], apart[3], kHigh))}};
}

/// The scales (and zero points, as offsets) of a lane's 32 columns: one for each 16 if groups are that small.
struct RunScales {
  float scale[2];
  uint32_t offset[2];
};

/// Scales of the columns from `column` on; zeros beyond the row's end. `block_of`: BlockOfRun.
template <class Stored, class Scales, class BlockOf>
__device__ __forceinline__ RunScales take_run_scales(const Matrix& matrix, const Scales& scales,
                                                     const BlockOf& block_of, uint32_t column, bool is_halved) {
  RunScales taken = {};
  if (column >= matrix.in) return taken;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    if (half == 1 && !is_halved) {
      taken.scale[1] = taken.scale[0];
      taken.offset[1] = taken.offset[0];
      break;
    }
    const uint32_t block = block_of(column / Stored::kPerScale + half);
    taken.scale[half] = scales.at(matrix, block);
    if constexpr (kHasZeros<Stored>)
      taken.offset[half] = offset_of_zero(static_cast<uint32_t>(scales.zero_at(matrix, block)));
  }
  return taken;
}

}  // namespace dspack::kernels::cuda::device
