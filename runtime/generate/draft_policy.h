// How many tokens to draft before the next pass. A fixed number, or (automatic) the number that has given the most
// tokens a second so far, measured in this run: whatever drafts cost, extra experts included, is in the times.
//
// What is measured, for each number of drafts k: the seconds of a step (the module's k passes and the main model's pass
// of k+1 positions), as an exponential average; and how often the j-th draft was accepted if those before it were. Then
//   tokens(k) = 1 + a1 + a1 a2 + ... + a1..ak,     rate(k) = tokens(k) / seconds(k).
// The best k is used. Others are tried in short bursts: a first time while a gain is possible, then again at intervals
// that double while the answer is the same.
//
// Trying costs the time that the best number would have saved. No step is tried that could carry the sum of these
// losses above kProbeShare of the time of all steps so far; so nothing is tried in the first sixty steps or more, and a
// burst waits in the middle if it must. Before a number was tried, a draft is assumed to cost kDraftCost plain steps
// and to be rejected. Catching up on positions that the module has not read counts, too.
//
// If experts are read on demand, most is known beforehand. An accepted draft uses the experts that the next step would
// have used and causes its misses, so drafting does not save the time that plain steps wait for experts; each rejected
// draft spends it twice. Unless
//   (1 + a) seconds(0) > seconds(0) + waiting(0)
// could hold, a first trial may cost no more than kDoubtfulShare of the time: waiting may have other causes. And a
// number whose drafts cause misses, as the store counts them, that take longer than the steps that it saves is not
// used, whatever its times say. Threads: single-thread; a plain value. Errors: none. Time is what the caller says it
// is.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace dspack::runtime {

/// One step of decoding as it was.
struct DraftStep {
  uint32_t drafted = 0;
  uint32_t accepted = 0;
  double seconds = 0;           // drafting and the pass that verifies, without catching up
  double catch_up_seconds = 0;  // on positions beyond those of the step before
  // From the expert store, likewise without catching up:
  double waiting_seconds = 0;  // for experts
  uint64_t misses = 0;
  uint64_t draft_misses = 0;  // of these, of experts that only drafted tokens wanted
};

class DraftPolicy {
 public:
  /// Always `drafts`.
  [[nodiscard]] static DraftPolicy fixed(uint32_t drafts);
  /// 0 to `most`, as measured.
  [[nodiscard]] static DraftPolicy automatic(uint32_t most);

  /// Drafts for the next step, while the module is `pending` positions behind the main model.
  [[nodiscard]] uint32_t next(uint32_t pending);
  /// What became of a step. Fewer drafts than `next` said (no room) are fine.
  void record(const DraftStep& step);
  /// What catching up on one position will cost, as long as it was not measured.
  void expect_catch_up(double seconds_per_position);
  /// Catching up took `seconds` for `positions`.
  void record_catch_up(uint32_t positions, double seconds);

  /// Tokens a second that `drafts` promises; nullopt: never tried.
  [[nodiscard]] std::optional<double> rate(uint32_t drafts) const;

  /// Share of the time that trying other numbers may cost: three per cent, less what estimates may err.
  static constexpr double kProbeShare = 0.02;
  /// The same, as long as nothing promises that drafts could pay.
  static constexpr double kDoubtfulShare = 0.005;

 private:
  struct Arm {
    double seconds = 0;       // of a step
    double draft_misses = 0;  // of a step
    uint32_t steps = 0;
  };
  DraftPolicy() = default;
  [[nodiscard]] double tokens(uint32_t drafts) const;
  /// At least, as far as is known: drafts that were hardly tried fall.
  [[nodiscard]] double certain_tokens(uint32_t drafts) const;
  /// Of a step; before it was tried, what it may cost.
  [[nodiscard]] double expected_seconds(uint32_t drafts) const;
  [[nodiscard]] bool is_outweighed_by_misses(uint32_t drafts) const;
  [[nodiscard]] uint32_t best() const;
  [[nodiscard]] bool is_promising(uint32_t drafts) const;
  [[nodiscard]] bool is_affordable(uint32_t drafts, uint32_t pending) const;
  [[nodiscard]] std::optional<uint32_t> choose_probe();
  void start_burst(uint32_t drafts);
  void count_waiting(const DraftStep& step);
  /// Whether the present burst need not go on.
  [[nodiscard]] bool is_hopeless() const;

  bool automatic_ = false;
  uint32_t most_ = 0;         // fixed: the number
  std::vector<Arm> arms_;     // by number of drafts
  std::vector<double> hits_;  // by position of the draft, forgetting exponentially
  std::vector<double> tries_;
  double total_seconds_ = 0;
  double lost_seconds_ = 0;
  double catch_up_per_position_ = 0;
  bool is_catch_up_measured_ = false;
  double plain_waiting_ = 0;  // seconds of a step without drafts
  double waited_ = 0;         // seconds, forgetting; with the misses that they were for
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
