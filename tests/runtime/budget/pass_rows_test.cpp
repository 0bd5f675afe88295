// How many tokens of a prompt go through a model at once.
#include "runtime/budget/pass_rows.h"

#include <doctest/doctest.h>

namespace dspack::test::pass_rows_test {

using runtime::longest_that_fit;
using runtime::PassRows;

TEST_CASE("pass rows: the chunk comes first, in usual waves; then waves as long as still fit") {
  constexpr PassRows kLongest{.chunk = 20'000, .wave = 4096};
  const auto most = [&](uint64_t bytes) {
    return longest_that_fit(kLongest, [=](PassRows rows) { return rows.chunk * 10ULL + rows.wave * 100ULL <= bytes; });
  };
  CHECK(most(1'000'000) == kLongest);
  CHECK(most(609'599) == PassRows{.chunk = 20'000, .wave = 2048});
  CHECK(most(225'600) == PassRows{.chunk = 20'000, .wave = 256});
  CHECK(most(225'599) == PassRows{.chunk = 10'000, .wave = 1024});
  CHECK(most(1'100) == PassRows{.chunk = 10, .wave = 10});
  CHECK(most(110) == PassRows{.chunk = 1, .wave = 1});
  CHECK(most(0) == PassRows{.chunk = 1, .wave = 1});  // the caller finds out that even this does not fit
}

TEST_CASE("pass rows: waves are no longer than the chunk, nor than what is worth it") {
  const auto all = [](PassRows) { return true; };
  CHECK(longest_that_fit({.chunk = 100, .wave = 4096}, all) == PassRows{.chunk = 100, .wave = 100});
  CHECK(longest_that_fit({.chunk = 5000, .wave = 256}, all) == PassRows{.chunk = 5000, .wave = 256});
  CHECK(longest_that_fit({.chunk = 5000, .wave = 3000}, all) == PassRows{.chunk = 5000, .wave = 3000});
  CHECK(longest_that_fit({.chunk = 300, .wave = 60}, all) == PassRows{.chunk = 300, .wave = 60});
}

}  // namespace dspack::test::pass_rows_test
