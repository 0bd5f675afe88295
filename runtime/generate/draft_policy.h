// Decides how many tokens to draft before the next pass: a fixed number, or (automatic) the one that has given the most
// tokens per second so far. That is measured in this run, so it includes every cost of drafts, also of extra experts.
//
// For each number of drafts k it measures the seconds of a step (the module's k passes and the main model's pass over
// k+1 positions), as an exponential average; and how often the j-th draft was accepted if those before it were. Then
//   tokens(k) = 1 + a1 + a1 a2 + ... + a1..ak,     rate(k) = tokens(k) / seconds(k).
// The best k is used. Others are tried in short bursts: a first time while a gain is possible, then again at intervals
// that double while the best stays the same.
//
// Trying costs the time that the best number would have saved. No step is tried that could raise the sum of these
// losses above kProbeShare of the time of all steps so far. So nothing is tried in the first sixty steps or more, and a
// burst may pause. Until a number was tried, each draft is assumed to cost kDraftCost plain steps and to be rejected.
// Time for catching up on positions that the module has not read counts, too.
//
// If experts are read on demand, most is known beforehand. An accepted draft uses the experts that the next step would
// have used and causes its misses, so drafting does not save the time that plain steps wait for experts; each rejected
// draft spends it twice. Unless
//   (1 + a) seconds(0) > seconds(0) + waiting(0)
// could hold, a first trial may cost at most kDoubtfulShare of the time: waiting may have other causes. And a number
// whose drafts cause misses, as the store counts them, that take longer than the steps that it saves is not used,
// whatever its times say.
// Threads: single-thread; a plain value. Errors: none. The caller measures all times.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace dspack::runtime {

/// The measurements of one step of decoding.
struct DraftStep {
  uint32_t drafted = 0;
  uint32_t accepted = 0;
  double seconds = 0;           // drafting and the verifying pass, without catching up
  double catch_up_seconds = 0;  // for positions beyond those of the step before
  // From the expert store, also without catching up:
  double waiting_seconds = 0;  // for experts
  uint64_t misses = 0;
  uint64_t draft_misses = 0;  // those of experts that only drafted tokens need
};

class DraftPolicy {
 public:
  /// Always `drafts`.
  [[nodiscard]] static DraftPolicy fixed(uint32_t drafts);
  /// 0 to `most`, by measurement.
  [[nodiscard]] static DraftPolicy automatic(uint32_t most);

  /// Number of drafts for the next step; the module has `pending` positions still to read.
  [[nodiscard]] uint32_t next(uint32_t pending);
  /// Records a step. It may have fewer drafts than `next` returned (no room).
  void record(const DraftStep& step);
  /// Sets the expected time of catching up on one position, until it is measured.
  void expect_catch_up(double seconds_per_position);
  /// Records that catching up on `positions` positions took `seconds`.
  void record_catch_up(uint32_t positions, double seconds);

  /// Expected tokens per second with `drafts` drafts; nullopt: never tried.
  [[nodiscard]] std::optional<double> rate(uint32_t drafts) const;

  /// Limit on the share of time lost by trying other numbers: three per cent, minus a margin for errors of estimates.
  static constexpr double kProbeShare = 0.02;
  /// The same while drafts are not expected to pay.
  static constexpr double kDoubtfulShare = 0.005;

 private:
  struct Arm {
    double seconds = 0;       // per step
    double draft_misses = 0;  // per step
    uint32_t steps = 0;
  };
  DraftPolicy() = default;
  [[nodiscard]] double tokens(uint32_t drafts) const;
  /// Lower bound: drafts that were hardly tried count as rejected.
  [[nodiscard]] double certain_tokens(uint32_t drafts) const;
  /// Seconds of a step; before it was tried, an upper estimate.
  [[nodiscard]] double expected_seconds(uint32_t drafts) const;
  [[nodiscard]] bool is_outweighed_by_misses(uint32_t drafts) const;
  [[nodiscard]] uint32_t best() const;
  [[nodiscard]] bool is_promising(uint32_t drafts) const;
  [[nodiscard]] bool is_affordable(uint32_t drafts, uint32_t pending) const;
  [[nodiscard]] std::optional<uint32_t> choose_probe();
  void start_burst(uint32_t drafts);
  void count_waiting(const DraftStep& step);
  /// Whether to end the present burst early.
  [[nodiscard]] bool is_hopeless() const;

  bool automatic_ = false;
  uint32_t most_ = 0;         // if fixed, the number
  std::vector<Arm> arms_;     // by number of drafts
  std::vector<double> hits_;  // by position of the draft, forgetting exponentially
  std::vector<double> tries_;
  double total_seconds_ = 0;
  double lost_seconds_ = 0;
  double catch_up_per_position_ = 0;
  bool is_catch_up_measured_ = false;
  double plain_waiting_ = 0;  // seconds per step without drafts
  double waited_ = 0;         // seconds of waiting, a decaying sum; missed_: the misses waited for
  double missed_ = 0;

  uint32_t burst_ = 0;       // drafts of the present burst
  uint32_t burst_left_ = 0;  // steps of it
  std::vector<double> burst_seconds_;
  uint32_t chosen_ = 0;    // the best so far
  uint64_t interval_ = 0;  // steps from one burst to the next
  uint64_t since_burst_ = 0;
  uint32_t turn_ = 0;  // whose turn it is to be tried again
};

}  // namespace dspack::runtime
