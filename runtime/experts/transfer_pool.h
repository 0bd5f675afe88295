// Threads that read and write while the model computes. Demand work goes first.
// Threads: thread-safe. Lifetime: objects that a job refers to must outlive the pool, whose destructor lets running
// jobs end and drops the others. Errors: jobs report their own.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace dspack::runtime {

/// Demand: the model waits for it. Prefetch: it may be needed later. Keep: writing to a cache.
enum class Urgency { demand, prefetch, keep };
inline constexpr size_t kUrgencies = 3;

class TransferPool {
 public:
  using Job = std::function<void(const std::stop_token& stop)>;

  /// At most half of the threads prefetch, so that demands start at once.
  explicit TransferPool(unsigned threads);
  ~TransferPool();
  TransferPool(const TransferPool&) = delete;
  TransferPool& operator=(const TransferPool&) = delete;

  /// `group`: jobs of one group can be hurried or dropped together.
  void submit(Urgency urgency, uint64_t group, Job job);
  /// Turns the group's waiting prefetches into demands.
  void hurry(uint64_t group);
  /// Calls the group's waiting prefetches at once, on this thread and with a stop requested.
  void drop(uint64_t group);

 private:
  struct Waiting {
    uint64_t group = 0;
    Job job;
  };
  using Queue = std::deque<Waiting>;
  void work(const std::stop_token& stop);
  [[nodiscard]] Queue* next();  // with the lock held; nullptr: nothing may begin

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<Queue, kUrgencies> waiting_;       // guarded by mutex_
  std::array<unsigned, kUrgencies> running_{};  // guarded by mutex_
  unsigned most_prefetching_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace dspack::runtime
