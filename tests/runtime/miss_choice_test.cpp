#include "runtime/experts/vram/miss_choice.h"

#include <doctest/doctest.h>

namespace dspack::runtime::miss_choice_test {
namespace {

constexpr uint64_t kExpert = 44'000'000;

TEST_CASE("miss choice: what is asked for is done, and nothing that is measured changes it") {
  MissRates rates;
  rates.moved(kExpert, 1.0);
  rates.computed(kExpert, 1, 0.001);
  CHECK(choose_miss_way({.mode = MissMode::move}, rates, {}, kExpert, 1) == MissWay::move);
  CHECK(choose_miss_way({.mode = MissMode::automatic, .is_deterministic = true}, rates, {}, kExpert, 1) ==
        MissWay::move);
  CHECK(choose_miss_way({.mode = MissMode::automatic}, rates, {}, kExpert, 1) == MissWay::compute);
  rates = {};
  rates.moved(kExpert, 0.001);
  rates.computed(kExpert, 1, 1.0);
  CHECK(choose_miss_way({.mode = MissMode::compute, .is_deterministic = true}, rates, {}, kExpert, 1) ==
        MissWay::compute);
  CHECK(choose_miss_way({.mode = MissMode::automatic}, rates, {}, kExpert, 1) == MissWay::move);
}

TEST_CASE("miss choice: what is unknown is tried, the link first") {
  MissRates rates;
  CHECK(choose_miss_way({}, rates, {}, kExpert, 1) == MissWay::move);
  rates.moved(kExpert, 0.002);
  CHECK(choose_miss_way({}, rates, {}, kExpert, 1) == MissWay::compute);
  rates.computed(kExpert, 1, 0.004);
  CHECK(choose_miss_way({}, rates, {}, kExpert, 1) == MissWay::move);
}

TEST_CASE("miss choice: experts are shared so that link and CPU end together") {
  MissRates rates;
  rates.moved(kExpert, 0.002);
  rates.computed(kExpert, 1, 0.004);
  MissBacklog backlog;
  int moved = 0, computed = 0;
  for (int i = 0; i < 9; ++i) {
    if (choose_miss_way({}, rates, backlog, kExpert, 1) == MissWay::move) {
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

TEST_CASE("miss rates: the latest counts most, and rows that were not measured count as the nearest that were") {
  MissRates rates;
  CHECK_FALSE(rates.move_seconds(1));
  CHECK_FALSE(rates.compute_seconds(1, 1));
  CHECK(rates.link_bytes_per_second() == 0);
  rates.moved(1000, 1.0);
  CHECK(*rates.move_seconds(500) == doctest::Approx(0.5));
  rates.moved(1000, 2.0);
  CHECK(*rates.move_seconds(1000) == doctest::Approx(1.2));
  CHECK(rates.link_bytes_per_second() == doctest::Approx(1000 / 1.2));
  rates.moved(1000, 0);  // a clock that did not tick teaches nothing
  CHECK(*rates.move_seconds(1000) == doctest::Approx(1.2));
  rates.computed(1000, 4, 3.0);
  CHECK(*rates.compute_seconds(1000, 1) == doctest::Approx(3.0));
  CHECK(*rates.compute_seconds(1000, 9) == doctest::Approx(3.0));
  rates.computed(1000, 2, 1.5);
  CHECK(*rates.compute_seconds(1000, 3) == doctest::Approx(1.5));
  CHECK(*rates.compute_seconds(1000, 1) == doctest::Approx(1.5));
  CHECK(*rates.compute_seconds(1000, 1000) == doctest::Approx(3.0));
}

}  // namespace
}  // namespace dspack::runtime::miss_choice_test
