// The cache of experts by itself: slots without bytes.
#include "runtime/experts/expert_cache.h"

#include <doctest/doctest.h>

#include "runtime/experts/policy/lru.h"

namespace dspack::runtime::expert_cache_test {
namespace {

constexpr LayerId kLayer(1);
constexpr LayerId kNext(2);

struct Cache {
  explicit Cache(uint64_t slots, PrefetchMode prefetch = PrefetchMode::on)
      : cache({{.slot_bytes = 10, .experts = 8, .layers = {kLayer, kNext}}}, {slots},
              {.policy = [] { return std::make_unique<LruPolicy>(); },
               .prefetch = prefetch,
               .make_slot = [this](size_t, uint64_t place) -> Result<std::unique_ptr<CacheSlot>> {
                 if (place == fails_at) return Error{ErrorKind::budget, "no memory"};
                 return std::make_unique<CacheSlot>();
               },
               .evicting = [this](const CacheSlot& slot) { evicted.push_back(slot.key.expert.value); }}) {
    cache.begin_pass({}, {});
  }

  static ExpertKey key(uint32_t expert, LayerId layer = kLayer) { return {.layer = layer, .expert = ExpertId(expert)}; }
  [[nodiscard]] ExpertUse use(uint32_t expert) const { return cache.use_of(kLayer, {.expert = ExpertId(expert)}); }
  /// Whether the expert got a slot, in which it is ready at once.
  bool insert(uint32_t expert, ExpertCache::Evict evict = ExpertCache::Evict::any) {
    const auto slot = cache.insert(use(expert), evict);
    REQUIRE(slot);
    if (*slot == nullptr) return false;
    (*slot)->is_ready = true;
    (*slot)->bytes = 10;
    return true;
  }

  uint64_t fails_at = UINT64_MAX;
  std::vector<uint32_t> evicted;
  ExpertCache cache;
};

TEST_CASE("expert cache: the policy's victim leaves, but no expert that is pinned or not ready") {
  Cache lab(2);
  CHECK(lab.insert(0));
  CHECK(lab.insert(1));
  CHECK_FALSE(lab.insert(2, ExpertCache::Evict::none));
  ++lab.cache.find(Cache::key(0))->pins;
  CHECK(lab.insert(2));
  CHECK(lab.evicted == std::vector<uint32_t>{1});
  lab.cache.find(Cache::key(2))->is_ready = false;
  CHECK_FALSE(lab.insert(3));
  --lab.cache.find(Cache::key(0))->pins;
  lab.cache.clear(*lab.cache.find(Cache::key(0)));
  CHECK(lab.insert(3, ExpertCache::Evict::none));
  CHECK(lab.cache.used() == 2);
  CHECK(lab.cache.counts().evictions == 1);
}

TEST_CASE("expert cache: spare experts leave before others, the last of them first") {
  Cache lab(3);
  for (const uint32_t expert : {0U, 1U, 2U})
    lab.insert(expert);
  lab.cache.set_spare(Cache::key(1), true);
  lab.cache.set_spare(Cache::key(2), true);
  for (const uint32_t expert : {3U, 4U, 5U})
    lab.insert(expert);
  CHECK(lab.evicted == std::vector<uint32_t>{2, 1, 0});
}

TEST_CASE("expert cache: a prefetch spares what this layer and the next may need, and is counted when it is wanted") {
  Cache lab(3);
  for (const uint32_t expert : {0U, 1U, 2U})
    lab.insert(expert);
  const std::vector<ExpertDemand> demands = {{.expert = ExpertId(0)}, {.expert = ExpertId(1)}};
  lab.cache.begin_layer(kLayer, demands);
  const std::vector<ExpertId> likely = {ExpertId(6), ExpertId(7)};
  lab.cache.expect(kNext, likely);
  REQUIRE(lab.cache.next_expected() == Cache::key(6, kNext));
  const auto slot = lab.cache.insert_prefetch(Cache::key(6, kNext));
  REQUIRE((slot && *slot != nullptr));
  CHECK(lab.evicted == std::vector<uint32_t>{2});
  (*slot)->is_ready = true;
  (*slot)->bytes = 10;
  const auto none = lab.cache.insert_prefetch(Cache::key(7, kNext));
  REQUIRE(none);
  CHECK(*none == nullptr);
  lab.cache.begin_layer(kNext, {});
  CHECK_FALSE(lab.cache.next_expected());
  CHECK(lab.cache.counts().expected == 2);
  lab.cache.hit(**slot, lab.cache.use_of(kNext, {.expert = ExpertId(6)}), false);
  CHECK(lab.cache.prefetch_counts().useful_bytes == 10);
  CHECK(lab.cache.counts().hits == 1);
}

TEST_CASE("expert cache: drafted uses count when the drafts are accepted") {
  Cache lab(2);
  lab.cache.begin_pass({.phase = Phase::decode, .rows = 2, .draft_rows = 1}, {});
  const ExpertDemand draft{.expert = ExpertId(1), .rows = 1, .first_row = 1, .last_row = 1};
  CHECK(lab.cache.use_of(kLayer, draft).is_draft);
  lab.insert(0);
  const auto slot = lab.cache.insert(lab.cache.use_of(kLayer, draft), ExpertCache::Evict::any);
  REQUIRE((slot && *slot != nullptr));
  (*slot)->is_ready = true;
  lab.cache.begin_layer(kLayer, {&draft, 1});
  SUBCASE("rejected: its expert leaves first") {
    lab.cache.accept_drafts(0);
    lab.insert(2);
    CHECK(lab.evicted == std::vector<uint32_t>{1});
  }
  SUBCASE("accepted: it was used last") {
    lab.cache.accept_drafts(1);
    lab.insert(2);
    CHECK(lab.evicted == std::vector<uint32_t>{0});
  }
}

TEST_CASE("expert cache: a slot that cannot be made is an error, and none of it remains") {
  Cache lab(2);
  lab.insert(0);
  lab.fails_at = 1;
  const auto failed = lab.cache.insert(lab.use(1), ExpertCache::Evict::any);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().kind == ErrorKind::budget);
  CHECK(lab.cache.find(Cache::key(1)) == nullptr);
  CHECK(lab.cache.used() == 1);
}

}  // namespace
}  // namespace dspack::runtime::expert_cache_test
