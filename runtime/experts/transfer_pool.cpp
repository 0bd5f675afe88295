#include "runtime/experts/transfer_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "format/base/check.h"

namespace dspack::runtime {

namespace {

constexpr size_t index_of(Urgency urgency) {
  return static_cast<size_t>(urgency);
}

}  // namespace

TransferPool::TransferPool(unsigned threads) {
  DSPACK_CHECK(threads > 0, "a pool without threads");
  threads_.reserve(threads);
  for (unsigned i = 0; i < threads; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
}

TransferPool::~TransferPool() {
  for (std::jthread& thread : threads_)
    thread.request_stop();
  threads_.clear();
}

void TransferPool::submit(Urgency urgency, uint64_t group, Job job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_[index_of(urgency)].push_back({.group = group, .job = std::move(job)});
  }
  changed_.notify_one();
}

void TransferPool::hurry(uint64_t group) {
  const std::lock_guard lock(mutex_);
  auto& later = waiting_[index_of(Urgency::prefetch)];
  auto& now = waiting_[index_of(Urgency::demand)];
  for (Waiting& waiting : later) {
    if (waiting.group == group) now.push_back(std::move(waiting));
  }
  std::erase_if(later, [&](const Waiting& waiting) { return waiting.group == group; });
}

bool TransferPool::is_demand_idle() const {
  const std::lock_guard lock(mutex_);
  return demand_running_ == 0 && waiting_[index_of(Urgency::demand)].empty();
}

void TransferPool::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto next = [this]() -> std::deque<Waiting>* {
    const auto found = std::ranges::find_if(waiting_, [](const auto& queue) { return !queue.empty(); });
    return found == waiting_.end() ? nullptr : &*found;
  };
  while (changed_.wait(lock, stop, [&] { return next() != nullptr; })) {
    if (stop.stop_requested()) return;
    std::deque<Waiting>* queue = next();
    const bool is_demand = queue == &waiting_[index_of(Urgency::demand)];
    Job job = std::move(queue->front().job);
    queue->pop_front();
    if (is_demand) ++demand_running_;
    lock.unlock();
    job(stop);
    job = nullptr;  // what it holds may be the last of it
    lock.lock();
    if (is_demand) --demand_running_;
  }
}

}  // namespace dspack::runtime
