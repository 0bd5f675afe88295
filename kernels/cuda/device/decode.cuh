// Decoders of stored elements to FP32, without rounding: one type per coding, with common members, and the selection of
// a type.
//   kCoding       its coding
//   kPer16        elements in 16 bytes, which a lane reads at once
//   kPerScale     number of these that certainly share a scale if rows are aligned (has_aligned_rows)
//   kQuarters     groups of four elements in 16 bytes
//   decode        group `quarter` of 16 bytes
//   decode_one    one element at any address; its index counts the codes of whole bytes before it
// For codes with zero points both return the code before these are subtracted.
#pragma once

#include <dspack_gpu.h>

#include <type_traits>

#include "kernels/cuda/device/matrix.h"
#include "kernels/weight.h"

namespace dspack::kernels::cuda::device {

struct StoredF8 {
  static constexpr Coding kCoding = Coding::f8_e4m3;
  static constexpr unsigned kPer16 = 16;
  static constexpr unsigned kPerScale = kPer16;
  static constexpr unsigned kQuarters = 4;

  static __device__ __forceinline__ void decode_word(uint32_t word, float (&values)[4]) {
    const uint2 halves = gpu::f8_to_halves(word);
    const float2 first = gpu::halves_to_floats(halves.x);
    const float2 second = gpu::halves_to_floats(halves.y);
    values[0] = first.x;
    values[1] = first.y;
    values[2] = second.x;
    values[3] = second.y;
  }
  static __device__ __forceinline__ void decode(const uint4& bytes, unsigned quarter, float (&values)[4]) {
    decode_word(quarter == 0 ? bytes.x : quarter == 1 ? bytes.y : quarter == 2 ? bytes.z : bytes.w, values);
  }
  static __device__ __forceinline__ float decode_one(const void* data, uint64_t index) {
    const uint32_t code = static_cast<const uint8_t*>(data)[index];
    return gpu::halves_to_floats(gpu::f8_to_halves(code).x).x;
  }
};

struct StoredI8 {
  static constexpr Coding kCoding = Coding::i8;
  static constexpr unsigned kPer16 = 16;
  static constexpr unsigned kPerScale = kPer16;
  static constexpr unsigned kQuarters = 4;

  static __device__ __forceinline__ void decode(const uint4& bytes, unsigned quarter, float (&values)[4]) {
    const uint32_t word = quarter == 0 ? bytes.x : quarter == 1 ? bytes.y : quarter == 2 ? bytes.z : bytes.w;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      values[i] = static_cast<float>(static_cast<int8_t>(word >> (8 * i)));
  }
  static __device__ __forceinline__ float decode_one(const void* data, uint64_t index) {
    return static_cast<float>(static_cast<const int8_t*>(data)[index]);
  }
};

/// Two elements in a word.
template <class Two>
struct Stored16 {
  static constexpr Coding kCoding = Two::kCoding;
  static constexpr unsigned kPer16 = 8;
  static constexpr unsigned kPerScale = kPer16;
  static constexpr unsigned kQuarters = 2;

  static __device__ __forceinline__ void decode(const uint4& bytes, unsigned quarter, float (&values)[4]) {
    const float2 first = Two::decode(quarter == 0 ? bytes.x : bytes.z);
    const float2 second = Two::decode(quarter == 0 ? bytes.y : bytes.w);
    values[0] = first.x;
    values[1] = first.y;
    values[2] = second.x;
    values[3] = second.y;
  }
  static __device__ __forceinline__ float decode_one(const void* data, uint64_t index) {
    return Two::decode(static_cast<const uint16_t*>(data)[index]).x;
  }
};

struct TwoBf16 {
  static constexpr Coding kCoding = Coding::bf16;
  static __device__ __forceinline__ float2 decode(uint32_t word) {
    return make_float2(gpu::bits_to_float(word << 16U), gpu::bits_to_float(word & 0xffff0000U));
  }
};
struct TwoF16 {
  static constexpr Coding kCoding = Coding::f16;
  static __device__ __forceinline__ float2 decode(uint32_t word) { return gpu::halves_to_floats(word); }
};
using StoredBf16 = Stored16<TwoBf16>;
using StoredF16 = Stored16<TwoF16>;
/// BF16 without scales, as in checkpoints: kernels of tensor cores then do no work for scales of 1. (Eight-bit integers
/// with zero points become BF16 with scales.)
struct StoredPlainBf16 : StoredBf16 {};

struct StoredF32 {
  static constexpr Coding kCoding = Coding::f32;
  static constexpr unsigned kPer16 = 4;
  static constexpr unsigned kPerScale = kPer16;
  static constexpr unsigned kQuarters = 1;

  static __device__ __forceinline__ void decode(const uint4& bytes, unsigned /*quarter*/, float (&values)[4]) {
    values[0] = gpu::bits_to_float(bytes.x);
    values[1] = gpu::bits_to_float(bytes.y);
    values[2] = gpu::bits_to_float(bytes.z);
    values[3] = gpu::bits_to_float(bytes.w);
  }
  static __device__ __forceinline__ float decode_one(const void* data, uint64_t index) {
    return static_cast<const float*>(data)[index];
  }
};

/// Two elements in a byte, the first in its low half.
template <class Nibble>
struct Stored4 {
  static constexpr Coding kCoding = Nibble::kCoding;
  static constexpr unsigned kPer16 = 32;
  static constexpr unsigned kPerScale = kPackedRun;
  static constexpr unsigned kQuarters = 8;

  static __device__ __forceinline__ void decode(const uint4& bytes, unsigned quarter, float (&values)[4]) {
    const unsigned at = quarter / 2;
    const uint32_t word = at == 0 ? bytes.x : at == 1 ? bytes.y : at == 2 ? bytes.z : bytes.w;
    Nibble::decode_half(word, quarter % 2, values);
  }
  static __device__ __forceinline__ float decode_one(const void* data, uint64_t index) {
    return Nibble::decode(static_cast<const uint8_t*>(data)[index / 2] >> (index % 2 * 4) & 0xfU);
  }
};

/// The codes of one half of a word, one by one.
template <class Nibble>
struct EachNibble {
  static __device__ __forceinline__ void decode_half(uint32_t word, unsigned half, float (&values)[4]) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      values[i] = Nibble::decode(word >> (half * 16 + 4 * i) & 0xfU);
  }
};

struct NibbleI4 : EachNibble<NibbleI4> {
  static constexpr Coding kCoding = Coding::i4;
  static __device__ __forceinline__ float decode(uint32_t code) {
    return gpu::bits_to_float(0x4b000000U | code) - 8388616.0F;  // 2^23 + code, less 2^23 + 8
  }
};
struct NibbleE2m1 {
  static constexpr Coding kCoding = Coding::e2m1;
  /// Codes `index` and index + 4 of a word's eight, as BF16 in the halves of a word.
  static __device__ __forceinline__ uint32_t decode_two(uint32_t word, unsigned index) {
    // As BF16 s 000000ee m000000 a code is 2^-126 times its value, subnormal or not.
    const unsigned at = 4 * index;
    const uint32_t magnitude = (at < 6 ? word << (6 - at) % 32 : word >> (at - 6) % 32) & 0x01c001c0U;
    return gpu::multiply_bf16s((word << (12 - at) & 0x80008000U) | magnitude, 0x7e807e80U);
  }
  static __device__ __forceinline__ float decode(uint32_t code) {
    return gpu::bits_to_float(decode_two(code, 0) << 16U);
  }
  /// A compiler that sees the calls for both halves of a word decodes each pair once.
  static __device__ __forceinline__ void decode_half(uint32_t word, unsigned half, float (&values)[4]) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const uint32_t two = decode_two(word, i);
      values[i] = gpu::bits_to_float(half == 0 ? two << 16U : two & 0xffff0000U);
    }
  }
};
struct NibbleU4 : EachNibble<NibbleU4> {
  static constexpr Coding kCoding = Coding::u4;
  static __device__ __forceinline__ float decode(uint32_t code) {
    return gpu::bits_to_float(0x4b000000U | code) - 8388608.0F;  // 2^23 + code, less 2^23
  }
};
using StoredI4 = Stored4<NibbleI4>;
using StoredE2m1 = Stored4<NibbleE2m1>;
using StoredU4 = Stored4<NibbleU4>;

/// Variables, since device code cannot call host functions, not even for constants.
template <class Stored>
inline constexpr bool kIsPacked = is_packed(Stored::kCoding);
template <class Stored>
inline constexpr bool kHasZeros = facts_of(Stored::kCoding).has_zeros;
/// Whether a matrix may have scales.
template <class Stored>
inline constexpr bool kMayHaveScales = !std::is_same_v<Stored, StoredPlainBf16>;

/// The index of an element for decode_one: each row begins with a new byte.
template <class Stored>
__device__ __forceinline__ uint64_t code_index(uint32_t in, uint32_t row, uint32_t column) {
  return uint64_t{row} * (kIsPacked<Stored> ? in + in % 2 : in) + column;
}

/// Calls operation(Stored) on the host, with the type that decodes `coding`.
template <class Operation>
auto with_stored(Coding coding, Operation operation) {
  switch (coding) {
    case Coding::f8_e4m3: return operation(StoredF8());
    case Coding::bf16: return operation(StoredBf16());
    case Coding::f16: return operation(StoredF16());
    case Coding::i8: return operation(StoredI8());
    case Coding::i4: return operation(StoredI4());
    case Coding::e2m1: return operation(StoredE2m1());
    case Coding::u4: return operation(StoredU4());
    default: return operation(StoredF32());
  }
}

/// Same for common codings (is_common).
template <class Operation>
void with_common(Coding coding, Operation operation) {
  switch (coding) {
    case Coding::bf16: return operation(StoredBf16());
    case Coding::i4: return operation(StoredI4());
    case Coding::e2m1: return operation(StoredE2m1());
    case Coding::u4: return operation(StoredU4());
    default: return operation(StoredF8());
  }
}

/// Calls operation(std::integral_constant<unsigned, tokens>) on the host, for the numbers that kernel_tokens() may
/// return.
template <class Stored, bool kAligned, class Operation>
void with_tokens(uint32_t tokens, Operation operation) {
  if constexpr (kAligned) {
    if (tokens == 1) return operation(std::integral_constant<unsigned, 1>());
    if constexpr (is_common(Stored::kCoding)) {
      if (tokens == 2) return operation(std::integral_constant<unsigned, 2>());
      if (tokens == 4) return operation(std::integral_constant<unsigned, 4>());
    }
  }
  operation(std::integral_constant<unsigned, kMaxKernelTokens>());
}

/// Same for tensor cores. is_scaled: whether any of the matrices has scales.
template <class Operation>
void with_tensor_codes(Coding coding, bool is_scaled, Operation operation) {
  if (coding == Coding::bf16 && !is_scaled) return operation(StoredPlainBf16());
  with_common(coding, operation);
}

}  // namespace dspack::kernels::cuda::device
