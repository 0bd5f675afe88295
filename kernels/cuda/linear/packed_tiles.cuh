// Four-bit codes for the tensor cores. A product takes one scale per row, but 16 columns as the lanes read them are
// from four runs of 32 with different scales.
//
// E2M1 has two significant bits, and its scales at most four (E8M0, E4M3): code times scale is exact in BF16, so scales
// are folded into the weights, and lanes multiply what they have read. Other codes have scales with more bits: the
// lanes of a row exchange words until each product's columns are within one run.
//
//   lane q of a row's four lanes reads            after the exchange it holds
//   columns  32 q .. 32 q + 31, four words        columns 32 r + 8 q .. + 7 of each run r of 32, one word
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/scales.cuh"

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

template <class Stored>
inline constexpr bool kFoldsScales = Stored::kCoding == Coding::e2m1;

/// The scales of a row's 128 columns, as stored: a byte for each 16 or 32.
using FoldedBytes = uint2;

/// `first`: index of the row's first scale. `column`: a multiple of 128; beyond the row: zeros.
__device__ __forceinline__ FoldedBytes load_folded(const Matrix& matrix, uint64_t first, uint32_t column) {
  if (column >= matrix.in) return make_uint2(0, 0);
  const auto* scales = static_cast<const uint8_t*>(matrix.planes[kScales]) + first;
  if (matrix.block_in == kPackedRun) return *reinterpret_cast<const uint2*>(scales + column / kPackedRun);
  return make_uint2(*reinterpret_cast<const uint32_t*>(scales + column / kRunColumns), 0);
}

/// All weights are a quarter of their value, so that 6 times the largest scale, 2^127, is finite in BF16; the smallest,
/// half of 2^-127, is then a subnormal number of it.
inline constexpr float kFoldedShare = 0.25F;

/// A scale in both halves of a word.
__device__ __forceinline__ uint32_t folded_factor(const Matrix& matrix, uint32_t code) {
  const float scale =
      matrix.scale == ScaleCoding::f8_e8m0 ? decode_e8m0(code) : gpu::halves_to_floats(gpu::f8_to_halves(code).x).x;
  return gpu::floats_to_bf16s(scale * kFoldedShare, scale * kFoldedShare);
}
/// The factors of this lane's first and last 16 columns of a chunk.
__device__ __forceinline__ uint2 folded_factors(const Matrix& matrix, const FoldedBytes& bytes) {
  const unsigned quad = gpu::lane_index() % 4;
  if (matrix.block_in != kPackedRun) {
    const uint32_t factor = folded_factor(matrix, bytes.x >> 8 * quad & 0xffU);
    return make_uint2(factor, factor);
  }
  const uint32_t two = (quad < 2 ? bytes.x : bytes.y) >> 16 * (quad % 2);
  return make_uint2(folded_factor(matrix, two & 0xffU), folded_factor(matrix, two >> 8U & 0xffU));
}
/// The factor of sums of folded weights.
__device__ __forceinline__ float factor_of_folded(const Matrix& matrix) {
  if (matrix.global == GlobalScale::none) return 1.0F / kFoldedShare;
  const float global = *static_cast<const float*>(matrix.planes[kGlobal]);
  return matrix.global == GlobalScale::times ? global / kFoldedShare : gpu::divide(1.0F / kFoldedShare, global);
}

/// Codes `index` and index + 4 of a word's eight, times a factor.
__device__ __forceinline__ uint32_t decode_folded(uint32_t word, unsigned index, uint32_t factor) {
  return gpu::multiply_bf16s(NibbleE2m1::decode_two(word, index), factor);
}

}  // namespace dspack::kernels::cuda::device
