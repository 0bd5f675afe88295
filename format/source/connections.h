// The connections that the transfers of a run may use at a time, over all its files. A transfer begins with one and
// gets more where no other waits for its first. How many there are is measured on the way: connection_growth.h.
// Threads: thread-safe. Lifetime: a permit must not outlive its Connections. Errors: cancelled.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include "format/source/connection_growth.h"
#include "format/source/repository.h"

namespace dspack::format {

class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  /// `counters`: of the requests that use these connections; nullptr: refusals are not seen.
  explicit Connections(ConnectionGrowth growth, std::shared_ptr<const TransferCounters> counters = nullptr);
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// The right to use one connection until it is destroyed. Movable.
  class Permit {
   public:
    Permit(Permit&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), is_first_(other.is_first_) {}
    Permit& operator=(Permit&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(is_first_, other.is_first_);
      return *this;
    }
    ~Permit() {
      if (owner_ != nullptr) owner_->give_back(is_first_);
    }

   private:
    friend class Connections;
    Permit(Connections& owner, bool is_first) : owner_(&owner), is_first_(is_first) {}
    Connections* owner_;
    bool is_first_;
  };

  /// Waits for the first connection of a transfer. Of those that wait the lowest number is next; no two wait with the
  /// same.
  [[nodiscard]] Result<Permit> take(uint64_t number, const std::stop_token& stop);
  /// A further one for a transfer that has `held`, if one is free, nobody waits for a first one, and the transfer has
  /// not got its equal share of all.
  [[nodiscard]] std::optional<Permit> lend(unsigned held);
  /// Whether further connections should be given back as soon as may be.
  [[nodiscard]] bool are_wanted_back() const;

  /// Bytes have come over one of them.
  void received(uint64_t bytes) { received(bytes, Clock::now()); }
  /// The same at a time of the caller's.
  void received(uint64_t bytes, Clock::time_point now);

  [[nodiscard]] unsigned limit() const;

 private:
  void give_back(bool is_first);
  void count_use(Clock::time_point now);
  void begin_interval(Clock::time_point now);

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable_any changed_;
  ConnectionGrowth growth_;
  std::shared_ptr<const TransferCounters> counters_;
  std::set<uint64_t> waiting_;
  unsigned in_use_ = 0;
  unsigned transfers_ = 0;
  uint64_t refusals_ = 0;        // seen so far
  Clock::time_point refused_{};  // when the last one was seen
  Clock::time_point began_{};    // the interval; none before the first byte
  Clock::time_point counted_{};  // until when use_seconds_ is right
  double use_seconds_ = 0;       // connections in use, over time
  uint64_t interval_bytes_ = 0;
};

}  // namespace dspack::format
