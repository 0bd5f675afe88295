#include "runtime/experts/fetch_outlook.h"

#include <doctest/doctest.h>

#include "runtime/generate/fetch_guard.h"
#include "tests/runtime/support/fake_tier.h"

namespace dspack::runtime::fetch_outlook_test {
namespace {

TEST_CASE("outlook: expected experts of a layer") {
  CHECK(expected_experts(256, 8, 0) == 0);
  CHECK(expected_experts(256, 8, 1) == doctest::Approx(8));
  // V3 by hand: 256 (1 - (31/32)^13), and nearly all for a long prompt.
  CHECK(expected_experts(256, 8, 13) == doctest::Approx(86.57).epsilon(0.001));
  CHECK(expected_experts(256, 8, 1000) == doctest::Approx(256));
  CHECK(expected_experts(4, 8, 1) == doctest::Approx(4));
  CHECK(expected_experts(0, 8, 1) == 0);
}

struct Places {
  test::ExpertFolder folder{6};
  test::FakeTier storage{folder};
  uint64_t expert_bytes = 3ULL * test::ExpertFolder::kHidden * test::ExpertFolder::kInner + 12;
  std::set<ExpertKey> in_memory;
  Medium tier = Medium::disk;
  double cached_share = 0;

  [[nodiscard]] FetchOutlook ask(const PromptShape& prompt) const {
    return fetch_outlook(storage.checkpoint(), prompt,
                         {.cached_share = cached_share,
                          .is_in_memory = [&](ExpertKey key) { return in_memory.contains(key); },
                          .medium_of = [&](ExpertKey) { return tier; }});
  }
};

TEST_CASE("outlook: what is in memory is not read, and what is across the network comes onto the disk") {
  Places places;
  const PromptShape prompt{.layers = {LayerId(0), LayerId(1)}, .top_k = 6, .tokens = 1, .chunk = 100};
  CHECK(places.ask(prompt).experts == 12);
  CHECK(places.ask(prompt).bytes == 12 * places.expert_bytes);
  CHECK(places.ask(prompt).network_bytes == 0);
  places.in_memory = {{.layer = LayerId(0), .expert = ExpertId(1)}, {.layer = LayerId(1), .expert = ExpertId(5)}};
  places.tier = Medium::network;
  CHECK(places.ask(prompt).experts == 10);
  CHECK(places.ask(prompt).network_bytes == 10 * places.expert_bytes);
  SUBCASE("layers that the pass leaves out are not read") {
    CHECK(places.ask({.layers = {LayerId(1)}, .top_k = 6, .tokens = 1, .chunk = 100}).experts == 5);
  }
  SUBCASE("a prompt in chunks reads again what memory does not hold; the network only once") {
    places.cached_share = 0.25;
    const FetchOutlook outlook = places.ask({.layers = prompt.layers, .top_k = 6, .tokens = 3, .chunk = 2});
    CHECK(outlook.experts == 10 + 9);
    CHECK(outlook.network_bytes == 10 * places.expert_bytes);
  }
}

TEST_CASE("outlook: a line for what takes a while, nothing for what does not") {
  CHECK(outlook_line({.experts = 1, .bytes = 900'000'000}, 7, std::nullopt).empty());
  CHECK(outlook_line({.experts = 1, .bytes = 900'000'000}, 7, 1e9).empty());
  CHECK(outlook_line({.experts = 1, .bytes = 900'000'000}, 7, 1e8) ==
        "reading about 900 MB of experts for 7 tokens, 9.0 s at 100 MB/s");
  CHECK(outlook_line({.experts = 9, .bytes = 3'200'000'000, .network_bytes = 2'000'000'000}, 7, std::nullopt) ==
        "reading about 3.20 GB of experts for 7 tokens; 2.00 GB over the network, then kept on disk");
}

}  // namespace
}  // namespace dspack::runtime::fetch_outlook_test
