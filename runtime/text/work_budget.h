// Limits the work of encoding a text, counted in steps: a tokenizer's file is untrusted, and a pattern of a few bytes
// can take far too long. Counting is deterministic: whether a text can be encoded does not depend on the machine. Also
// ends an encoding early: on a stop request, or if the text has more words than matter.
// Threads: single-thread. Errors: none; the caller that exhausts it reports the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stop_token>
#include <utility>

namespace dspack::runtime {

class WorkBudget {
 public:
  /// A step takes 3 to 5 ns if the engine has a JIT, and about ten times that if it interprets: all steps take a tenth
  /// of a second for any text and half a second per megabyte. Patterns of released tokenizers take up to 10 steps per
  /// byte on the worst texts.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerByte = 100;
  /// Bytes or characters passed over in a straight line that count as one step.
  static constexpr uint64_t kPassedPerStep = 8;

  /// `most_words`: the text is too long if it has more words, so splitting may stop there.
  explicit WorkBudget(size_t text_bytes, uint64_t most_words = std::numeric_limits<uint64_t>::max(),
                      std::stop_token stop = {})
      : all_(kBaseSteps + kStepsPerByte * text_bytes), left_(all_), most_words_(most_words), stop_(std::move(stop)) {}

  /// Spends steps. False: fewer were left; then none are left.
  bool spend(uint64_t steps) {
    if (++calls_ % kCallsPerLook == 0 && stop_.stop_requested()) left_ = 0;
    const bool enough = steps <= left_;
    left_ = enough ? left_ - steps : 0;
    return enough;
  }
  /// The same for characters passed over in a straight line.
  bool pass(uint64_t characters) { return spend(1 + characters / kPassedPerStep); }

  /// Whether `words` exceeds most_words: then the rest of the text is skipped, and is_cut is true from now on.
  [[nodiscard]] bool is_enough(uint64_t words) {
    is_cut_ = is_cut_ || words > most_words_;
    return words > most_words_;
  }
  [[nodiscard]] bool is_cut() const { return is_cut_; }
  [[nodiscard]] bool is_stopped() const { return stop_.stop_requested(); }

  [[nodiscard]] uint64_t all() const { return all_; }
  [[nodiscard]] uint64_t spent() const { return all_ - left_; }

 private:
  static constexpr uint32_t kCallsPerLook = 1024;  // some microseconds
  uint64_t all_;
  uint64_t left_;
  uint64_t most_words_;
  bool is_cut_ = false;
  std::stop_token stop_;
  uint32_t calls_ = 0;
};

}  // namespace dspack::runtime
