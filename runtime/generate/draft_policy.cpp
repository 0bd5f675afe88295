#include "runtime/generate/draft_policy.h"

#include <algorithm>
#include <numeric>

namespace dspack::runtime {

namespace {

constexpr uint32_t kBurst = 6;           // steps of one trial
constexpr uint64_t kEnoughSteps = 3;     // for an average
constexpr uint64_t kFirstInterval = 32;  // steps
constexpr uint64_t kLongestInterval = 4096;
constexpr double kTimeWeight = 0.05;  // weight of the newest step in the average of seconds
// A step counts as at most this many average ones: a pause of the machine is no cost of drafts. A lasting rise still
// shows, by a tenth per step.
constexpr double kMaxSteps = 3;
constexpr double kForget = 0.97;           // decay of older drafts in the acceptance: about the last 33 count
constexpr double kMissWeight = 0.1;        // weight of the newest step in the averages of waiting and misses
constexpr double kDraftCost = 1.2;         // plain steps per draft: all misses and arithmetic again, and the module
constexpr double kUsualAcceptance = 0.85;  // 81 to 90 % are published for V3 and R1
constexpr double kLead = 1.05;             // the other way must be this much better to replace the present one

// Mean of a burst without its slowest third, which may have met cold experts, or another program.
double typical(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  seconds.resize(seconds.size() - seconds.size() / 3);
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

}  // namespace

DraftPolicy DraftPolicy::fixed(uint32_t drafts) {
  DraftPolicy policy;
  policy.fixed_ = drafts;
  return policy;
}

DraftPolicy DraftPolicy::automatic() {
  DraftPolicy policy;
  policy.automatic_ = true;
  policy.interval_ = kFirstInterval;
  policy.start_burst(false);
  return policy;
}

void DraftPolicy::start_burst(bool drafts) {
  burst_drafts_ = drafts;
  burst_left_ = kBurst;
  burst_seconds_.clear();
  since_burst_ = 0;
}

double DraftPolicy::rate(bool drafts) const {
  const Way& way = drafts ? drafting_ : plain_;
  if (way.seconds <= 0) return 0;
  return (drafts && drafted_ > 0 ? 1 + accepted_ / drafted_ : 1) / way.seconds;
}

double DraftPolicy::expected_seconds() const {
  if (drafting_.steps >= kEnoughSteps) return drafting_.seconds;
  const double dear = (1 + kDraftCost) * plain_.seconds;
  // The first steps may have read experts that later ones find in memory.
  return drafting_.steps == 0 ? dear : std::min(dear, std::ranges::min(burst_seconds_));
}

// Whether the misses of drafts take longer than the steps that they save.
bool DraftPolicy::is_outweighed_by_misses() const {
  if (missed_ <= 0 || drafted_ <= 0) return false;
  return draft_misses_ * waited_ / missed_ > accepted_ / drafted_ * plain_.seconds;
}

bool DraftPolicy::better_way() const {
  if (drafting_.steps < kEnoughSteps || is_outweighed_by_misses()) return false;
  return rate(true) > rate(false) * (drafts_ ? 1 / kLead : kLead);
}

bool DraftPolicy::is_promising() const {
  const double stands = drafted_ < kEnoughSteps ? kUsualAcceptance : accepted_ / drafted_;
  return (1 + stands) * plain_.seconds > kLead * (plain_.seconds + plain_waiting_);
}

// Whether the loss of one more step that drafts fits the limit. Drafts that were hardly tried count as rejected.
bool DraftPolicy::is_affordable(uint32_t pending) const {
  const double tokens = 1 + accepted_ / std::max<double>(drafted_, kEnoughSteps);
  const double loss = catch_up_per_position_ * pending + std::max(0.0, expected_seconds() - tokens * plain_.seconds);
  const bool is_doubtful = drafting_.steps < kEnoughSteps && !is_promising();
  return lost_seconds_ + loss <= (is_doubtful ? kDoubtfulShare : kProbeShare) * total_seconds_;
}

double DraftPolicy::least_chance() const {
  if (drafting_.steps < kEnoughSteps || plain_.seconds <= 0) return 1;
  const double more = drafting_.seconds - plain_.seconds;
  return std::clamp(more * drafted_ / (plain_.seconds * proposed_), 0.0, 1.0);
}

uint32_t DraftPolicy::next(uint32_t pending) {
  if (!automatic_) return fixed_;
  if (burst_left_ == 0 && (drafting_.steps == 0 || since_burst_ >= interval_)) start_burst(!drafts_);
  if (burst_left_ == 0 || burst_drafts_ == drafts_) return drafts_ ? 1 : 0;
  if (!burst_drafts_) return 0;
  return is_affordable(pending) ? 1 : 0;
}

void DraftPolicy::record(const DraftStep& step) {
  total_seconds_ += step.seconds + step.catch_up_seconds;
  if (!automatic_) return;
  count_waiting(step);
  const bool drafted = step.drafted > 0;
  const double held = rate(drafts_);
  Way& way = drafted ? drafting_ : plain_;
  const bool in_burst = burst_left_ > 0 && drafted == burst_drafts_;
  if (in_burst) {
    burst_seconds_.push_back(step.seconds);
    way.seconds = typical(burst_seconds_);
  } else {
    const double counted = std::min(step.seconds, kMaxSteps * way.seconds);
    way.seconds = way.steps == 0 ? step.seconds : way.seconds + kTimeWeight * (counted - way.seconds);
  }
  ++way.steps;
  if (drafted) {
    accepted_ = accepted_ * kForget + step.accepted;
    drafted_ = drafted_ * kForget + 1;
    proposed_ = proposed_ * kForget + step.drafted;
  }
  if (drafted != drafts_ && held > 0)
    lost_seconds_ = std::max(0.0, lost_seconds_ + step.seconds - (step.accepted + 1) / held);
  ++since_burst_;
  if (in_burst && --burst_left_ > 0) return;
  const bool before = drafts_;
  drafts_ = better_way();
  if (drafts_ != before) {
    interval_ = kFirstInterval;
  } else if (in_burst) {
    interval_ = std::min(interval_ * 2, kLongestInterval);
  }
}

void DraftPolicy::count_waiting(const DraftStep& step) {
  waited_ += step.waiting_seconds - kMissWeight * waited_;
  missed_ += static_cast<double>(step.misses) - kMissWeight * missed_;
  const bool drafted = step.drafted > 0;
  const double weight = (drafted ? drafting_ : plain_).steps == 0 ? 1 : kMissWeight;
  if (!drafted) plain_waiting_ += weight * (step.waiting_seconds - plain_waiting_);
  if (drafted) draft_misses_ += weight * (static_cast<double>(step.draft_misses) - draft_misses_);
}

void DraftPolicy::expect_catch_up(double seconds_per_position) {
  if (!is_catch_up_measured_) catch_up_per_position_ = seconds_per_position;
}

void DraftPolicy::record_catch_up(uint32_t positions, double seconds) {
  if (positions == 0) return;
  is_catch_up_measured_ = true;
  catch_up_per_position_ = seconds / positions;
  lost_seconds_ += seconds;
}

}  // namespace dspack::runtime
