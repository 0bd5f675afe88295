// What each policy promises; what all of them owe the store.
#include <algorithm>
#include <set>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/policy/reuse.h"
#include "tests/runtime/replay/lab.h"

namespace dspack::runtime::policy_test {
namespace {

using lab::key;

std::optional<ExpertKey> take(EvictionPolicy& policy) {
  const auto victim = policy.victim(lab::any);
  if (victim) policy.removed(*victim);
  return victim;
}

TEST_CASE("policies: the default is one of them, an unknown name lists all") {
  CHECK(find_policy(kDefaultPolicy));
  const auto unknown = find_policy("mru");
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().message == "there is no eviction policy mru; there are lru, reuse");
  for (const NamedPolicy& named : eviction_policies())
    CHECK(named.make()->name() == named.name);
}

TEST_CASE("policies: every expert in a slot goes in the end, once, and only if it may") {
  for (const NamedPolicy& named : eviction_policies()) {
    CAPTURE(named.name);
    const auto policy = named.make();
    std::set<ExpertKey> inside;
    std::mt19937_64 random(7);
    for (uint64_t pass = 0; pass < 60; ++pass) {
      for (uint32_t layer = 0; layer < 3; ++layer) {
        for (uint32_t i = 0; i < 4; ++i) {
          const ExpertUse use{.key = key(layer, static_cast<uint32_t>(random() % 30)),
                              .pass = pass,
                              .phase = pass % 20 == 0 ? Phase::prefill : Phase::decode,
                              .rows = 1 + i,
                              .last_row = pass % 20 == 0 ? 3 - i : 0,
                              .is_draft = random() % 5 == 0};
          if (inside.insert(use.key).second) {
            policy->inserted(use);
          } else {
            policy->hit(use);
          }
        }
        if (random() % 4 == 0 && inside.insert(key(2 - layer, 29)).second) policy->prefetched(key(2 - layer, 29), pass);
        while (inside.size() > 25) {
          const auto may_go = [](ExpertKey k) { return k.expert.value % 3 != 0; };
          const auto victim = policy->victim(may_go);
          if (!victim) break;
          CHECK(may_go(*victim));
          REQUIRE(inside.erase(*victim) == 1);
          policy->removed(*victim);
        }
      }
    }
    CHECK_FALSE(policy->victim([](ExpertKey) { return false; }));
    while (!inside.empty()) {
      const auto victim = take(*policy);
      REQUIRE(victim);
      REQUIRE(inside.erase(*victim) == 1);
    }
    CHECK_FALSE(take(*policy));
  }
}

TEST_CASE("lru: the one used longest ago goes; a draft is no use until it has stood") {
  LruPolicy policy;
  for (uint32_t expert = 0; expert < 4; ++expert)
    policy.inserted({.key = key(0, expert), .pass = expert});
  policy.hit({.key = key(0, 0), .pass = 4});
  policy.hit({.key = key(0, 1), .pass = 4, .is_draft = true});
  CHECK(take(policy) == key(0, 1));
  policy.inserted({.key = key(0, 5), .pass = 5, .is_draft = true});
  policy.inserted({.key = key(0, 6), .pass = 5, .is_draft = true});
  policy.hit({.key = key(0, 6), .pass = 5});
  CHECK(take(policy) == key(0, 5));
  CHECK(take(policy) == key(0, 2));
  CHECK(take(policy) == key(0, 3));
  CHECK(take(policy) == key(0, 0));
  CHECK(take(policy) == key(0, 6));
}

TEST_CASE("lru: after a prompt the experts of its first tokens go first, whatever their layer") {
  LruPolicy policy;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    policy.inserted({.key = key(layer, 0), .pass = 0, .phase = Phase::prefill, .rows = 9, .last_row = 0});
    policy.inserted({.key = key(layer, 1), .pass = 0, .phase = Phase::prefill, .rows = 1, .last_row = 8});
  }
  CHECK(take(policy) == key(0, 1));
  CHECK(take(policy) == key(1, 1));
  CHECK(take(policy) == key(0, 0));
}

TEST_CASE("reuse: below one token's experts it still hits, where recency never does") {
  // Every token takes the same three experts of four layers: twelve, of which eight fit.
  std::vector<std::vector<std::vector<uint32_t>>> routes(50, {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}});
  const Workload workload = lab::decode(lab::header(4, 8, 3), routes);
  LruPolicy lru;
  CHECK(simulate(workload, 8, lru).of(Phase::decode).hits == 0);
  ReusePolicy reuse;
  CHECK(simulate(workload, 8, reuse).of(Phase::decode).hits > 150);
}

TEST_CASE("reuse: it learns that what was used often comes again, and what was used last does not") {
  // Expert 0 comes every third token; the others of 1 to 59 come once in turn, and never twice in a row.
  std::vector<std::vector<std::vector<uint32_t>>> routes;
  for (uint32_t token = 0; token < 600; ++token)
    routes.push_back({{token % 3 == 0 ? 0 : 1 + token % 59}});
  const Workload workload = lab::decode(lab::header(1, 60, 1), routes);
  LruPolicy lru;
  CHECK(simulate(workload, 2, lru).of(Phase::decode).hits == 0);
  ReusePolicy reuse;
  CHECK(simulate(workload, 2, reuse).of(Phase::decode).hits > 150);
}

TEST_CASE("reuse: what only drafts have asked for goes first, and so does what a prompt used at its beginning") {
  ReusePolicy policy;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    policy.inserted({.key = key(layer, 0), .pass = 0, .phase = Phase::prefill, .rows = 100, .last_row = 0});
    policy.inserted({.key = key(layer, 1), .pass = 0, .phase = Phase::prefill, .rows = 1, .last_row = 99});
    policy.inserted({.key = key(layer, 2), .pass = 0, .phase = Phase::prefill, .rows = 40, .last_row = 5});
  }
  for (uint64_t pass = 1; pass < 3; ++pass) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      policy.hit({.key = key(layer, 0), .pass = pass});
      if (pass == 1) policy.inserted({.key = key(layer, 7), .pass = pass, .last_row = 0, .is_draft = true});
    }
  }
  CHECK(take(policy)->expert == ExpertId(7));
  CHECK(take(policy)->expert == ExpertId(7));
  CHECK(take(policy)->expert == ExpertId(1));
  CHECK(take(policy)->expert == ExpertId(1));
  CHECK(take(policy)->expert == ExpertId(2));
}

}  // namespace
}  // namespace dspack::runtime::policy_test
