#include "format/source/connections.h"

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

}  // namespace

Connections::Connections(ConnectionGrowth growth, std::shared_ptr<const TransferCounters> counters)
    : growth_(growth), counters_(std::move(counters)), refusals_(counters_ ? counters_->refusals.load() : 0) {}

Result<Connections::Permit> Connections::take(uint64_t number, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  waiting_.insert(number);
  const bool is_free =
      changed_.wait(lock, stop, [&] { return in_use_ < growth_.limit() && *waiting_.begin() == number; });
  waiting_.erase(number);
  changed_.notify_all();
  if (!is_free) return Error{ErrorKind::cancelled, "stopped on request"};
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
