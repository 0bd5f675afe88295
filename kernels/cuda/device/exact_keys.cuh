// How a warp brings columns of one key to shared memory as FP32, for each way in which a cache is stored. All of one
// form: load(run, position, is_there, columns, to); zeros where no key is there, and behind the last column.
#pragma once

#include "kernels/cuda/device/attend_split.cuh"
#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/fp8_rows.cuh"

namespace dspack::kernels::cuda::device {

/// Columns of a key, or query, that are in shared memory. The first is a multiple of 16.
struct KeyColumns {
  uint32_t first;
  uint32_t count;
  [[nodiscard]] __device__ __forceinline__ uint32_t padded() const { return (count + 3) / 4 * 4; }
};

/// 16 bytes, decoded.
template <class Stored>
__device__ __forceinline__ void store_decoded(const uint4& bytes, float* to) {
#pragma unroll
  for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
    float values[4];
    Stored::decode(bytes, quarter, values);
    reinterpret_cast<float4*>(to)[quarter] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

/// FP32, BF16 or F16, row behind row. kAligned: every row begins at a multiple of 16 bytes; what fills the last 16 of
/// the columns are other columns of the row.
template <class Stored, bool kAligned>
struct StoredKeys {
  static __device__ __forceinline__ void load(const AttendRun& run, uint32_t position, bool is_there,
                                              KeyColumns columns, float* to) {
    const uint64_t at = uint64_t{position} * run.key_dim + columns.first;
    if constexpr (kAligned) {
      const auto* from = static_cast<const uint8_t*>(run.cache) + at * (16 / Stored::kPer16);
      for (uint32_t i = gpu::lane_index() * Stored::kPer16; i < columns.count;
           i += gpu::kWarpThreads * Stored::kPer16) {
        const uint4 bytes = is_there ? *reinterpret_cast<const uint4*>(from + uint64_t{i} * (16 / Stored::kPer16))
                                     : make_uint4(0, 0, 0, 0);
        store_decoded<Stored>(bytes, to + i);
      }
    } else {
      for (uint32_t i = gpu::lane_index(); i < columns.padded(); i += gpu::kWarpThreads)
        to[i] = is_there && i < columns.count ? Stored::decode_one(run.cache, at + i) : 0.0F;
    }
  }
};

/// FP8 (kernels/latent_rows.h). kWhole: latent and rotary key are each whole pieces of 16 bytes.
template <bool kWhole>
struct Fp8Keys {
  static __device__ __forceinline__ void load(const AttendRun& run, uint32_t position, bool is_there,
                                              KeyColumns columns, float* to) {
    const uint8_t* row = static_cast<const uint8_t*>(run.cache) + position * run.fp8_row.bytes;
    if constexpr (kWhole) {
      load_latent(run, row, is_there, columns, to);
      load_rope(run, row, is_there, columns, to);
    } else {
      for (uint32_t i = gpu::lane_index(); i < columns.padded(); i += gpu::kWarpThreads) {
        const bool is_value = is_there && i < columns.count;
        to[i] = is_value ? fp8_row_value(row, run.fp8_row, run.latent_dim, columns.first + i) : 0.0F;
      }
    }
  }

 private:
  static __device__ __forceinline__ void load_latent(const AttendRun& run, const uint8_t* row, bool is_there,
                                                     KeyColumns columns, float* to) {
    const uint32_t behind = columns.first + columns.count;
    const uint32_t end = behind < run.latent_dim ? behind : run.latent_dim;
    for (uint32_t column = columns.first + gpu::lane_index() * StoredF8::kPer16; column < end;
         column += gpu::kWarpThreads * StoredF8::kPer16) {
      const uint4 bytes = is_there ? *reinterpret_cast<const uint4*>(row + column) : make_uint4(0, 0, 0, 0);
      const float scale = is_there ? fp8_row_scale(row, run.fp8_row, column) : 0.0F;
#pragma unroll
      for (unsigned quarter = 0; quarter < StoredF8::kQuarters; ++quarter) {
        float values[4];
        StoredF8::decode(bytes, quarter, values);
        reinterpret_cast<float4*>(to + (column - columns.first))[quarter] =
            make_float4(values[0] * scale, values[1] * scale, values[2] * scale, values[3] * scale);
      }
    }
  }
  static __device__ __forceinline__ void load_rope(const AttendRun& run, const uint8_t* row, bool is_there,
                                                   KeyColumns columns, float* to) {
    const uint32_t first = columns.first > run.latent_dim ? columns.first : run.latent_dim;
    for (uint32_t column = first + gpu::lane_index() * StoredBf16::kPer16; column < columns.first + columns.count;
         column += gpu::kWarpThreads * StoredBf16::kPer16) {
      const auto* from =
          reinterpret_cast<const uint4*>(row + run.fp8_row.rope_at) + (column - run.latent_dim) / StoredBf16::kPer16;
      store_decoded<StoredBf16>(is_there ? *from : make_uint4(0, 0, 0, 0), to + (column - columns.first));
    }
  }
};

}  // namespace dspack::kernels::cuda::device
