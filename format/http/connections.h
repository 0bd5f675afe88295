// Limits the connections that the transfers of a run use at a time, over all its files, and streams one long range over
// the spare ones. A transfer starts with one connection and gets more if no other waits for its first. The limit adapts
// to measured rates.
// Threads: thread-safe, except ConnectionGrowth. Lifetime: a permit must not outlive its Connections. Errors:
// cancelled; for a range those of the source and of the sink.
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

/// Decides how many connections to one server pay off: a few at first, more as long as they raise the rate, fewer once
/// the server refuses. A plain value: no clock, no transfers.
///
///   measured at n connections  ->  4n (once a growth has failed or was refused: n + n/4)
///   at least a quarter of the growth shows in the rate  ->  grow again
///   less  ->  back to n; the next attempt after 4, 8, ... 64 intervals
///   refused  ->  n/2, and no growth for 20 intervals
///
/// The interval after a change is ignored: new connections are not up to speed yet.
class ConnectionGrowth {
 public:
  /// Preconditions: 1 <= first <= most.
  ConnectionGrowth(unsigned first, unsigned most) : limit_(first), most_(most) {}

  /// The number that may be used now, in 1 ... most.
  [[nodiscard]] unsigned limit() const { return limit_; }
  [[nodiscard]] unsigned most() const { return most_; }

  /// Reports the rate of an interval in which limit() connections were in use.
  void measured(double bytes_per_second);
  /// Reports that the server wants fewer requests (429, 503).
  void refused();

 private:
  void grow(double bytes_per_second);
  void change_to(unsigned limit);

  unsigned limit_;
  unsigned most_;
  unsigned grown_from_ = 0;      // the limit before a growth that has not been judged yet; 0: none
  double rate_before_ = 0;       // bytes per second with grown_from_ connections
  bool is_first_growth_ = true;  // none has failed or was refused
  bool settles_ = true;          // the next interval is ignored
  unsigned pause_ = 0;           // intervals left without growth
  unsigned next_pause_ = 4;      // after the next growth that does not pay off
};

class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  /// `counters`: those of the requests on these connections; nullptr: refusals are not noticed.
  explicit Connections(ConnectionGrowth growth, std::shared_ptr<const TransferCounters> counters = nullptr);
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// The right to use one connection until it is given back or destroyed.
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

  /// Waits for a transfer's first connection. The lowest waiting number is served first; waiting numbers must differ.
  [[nodiscard]] Result<Permit> take(uint64_t number, const std::stop_token& stop);
  /// A further connection, if one is free and no transfer waits for its first.
  [[nodiscard]] std::optional<Permit> lend();
  /// Whether further connections should be given back as soon as possible.
  [[nodiscard]] bool are_wanted_back() const;

  /// Reports bytes that arrived over one of the connections.
  void received(uint64_t bytes) { received(bytes, Clock::now()); }
  /// The same, at a time that the caller gives.
  void received(uint64_t bytes, Clock::time_point now);

  [[nodiscard]] unsigned limit() const;

 private:
  void given_back();
  void count_use(Clock::time_point now);
  void begin_interval(Clock::time_point now);

  mutable std::mutex mutex_;  // guards all following members
  std::condition_variable_any changed_;
  ConnectionGrowth growth_;
  std::shared_ptr<const TransferCounters> counters_;
  std::set<uint64_t> waiting_;
  unsigned in_use_ = 0;
  uint64_t refusals_ = 0;        // number seen so far
  Clock::time_point refused_{};  // when the last one was seen
  Clock::time_point began_{};    // start of the interval; unset before the first byte
  Clock::time_point counted_{};  // time up to which use_seconds_ is counted
  double use_seconds_ = 0;       // connections in use, integrated over time
  uint64_t interval_bytes_ = 0;
};

/// Bytes that a connection fetches at a time when there are others: many compared to a round trip, few enough to buffer
/// a piece per connection. Always a multiple of kPieceUnit, so that no compressed frame is cut in two.
inline constexpr uint64_t kPieceUnit = 1ULL << 20;
inline constexpr uint64_t kPieceBytes = 4 * kPieceUnit;

/// As ByteSource::stream. The caller holds the permit for one connection, which streams the whole range as long as no
/// further one is available. Precondition: piece_bytes is a multiple of kPieceUnit, and not 0.
[[nodiscard]] Result<void> stream_in_parallel(ByteSource& source, ByteRange range, Connections& connections,
                                              uint64_t piece_bytes, const ByteSink& sink, const std::stop_token& stop);

}  // namespace dspack::format
