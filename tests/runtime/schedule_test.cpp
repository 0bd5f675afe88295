// The schedule of a layer, the bound of a starved decode and the choice of backends, on times that are made up.
#include "runtime/experts/schedule.h"

#include <doctest/doctest.h>

#include <array>

namespace dspack::runtime::schedule_test {
namespace {

constexpr uint64_t kExpert = 44'000'000;
constexpr size_t kDevice = 0;
constexpr size_t kCpu = 1;

struct Rates {
  WorkRate link, cpu;
};
struct Backlog {
  double link = 0, cpu = 0;
};

/// A device that copies, and the CPU beside it, as their backends answer.
size_t way(const MissOptions& options, const Rates& rates, const Backlog& backlog = {}) {
  const Eta never{};
  const std::array<Eta, 2> etas = {
      options.effective() == MissMode::compute ? never : Eta::after(backlog.link, rates.link.seconds(kExpert, 1)),
      options.effective() == MissMode::move ? never : Eta::after(backlog.cpu, rates.cpu.seconds(kExpert, 1))};
  return soonest(etas);
}

TEST_CASE("schedule: a layer ends when hits and transfers, the last miss, and the CPU beside them have ended") {
  CHECK(layer_seconds({}) == 0);
  CHECK(layer_seconds({.hits = 2, .transfer = 5, .last = 1}) == 6);
  CHECK(layer_seconds({.hits = 7, .transfer = 5, .last = 1}) == 8);
  CHECK(layer_seconds({.hits = 2, .transfer = 5, .last = 1, .host = 9}) == 9);
}

TEST_CASE("schedule: an expert goes to who always takes it, and to the first where nobody does") {
  const Eta never{}, always{.kind = Eta::Kind::always}, unknown{.kind = Eta::Kind::unknown};
  const auto after = [](double seconds) { return Eta::after(seconds, 0.0); };
  CHECK(soonest(std::array{never, never}) == 0);
  CHECK(soonest(std::array{after(3), never, after(2)}) == 2);
  CHECK(soonest(std::array{after(2), after(2)}) == 0);
  CHECK(soonest(std::array{after(1), after(2), always}) == 2);
  CHECK(soonest(std::array{always, unknown}) == 0);
  CHECK(soonest(std::array{after(1), unknown}) == 1);
}

TEST_CASE("decode bound: hits hide behind transfers, or transfers behind hits") {
  DecodeBound bound;
  // Waits 6 for transfers of 10 beside hits of 3, then computes the misses that came late.
  bound.add({.total = 13, .hits = 3, .misses = 4, .last_miss = 1, .transfer = 10});
  CHECK(bound.seconds(20) == doctest::Approx(7 + 10 + 1));
  // Compute is what takes time.
  bound.add({.total = 9, .hits = 8, .misses = 1, .last_miss = 1, .transfer = 2});
  CHECK(bound.outside(30) == doctest::Approx(8));
  CHECK(bound.seconds(30) == doctest::Approx(8 + 11 + 9));
  CHECK(bound.with_foresight(30) == doctest::Approx(8 + 16));
  const DecodeBound earlier = bound;
  bound.add({.total = 2, .hits = 2});
  CHECK(bound.since(earlier).seconds(5) == doctest::Approx(5));
}

TEST_CASE("decode bound: with everything in memory it is the time itself") {
  DecodeBound bound;
  for (int layer = 0; layer < 5; ++layer)
    bound.add({.total = 2, .hits = 2});
  CHECK(bound.seconds(15) == doctest::Approx(15));
  CHECK(bound.with_foresight(15) == doctest::Approx(15));
}

TEST_CASE("decode bound: transfers alone are what foresight cannot hide") {
  DecodeBound bound;
  bound.add({.total = 100, .hits = 1, .misses = 2, .last_miss = 1, .transfer = 98});
  CHECK(bound.with_foresight(110) == doctest::Approx(98));
}

TEST_CASE("decode bound: clocks that disagree give no negative times") {
  DecodeBound bound;
  bound.add({.total = 3, .hits = 3});
  CHECK(bound.outside(2.9) == 0);
}

TEST_CASE("miss choice: what is asked for is done, and nothing that is measured changes it") {
  Rates rates;
  rates.link.learn(kExpert, 1, 1.0);
  rates.cpu.learn(kExpert, 1, 0.001);
  CHECK(way({.mode = MissMode::move}, rates) == kDevice);
  CHECK(way({.mode = MissMode::automatic, .is_deterministic = true}, rates) == kDevice);
  CHECK(way({.mode = MissMode::automatic}, rates) == kCpu);
  rates = {};
  rates.link.learn(kExpert, 1, 0.001);
  rates.cpu.learn(kExpert, 1, 1.0);
  CHECK(way({.mode = MissMode::compute, .is_deterministic = true}, rates) == kCpu);
  CHECK(way({.mode = MissMode::automatic}, rates) == kDevice);
}

TEST_CASE("miss choice: what is unknown is tried, the link first") {
  Rates rates;
  CHECK(way({}, rates) == kDevice);
  rates.link.learn(kExpert, 1, 0.002);
  CHECK(way({}, rates) == kCpu);
  rates.cpu.learn(kExpert, 1, 0.004);
  CHECK(way({}, rates) == kDevice);
}

TEST_CASE("miss choice: experts are shared so that link and CPU end together") {
  Rates rates;
  rates.link.learn(kExpert, 1, 0.002);
  rates.cpu.learn(kExpert, 1, 0.004);
  Backlog backlog;
  int moved = 0, computed = 0;
  for (int i = 0; i < 9; ++i) {
    if (way({}, rates, backlog) == kDevice) {
      ++moved;
      backlog.link += 0.002;
    } else {
      ++computed;
      backlog.cpu += 0.004;
    }
  }
  CHECK(moved == 6);
  CHECK(computed == 3);
}

TEST_CASE("work rate: the latest counts most, and rows that were not measured count as the nearest that were") {
  WorkRate link;
  CHECK_FALSE(link.seconds(1, 1));
  CHECK(link.bytes_per_second() == 0);
  link.learn(1000, 1, 1.0);
  CHECK(*link.seconds(500, 1) == doctest::Approx(0.5));
  link.learn(1000, 1, 2.0);
  CHECK(*link.seconds(1000, 1) == doctest::Approx(1.2));
  CHECK(link.bytes_per_second() == doctest::Approx(1000 / 1.2));
  link.learn(1000, 1, 0);  // a clock that did not tick teaches nothing
  CHECK(*link.seconds(1000, 1) == doctest::Approx(1.2));
  WorkRate cpu;
  CHECK_FALSE(cpu.seconds(1, 1));
  cpu.learn(1000, 4, 3.0);
  CHECK(*cpu.seconds(1000, 1) == doctest::Approx(3.0));
  CHECK(*cpu.seconds(1000, 9) == doctest::Approx(3.0));
  cpu.learn(1000, 2, 1.5);
  CHECK(*cpu.seconds(1000, 3) == doctest::Approx(1.5));
  CHECK(*cpu.seconds(1000, 1) == doctest::Approx(1.5));
  CHECK(*cpu.seconds(1000, 1000) == doctest::Approx(3.0));
}

}  // namespace
}  // namespace dspack::runtime::schedule_test
