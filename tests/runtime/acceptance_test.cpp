#include "runtime/generate/acceptance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace dspack::runtime::acceptance_test {
namespace {

using Distribution = std::vector<Candidate>;

/// P(token) of a speculative step, exactly: each draft with its probability, each first number on a fine grid, each
/// second number likewise. `keep_or_replace` draws at most two.
std::map<uint32_t, double> outcome(const Distribution& target, const Distribution& proposal) {
  constexpr int kGrid = 2000;
  std::map<uint32_t, double> sums;
  for (const Candidate& draft : proposal) {
    for (int first = 0; first < kGrid; ++first) {
      int draws = 0;
      // The replacement's number need not be independent of a rejected first one for the sums: it is spread over the
      // grid by a stride that has no factor in common with it.
      const auto uniform = [&] {
        ++draws;
        const int step = draws == 1 ? first : static_cast<int>((int64_t{first} * 1237) % kGrid);
        return (step + 0.5) / kGrid;
      };
      sums[keep_or_replace(target, proposal, draft.token, uniform)] += draft.probability / kGrid;
      CHECK(draws <= 2);
    }
  }
  return sums;
}

void check_outcome(const Distribution& target, const Distribution& proposal) {
  const auto sums = outcome(target, proposal);
  for (const Candidate& candidate : target) {
    CAPTURE(candidate.token);
    const auto found = sums.find(candidate.token);
    // The grid's step is 1/2000; each boundary can be off by one step for each draft.
    CHECK(std::abs((found == sums.end() ? 0 : found->second) - candidate.probability) < 3e-3);
  }
  for (const auto& [token, sum] : sums) {
    CAPTURE(token);
    CHECK(std::ranges::find(target, token, &Candidate::token) != target.end());
  }
}

TEST_CASE("acceptance: what comes out is distributed as the target, whatever was proposed") {
  const Distribution target = {{1, 0.5}, {2, 0.3}, {7, 0.2}};
  check_outcome(target, target);
  check_outcome(target, {{1, 0.1}, {2, 0.1}, {7, 0.8}});
  check_outcome(target, {{7, 1.0}});
  check_outcome(target, {{3, 0.6}, {4, 0.4}});              // nothing in common
  check_outcome(target, {{9, 0.5}, {7, 0.25}, {1, 0.25}});  // likeliest first, as top-p leaves them
  check_outcome({{5, 1.0}}, {{4, 0.9}, {5, 0.1}});
  check_outcome({{2, 0.3}, {1, 0.7}}, {{1, 0.7}, {2, 0.3}});
}

TEST_CASE("acceptance: exact decisions") {
  const Distribution target = {{0, 0.25}, {1, 0.75}};
  const Distribution proposal = {{0, 0.5}, {1, 0.5}};
  const auto with = [&](uint32_t draft, double number) {
    return keep_or_replace(target, proposal, draft, [&] { return number; });
  };
  CHECK(with(1, 0.999) == 1);  // p >= q: kept, whatever is drawn
  CHECK(with(0, 0.499) == 0);  // p / q = 1/2
  CHECK(with(0, 0.5) == 1);    // the only token with p > q
}

TEST_CASE("acceptance: certain tokens draw nothing") {
  const auto never = [] {
    FAIL("a number was drawn");
    return 0.0;
  };
  CHECK(keep_or_replace(Distribution{{3, 1.0}}, Distribution{{3, 1.0}}, 3, never) == 3);
  CHECK(keep_or_replace(Distribution{{3, 1.0}}, Distribution{{4, 1.0}}, 4, never) == 3);
  CHECK(draw(Distribution{{8, 1.0}}, 1.0, never) == 8);
}

TEST_CASE("acceptance: distributions that differ by rounding keep the draft") {
  const Distribution target = {{0, 0.5}, {1, 0.5 - 1e-17}};
  const Distribution proposal = {{0, 0.5}, {1, 0.5}};
  CHECK(keep_or_replace(target, proposal, 1, [] { return 1 - 0x1p-53; }) == 1);
}

}  // namespace
}  // namespace dspack::runtime::acceptance_test
