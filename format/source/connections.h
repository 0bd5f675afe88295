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

  /// The right to use one connection, until it is given back or destroyed.
  class Permit {
   public:
    Permit(Permit&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    Permit& operator=(Permit&& other) noexcept {
      std::swap(owner_, other.owner_);
      return *this;
    }
    ~Permit() { give_back(); }
    void give_back() {
      if (Connections* owner = std::exchange(owner_, nullptr)) owner->given_back();
    }

   private:
    friend class Connections;
    explicit Permit(Connections& owner) : owner_(&owner) {}
    Connections* owner_;
  };

  /// Waits for the first connection of a transfer. Of those that wait the lowest number is next; no two wait with the
  /// same.
  [[nodiscard]] Result<Permit> take(uint64_t number, const std::stop_token& stop);
  /// A further one, if one is free and nobody waits for a first one.
  [[nodiscard]] std::optional<Permit> lend();
  /// Whether further connections should be given back as soon as may be.
  [[nodiscard]] bool are_wanted_back() const;

  /// Bytes have come over one of them.
  void received(uint64_t bytes) { received(bytes, Clock::now()); }
  /// The same at a time of the caller's.
  void received(uint64_t bytes, Clock::time_point now);

  [[nodiscard]] unsigned limit() const;

 private:
  void given_back();
  void count_use(Clock::time_point now);
  void begin_interval(Clock::time_point now);

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable_any changed_;
  ConnectionGrowth growth_;
  std::shared_ptr<const TransferCounters> counters_;
  std::set<uint64_t> waiting_;
  unsigned in_use_ = 0;
  uint64_t refusals_ = 0;        // seen so far
  Clock::time_point refused_{};  // when the last one was seen
  Clock::time_point began_{};    // the interval; none before the first byte
  Clock::time_point counted_{};  // until when use_seconds_ is right
  double use_seconds_ = 0;       // connections in use, over time
  uint64_t interval_bytes_ = 0;
};

}  // namespace dspack::format
