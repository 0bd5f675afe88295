// Products of 16 matrix rows with 8 input rows on the tensor cores, the order of columns within a chunk chosen so that
// every lane reads 16 bytes of a matrix row at once.
//
// With g = lane / 4 and q = lane % 4 a lane holds, of rows g and g + 8, the 16 bytes that begin at element q * P of the
// chunk (P: elements in 16 bytes; a chunk has 4 P columns), and of input row g the P values that begin at the same
// column. Step s of P / 4 multiplies what the lanes hold at 4s .. 4s+3: the tensor core is told that these are columns
// 2q, 2q+1, 2q+8, 2q+9 of its tile, for the matrix and for the inputs alike, so the sum over columns is the same.
#pragma once

#include "kernels/cuda/device/decode.cuh"

namespace dspack::kernels::cuda::device {

/// Four elements of a lane as two words of BF16: exact for E4M3 and BF16.
template <class Stored>
__device__ __forceinline__ uint2 four_as_bf16(const uint4& bytes, unsigned step) {
  float values[4];
  Stored::decode(bytes, step, values);
  return make_uint2(gpu::floats_to_bf16s(values[0], values[1]), gpu::floats_to_bf16s(values[2], values[3]));
}
template <>
__device__ __forceinline__ uint2 four_as_bf16<StoredBf16>(const uint4& bytes, unsigned step) {
  return step == 0 ? make_uint2(bytes.x, bytes.y) : make_uint2(bytes.z, bytes.w);
}

/// The inputs of a lane for one chunk: P values of BF16.
template <class Stored>
struct TileInputs {
  uint2 steps[Stored::kPer16 / 4];
};

/// `from`: where the lane's values begin, 16-byte aligned.
template <class Stored>
__device__ __forceinline__ TileInputs<Stored> load_inputs(const uint4* from) {
  TileInputs<Stored> inputs;
#pragma unroll
  for (unsigned i = 0; i < Stored::kPer16 / 8; ++i) {
    const uint4 eight = from[i];
    inputs.steps[2 * i] = make_uint2(eight.x, eight.y);
    inputs.steps[2 * i + 1] = make_uint2(eight.z, eight.w);
  }
  return inputs;
}

/// One chunk of 16 matrix rows (`upper`: row g, `lower`: row g + 8), decoded.
template <class Stored>
struct TileWeights {
  uint32_t steps[Stored::kPer16 / 4][4];
};

template <class Stored>
__device__ __forceinline__ TileWeights<Stored> decode_rows(const uint4& upper, const uint4& lower) {
  TileWeights<Stored> weights;
#pragma unroll
  for (unsigned step = 0; step < Stored::kPer16 / 4; ++step) {
    const uint2 first = four_as_bf16<Stored>(upper, step);
    const uint2 second = four_as_bf16<Stored>(lower, step);
    weights.steps[step][0] = first.x;
    weights.steps[step][1] = second.x;
    weights.steps[step][2] = first.y;
    weights.steps[step][3] = second.y;
  }
  return weights;
}

/// sums += weights . inputs, spread as gpu::multiply_tile's d.
template <class Stored>
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const TileWeights<Stored>& weights,
                                               const TileInputs<Stored>& inputs) {
#pragma unroll
  for (unsigned step = 0; step < Stored::kPer16 / 4; ++step) {
    const uint32_t b[2] = {inputs.steps[step].x, inputs.steps[step].y};
    gpu::multiply_tile(sums, weights.steps[step], b);
  }
}

}  // namespace dspack::kernels::cuda::device
