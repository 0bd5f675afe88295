// What one run of a template may take: steps, bytes held, nesting. A template is a stranger's program, so all three are
// counted, and counting is deterministic: whether a template renders does not depend on the machine. Whoever waits for
// the text can end the run at any time.
// Threads: single-thread. Lifetime: outlives every Charge. Errors: budget, saying which of the three was spent;
// cancelled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <utility>

#include "format/base/result.h"

namespace dspack::runtime::jinja {

class Budget;

/// Bytes that a value, or a text in the making, holds; they go back when it ends.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge();
  /// Takes the other's bytes as well; both are of one budget.
  void add(Charge other) {
    if (budget_ == nullptr) budget_ = other.budget_;
    bytes_ += std::exchange(other.bytes_, 0);
  }

 private:
  friend class Budget;
  Charge(Budget& budget, uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
  Budget* budget_ = nullptr;
  uint64_t bytes_ = 0;
};

class Budget {
 public:
  /// A step is one node of the program evaluated, a text or value made, or 16 bytes of text looked at. Published
  /// templates take some thousand steps a message.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerInputByte = 50;
  /// Of all values and texts that live at one time, with what the allocator adds.
  static constexpr uint64_t kBaseBytes = 256ULL << 20;
  static constexpr uint64_t kBytesPerInputByte = 8;
  /// Of statements and expressions being evaluated within each other: a level takes some 2 kB of the stack, under a
  /// sanitizer up to 12, and a thread may have no more than 8 MiB.
  static constexpr uint32_t kMaxDepth = 400;

  struct Limits {
    uint64_t steps = kBaseSteps;
    uint64_t bytes = kBaseBytes;
  };
  /// `input_bytes`: what the variables take as values.
  [[nodiscard]] static Limits limits(uint64_t input_bytes) {
    return {.steps = kBaseSteps + kStepsPerInputByte * input_bytes,
            .bytes = kBaseBytes + kBytesPerInputByte * input_bytes};
  }

  explicit Budget(const Limits& limits, std::stop_token stop = {})
      : max_steps_(limits.steps), max_bytes_(limits.bytes), stop_(std::move(stop)) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  [[nodiscard]] Result<void> step(uint64_t count = 1) {
    steps_ = count > max_steps_ - steps_ ? max_steps_ : steps_ + count;
    if (steps_ < next_look_) [[likely]]
      return {};
    return look();
  }
  /// The same where there is no way to fail: the next step does.
  bool spend(uint64_t count) { return step(count).has_value(); }
  /// Steps for looking at so much text.
  [[nodiscard]] Result<void> read(uint64_t bytes) { return step(1 + bytes / 16); }
  /// To be called before the bytes are made.
  [[nodiscard]] Result<Charge> hold(uint64_t bytes) {
    if (bytes > max_bytes_ - bytes_) return Error{ErrorKind::budget, "the template takes too much memory"};
    TRY(step(1 + bytes / 64));
    bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
    return Charge(*this, bytes);
  }
  [[nodiscard]] Result<void> enter() {
    if (++depth_ <= kMaxDepth) return {};
    return Error{ErrorKind::budget, "the template nests calls too deeply"};
  }
  void leave() { --depth_; }

  [[nodiscard]] uint64_t steps() const { return steps_; }
  /// The most that was held at one time.
  [[nodiscard]] uint64_t bytes() const { return most_bytes_; }
  [[nodiscard]] uint64_t max_bytes() const { return max_bytes_; }

 private:
  friend class Charge;
  /// Whether there are steps left and nobody asked to stop. Once it fails, every further step does.
  [[nodiscard]] Result<void> look() {
    constexpr uint64_t kStepsBetweenLooks = 1024;  // some tens of microseconds
    if (stop_.stop_requested()) {
      next_look_ = 0;
      return stopped();
    }
    if (steps_ >= max_steps_) return Error{ErrorKind::budget, "the template takes too many steps"};
    next_look_ = std::min(max_steps_, steps_ + kStepsBetweenLooks);
    return {};
  }

  uint64_t max_steps_;
  uint64_t max_bytes_;
  std::stop_token stop_;
  uint64_t steps_ = 0;
  uint64_t next_look_ = 0;
  uint64_t bytes_ = 0;
  uint64_t most_bytes_ = 0;
  uint32_t depth_ = 0;
};

inline Charge::~Charge() {
  if (budget_ != nullptr) budget_->bytes_ -= bytes_;
}

}  // namespace dspack::runtime::jinja
