// Decides whether to draft before the next pass: a fixed number of tokens, or (automatic) some if that gives more
// tokens per second than none. That is measured in this run, so it includes every cost of drafts, also of extra
// experts. Where a module drafts several tokens at once and estimates their chances, it is asked for those whose chance
// is above what each more cost so far.
//
// For steps with and without a draft it measures the seconds (the module's pass and the main model's over both
// positions), as an exponential average, and how often the draft was accepted (a). Then a step gives 1 + a tokens, or
// one. Drafting is tried in short bursts: a first time, then again at intervals that double while the answer stays the
// same; while drafting, plain steps likewise.
//
// Trying costs the time that the better way would have saved. No step is tried that could raise the sum of these losses
// above kProbeShare of the time of all steps so far. So nothing is tried in the first sixty steps or more, and a burst
// may pause. Until it was tried, a draft is assumed to cost kDraftCost plain steps and to be rejected. Time for
// catching up on positions that the module has not read counts, too.
//
// If experts are read on demand, most is known beforehand. An accepted draft uses the experts that the next step would
// have used and causes its misses, so drafting does not save the time that plain steps wait for experts; each rejected
// draft spends it twice. Unless
//   (1 + a) seconds(plain) > seconds(plain) + waiting(plain)
// could hold, a first trial may cost at most kDoubtfulShare of the time: waiting may have other causes. And drafts that
// cause misses, as the store counts them, that take longer than the steps that they save are not made, whatever the
// times say.
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
  /// One (of a module that drafts several at once, least_chance says how many of them) or none, by measurement.
  [[nodiscard]] static DraftPolicy automatic();

  /// Number of drafts for the next step; the module has `pending` positions still to read.
  [[nodiscard]] uint32_t next(uint32_t pending);
  /// The chance of being accepted from which one more draft beside the first pays: its cost in steps without drafts, 1
  /// until that was measured.
  [[nodiscard]] double least_chance() const;
  /// Records a step. It may have fewer drafts than `next` returned (no room).
  void record(const DraftStep& step);
  /// Sets the expected time of catching up on one position, until it is measured.
  void expect_catch_up(double seconds_per_position);
  /// Records that catching up on `positions` positions took `seconds`.
  void record_catch_up(uint32_t positions, double seconds);

  /// Limit on the share of time lost by trying the other way: three per cent, minus a margin for errors of estimates.
  static constexpr double kProbeShare = 0.02;
  /// The same while drafts are not expected to pay.
  static constexpr double kDoubtfulShare = 0.005;

 private:
  struct Way {
    double seconds = 0;  // per step
    uint64_t steps = 0;
  };
  DraftPolicy() = default;
  /// Tokens per second; 0: never tried.
  [[nodiscard]] double rate(bool drafts) const;
  /// Seconds of a step that drafts; before it was tried, an upper estimate.
  [[nodiscard]] double expected_seconds() const;
  [[nodiscard]] bool is_outweighed_by_misses() const;
  /// Whether drafts could pay beside the time that plain steps wait for experts.
  [[nodiscard]] bool is_promising() const;
  [[nodiscard]] bool is_affordable(uint32_t pending) const;
  [[nodiscard]] bool better_way() const;
  void start_burst(bool drafts);
  void count_waiting(const DraftStep& step);

  bool automatic_ = false;
  uint32_t fixed_ = 0;
  Way plain_, drafting_;
  double accepted_ = 0;  // decaying sums: drafts that were accepted
  double drafted_ = 0;   // steps with drafts
  double proposed_ = 0;  // drafts
  double total_seconds_ = 0;
  double lost_seconds_ = 0;
  double catch_up_per_position_ = 0;
  bool is_catch_up_measured_ = false;
  double plain_waiting_ = 0;  // seconds per step without drafts
  double draft_misses_ = 0;   // per step with one
  double waited_ = 0;         // seconds of waiting, a decaying sum; missed_: the misses waited for
  double missed_ = 0;

  bool drafts_ = false;  // the better way so far
  bool burst_drafts_ = false;
  uint32_t burst_left_ = 0;  // steps of the present burst
  std::vector<double> burst_seconds_;
  uint64_t interval_ = 0;  // steps from one burst to the next
  uint64_t since_burst_ = 0;
};

}  // namespace dspack::runtime
