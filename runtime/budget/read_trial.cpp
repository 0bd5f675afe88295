#include "runtime/budget/read_trial.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>

#include "kernels/cpu/cpu_device.h"
#include "runtime/budget/turn_timer.h"
#include "runtime/experts/expert_load.h"

namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

// Waits for experts to arrive.
class Arrivals {
 public:
  void add(const Result<void>& outcome) {
    const std::lock_guard lock(mutex_);
    if (!outcome && !error_) error_ = outcome.error();
    ++arrived_;
    changed_.notify_all();
  }
  Result<void> wait(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ == count; });
    if (error_) return *error_;
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t arrived_ = 0;          // guarded by mutex_
  std::optional<Error> error_;  // guarded by mutex_
};

class ReadTrial {
 public:
  ReadTrial(kernels::Device& device, Tier& tier, const ExpertShape& shape)
      : device_(device), tier_(tier), shape_(shape), pool_(tier.depth()) {}

  Result<double> seconds_for(std::span<const ExpertKey> keys) {
    std::vector<SlotPlan> plans;
    for (size_t i = 0; i < keys.size(); ++i) {
      TRY_ASSIGN(SlotPlan plan, plan_slot(tier_.checkpoint(), keys[i], shape_));
      if (slots_.size() <= i) slots_.emplace_back();
      if (slots_[i] == nullptr || slots_[i]->size_bytes() < plan.slot_bytes) {
        TRY_ASSIGN(slots_[i], device_.allocate(plan.slot_bytes));
        std::ranges::fill(kernels::host_bytes(*slots_[i]), std::byte{0});  // allocates the pages
      }
      plans.push_back(std::move(plan));
    }
    Arrivals arrivals;
    const auto start = Clock::now();
    for (size_t i = 0; i < keys.size(); ++i) {
      start_load(tier_, pool_,
                 {.key = keys[i],
                  .plan = &plans[i],
                  .slot = kernels::host_bytes(*slots_[i]),
                  .verify = tier_.must_verify(keys[i]),
                  .done = [&arrivals](const LoadOutcome& outcome) { arrivals.add(outcome.result); }});
    }
    TRY(arrivals.wait(keys.size()));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  kernels::Device& device_;
  Tier& tier_;
  ExpertShape shape_;
  std::vector<std::unique_ptr<kernels::Buffer>> slots_;
  TransferPool pool_;  // last: its threads use the slots
};

}  // namespace

double ReadTimes::seconds(double experts) const {
  if (experts <= 0) return 0;
  if (count <= 1 || several <= one) return experts * several / std::max(1U, count);
  const double each = (several - one) / (count - 1);
  return std::max(one * std::min(1.0, experts), one + (experts - 1) * each);
}

double ReadTimes::rate() const {
  const double each = count > 1 && several > one ? (several - one) / (count - 1) : several / std::max(1U, count);
  return each > 0 ? static_cast<double>(expert_bytes) / each : 0;
}

Result<ReadTimes> time_reads(kernels::Device& device, Tier& tier, const ExpertShape& shape,
                             std::span<const LayerId> layers, uint32_t count, double seconds,
                             const std::stop_token& stop) {
  const std::set<LayerId> wanted(layers.begin(), layers.end());
  std::vector<ExpertKey> keys;
  for (const auto& [key, tensors] : tier.checkpoint().experts()) {
    if (wanted.contains(key.layer)) keys.push_back(key);
  }
  if (keys.empty()) return Error{ErrorKind::not_found, "the checkpoint holds no routed expert"};
  std::mt19937 random(std::random_device{}());  // other experts than last time, which the page cache may still hold
  std::ranges::shuffle(keys, random);
  TRY_ASSIGN(const SlotPlan plan, plan_slot(tier.checkpoint(), keys.front(), shape));
  ReadTimes times;
  times.expert_bytes = plan.stored_bytes;
  // If both media occur, the trial times a sample of both and reports the slower one.
  const bool is_far = std::ranges::any_of(keys, [&](ExpertKey key) { return tier.medium_of(key) == Medium::network; });
  times.medium = is_far ? Medium::network : Medium::disk;
  times.count = static_cast<uint32_t>(std::clamp<size_t>(keys.size() / 2, 1, count));
  ReadTrial trial(device, tier, shape);
  std::vector<double> alone;
  std::vector<double> together;
  std::span<const ExpertKey> left = keys;
  const auto start = Clock::now();
  do {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    TRY_ASSIGN(const double one, trial.seconds_for(left.first(1)));
    alone.push_back(one);
    left = left.subspan(1);
    if (left.size() < times.count) break;
    TRY_ASSIGN(const double several, trial.seconds_for(left.first(times.count)));
    together.push_back(several);
    left = left.subspan(times.count);
  } while (left.size() > times.count && std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  // Drops the first reads, which also open files and touch memory.
  if (together.size() > 2) {
    alone.erase(alone.begin());
    together.erase(together.begin());
  }
  times.one = median(alone);
  times.several = together.empty() ? times.one * times.count : median(together);
  return times;
}

}  // namespace dspack::runtime
