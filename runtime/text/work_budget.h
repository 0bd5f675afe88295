// The work that one encoding of a text may take, counted in steps: a tokenizer's file is untrusted, and a pattern of a
// few bytes can take far too long. Counting is deterministic: whether a text can be encoded does not depend on the
// machine.
// Threads: single-thread. Errors: none; the caller that exhausts it reports the error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dspack::runtime {

class WorkBudget {
 public:
  /// A step takes 3 to 5 ns where the engine has a JIT, and some ten times that where it interprets: all of them a
  /// tenth of a second for any text and half a second a megabyte. Patterns of released tokenizers take up to 10 steps a
  /// byte on the worst of texts.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerByte = 100;
  /// Of what is passed over in a straight line: so many bytes or characters are one step.
  static constexpr uint64_t kPassedPerStep = 8;

  explicit WorkBudget(size_t text_bytes) : all_(kBaseSteps + kStepsPerByte * text_bytes), left_(all_) {}

  /// Whether there was so much left; otherwise nothing is left from now on.
  bool spend(uint64_t steps) {
    const bool enough = steps <= left_;
    left_ = enough ? left_ - steps : 0;
    return enough;
  }
  /// The same for what is passed over.
  bool pass(uint64_t characters) { return spend(1 + characters / kPassedPerStep); }

  [[nodiscard]] uint64_t all() const { return all_; }
  [[nodiscard]] uint64_t spent() const { return all_ - left_; }

 private:
  uint64_t all_;
  uint64_t left_;
};

}  // namespace dspack::runtime
