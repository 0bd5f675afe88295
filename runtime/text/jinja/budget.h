// Limits of one run of a template: steps, bytes held, nesting. Templates are untrusted programs, so all three are
// counted, and counting is deterministic: whether a template renders does not depend on the machine. A stop token can
// end the run at any time.
// Threads: single-thread. Lifetime: outlives every Charge. Errors: budget, naming the limit that was reached;
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

/// Bytes that a value, or a text under construction, holds; its destructor returns them.
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
  /// Also takes the other's bytes; both belong to the same budget.
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
  /// A step is one evaluated node of the program, one new text or value, or 16 bytes of text read. Published templates
  /// take some thousand steps per message.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerInputByte = 50;
  /// Limit for all values and texts that are alive at one time, including allocator overhead.
  static constexpr uint64_t kBaseBytes = 256ULL << 20;
  static constexpr uint64_t kBytesPerInputByte = 8;
  /// Limit for nested statements and expressions under evaluation: a level takes about 2 kB of the stack, up to 12
  /// under a sanitizer, and a thread may have only 8 MiB.
  static constexpr uint32_t kMaxDepth = 400;

  struct Limits {
    uint64_t steps = kBaseSteps;
    uint64_t bytes = kBaseBytes;
  };
  /// `input_bytes`: size of the variables as values.
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
  /// The same for callers that cannot fail: their next step fails.
  bool spend(uint64_t count) { return step(count).has_value(); }
  /// Counts the steps of reading this many bytes of text.
  [[nodiscard]] Result<void> read(uint64_t bytes) { return step(1 + bytes / 16); }
  /// Call before allocating the bytes.
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
  /// The most bytes held at one time.
  [[nodiscard]] uint64_t bytes() const { return most_bytes_; }
  [[nodiscard]] uint64_t max_bytes() const { return max_bytes_; }

 private:
  friend class Charge;
  /// Fails if no steps are left or a stop was requested. Every later step then fails too.
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
