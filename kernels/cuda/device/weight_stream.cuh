// Weights on their way through shared memory: what a warp asks for arrives while it works on what came before, so that
// the bytes that are under way are a constant here and not what a compiler makes of loads into registers.
//
// A lane copies the pieces of 16 bytes that it will itself multiply, into places that are its alone. So neither a
// barrier nor another lane comes into it: the lane waits for the oldest of its groups of copies, reads it, and asks for
// the next one into the same place. A step is a chunk of every row that a warp multiplies at once of one matrix:
//
//   steps of a lane    matrix 0, chunk l | matrix 1, chunk l | matrix 0, chunk l + lanes | ..     kMatrices = 2
//   under way          kMatrices * kDepth steps of kRows * 16 bytes each
//
// and behind the last chunk of some rows those of the rows that the warp takes next.
#pragma once

#include <dspack_gpu.h>

namespace dspack::kernels::cuda::device {

/// Pieces that a lane has under way.
template <unsigned kMatrices, unsigned kRows, unsigned kDepth>
inline constexpr unsigned kPiecesUnderWay = kMatrices* kRows* kDepth;

/// Shared memory of a block's streams, at a multiple of 16 bytes.
[[nodiscard]] constexpr unsigned stream_bytes(unsigned threads, unsigned pieces_under_way) {
  return threads * pieces_under_way * 16;
}

/// Rows: which rows the warp takes, one set after the other, as
///   bool next(const uint8_t* (&data)[kMatrices][kRows])   where they begin, 16-byte aligned; false: there are no more
/// Lane `lane` of `lanes` takes chunks lane, lane + lanes, .. of the `chunks` of each.
template <unsigned kMatrices, unsigned kRows, unsigned kDepth, class Rows>
class WeightStream {
 public:
  static constexpr unsigned kUnderWay = kPiecesUnderWay<kMatrices, kRows, kDepth>;

  /// Asks for the first steps.
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

  /// The next step, of matrix `matrix`: steps of all matrices are taken by turns. Pieces behind the end of a row are
  /// zeros.
  __device__ __forceinline__ void take(unsigned matrix, uint4 (&pieces)[kRows]) {
    gpu::copy_wait<static_cast<int>(kMatrices * kDepth - 1)>();
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row)
      pieces[row] = slot_[(matrix * kRows + row) * gpu::kWarpThreads];
    ask(matrix);
    if (matrix == kMatrices - 1) go_on();
  }

 private:
  static constexpr uint32_t kSlots = kMatrices * kRows * gpu::kWarpThreads;  // of a step of every matrix

  __device__ __forceinline__ void ask(unsigned matrix) const {
    const uint32_t chunk = first_ + lane_;
#pragma unroll
    for (unsigned row = 0; row < kRows; ++row) {
      gpu::copy_async(slot_ + (matrix * kRows + row) * gpu::kWarpThreads, data_[matrix][row] + uint64_t{chunk} * 16,
                      chunk < end_);
    }
    gpu::copy_commit();
  }
  /// To the next chunk of every matrix.
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

  uint4* slot_;  // of this lane, in the step that is taken, and asked for, next
  Rows rows_;
  const uint8_t* data_[kMatrices][kRows] = {};
  uint32_t chunks_;
  uint32_t lane_;
  uint32_t lanes_;
  uint32_t first_ = 0;  // chunk of lane 0 that is asked for next
  uint32_t end_ = 0;    // of the chunks that are there: none where there are no more rows
  uint32_t depth_ = 0;
};

}  // namespace dspack::kernels::cuda::device
