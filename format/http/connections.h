// The connections that the transfers of a run may use at a time, over all its files, and one long range over as many of
// them as there are to spare. A transfer begins with one and gets more where no other waits for its first. How many
// there are is measured on the way.
// Threads: thread-safe, except ConnectionGrowth. Lifetime: a permit must not outlive its Connections. Errors:
// cancelled; of a range those of the source, and whatever the sink returns.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include "format/source/repository.h"

namespace dspack::format {

/// The rule for how many connections are worth having to one place: a few at first, more as long as more bring more,
/// fewer once the server refuses. A plain value: no clock, no transfers.
///
///   measured at n connections  ->  2n (once a growth has failed or was refused: n + n/4)
///   at least a quarter of the growth shows in the rate  ->  grow again
///   less  ->  back to n; the next attempt after 4, 8, ... 64 intervals
///   refused  ->  n/2, and no growth for 20 intervals
///
/// The interval after a change is left out: connections that have just begun are not up to speed.
class ConnectionGrowth {
 public:
  /// Preconditions: 1 <= first <= most.
  ConnectionGrowth(unsigned first, unsigned most) : limit_(first), most_(most) {}

  /// How many may be used now, in 1 ... most.
  [[nodiscard]] unsigned limit() const { return limit_; }
  [[nodiscard]] unsigned most() const { return most_; }

  /// An interval has ended in which limit() connections were in use.
  void measured(double bytes_per_second);
  /// The server wants fewer requests (429, 503).
  void refused();

 private:
  void grow(double bytes_per_second);
  void change_to(unsigned limit);

  unsigned limit_;
  unsigned most_;
  unsigned grown_from_ = 0;  // the limit before a growth that has not been judged yet; 0: there is none
  double rate_before_ = 0;   // bytes per second with grown_from_ connections
  bool doubles_ = true;
  bool settles_ = true;      // the next interval is left out
  unsigned pause_ = 0;       // intervals without growth that are left
  unsigned next_pause_ = 4;  // after a growth that brings nothing
};

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

/// What a connection fetches at a time, beside others: long against a round trip, short enough to hold one for each.
/// Always a multiple of this unit, by which no compressed frame is cut in two.
inline constexpr uint64_t kPieceUnit = 1ULL << 20;
inline constexpr uint64_t kPieceBytes = 4 * kPieceUnit;

/// As ByteSource::stream. The caller holds the permit for one connection; while no further one is to be had, that one
/// streams the whole range. Precondition: piece_bytes is a multiple of kPieceUnit, and not 0.
[[nodiscard]] Result<void> stream_in_parallel(ByteSource& source, ByteRange range, Connections& connections,
                                              uint64_t piece_bytes, const ByteSink& sink, const std::stop_token& stop);

}  // namespace dspack::format
