// The replay on routes small enough to count by hand, and the optimum against all possibilities.
#include "runtime/replay/simulate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/replay/report.h"
#include "tests/runtime/replay/lab.h"

namespace dspack::runtime::replay_test {
namespace {

ReplayResult with_lru(const Workload& workload, uint64_t slots) {
  LruPolicy policy;
  return simulate(workload, slots, policy);
}

uint64_t optimum(const Workload& workload, uint64_t slots) {
  BeladyPolicy policy(workload);
  return simulate(workload, slots, policy).misses();
}

// The fewest misses over every choice of what stays, by dynamic programming over sets of experts.
uint64_t fewest_misses(const Workload& workload, uint64_t slots) {
  std::map<uint32_t, uint64_t> states = {{0, 0}};  // experts in slots, as bits -> misses so far
  const uint32_t experts = workload.header().layers.front().experts;
  for (const Workload::Step& step : workload.steps()) {
    uint32_t wanted = 0;
    for (const ExpertDemand& demand : workload.demands(step))
      wanted |= 1U << (step.layer.value * experts + demand.expert.value);
    std::map<uint32_t, uint64_t> after;
    for (const auto& [inside, misses] : states) {
      const uint32_t others = inside & ~wanted;
      for (uint32_t kept = others;; kept = (kept - 1) & others) {
        const uint32_t next = kept | wanted;
        if (static_cast<uint64_t>(std::popcount(next)) <= slots) {
          const uint64_t sum = misses + static_cast<uint64_t>(std::popcount(wanted & ~inside));
          const auto [at, is_new] = after.emplace(next, sum);
          if (!is_new) at->second = std::min(at->second, sum);
        }
        if (kept == 0) break;
      }
    }
    states = std::move(after);
  }
  uint64_t fewest = UINT64_MAX;
  for (const auto& [inside, misses] : states)
    fewest = std::min(fewest, misses);
  return fewest;
}

TEST_CASE("replay: the optimum misses as little as the best of all possible choices") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto layers = static_cast<uint32_t>(1 + seed % 3);
    const Workload workload = lab::random_decode(layers, 9 / layers, 1 + static_cast<uint32_t>(seed % 2), 14, seed);
    for (uint64_t slots = 2; slots <= 5; ++slots) {
      CAPTURE(seed);
      CAPTURE(slots);
      CHECK(optimum(workload, slots) == fewest_misses(workload, slots));
    }
  }
}

TEST_CASE("replay: no policy misses less than the optimum; with a slot for each expert all miss once") {
  const Workload workload = lab::random_decode(4, 32, 4, 120, 3);
  for (const uint64_t slots : {1, 3, 4, 10, 16, 40, 100, 128, 500}) {
    const ReplayReport report = replay(workload, slots, eviction_policies());
    CHECK(report.outcomes.size() == eviction_policies().size() + 1);
    const uint64_t fewest = report.outcomes.back().result.misses();
    for (const PolicyOutcome& outcome : report.outcomes) {
      CAPTURE(slots);
      CAPTURE(outcome.name);
      const ReplayCounts& decode = outcome.result.of(Phase::decode);
      CHECK(decode.hits + decode.misses == 4 * 4 * 120);
      CHECK(decode.bytes == 100 * decode.misses);
      if (slots >= workload.floor()) CHECK(outcome.result.misses() >= fewest);
      if (slots >= 128) CHECK(outcome.result.misses() == fewest);
    }
  }
}

TEST_CASE("replay: counted by hand") {
  const Workload workload = lab::decode(lab::header(1, 8, 1), {{{1}}, {{2}}, {{3}}, {{1}}, {{3}}, {{2}}});
  const ReplayResult lru = with_lru(workload, 2);  // 1 2 3 1 miss, 3 hits, 2 misses
  CHECK(lru.of(Phase::decode).misses == 5);
  CHECK(lru.of(Phase::decode).hits == 1);
  CHECK(optimum(workload, 2) == 4);  // 3 takes the place of 2
  const ReplayReport report = replay(workload, 2, eviction_policies());
  CHECK(report.outcomes.front().gap_closed == 0.0);
  CHECK(report.outcomes.back().gap_closed == 1.0);
  CHECK_FALSE(replay(workload, 8, eviction_policies()).outcomes.front().gap_closed);
  CHECK(workload.floor() == 1);
  CHECK(workload.tokens(Phase::decode) == 6);
  CHECK(to_table(workload, report).find("optimum") != std::string::npos);
}

TEST_CASE("replay: a prompt asks for an expert of a layer once; more experts than slots go in waves") {
  Workload workload(lab::header(1, 8, 2));
  lab::add(workload, {.pass = 0, .phase = Phase::prefill, .layer = LayerId(0), .ids = {0, 1, 1, 2, 0, 3}});
  lab::add(workload, {.pass = 1, .layer = LayerId(0), .ids = {0, 3}});
  CHECK(workload.tokens(Phase::prefill) == 3);
  CHECK(with_lru(workload, 4).of(Phase::prefill).misses == 4);
  CHECK(with_lru(workload, 4).of(Phase::decode).misses == 0);
  CHECK(with_lru(workload, 2).of(Phase::prefill).misses == 4);
  CHECK(with_lru(workload, 2).of(Phase::decode).hits == 1);  // the last wave stays
  CHECK(with_lru(workload, 1).of(Phase::decode).misses == 1);
}

TEST_CASE("replay: one wave of tens of thousands of experts takes no time to speak of, under any policy") {
  constexpr uint32_t kExperts = 40'000;
  constexpr uint32_t kTopK = 200;
  Workload workload(lab::header(1, kExperts, kTopK));
  std::vector<uint32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  lab::add(workload, {.pass = 0, .phase = Phase::prefill, .layer = LayerId(0), .ids = all});
  constexpr uint64_t kSlots = kExperts / 2;
  for (const NamedPolicy& named : eviction_policies()) {
    CAPTURE(named.name);
    // Questions are counted: a clock says little on a machine that others use.
    const auto policy = named.make();
    uint64_t asked = 0;
    for (uint32_t i = 0; i < kSlots; ++i) {
      const ExpertUse use{.key = lab::key(0, i), .phase = Phase::prefill};
      policy->inserted(use);
      policy->hold(use.key);
    }
    policy->let_go();
    for (uint32_t i = kSlots; i < kExperts; ++i) {
      const auto victim = policy->victim([&](ExpertKey key) {
        ++asked;
        return key.expert.value < kSlots;
      });
      REQUIRE(victim);
      policy->removed(*victim);
      const ExpertUse use{.key = lab::key(0, i), .phase = Phase::prefill};
      policy->inserted(use);
      policy->hold(use.key);
    }
    CHECK(asked <= 2 * kSlots);
    CHECK(simulate(workload, kSlots, *named.make()).misses() == kExperts);
  }
}

TEST_CASE("replay: drafts that stood count as tokens and as uses, others as neither") {
  Workload workload(lab::header(1, 8, 1));
  for (uint32_t expert = 0; expert < 2; ++expert)
    lab::add(workload, {.pass = expert, .layer = LayerId(0), .ids = {expert}});
  lab::add(workload, {.pass = 2, .draft_rows = 2, .layer = LayerId(0), .ids = {2, 3, 4}});
  REQUIRE(workload.add(AcceptedDrafts{.pass = 2, .rows = 1}));
  lab::add(workload, {.pass = 3, .layer = LayerId(0), .ids = {5}});
  lab::add(workload, {.pass = 4, .layer = LayerId(0), .ids = {3}});
  CHECK(workload.tokens(Phase::decode) == 6);
  const ReplayResult result = with_lru(workload, 3);
  CHECK(result.of(Phase::decode).misses == 6);  // 5 takes the place of 4, which did not stand
  CHECK(result.of(Phase::decode).hits == 1);
  CHECK(optimum(workload, 3) == 6);
}

TEST_CASE("replay: of the misses, those of layers that find their experts by token are told") {
  RouteHeader header = lab::header(2, 8, 1);
  header.layers.front().is_by_token = true;
  Workload workload(*parse_route_header(to_line(header)));
  for (uint32_t expert = 0; expert < 3; ++expert) {
    for (uint32_t layer = 0; layer < 2; ++layer)
      lab::add(workload, {.pass = expert, .layer = LayerId(layer), .ids = {expert / (layer + 1)}});
  }
  const ReplayCounts counts = with_lru(workload, 8).of(Phase::decode);
  CHECK(counts.misses == 5);
  CHECK(counts.known_misses == 3);
  const NamedPolicy* const policy = &eviction_policies().front();
  CHECK(to_table(workload, replay(workload, 8, {policy, 1})).find("60.0 %") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime::replay_test
