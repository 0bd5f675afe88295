#include "format/http/connections.h"

#include <algorithm>

namespace dspack::format {
namespace {

// Long against the round trips and the bursts that a measurement must not depend on, short against a download.
constexpr double kIntervalSeconds = 0.5;
// A slow line needs longer for a rate that means something.
constexpr uint64_t kIntervalBytes = 1ULL << 20;
// Connections are refused together: what comes so soon after a refusal is the same one.
constexpr std::chrono::seconds kOneRefusal{1};
// Of the limit that must have been in use, on average: between two files a connection rests for a moment.
constexpr double kInUse = 0.9;

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

Connections::Connections(ConnectionGrowth growth, std::shared_ptr<const TransferCounters> counters)
    : growth_(growth), counters_(std::move(counters)), refusals_(counters_ ? counters_->refusals.load() : 0) {}

Result<Connections::Permit> Connections::take(uint64_t number, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  waiting_.insert(number);
  const bool is_free =
      changed_.wait(lock, stop, [&] { return in_use_ < growth_.limit() && *waiting_.begin() == number; });
  waiting_.erase(number);
  changed_.notify_all();
  if (!is_free) return stopped();
  count_use(Clock::now());
  ++in_use_;
  return Permit(*this);
}

std::optional<Connections::Permit> Connections::lend() {
  const std::lock_guard lock(mutex_);
  if (in_use_ >= growth_.limit() || !waiting_.empty()) return std::nullopt;
  count_use(Clock::now());
  ++in_use_;
  return Permit(*this);
}

bool Connections::are_wanted_back() const {
  const std::lock_guard lock(mutex_);
  return in_use_ > growth_.limit() || (!waiting_.empty() && in_use_ == growth_.limit());
}

void Connections::received(uint64_t bytes, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (counters_ && counters_->refusals != refusals_) {
    refusals_ = counters_->refusals;
    if (now >= refused_ + kOneRefusal) growth_.refused();
    refused_ = now;
    begin_interval(now);
  }
  if (began_ == Clock::time_point()) begin_interval(now);
  count_use(now);
  interval_bytes_ += bytes;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  if (seconds < kIntervalSeconds || interval_bytes_ < kIntervalBytes) return;
  if (use_seconds_ >= kInUse * growth_.limit() * seconds) {
    const unsigned before = growth_.limit();
    growth_.measured(static_cast<double>(interval_bytes_) / seconds);
    if (growth_.limit() > before) changed_.notify_all();
  }
  begin_interval(now);
}

unsigned Connections::limit() const {
  const std::lock_guard lock(mutex_);
  return growth_.limit();
}

void Connections::given_back() {
  const std::lock_guard lock(mutex_);
  count_use(Clock::now());
  --in_use_;
  changed_.notify_all();
}

/// Threads do not come in the order of their clocks: time that was counted already is not counted again.
void Connections::count_use(Clock::time_point now) {
  if (now <= counted_) return;
  use_seconds_ += in_use_ * std::chrono::duration<double>(now - counted_).count();
  counted_ = now;
}

void Connections::begin_interval(Clock::time_point now) {
  began_ = counted_ = now;
  use_seconds_ = 0;
  interval_bytes_ = 0;
}

}  // namespace dspack::format
