// Whether prefetching pays, as measured in this run. It may lose in two ways: a wrong guess delays demand reads and
// takes the slot of a wanted expert, and on a metered link its bytes cost money. So two rules:
//   time:  passes with and without prefetch take turns for a while, a few of each at a time; it stays on if the median
//          with it is clearly the shorter. Trials come again at intervals that double while the answer is the same.
//   bytes: it is off as soon as more bytes were read in vain than were wanted, lately; a trial must pass this, too.
// Times are a pass's seconds per expert wanted, so that passes with drafts compare with passes without.
// Threads: single-thread; a plain value. Errors: none. Time is what the caller says it is.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dspack::runtime {

enum class PrefetchMode { off, on, automatic };

/// As the command line says it.
[[nodiscard]] std::string_view to_string(PrefetchMode mode);

/// A decode pass as it was.
struct PrefetchPass {
  double seconds = 0;
  uint64_t experts = 0;       // wanted
  uint64_t misses = 0;        // of them, not in memory and not on their way
  uint64_t useful_bytes = 0;  // prefetched, and found to be wanted in this pass
  uint64_t wasted_bytes = 0;  // prefetched, and found in this pass to have been read in vain
};

class PrefetchGovernor {
 public:
  explicit PrefetchGovernor(PrefetchMode mode) : mode_(mode) {}

  /// Whether the pass that begins next prefetches.
  [[nodiscard]] bool is_on() const;
  /// The pass that has ended ran as is_on() said before it.
  void record(const PrefetchPass& pass);
  /// Whether it was tried and does not pay at present.
  [[nodiscard]] bool has_switched_off() const { return mode_ == PrefetchMode::automatic && !in_trial_ && !pays_; }

 private:
  void start_trial();
  void judge();
  [[nodiscard]] bool is_wasteful() const { return wasted_bytes_ > useful_bytes_; }

  PrefetchMode mode_;
  bool in_trial_ = true;
  bool pays_ = false;             // the last trial's answer
  bool nothing_missing_ = false;  // the last pass had no use for it
  uint32_t trial_passes_ = 0;
  std::array<std::vector<double>, 2> seconds_;  // of the trial, per expert: without and with prefetch
  double useful_bytes_ = 0, wasted_bytes_ = 0;  // lately: forgotten exponentially
  uint64_t interval_ = 0;                       // passes from one trial to the next
  uint64_t since_trial_ = 0;
};

}  // namespace dspack::runtime
