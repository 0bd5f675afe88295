#include "format/http/transfer_watch.h"

#include <algorithm>

namespace dspack::format {

TransferWatch::Transfer::Transfer(TransferWatch* watch, Time now) : watch_(watch) {
  if (watch_ == nullptr) return;
  const std::lock_guard lock(watch_->mutex_);
  if (watch_->transfers_.empty()) watch_->moved_ = now;
  retry_ = watch_->transfers_.emplace(watch_->transfers_.end());
}

TransferWatch::Transfer::~Transfer() {
  if (watch_ == nullptr) return;
  const std::lock_guard lock(watch_->mutex_);
  watch_->transfers_.erase(retry_);
}

void TransferWatch::Transfer::moved(uint64_t bytes, Time now) {
  if (watch_ == nullptr) return;
  watch_->bytes_ += bytes;
  const std::lock_guard lock(watch_->mutex_);
  watch_->moved_ = std::max(watch_->moved_, now);
  *retry_ = {};
}

void TransferWatch::Transfer::pauses(unsigned number, unsigned most, double seconds, Time now) {
  if (watch_ == nullptr) return;
  const auto pause = std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds));
  const std::lock_guard lock(watch_->mutex_);
  *retry_ = {.number = number, .most = most, .begin = now + pause};
}

std::optional<TransferWatch::Wait> TransferWatch::wait(Time now) const {
  const auto seconds_until = [](Time from, Time to) {
    return std::max(0.0, std::chrono::duration<double>(to - from).count());
  };
  const std::lock_guard lock(mutex_);
  const auto longest = std::ranges::max_element(transfers_, {}, &Retry::number);
  if (longest == transfers_.end()) return std::nullopt;
  Wait wait{.silence_seconds = seconds_until(moved_, now), .retry = longest->number, .retries = longest->most};
  if (wait.retry > 0) wait.pause_seconds = seconds_until(now, longest->begin);
  return wait;
}

}  // namespace dspack::format
