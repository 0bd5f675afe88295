#include "runtime/experts/transfer_pool.h"

#include <doctest/doctest.h>

#include <string>

namespace dspack::runtime::transfer_pool_test {
namespace {

/// Jobs that wait at a gate, and a record of the order in which they began.
class Gate {
 public:
  TransferPool::Job job(char name) {
    return [this, name](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      (stop.stop_requested() ? dropped_ : begun_) += name;
      changed_.notify_all();
      if (!stop.stop_requested()) changed_.wait(lock, stop, [&] { return is_open_; });
    };
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  std::string begun(size_t jobs) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_.size() >= jobs; });
    return begun_;
  }
  std::string dropped() {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::string begun_, dropped_;
  bool is_open_ = false;
};

TEST_CASE("transfers: at most half of the threads prefetch, the others are free for what is wanted") {
  Gate gate;
  TransferPool pool(4);
  for (const char name : {'a', 'b', 'c'})
    pool.submit(Urgency::prefetch, 1, gate.job(name));
  CHECK(gate.begun(2).size() == 2);
  pool.submit(Urgency::demand, 2, gate.job('x'));
  pool.submit(Urgency::demand, 2, gate.job('y'));
  const std::string begun = gate.begun(4);
  CHECK(begun.find('c') == std::string::npos);
  gate.open();
  CHECK(gate.begun(5).back() == 'c');
}

TEST_CASE("transfers: hurried jobs are for demand, dropped ones end at once") {
  Gate gate;
  TransferPool pool(2);
  pool.submit(Urgency::prefetch, 1, gate.job('a'));
  CHECK(gate.begun(1) == "a");
  pool.submit(Urgency::prefetch, 2, gate.job('b'));
  pool.submit(Urgency::prefetch, 3, gate.job('c'));
  pool.hurry(3);
  CHECK(gate.begun(2) == "ac");
  pool.drop(2);
  CHECK(gate.dropped() == "b");
  pool.drop(1);  // has begun
  CHECK(gate.dropped() == "b");
  gate.open();
}

}  // namespace
}  // namespace dspack::runtime::transfer_pool_test
