// A storage that is as fast as it is told: so many bytes a second for all reads together, each delivered after a delay.
// It makes a slow disk of a fast one, so that results do not depend on the machine's. Threads: thread-safe. Lifetime:
// owns what it reads from. Errors: that one's.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/access/tier.h"

namespace dspack::runtime {

struct Throttle {
  double bytes_per_second = 0;
  std::chrono::duration<double> delay{};
};

class ThrottledTier final : public Tier {
 public:
  ThrottledTier(std::unique_ptr<Tier> inner, Throttle throttle) : inner_(std::move(inner)), throttle_(throttle) {}

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return inner_->checkpoint(); }
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override {
    const auto until = book(into.size());
    TRY(inner_->read(file, offset, into, stop));
    std::this_thread::sleep_until(until);
    return {};
  }
  [[nodiscard]] Medium medium_of(ExpertKey expert) const override { return inner_->medium_of(expert); }
  [[nodiscard]] bool must_verify(ExpertKey expert) const override { return inner_->must_verify(expert); }
  [[nodiscard]] std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const override {
    return inner_->digest_of(tensor);
  }
  void trust(ExpertKey expert) override { inner_->trust(expert); }
  [[nodiscard]] bool distrust(ExpertKey expert) override { return inner_->distrust(expert); }
  [[nodiscard]] Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                  const std::stop_token& stop) override {
    return inner_->keep(expert, tensors, stop);
  }
  [[nodiscard]] uint64_t block_bytes(uint32_t file) const override { return inner_->block_bytes(file); }
  [[nodiscard]] unsigned depth() const override { return inner_->depth(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point book(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto length = std::chrono::duration<double>(static_cast<double>(bytes) / throttle_.bytes_per_second);
    free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(length);
    return free_ + std::chrono::duration_cast<Clock::duration>(throttle_.delay);
  }

  std::unique_ptr<Tier> inner_;
  Throttle throttle_;
  std::mutex mutex_;
  Clock::time_point free_;  // guarded by mutex_: when all that was asked for is delivered
};

}  // namespace dspack::runtime
