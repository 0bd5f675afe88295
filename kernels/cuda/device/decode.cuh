// Stored elements as FP32, without rounding: one type for each coding, all of one form, and the choice of a type.
//   kCoding       what it is for
//   kPer16        elements in 16 bytes, which a lane reads at once
//   kQuarters     groups of four elements in them
//   decode        group `quarter` of 16 bytes
//   decode_one    one element, wherever it lies
#pragma once

#include <dspack_gpu.h>

#include "kernels/weight.h"

namespace dspack::kernels::cuda::device {

struct StoredF8 {
  static constexpr Coding kCoding = Coding::f8_e4m3;
  static constexpr unsigned kPer16 = 16;
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

struct StoredF32 {
  static constexpr Coding kCoding = Coding::f32;
  static constexpr unsigned kPer16 = 4;
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

/// Calls operation(Stored) on the host, with the type that decodes `coding`.
template <class Operation>
auto with_stored(Coding coding, Operation operation) {
  switch (coding) {
    case Coding::f8_e4m3: return operation(StoredF8());
    case Coding::bf16: return operation(StoredBf16());
    case Coding::f16: return operation(StoredF16());
    case Coding::i8: return operation(StoredI8());
    default: return operation(StoredF32());
  }
}

}  // namespace dspack::kernels::cuda::device
