// Tracks the rows that a queue has rounded for the tensor cores, where they are, and which writes make them stale, so
// that products of one input round it only once.
// Threads: plain values. Lifetime: addresses are compared, never dereferenced. Errors: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "format/base/size.h"
#include "kernels/cuda/host/operands.h"
#include "kernels/cuda/tokens/rounded_rows.h"
#include "kernels/precision.h"

namespace dspack::kernels::cuda {

/// Range of device memory that an operation writes to.
struct Written {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};
[[nodiscard]] inline Written written_to(const float* first, uint64_t count) {
  const auto* begin = reinterpret_cast<const std::byte*>(first);
  return {.begin = begin, .end = begin + count * sizeof(float)};
}
/// Precondition: rows.rows > 0.
[[nodiscard]] inline Written written_to(const Rows& rows) {
  return written_to(floats(rows.data), (rows.rows - 1) * uint64_t{rows.stride} + rows.cols);
}
/// Any part of the buffer from `place` on.
[[nodiscard]] inline Written written_behind(Slice place) {
  const std::byte* begin = address_of(place);
  return {.begin = begin, .end = begin + (place.buffer->size_bytes() - place.offset_bytes)};
}

/// Rows that have been rounded.
struct RoundedInput : RoundRowsTask {
  uint64_t end_bytes = 0;  // offset in their memory
  [[nodiscard]] bool is(const RoundRowsTask& other, Precision rounding) const {
    return x.data == other.x.data && x.stride == other.x.stride && rows == other.rows && in == other.in &&
           (to.scales != nullptr) == (rounding == Precision::fp8);
  }
  [[nodiscard]] bool is_changed_by(const Written& written) const {
    const Written mine = written_to(x.data, (rows - 1) * x.stride + in);
    return written.begin < mine.end && mine.begin < written.end;
  }
};

/// All inputs that are rounded and unchanged since, one after the other in memory of at most `most_bytes`.
class RoundedInputs {
 public:
  explicit RoundedInputs(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  [[nodiscard]] std::optional<RoundedRows> find(const RoundRowsTask& task, Precision rounding) const {
    const auto found = std::ranges::find_if(inputs_, [&](const RoundedInput& one) { return one.is(task, rounding); });
    if (found == inputs_.end()) return std::nullopt;
    return found->to;
  }
  /// Returns an offset for `bytes` more bytes. Forgets all earlier inputs if there is not enough room after them.
  [[nodiscard]] uint64_t make_room(uint64_t bytes) {
    constexpr uint64_t kAlignment = 256;
    uint64_t at = 0;
    for (const RoundedInput& one : inputs_)
      at = std::max(at, round_up(one.end_bytes, kAlignment));
    if (at + bytes <= most_bytes_) return at;
    inputs_.clear();
    return 0;
  }
  void keep(const RoundRowsTask& task, uint64_t end_bytes) {
    RoundedInput& one = inputs_.emplace_back();
    static_cast<RoundRowsTask&>(one) = task;
    one.end_bytes = end_bytes;
  }
  void forget() { inputs_.clear(); }
  void forget(const Written& written) {
    std::erase_if(inputs_, [&](const RoundedInput& one) { return one.is_changed_by(written); });
  }

 private:
  uint64_t most_bytes_;
  std::vector<RoundedInput> inputs_;
};

}  // namespace dspack::kernels::cuda
