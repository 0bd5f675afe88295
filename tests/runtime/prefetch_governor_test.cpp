// The governor with passes that are made up, so that what pays is known.
#include "runtime/experts/prefetch_governor.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>

namespace dspack::runtime::prefetch_governor_test {
namespace {

struct World {
  double seconds_off = 1;  // of a pass
  double seconds_on = 1;
  uint64_t useful_bytes = 100;  // of a pass with prefetch
  uint64_t wasted_bytes = 50;
  uint64_t misses = 10;
};

// Returns in how many of `passes` it was on. Times scatter by a tenth.
uint64_t passes_on(PrefetchGovernor& governor, const World& world, uint64_t passes) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> scatter(0.95, 1.05);
  uint64_t on = 0;
  for (uint64_t i = 0; i < passes; ++i) {
    const bool is_on = governor.is_on();
    on += is_on ? 1 : 0;
    governor.record({.seconds = (is_on ? world.seconds_on : world.seconds_off) * scatter(random),
                     .experts = 100,
                     .misses = world.misses,
                     .useful_bytes = is_on ? world.useful_bytes : 0,
                     .wasted_bytes = is_on ? world.wasted_bytes : 0});
  }
  return on;
}

TEST_CASE("prefetch governor: on and off are what they say, whatever happens") {
  PrefetchGovernor off(PrefetchMode::off);
  CHECK(passes_on(off, {.seconds_on = 0.1}, 200) == 0);
  CHECK_FALSE(off.has_switched_off());
  PrefetchGovernor on(PrefetchMode::on);
  CHECK(passes_on(on, {.seconds_on = 10, .useful_bytes = 0, .wasted_bytes = 9, .misses = 0}, 200) == 200);
}

TEST_CASE("prefetch governor: it stays on where passes are shorter with it") {
  PrefetchGovernor governor(PrefetchMode::automatic);
  CHECK(passes_on(governor, {.seconds_on = 0.85}, 1000) > 900);
  CHECK_FALSE(governor.has_switched_off());
}

TEST_CASE("prefetch governor: it goes off where passes are longer with it, and looks again more and more rarely") {
  PrefetchGovernor governor(PrefetchMode::automatic);
  CHECK(passes_on(governor, {.seconds_on = 1.3}, 1000) < 80);
  CHECK(governor.has_switched_off());
  CHECK(passes_on(governor, {.seconds_on = 1.3}, 10000) < 120);
  SUBCASE("what has changed is found in time") {
    CHECK(passes_on(governor, {.seconds_on = 0.7}, 10000) > 5000);
  }
}

TEST_CASE("prefetch governor: more waste than use switches it off, however fast it is") {
  PrefetchGovernor governor(PrefetchMode::automatic);
  CHECK(passes_on(governor, {.seconds_on = 0.5, .useful_bytes = 40, .wasted_bytes = 60}, 1000) < 80);
  PrefetchGovernor turned(PrefetchMode::automatic);
  passes_on(turned, {.seconds_on = 0.5}, 40);
  REQUIRE(turned.is_on());
  const uint64_t on = passes_on(turned, {.seconds_on = 0.5, .useful_bytes = 10, .wasted_bytes = 90}, 60);
  CHECK(on < 20);
  CHECK(turned.has_switched_off());
}

TEST_CASE("prefetch governor: where nothing is missing there is nothing to try") {
  PrefetchGovernor governor(PrefetchMode::automatic);
  CHECK(passes_on(governor, {.useful_bytes = 0, .wasted_bytes = 0, .misses = 0}, 500) == 0);
  CHECK_FALSE(governor.has_switched_off());
  SUBCASE("until something is") {
    CHECK(passes_on(governor, {.seconds_on = 0.8}, 500) > 400);
  }
}

}  // namespace
}  // namespace dspack::runtime::prefetch_governor_test
