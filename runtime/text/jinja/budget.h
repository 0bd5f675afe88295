// What one run of a template may take: steps, bytes produced, nesting. A template is a stranger's program, so all three
// are counted, and counting is deterministic: whether a template renders does not depend on the machine.
// Threads: single-thread. Errors: budget, saying which of the three was spent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/base/result.h"

namespace dspack::runtime::jinja {

class Budget {
 public:
  /// A step is one node of the program evaluated, a text or value made, or 16 bytes of text looked at. Published
  /// templates take some thousand steps a message.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerInputByte = 50;
  /// All values and texts ever made count, whether or not they still live, so memory is never above this.
  static constexpr uint64_t kBaseBytes = 256ULL << 20;
  static constexpr uint64_t kBytesPerInputByte = 32;
  /// Of statements and expressions being evaluated within each other: a level takes some 2 kB of the stack.
  static constexpr uint32_t kMaxDepth = 700;

  explicit Budget(uint64_t input_bytes)
      : max_steps_(kBaseSteps + kStepsPerInputByte * input_bytes),
        max_bytes_(kBaseBytes + kBytesPerInputByte * input_bytes) {}

  [[nodiscard]] Result<void> step(uint64_t count = 1) {
    steps_ = count > max_steps_ - steps_ ? max_steps_ : steps_ + count;
    if (steps_ < max_steps_) return {};
    return Error{ErrorKind::budget, "the template takes too many steps"};
  }
  /// The same where there is no way to fail: the next step does.
  bool spend(uint64_t count) { return step(count).has_value(); }
  /// To be called before the bytes are made.
  [[nodiscard]] Result<void> produce(uint64_t bytes) {
    bytes_ = bytes > max_bytes_ - bytes_ ? max_bytes_ : bytes_ + bytes;
    if (bytes_ >= max_bytes_) return Error{ErrorKind::budget, "the template produces too much text"};
    return step(1 + bytes / 16);
  }
  [[nodiscard]] Result<void> enter() {
    if (++depth_ <= kMaxDepth) return {};
    return Error{ErrorKind::budget, "the template nests calls too deeply"};
  }
  void leave() { --depth_; }

  [[nodiscard]] uint64_t steps() const { return steps_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t max_steps() const { return max_steps_; }
  [[nodiscard]] uint64_t max_bytes() const { return max_bytes_; }

 private:
  uint64_t max_steps_;
  uint64_t max_bytes_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace dspack::runtime::jinja
