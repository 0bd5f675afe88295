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

TransferPool::TransferPool(unsigned threads) : most_prefetching_(std::max(1U, threads / 2)) {
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
  changed_.notify_all();  // also threads that may not prefetch
}

void TransferPool::drop(uint64_t group) {
  std::vector<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    Queue& later = waiting_[index_of(Urgency::prefetch)];
    for (Waiting& waiting : later) {
      if (waiting.group == group) dropped.push_back(std::move(waiting.job));
    }
    std::erase_if(later, [&](const Waiting& waiting) { return waiting.group == group; });
  }
  std::stop_source stopped;
  stopped.request_stop();
  for (const Job& job : dropped)
    job(stopped.get_token());
}

TransferPool::Queue* TransferPool::next() {
  for (const Urgency urgency : {Urgency::demand, Urgency::prefetch, Urgency::keep}) {
    if (urgency == Urgency::prefetch && running_[index_of(urgency)] >= most_prefetching_) continue;
    if (Queue& queue = waiting_[index_of(urgency)]; !queue.empty()) return &queue;
  }
  return nullptr;
}

void TransferPool::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return next() != nullptr; })) {
    if (stop.stop_requested()) return;
    Queue* const queue = next();
    unsigned& running = running_[static_cast<size_t>(queue - waiting_.data())];
    Job job = std::move(queue->front().job);
    queue->pop_front();
    ++running;
    lock.unlock();
    job(stop);
    job = nullptr;  // without the lock: it may hold the last reference to what it captured
    lock.lock();
    --running;
  }
}

}  // namespace dspack::runtime
