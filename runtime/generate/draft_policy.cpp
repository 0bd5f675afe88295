#include "runtime/generate/draft_policy.h"

#include <algorithm>
#include <numeric>

namespace dspack::runtime {

namespace {

constexpr uint32_t kBurst = 6;       // steps of one trial
constexpr uint32_t kShortBurst = 3;  // ends here if it is below kHopeless of the best
constexpr double kHopeless = 0.7;
constexpr uint64_t kFirstInterval = 32;  // steps
constexpr uint64_t kLongestInterval = 4096;
constexpr double kTimeWeight = 0.05;  // weight of the newest step in the average of seconds
// A step counts as at most this many average ones: a pause of the machine is no cost of drafts. A lasting rise still
// shows, by a tenth per step.
constexpr double kMaxSteps = 3;
constexpr double kForget = 0.97;           // decay of older drafts in the acceptance: about the last 33 count
constexpr double kMissWeight = 0.1;        // weight of the newest step in the averages of waiting and misses
constexpr double kDraftCost = 1.2;         // plain steps per draft: all misses and arithmetic again, and the module
constexpr double kUsualAcceptance = 0.85;  // first draft's: 81 to 90 % are published for V3 and R1
constexpr double kFewTries = 3;
constexpr double kLead = 1.05;  // a number must be this much better to replace the present one

// Mean of a burst without its slowest third, which may have met cold experts, or another program.
double typical(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  seconds.resize(seconds.size() - seconds.size() / 3);
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

}  // namespace

DraftPolicy DraftPolicy::fixed(uint32_t drafts) {
  DraftPolicy policy;
  policy.most_ = drafts;
  return policy;
}

DraftPolicy DraftPolicy::automatic(uint32_t most) {
  DraftPolicy policy;
  policy.automatic_ = true;
  policy.most_ = most;
  policy.arms_.resize(most + 1);
  policy.hits_.resize(most);
  policy.tries_.resize(most);
  policy.interval_ = kFirstInterval;
  policy.start_burst(0);
  return policy;
}

void DraftPolicy::start_burst(uint32_t drafts) {
  burst_ = drafts;
  burst_left_ = kBurst;
  burst_seconds_.clear();
  since_burst_ = 0;
}

double DraftPolicy::tokens(uint32_t drafts) const {
  double sum = 1;
  double stands = 1;
  double all_stood = 1;
  for (uint32_t i = 0; i < drafts; ++i) {
    // A position that was never reached is assumed to be as good as the one before it.
    if (tries_[i] > 0) stands = hits_[i] / tries_[i];
    all_stood *= stands;
    sum += all_stood;
  }
  return sum;
}

double DraftPolicy::certain_tokens(uint32_t drafts) const {
  double sum = 1;
  double all_stood = 1;
  for (uint32_t i = 0; i < drafts; ++i) {
    all_stood *= hits_[i] / std::max(tries_[i], kFewTries);
    sum += all_stood;
  }
  return sum;
}

double DraftPolicy::expected_seconds(uint32_t drafts) const {
  if (drafts == 0) return arms_[0].seconds;
  if (arms_[drafts].steps >= kShortBurst) return arms_[drafts].seconds;
  const double dear = expected_seconds(drafts - 1) + kDraftCost * arms_[0].seconds;
  // The first steps may have read experts that later ones find in memory.
  return arms_[drafts].steps == 0 ? dear : std::min(dear, std::ranges::min(burst_seconds_));
}

// Whether the misses of drafts take longer than the steps that they save.
bool DraftPolicy::is_outweighed_by_misses(uint32_t drafts) const {
  if (drafts == 0 || missed_ <= 0) return false;
  return arms_[drafts].draft_misses * waited_ / missed_ > (tokens(drafts) - 1) * arms_[0].seconds;
}

std::optional<double> DraftPolicy::rate(uint32_t drafts) const {
  if (drafts >= arms_.size() || arms_[drafts].steps == 0 || arms_[drafts].seconds <= 0) return std::nullopt;
  return tokens(drafts) / arms_[drafts].seconds;
}

uint32_t DraftPolicy::best() const {
  uint32_t found = is_outweighed_by_misses(chosen_) ? 0 : chosen_;
  for (uint32_t k = 0; k <= most_; ++k) {
    if (is_outweighed_by_misses(k) || (k != found && arms_[k].steps < kShortBurst)) continue;
    const auto mine = rate(k);
    const auto held = rate(found);
    if (mine && (!held || *mine > *held * (found == chosen_ ? kLead : 1.0))) found = k;
  }
  return found;
}

// Whether to try `drafts`: would it win even if the last draft costs as much as the one before it?
bool DraftPolicy::is_promising(uint32_t drafts) const {
  if (drafts == 1) {
    const double stands = tries_[0] < kFewTries ? kUsualAcceptance : hits_[0] / tries_[0];
    return (1 + stands) * arms_[0].seconds > kLead * (arms_[0].seconds + plain_waiting_);
  }
  if (arms_[drafts - 1].steps == 0) return false;
  const double last = std::max(0.0, arms_[drafts - 1].seconds - arms_[drafts - 2].seconds);
  const auto held = rate(best());
  return !held || tokens(drafts) / (arms_[drafts - 1].seconds + last) > *held;
}

// Whether the loss of one more step fits the limit.
bool DraftPolicy::is_affordable(uint32_t drafts, uint32_t pending) const {
  const auto held = rate(best());
  if (!held) return false;
  const double loss = (drafts > 0 ? catch_up_per_position_ * pending : 0) +
                      std::max(0.0, expected_seconds(drafts) - certain_tokens(drafts) / *held);
  const bool is_doubtful = drafts == 1 && arms_[1].steps < kShortBurst && !is_promising(1);
  return lost_seconds_ + loss <= (is_doubtful ? kDoubtfulShare : kProbeShare) * total_seconds_;
}

std::optional<uint32_t> DraftPolicy::choose_probe() {
  for (uint32_t k = 1; k <= most_; ++k) {
    if (arms_[k].steps > 0) continue;
    if (k == 1 || is_promising(k)) return k;
    break;
  }
  if (since_burst_ < interval_) return std::nullopt;
  since_burst_ = 0;
  for (uint32_t tried = 0; tried <= most_; ++tried) {
    turn_ = (turn_ + 1) % (most_ + 1);
    if (turn_ == chosen_ || arms_[turn_].steps == 0) continue;
    return turn_;
  }
  return std::nullopt;
}

bool DraftPolicy::is_hopeless() const {
  const auto mine = rate(burst_);
  const auto held = rate(chosen_);
  return burst_seconds_.size() >= kShortBurst && mine && held && *mine < kHopeless * *held;
}

uint32_t DraftPolicy::next(uint32_t pending) {
  if (!automatic_) return most_;
  if (burst_left_ == 0) {
    if (const auto probe = choose_probe()) start_burst(*probe);
  }
  return burst_left_ > 0 && (burst_ == chosen_ || is_affordable(burst_, pending)) ? burst_ : chosen_;
}

void DraftPolicy::record(const DraftStep& step) {
  total_seconds_ += step.seconds + step.catch_up_seconds;
  if (!automatic_ || step.drafted > most_) return;
  count_waiting(step);
  const auto held = rate(chosen_);
  Arm& arm = arms_[step.drafted];
  const bool in_burst = burst_left_ > 0 && step.drafted == burst_;
  if (in_burst) {
    burst_seconds_.push_back(step.seconds);
    arm.seconds = typical(burst_seconds_);
  } else {
    const double counted = std::min(step.seconds, kMaxSteps * arm.seconds);
    arm.seconds = arm.steps == 0 ? step.seconds : arm.seconds + kTimeWeight * (counted - arm.seconds);
  }
  ++arm.steps;
  for (uint32_t i = 0; i < std::min(step.drafted, step.accepted + 1); ++i) {
    hits_[i] = hits_[i] * kForget + (i < step.accepted ? 1 : 0);
    tries_[i] = tries_[i] * kForget + 1;
  }
  if (step.drafted != chosen_ && held) {
    lost_seconds_ = std::max(0.0, lost_seconds_ + step.seconds - (step.accepted + 1) / *held);
  }
  ++since_burst_;
  if (in_burst && --burst_left_ > 0 && !is_hopeless()) return;
  if (in_burst) burst_left_ = 0;
  const uint32_t now = best();
  if (now != chosen_) {
    interval_ = kFirstInterval;
  } else if (in_burst) {
    interval_ = std::min(interval_ * 2, kLongestInterval);
  }
  chosen_ = now;
}

void DraftPolicy::count_waiting(const DraftStep& step) {
  waited_ += step.waiting_seconds - kMissWeight * waited_;
  missed_ += static_cast<double>(step.misses) - kMissWeight * missed_;
  Arm& arm = arms_[step.drafted];
  const double weight = arm.steps == 0 ? 1 : kMissWeight;
  if (step.drafted == 0) plain_waiting_ += weight * (step.waiting_seconds - plain_waiting_);
  arm.draft_misses += weight * (static_cast<double>(step.draft_misses) - arm.draft_misses);
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
