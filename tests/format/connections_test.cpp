#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "format/http/connections.h"

namespace dspack::connections_test {

using namespace dspack;
using format::ConnectionGrowth;
using format::Connections;
using Permit = Connections::Permit;
using std::chrono::milliseconds;

namespace {

/// A line on which each connection carries `each` bytes a second, and all together at most `all`.
double rate(unsigned connections, double each, double all) {
  return std::min(connections * each, all);
}

/// Limits after each of `count` intervals.
std::vector<unsigned> limits(ConnectionGrowth& growth, double each, double all, size_t count) {
  std::vector<unsigned> seen;
  for (size_t i = 0; i < count; ++i) {
    growth.measured(rate(growth.limit(), each, all));
    seen.push_back(growth.limit());
  }
  return seen;
}

Permit must_take(Connections& connections, uint64_t number) {
  auto permit = connections.take(number, {});
  REQUIRE(permit.has_value());
  return std::move(permit).value();
}

}  // namespace

TEST_CASE("connection growth: fourfold while each connection carries its own, up to the bound") {
  ConnectionGrowth growth(4, 64);
  CHECK(growth.limit() == 4);
  CHECK(limits(growth, 12.5e6, 1e12, 8) == std::vector<unsigned>{4, 16, 16, 64, 64, 64, 64, 64});
  ConnectionGrowth uneven(4, 11);
  CHECK(limits(uneven, 12.5e6, 1e12, 6).back() == 11);
  ConnectionGrowth one(1, 1);
  CHECK(limits(one, 12.5e6, 1e12, 6) == std::vector<unsigned>(6, 1));
}

TEST_CASE("connection growth: a line that is full is not shared by more, and asked again more and more rarely") {
  ConnectionGrowth growth(4, 16);
  const auto seen = limits(growth, 12.5e6, 50e6, 200);
  CHECK(std::vector(seen.begin(), seen.begin() + 4) == std::vector<unsigned>{4, 16, 16, 4});
  unsigned attempts = 0;
  for (size_t i = 4; i < seen.size(); ++i)
    if (seen[i] > seen[i - 1]) ++attempts;
  CHECK(attempts >= 3);
  CHECK(attempts <= 6);
  for (size_t i = 4; i < seen.size(); ++i)
    CHECK(seen[i] <= 5);
}

TEST_CASE("connection growth: what stops paying on the way is taken back by the last step only") {
  ConnectionGrowth growth(4, 64);
  const auto seen = limits(growth, 10e6, 190e6, 400);
  CHECK(*std::max_element(seen.begin(), seen.end()) == 64);
  for (size_t i = 10; i < seen.size(); ++i) {
    CHECK(seen[i] >= 16);
    CHECK(seen[i] <= 25);
  }
}

TEST_CASE("connection growth: a line that gets faster later is found") {
  ConnectionGrowth growth(4, 16);
  limits(growth, 12.5e6, 50e6, 40);
  CHECK(growth.limit() <= 5);
  limits(growth, 12.5e6, 1e12, 120);
  CHECK(growth.limit() == 16);
}

TEST_CASE("connection growth: refused, it halves and waits, and never ends at none") {
  ConnectionGrowth growth(4, 16);
  limits(growth, 12.5e6, 1e12, 8);
  REQUIRE(growth.limit() == 16);
  growth.refused();
  CHECK(growth.limit() == 8);
  CHECK(limits(growth, 12.5e6, 1e12, 20) == std::vector<unsigned>(20, 8));
  CHECK(limits(growth, 12.5e6, 1e12, 60).back() == 16);
  for (int i = 0; i < 10; ++i)
    growth.refused();
  CHECK(growth.limit() == 1);
}

TEST_CASE("connections: those that wait begin in the order of their numbers, and no more than the limit at a time") {
  Connections connections({1, 1});
  std::vector<uint64_t> order;
  std::optional<Permit> held = must_take(connections, 0);
  std::vector<std::jthread> threads;
  std::atomic<unsigned> now{0};
  bool alone = true;
  for (const uint64_t number : {3U, 1U, 2U}) {
    threads.emplace_back([&, number] {
      const Permit permit = must_take(connections, number);
      alone = alone && ++now == 1;
      order.push_back(number);  // one at a time
      --now;
    });
  }
  while (!connections.are_wanted_back())
    std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(50));  // all three wait by now, or the order is checked for fewer
  CHECK(order.empty());
  held.reset();
  threads.clear();
  CHECK(alone);
  CHECK(order == std::vector<uint64_t>{1, 2, 3});
}

TEST_CASE("connections: spare ones are lent, and wanted back where a transfer waits to begin") {
  Connections connections({3, 3});
  const Permit first = must_take(connections, 0);
  std::optional<Permit> lent = connections.lend();
  REQUIRE(lent.has_value());
  const auto other = connections.lend();
  REQUIRE(other.has_value());
  CHECK_FALSE(connections.lend().has_value());  // all are in use
  CHECK_FALSE(connections.are_wanted_back());
  bool has_begun = false;
  std::jthread third([&] {
    const Permit permit = must_take(connections, 2);
    has_begun = true;
  });
  while (!connections.are_wanted_back())
    std::this_thread::yield();
  CHECK_FALSE(has_begun);
  CHECK_FALSE(connections.lend().has_value());
  lent.reset();
  third.join();
  CHECK(has_begun);
  CHECK_FALSE(connections.are_wanted_back());
  CHECK(connections.lend().has_value());
}

TEST_CASE("connections: waiting ends with a stop") {
  Connections connections({1, 1});
  const Permit held = must_take(connections, 0);
  std::stop_source stop;
  std::jthread waiting([&] {
    const auto permit = connections.take(1, stop.get_token());
    REQUIRE_FALSE(permit.has_value());
    CHECK(permit.error().kind == ErrorKind::cancelled);
  });
  while (!connections.are_wanted_back())
    std::this_thread::yield();
  stop.request_stop();
  waiting.join();
  CHECK_FALSE(connections.are_wanted_back());  // nobody waits any more
}

TEST_CASE("connections: what is received in an interval decides, if all were in use") {
  const auto counters = std::make_shared<format::TransferCounters>();
  Connections connections({2, 8}, counters);
  std::vector<Permit> permits;
  permits.push_back(must_take(connections, 0));
  auto now = Connections::Clock::now();
  const auto pass = [&](unsigned intervals, uint64_t bytes) {
    for (unsigned i = 0; i < 10 * intervals; ++i) {
      connections.received(bytes / 10, now);
      now += milliseconds(51);
    }
  };
  pass(10, 10 << 20);
  CHECK(connections.limit() == 2);  // one of two was in use
  while (auto lent = connections.lend())
    permits.push_back(std::move(*lent));
  CHECK(permits.size() == 2);
  pass(4, 20 << 20);
  CHECK(connections.limit() == 8);
  while (permits.size() < 4) {
    auto lent = connections.lend();
    REQUIRE(lent.has_value());
    permits.push_back(std::move(*lent));
  }

  counters->refusals += 5;  // together: once
  connections.received(1, now);
  CHECK(connections.limit() == 4);
  ++counters->refusals;
  connections.received(1, now + milliseconds(300));
  CHECK(connections.limit() == 4);
  CHECK_FALSE(connections.are_wanted_back());
  ++counters->refusals;
  connections.received(1, now + milliseconds(2300));
  CHECK(connections.limit() == 2);
  CHECK(connections.are_wanted_back());
}

}  // namespace dspack::connections_test
