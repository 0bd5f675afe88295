// Work of several streams of a device that the test suite plays: run in an order that is random but for what a stream's
// own order and the events between streams demand. Nothing runs before somebody waits for it or asks, and then as
// little or as much of the other streams as chance has it: what was left to luck comes out differently from seed to
// seed. Waiting for what can never be reached ends the test. Threads: single-thread. Errors: DSPACK_CHECK.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>

namespace dspack::test {

class StreamOrder {
 public:
  using Work = std::function<void()>;
  using StreamId = uint64_t;
  struct Event {
    StreamId stream = 0;
    bool is_reached = false;
    std::chrono::steady_clock::time_point when;
  };

  explicit StreamOrder(uint64_t seed) : random_(seed) {}
  void seed(uint64_t seed) { random_.seed(seed); }

  [[nodiscard]] StreamId add_stream();
  /// Drops what has not run; whoever waits for it waits for ever.
  void remove_stream(StreamId stream);

  void add(StreamId stream, Work work);
  [[nodiscard]] std::shared_ptr<Event> mark(StreamId stream);
  void wait(StreamId stream, std::shared_ptr<Event> event);

  /// Until the stream is empty, or the event reached.
  void run_all(StreamId stream);
  void run_until(const Event& event);
  /// Time passes: some work of some streams runs, or none.
  void run_some();

 private:
  struct Item {
    Work work;                      // empty: one of the two below
    std::shared_ptr<Event> marked;  // to be reached
    std::shared_ptr<Event> waits;   // to be waited for
  };
  using Items = std::deque<Item>;

  [[nodiscard]] bool can_run(const Items& items) const;
  void run_front(Items& items);
  /// Of the streams that `stream` waits for, over how many others, one that can go on.
  [[nodiscard]] Items& needed_by(StreamId stream);
  void run_one_of_all();
  void run_while(StreamId stream, const std::function<bool()>& goes_on);

  std::mt19937_64 random_;
  StreamId next_ = 0;
  std::map<StreamId, Items> streams_;
};

}  // namespace dspack::test
