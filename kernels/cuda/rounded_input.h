// Rows that a queue has rounded for the tensor cores, and which writes make them stale: products of one input round it
// once.
// Threads: plain values. Lifetime: addresses are compared and never followed. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/operands.h"
#include "kernels/cuda/rounded_rows.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Device memory that an operation writes to.
struct Written {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};
[[nodiscard]] inline Written written_to(const float* first, uint64_t count) {
  const auto* begin = reinterpret_cast<const std::byte*>(first);
  return {.begin = begin, .end = begin + count * sizeof(float)};
}
/// Precondition: there are rows.
[[nodiscard]] inline Written written_to(const Rows& rows) {
  return written_to(floats(rows.data), (rows.rows - 1) * uint64_t{rows.stride} + rows.cols);
}
/// A part of what is behind it in its buffer.
[[nodiscard]] inline Written written_behind(Slice place) {
  const std::byte* begin = address_of(place);
  return {.begin = begin, .end = begin + (place.buffer->size_bytes() - place.offset_bytes)};
}

/// Rows that have been rounded.
struct RoundedInput : RoundRowsTask {
  explicit RoundedInput(const RoundRowsTask& task) : RoundRowsTask(task) {}
  [[nodiscard]] bool is(const RoundRowsTask& other, Precision rounding) const {
    return x.data == other.x.data && x.stride == other.x.stride && rows == other.rows && in == other.in &&
           (to.scales != nullptr) == (rounding == Precision::fp8);
  }
  [[nodiscard]] bool is_changed_by(const Written& written) const {
    const Written mine = written_to(x.data, (rows - 1) * x.stride + in);
    return written.begin < mine.end && mine.begin < written.end;
  }
};

}  // namespace dspack::kernels::cuda
