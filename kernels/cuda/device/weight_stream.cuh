// Streams weights through shared memory: the copies that a warp requests arrive while it works on earlier ones, so that
// the number of bytes in flight is a constant here instead of a compiler's choice for loads into registers.
//
// A lane copies the 16-byte pieces that it will itself multiply, to places that only it uses. So there is no barrier
// and no dependence on other lanes: the lane waits for its oldest group of copies, reads it, and requests the next
// group to the same place. A step is one chunk of every row that a warp multiplies at once, of one matrix:
//
//   steps of a lane    matrix 0, chunk l | matrix 1, chunk l | matrix 0, chunk l + lanes | ..     kMatrices = 2
//   in flight          kMatrices * kDepth steps of kRows * 16 bytes each
//
// After the last chunk of some rows come those of the warp's next rows.
#pragma once

#include <dspack_gpu.h>

namespace dspack::kernels::cuda::device {

/// Pieces that a lane has in flight.
template <unsigned kMatrices, unsigned kRows, unsigned kDepth>
inline constexpr unsigned kPiecesUnderWay = kMatrices* kRows* kDepth;

/// Bytes of shared memory for a block's streams, 16-byte aligned.
[[nodiscard]] constexpr unsigned stream_bytes(unsigned threads, unsigned pieces_under_way) {
  return threads * pieces_under_way * 16;
}

/// Rows: the sets of rows that the warp takes, as
///   bool next(const uint8_t* (&data)[kMatrices][kRows])   row addresses, 16-byte aligned; false: there are no more
/// Lane `lane` of `lanes` takes chunks lane, lane + lanes, .. of the `chunks` of each row.
template <unsigned kMatrices, unsigned kRows, unsigned kDepth, class Rows>
class WeightStream {
 public:
  static constexpr unsigned kUnderWay = kPiecesUnderWay<kMatrices, kRows, kDepth>;

  /// Requests the first steps.
  __device__ __forceinline__ WeightStream(void* shared, const Rows& rows, uint32_t chunks, uint32_t lane,
                                          uint32_t lanes)
      : slot_(static_cast<uint4*>(shared) + gpu::warp_index() * (kUnderWay * gpu::kWarpThreads) + gpu::lane_index()),
        rows_(rows),
        chunks_(chunks),
        lane_(lane),
        lanes_(lanes) {
    end_ = rows_.next(data_) ? chunks_ : 0;
#pragma unroll
    for (unsigned depth = 0; depth < kDepth; ++depth) {
#pragma unroll
      for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
        ask(matrix);
      go_on();
    }
  }

  /// Returns the next step of matrix `matrix`; steps of all matrices are taken in turn. Pieces after the end of a row
  /// are zeros.
  __device__ __forceinline__ void take(unsigned matrix, uint4 (&pieces)[kRows]) {
    gpu::cp_async_wait_group<static_cast<int>(kMatrices * kDepth - 1)>();
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row)
      pieces[row] = slot_[(matrix * kRows + row) * gpu::kWarpThreads];
    ask(matrix);
    if (matrix == kMatrices - 1) go_on();
  }

 private:
  static constexpr uint32_t kSlots = kMatrices * kRows * gpu::kWarpThreads;  // slots of one step of every matrix

  __device__ __forceinline__ void ask(unsigned matrix) const {
    const uint32_t chunk = first_ + lane_;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      gpu::cp_async(slot_ + (matrix * kRows + row) * gpu::kWarpThreads, data_[matrix][row] + uint64_t{chunk} * 16,
                    chunk < end_);
    }
    gpu::cp_async_commit_group();
  }
  /// Moves on to the next chunk of every matrix.
  __device__ __forceinline__ void go_on() {
    if constexpr (kDepth > 1) {
      slot_ += kSlots;
      if (++depth_ == kDepth) {
        depth_ = 0;
        slot_ -= kDepth * kSlots;
      }
    }
    first_ += lanes_;
    if (first_ < chunks_) return;
    first_ = 0;
    end_ = rows_.next(data_) ? chunks_ : 0;
  }

  uint4* slot_;  // this lane's slot in the step that is taken, and requested, next
  Rows rows_;
  const uint8_t* data_[kMatrices][kRows] = {};
  uint32_t chunks_;
  uint32_t lane_;
  uint32_t lanes_;
  uint32_t first_ = 0;  // chunk of lane 0 that is requested next
  uint32_t end_ = 0;    // end of the existing chunks: 0 if there are no more rows
  uint32_t depth_ = 0;
};

}  // namespace dspack::kernels::cuda::device
