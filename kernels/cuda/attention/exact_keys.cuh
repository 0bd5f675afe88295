// Loads columns of one key to shared memory as FP32, by half a warp, for each storage form of a cache. All types have
// fetch(run, position, is_there, columns), which requests the columns, and store(run, fetched, columns, to), which
// decodes them; both give zeros for missing keys and after the last column. kWhole: keys fit a panel, and all columns
// are requested.
#pragma once

#include "format/base/size.h"
#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/device/decode.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kRowLanes = 16;  // lanes per key, or query

/// Columns of a key, or query, in shared memory. The first is a multiple of 16.
struct KeyColumns {
  uint32_t first;
  uint32_t count;
  [[nodiscard]] __device__ __forceinline__ uint32_t padded() const { return (count + 3) / 4 * 4; }
};

/// Turns in which the lanes of a row cover a panel, with kValues values each.
template <unsigned kValues>
inline constexpr unsigned kPanelTurns = ceil_div(kExactTile.panel, kValues* kRowLanes);

/// Decodes and scales 16 bytes. The lanes of a row store their groups of four values in an order in which eight lanes
/// touch all banks once.
template <class Stored>
__device__ __forceinline__ void store_decoded(const uint4& bytes, float scale, float* to) {
  constexpr unsigned kFours = Stored::kQuarters;
  const unsigned turn = gpu::lane_index() % kRowLanes * kFours / 8;
#pragma unroll
  for (unsigned i = 0; i < kFours; ++i) {
    const unsigned quarter = (i + turn) % kFours;
    float values[4];
    Stored::decode(bytes, quarter, values);
    reinterpret_cast<float4*>(to)[quarter] =
        make_float4(values[0] * scale, values[1] * scale, values[2] * scale, values[3] * scale);
  }
}

/// FP32, BF16 or F16, row after row, each row whole 16-byte pieces, 16-byte aligned.
template <class Stored>
struct StoredKeys {
  static constexpr bool kWhole = true;
  static constexpr unsigned kTurns = kPanelTurns<Stored::kPer16>;
  struct Fetched {
    uint4 bytes[kTurns];
  };

  static __device__ __forceinline__ Fetched fetch(const AttendRun& run, uint32_t position, bool is_there,
                                                  KeyColumns columns) {
    const uint64_t first_piece = uint64_t{position} * (run.key_dim / Stored::kPer16);
    const auto* from = static_cast<const uint4*>(run.cache) + first_piece;
    Fetched fetched;
#pragma unroll
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      const uint32_t piece = turn * kRowLanes + gpu::lane_index() % kRowLanes;
      fetched.bytes[turn] = is_there && piece * Stored::kPer16 < columns.count ? from[piece] : make_uint4(0, 0, 0, 0);
    }
    return fetched;
  }
  static __device__ __forceinline__ void store(const AttendRun& /*run*/, const Fetched& fetched, KeyColumns columns,
                                               float* to) {
#pragma unroll
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      const uint32_t column = (turn * kRowLanes + gpu::lane_index() % kRowLanes) * Stored::kPer16;
      if (column < columns.count) store_decoded<Stored>(fetched.bytes[turn], 1.0F, to + column);
    }
  }
};

/// FP8 (kernels/latent_rows.h) whose latent and rotary key are each whole 16-byte pieces; the latent's come first.
struct Fp8Keys {
  static constexpr bool kWhole = true;
  static constexpr unsigned kTurns = kPanelTurns<StoredBf16::kPer16>;  // enough if all of a key is rotary
  struct Fetched {
    uint4 bytes[kTurns];
    float scales[kTurns];
  };

  static __device__ __forceinline__ Fetched fetch(const AttendRun& run, uint32_t position, bool is_there,
                                                  KeyColumns columns) {
    const uint8_t* row = static_cast<const uint8_t*>(run.cache) + position * run.fp8_row.bytes;
    const uint32_t latent_pieces = run.latent_dim / StoredF8::kPer16;
    Fetched fetched;
#pragma unroll
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      const uint32_t piece = turn * kRowLanes + gpu::lane_index() % kRowLanes;
      const uint32_t column = column_of(run, piece);
      fetched.bytes[turn] = make_uint4(0, 0, 0, 0);
      fetched.scales[turn] = 1.0F;
      if (!is_there || column >= columns.count) continue;
      if (piece < latent_pieces) {
        fetched.bytes[turn] = reinterpret_cast<const uint4*>(row)[piece];
        fetched.scales[turn] = fp8_row_scale(row, run.fp8_row, column);
      } else {
        fetched.bytes[turn] = reinterpret_cast<const uint4*>(row + run.fp8_row.rope_at)[piece - latent_pieces];
      }
    }
    return fetched;
  }
  static __device__ __forceinline__ void store(const AttendRun& run, const Fetched& fetched, KeyColumns columns,
                                               float* to) {
#pragma unroll
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      const uint32_t column = column_of(run, turn * kRowLanes + gpu::lane_index() % kRowLanes);
      if (column >= columns.count) continue;
      if (column < run.latent_dim) {
        store_decoded<StoredF8>(fetched.bytes[turn], fetched.scales[turn], to + column);
      } else {
        store_decoded<StoredBf16>(fetched.bytes[turn], 1.0F, to + column);
      }
    }
  }

 private:
  static __device__ __forceinline__ uint32_t column_of(const AttendRun& run, uint32_t piece) {
    const uint32_t latent_pieces = run.latent_dim / StoredF8::kPer16;
    return piece < latent_pieces ? piece * StoredF8::kPer16
                                 : run.latent_dim + (piece - latent_pieces) * StoredBf16::kPer16;
  }
};

/// Value by value, unaligned. Value: value(run, position, column).
template <class Value>
struct SingleKeys {
  static constexpr bool kWhole = false;
  struct Fetched {
    uint32_t position;
    bool is_there;
  };
  static __device__ __forceinline__ Fetched fetch(const AttendRun& /*run*/, uint32_t position, bool is_there,
                                                  KeyColumns /*columns*/) {
    return {position, is_there};
  }
  static __device__ __forceinline__ void store(const AttendRun& run, const Fetched& fetched, KeyColumns columns,
                                               float* to) {
    for (uint32_t i = gpu::lane_index() % kRowLanes; i < columns.padded(); i += kRowLanes) {
      const bool is_value = fetched.is_there && i < columns.count;
      to[i] = is_value ? Value::value(run, fetched.position, columns.first + i) : 0.0F;
    }
  }
};
template <class Stored>
struct StoredValue {
  static __device__ __forceinline__ float value(const AttendRun& run, uint32_t position, uint32_t column) {
    return Stored::decode_one(run.cache, uint64_t{position} * run.key_dim + column);
  }
};
struct Fp8Value {
  static __device__ __forceinline__ float value(const AttendRun& run, uint32_t position, uint32_t column) {
    const uint8_t* row = static_cast<const uint8_t*>(run.cache) + position * run.fp8_row.bytes;
    return fp8_row_value(row, run.fp8_row, run.latent_dim, column);
  }
};

}  // namespace dspack::kernels::cuda::device
