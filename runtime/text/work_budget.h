// The work that one encoding of a text may take, counted in steps: a tokenizer's file is untrusted, and a pattern of a
// few bytes can take far too long. Counting is deterministic: whether a text can be encoded does not depend on the
// machine. And what ends an encoding before it is done: nobody waits for it any more, or it has more words than matter.
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
  /// A step takes 3 to 5 ns where the engine has a JIT, and some ten times that where it interprets: all of them a
  /// tenth of a second for any text and half a second a megabyte. Patterns of released tokenizers take up to 10 steps a
  /// byte on the worst of texts.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerByte = 100;
  /// Of what is passed over in a straight line: so many bytes or characters are one step.
  static constexpr uint64_t kPassedPerStep = 8;

  /// `most_words`: more need not be told apart, since the text is too long with so many.
  explicit WorkBudget(size_t text_bytes, uint64_t most_words = std::numeric_limits<uint64_t>::max(),
                      std::stop_token stop = {})
      : all_(kBaseSteps + kStepsPerByte * text_bytes), left_(all_), most_words_(most_words), stop_(std::move(stop)) {}

  /// Whether there was so much left; otherwise nothing is left from now on.
  bool spend(uint64_t steps) {
    if (++calls_ % kCallsPerLook == 0 && stop_.stop_requested()) left_ = 0;
    const bool enough = steps <= left_;
    left_ = enough ? left_ - steps : 0;
    return enough;
  }
  /// The same for what is passed over.
  bool pass(uint64_t characters) { return spend(1 + characters / kPassedPerStep); }

  /// Whether so many words are too many: what follows is not looked at, and is_cut from now on.
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
