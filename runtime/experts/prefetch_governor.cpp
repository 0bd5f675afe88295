#include "runtime/experts/prefetch_governor.h"

#include <algorithm>
#include <cstddef>

namespace dspack::runtime {

namespace {

constexpr uint32_t kTurn = 4;  // passes in a row with or without prefetching: cache contents carry over a few passes
constexpr uint32_t kTrial = 6 * kTurn;
constexpr double kGain = 0.99;  // required ratio to the time without prefetching; smaller gains may be noise
constexpr uint64_t kFirstInterval = 64;
constexpr uint64_t kLongestInterval = 4096;
constexpr double kForget = 0.97;  // decay of older bytes per pass: about the last 33 passes count

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::string_view to_string(PrefetchMode mode) {
  switch (mode) {
    case PrefetchMode::off: return "off";
    case PrefetchMode::on: return "on";
    case PrefetchMode::automatic: return "auto";
  }
  return "";
}

bool PrefetchGovernor::is_on() const {
  if (mode_ != PrefetchMode::automatic) return mode_ == PrefetchMode::on;
  if (nothing_missing_) return false;
  return in_trial_ ? trial_passes_ / kTurn % 2 == 1 : pays_;
}

void PrefetchGovernor::record(const PrefetchPass& pass) {
  if (mode_ != PrefetchMode::automatic) return;
  const bool was_on = is_on();
  const bool could_help = !nothing_missing_;
  nothing_missing_ = pass.misses == 0 && pass.useful_bytes == 0;
  useful_bytes_ = useful_bytes_ * kForget + static_cast<double>(pass.useful_bytes);
  wasted_bytes_ = wasted_bytes_ * kForget + static_cast<double>(pass.wasted_bytes);
  if (!could_help || pass.experts == 0) return;
  if (in_trial_) {
    seconds_[was_on ? 1 : 0].push_back(pass.seconds / static_cast<double>(pass.experts));
    if (++trial_passes_ == kTrial) judge();
    return;
  }
  ++since_trial_;
  if (pays_ && is_wasteful()) {
    pays_ = false;
    since_trial_ = 0;
    interval_ = kFirstInterval;
  }
  if (since_trial_ >= interval_) start_trial();
}

void PrefetchGovernor::start_trial() {
  in_trial_ = true;
  trial_passes_ = 0;
  for (auto& seconds : seconds_)
    seconds.clear();
}

void PrefetchGovernor::judge() {
  const bool paid = pays_;
  pays_ = !is_wasteful() && useful_bytes_ > 0 && median(seconds_[1]) < kGain * median(seconds_[0]);
  interval_ = interval_ == 0 || pays_ != paid ? kFirstInterval : std::min(interval_ * 2, kLongestInterval);
  in_trial_ = false;
  since_trial_ = 0;
}

}  // namespace dspack::runtime
