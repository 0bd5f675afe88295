#include "format/source/connection_growth.h"

#include <algorithm>

namespace dspack::format {
namespace {

// Of the growth in connections that must show in the rate. Much less than all of it: rates vary from one interval to
// the next, and connections share what the server or a disk has left.
constexpr double kWorth = 0.25;

constexpr unsigned kLongestPause = 64;
constexpr unsigned kPauseAfterRefusal = 20;

}  // namespace

void ConnectionGrowth::measured(double bytes_per_second) {
  if (settles_) {
    settles_ = false;
    return;
  }
  if (grown_from_ == 0) {
    if (pause_ == 0) return grow(bytes_per_second);
    --pause_;
    return;
  }
  const double growth = static_cast<double>(limit_) / grown_from_ - 1;
  if (bytes_per_second >= rate_before_ * (1 + kWorth * growth)) return grow(bytes_per_second);
  change_to(grown_from_);
  doubles_ = false;
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
}

void ConnectionGrowth::refused() {
  change_to(std::max(1U, limit_ / 2));
  doubles_ = false;
  pause_ = kPauseAfterRefusal;
}

void ConnectionGrowth::grow(double bytes_per_second) {
  const unsigned before = limit_;
  const unsigned step = doubles_ ? limit_ : std::max(1U, limit_ / 4);
  change_to(limit_ + std::min(step, most_ - limit_));
  if (limit_ == before) return;
  grown_from_ = before;
  rate_before_ = bytes_per_second;
}

void ConnectionGrowth::change_to(unsigned limit) {
  settles_ = limit != limit_;
  limit_ = limit;
  grown_from_ = 0;
}

}  // namespace dspack::format
