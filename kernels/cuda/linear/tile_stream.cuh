// Streams weights of 16 matrix rows to the tensor cores, through a warp's own ring in shared memory.
//
// A step is a 128-byte line of each of 16 rows (per row tile). The lanes copy it as memory prefers: eight lanes per
// line, four rows per instruction. They read it as the tensor cores require: lane 4 g + q reads the 16-byte pieces q
// and 4 + q of rows g and g + 8. (Loading directly in that order, without shared memory, an instruction fetches half a
// line of each of eight rows, and twice the number of requests leave the multiprocessor.)
//
//   row      0        1        2 ..         in odd rows the two halves of a line are exchanged, so that eight lanes
//   pieces   01234567 45670123 01234567     that read at the same time, from two rows, touch all banks
//
// kDepth - 1 steps of a warp are in flight while it multiplies one. Only the warp's lanes wait for each other.
#pragma once

#include <dspack_gpu.h>

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/matrix.h"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kTileRows = 16;    // matrix rows per tile
inline constexpr unsigned kStepBytes = 128;  // bytes per row

/// Bytes of shared memory for a warp's ring.
template <unsigned kRowTiles, unsigned kDepth>
inline constexpr unsigned kTileStreamBytes = kDepth* kRowTiles* kTileRows* kStepBytes;

/// Columns per step; a lane multiplies two 16-byte pieces of each row.
template <class Stored>
inline constexpr uint32_t kStepColumns = kStepBytes / 16 * Stored::kPer16;

/// The parts of its matrices that a warp takes: sets of rows, one after the other, and some of the steps of each row.
/// Rows after the last, and columns, are zeros.
struct StreamedRows {
  uint32_t first;         // first row of the first set
  uint32_t rows_of_turn;  // rows between sets
  uint32_t sets;
  uint32_t first_column;     // first column of its first step, a multiple of kStepColumns
  uint32_t columns_of_turn;  // columns between its steps
};

/// The rows that a warp takes at once, in groups of eight that alternate between the matrices: group h (half h % 2 of
/// row tile h / 2) belongs to matrix h % kMatrices, and begins h / kMatrices * 8 rows after the set's first row. So a
/// tile of two matrices gives a lane the sums of the same row of both.
template <unsigned kMatrices>
struct RowsOfTiles {
  static __device__ __forceinline__ constexpr unsigned matrix(unsigned tile, unsigned half) {
    return (2 * tile + half) % kMatrices;
  }
  static __device__ __forceinline__ constexpr unsigned first(unsigned tile, unsigned half) {
    return (2 * tile + half) / kMatrices * 8;
  }
};

template <class Stored, unsigned kMatrices, unsigned kRowTiles, unsigned kDepth>
class TileStream {
 public:
  /// Requests the first steps. `shared`: the warp's ring, 128-byte aligned. Precondition: the warp's lanes have
  /// finished with its earlier contents.
  __device__ __forceinline__ TileStream(unsigned char* shared, const Matrix (&matrices)[kMatrices],
                                        const StreamedRows& rows)
      : row_(rows.first + gpu::lane_index() / kLanesOfLine),
        out_(matrices[0].out),
        row_bytes_(matrices[0].in / Stored::kPer16 * 16),
        first_byte_(rows.first_column / Stored::kPer16 * 16),
        bytes_of_turn_(rows.columns_of_turn / Stored::kPer16 * 16),
        rows_of_turn_(rows.rows_of_turn) {
    const unsigned lane = gpu::lane_index();
    const unsigned piece = lane % kLanesOfLine;
    const unsigned row = lane / kLanesOfLine;  // the four rows of an instruction begin at an even row
    to_ = shared + row * kStepBytes + place_of(row, piece);
    from_ = shared + lane / 4 * kStepBytes + place_of(lane / 4, lane % 4);
    sets_ = first_byte_ < row_bytes_ ? rows.sets : 0;
    at_ = first_byte_;
#pragma unroll
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
      data_[matrix] = aligned_row<Stored>(matrices[matrix], row_) + piece * 16;
#pragma unroll
    for (unsigned step = 0; step + 1 < kDepth; ++step)
      ask();
  }

  /// Returns the next step: for each row tile two chunks of the lane's upper and lower row.
  __device__ __forceinline__ void take(uint4 (&chunks)[2][kRowTiles][2]) {
    gpu::cp_async_wait_group<static_cast<int>(kDepth) - 2>();
    gpu::warp_barrier();  // the other lanes' copies have arrived, and they have read the previous step
#pragma unroll
    for (unsigned chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          const unsigned at = taken_ + tile * kTileBytes + half * (kTileBytes / 2);
          chunks[chunk][tile][half] = *reinterpret_cast<const uint4*>(other_half(from_, chunk) + at);
        }
      }
    }
    taken_ = taken_ == (kDepth - 1) * kSlotBytes ? 0 : taken_ + kSlotBytes;
    ask();
  }

 private:
  static constexpr unsigned kLanesOfLine = kStepBytes / 16;
  static constexpr unsigned kRowsAtOnce = gpu::kWarpThreads / kLanesOfLine;
  static constexpr unsigned kTileBytes = kTileRows * kStepBytes;
  static constexpr unsigned kSlotBytes = kRowTiles * kTileBytes;

  static __device__ __forceinline__ unsigned place_of(unsigned row, unsigned piece) {
    return (piece ^ row % 2 * (kLanesOfLine / 2)) * 16;
  }
  /// Address of the same piece in the line's other half: rings begin at multiples of a line.
  static __device__ __forceinline__ const unsigned char* other_half(const unsigned char* place, unsigned half) {
    const bool is_upper = (gpu::lane_index() / 4) % 2 != 0;
    return half == 0 ? place : is_upper ? place - kStepBytes / 2 : place + kStepBytes / 2;
  }

  __device__ __forceinline__ void ask() {
    if (sets_ > 0) {
      const bool is_column = at_ + gpu::lane_index() % kLanesOfLine * 16 < row_bytes_;
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (unsigned i = 0; i < kTileRows / kRowsAtOnce; ++i) {
          const unsigned half = i * kRowsAtOnce / 8;
          const unsigned matrix = RowsOfTiles<kMatrices>::matrix(tile, half);
          const uint32_t row = RowsOfTiles<kMatrices>::first(tile, half) + i * kRowsAtOnce % 8;
          gpu::cp_async_l2_256b(to_ + asked_ + tile * kTileBytes + i * kRowsAtOnce * kStepBytes,
                                data_[matrix] + at_ + uint64_t{row_bytes_} * row, is_column && row_ + row < out_);
        }
      }
      at_ += bytes_of_turn_;
      if (at_ >= row_bytes_) next_set();
    }
    gpu::cp_async_commit_group();
    asked_ = asked_ == (kDepth - 1) * kSlotBytes ? 0 : asked_ + kSlotBytes;
  }
  __device__ __forceinline__ void next_set() {
    --sets_;
    at_ = first_byte_;
    row_ += rows_of_turn_;
#pragma unroll
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
      data_[matrix] += uint64_t{rows_of_turn_} * row_bytes_;
  }

  const uint8_t* data_[kMatrices];  // the lane's first row of the set, and piece
  unsigned char* to_;               // target of this lane's copies in the first slot
  const unsigned char* from_;       // source of its chunks
  uint32_t row_;
  uint32_t out_;
  uint32_t row_bytes_;
  uint32_t first_byte_;
  uint32_t bytes_of_turn_;
  uint32_t rows_of_turn_;
  uint32_t sets_;       // sets left to request
  uint32_t at_;         // byte of the rows at which the next step begins
  uint32_t asked_ = 0;  // slot of the next step to request
  uint32_t taken_ = 0;  // slot of the next step to take
};

}  // namespace dspack::kernels::cuda::device
