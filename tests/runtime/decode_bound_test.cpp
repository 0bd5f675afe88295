// The bound of a starved decode, on times that are made up.
#include "runtime/experts/decode_bound.h"

#include <doctest/doctest.h>

namespace dspack::runtime::decode_bound_test {
namespace {

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

}  // namespace
}  // namespace dspack::runtime::decode_bound_test
