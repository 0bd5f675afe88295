// Decides whether prefetching pays, as measured in this run. It can lose in two ways: a wrong guess delays demand reads
// and takes the slot of a wanted expert, and on a metered link its bytes cost money. So there are two rules:
//   time:  for a while, passes with and without prefetching alternate, a few at a time; it stays on if the median time
//          with it is clearly shorter. Trials recur at intervals that double while the answer stays the same.
//   bytes: it goes off as soon as, lately, more bytes were wasted than used; a trial must pass this test, too.
// Times are seconds per expert wanted, so that passes with and without drafts compare.
// Threads: single-thread; a plain value. Errors: none. The caller supplies all times.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dspack::runtime {

enum class PrefetchMode { off, on, automatic };

/// The mode's name on the command line.
[[nodiscard]] std::string_view to_string(PrefetchMode mode);

/// Measurements of one decode pass.
struct PrefetchPass {
  double seconds = 0;
  uint64_t experts = 0;       // wanted
  uint64_t misses = 0;        // wanted experts that were neither in memory nor being read
  uint64_t useful_bytes = 0;  // prefetched, and found in this pass to be wanted
  uint64_t wasted_bytes = 0;  // prefetched, and found in this pass to have been wasted
};

class PrefetchGovernor {
 public:
  explicit PrefetchGovernor(PrefetchMode mode) : mode_(mode) {}

  /// Whether the pass that begins next prefetches.
  [[nodiscard]] bool is_on() const;
  /// Records the pass that has ended, which ran with is_on() as it was before this call.
  void record(const PrefetchPass& pass);
  /// Whether prefetching was tried and does not pay at present.
  [[nodiscard]] bool has_switched_off() const { return mode_ == PrefetchMode::automatic && !in_trial_ && !pays_; }

 private:
  void start_trial();
  void judge();
  [[nodiscard]] bool is_wasteful() const { return wasted_bytes_ > useful_bytes_; }

  PrefetchMode mode_;
  bool in_trial_ = true;
  bool pays_ = false;             // the last trial's answer
  bool nothing_missing_ = false;  // the last pass had no use for prefetching
  uint32_t trial_passes_ = 0;
  std::array<std::vector<double>, 2> seconds_;  // trial times per expert, without and with prefetching
  double useful_bytes_ = 0, wasted_bytes_ = 0;  // recent sums, decayed exponentially
  uint64_t interval_ = 0;                       // passes from one trial to the next
  uint64_t since_trial_ = 0;
};

}  // namespace dspack::runtime
