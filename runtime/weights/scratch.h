// Lays out one scratch buffer before it is allocated, and makes views of a matrix's rows.
// Threads: plain values. Lifetime: views borrow the buffer.
#pragma once

#include <cstdint>

#include "format/base/size.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// add() each place, then allocate size_bytes() bytes and use the returned offsets.
class ScratchPlan {
 public:
  /// Offset in bytes of a new place for `values` FP32 (or u32) values.
  uint64_t add(uint64_t values) {
    constexpr uint64_t kCacheLine = 64;  // no two places share a line, and vector loads are aligned
    const uint64_t offset = size_bytes_;
    size_bytes_ += round_up(values * sizeof(float), kCacheLine);
    return offset;
  }
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }

 private:
  uint64_t size_bytes_ = 0;
};

/// Rows [first, first + count) of a matrix.
[[nodiscard]] inline kernels::Rows rows_of(const kernels::Rows& matrix, uint32_t first, uint32_t count) {
  kernels::Rows part = matrix;
  part.data = matrix.data.at(uint64_t{first} * matrix.stride * sizeof(float));
  part.rows = count;
  return part;
}

}  // namespace dspack::runtime
