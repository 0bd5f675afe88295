// Experts that several devices hold, each those that belong to it: whatever lies where, and in whatever order the
// devices' queues run, the result is that of the CPU's executor, bit for bit.
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <array>

#include "runtime/experts/expert_filling.h"
#include "runtime/experts/pinned_slots.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/runtime/support/tiered_place.h"

namespace dspack::runtime::several_devices_test {
namespace {

using test::ExpertPlace;
using test::kFirst;
using test::kSecond;
using test::lru;
using test::RoutedRows;
using test::TierReference;
using test::Tiers;

void check_passes(TierReference& reference, ExpertPlace& place, Tiers& cards) {
  test::check_some_passes(reference, place, cards, {1, 1, 2, 1, 7, 1, 16, 1, 90, 23, 1});
}

}  // namespace

TEST_CASE("several devices: bit for bit the CPU's result at every size of each, whoever computes what is missing") {
  TierReference reference(test::tiny_folder());
  uint64_t seed = 0;
  for (const MissMode mode : {MissMode::move, MissMode::automatic, MissMode::compute}) {
    for (const std::vector<uint64_t>& slots :
         std::vector<std::vector<uint64_t>>{{0, 0}, {3, 3}, {0, 5}, {9, 2}, {40, 40}, {64, 64}, {100, 28}, {4, 3, 2}}) {
      for (const uint64_t ram : {6, 128}) {
        CAPTURE(mode);
        CAPTURE(fmt::format("{}", fmt::join(slots, ",")));
        CAPTURE(ram);
        ExpertPlace place(test::tiny_folder(), true, UINT64_MAX, ++seed);
        for (size_t i = 1; i < slots.size(); ++i)
          place.add_device(slots[i]);
        Tiers cards(place, {.vram = slots[0], .ram = ram},
                    {.mode = mode, .is_deterministic = mode == MissMode::compute}, seed % 2 == 0 ? 7 : 64,
                    seed % 3 == 0 ? PrefetchMode::on : PrefetchMode::off);
        check_passes(reference, place, cards);
        const auto stats = cards.executor->stats();
        REQUIRE(stats.vram->cards.size() == slots.size());
        for (size_t i = 0; i < slots.size(); ++i) {
          CHECK(stats.vram->cards[i].slots == slots[i]);
          CHECK(stats.vram->cards[i].used <= slots[i]);
          const bool owns_some = slots[i] > 0 || slots.back() == 0;
          CHECK((stats.vram->cards[i].phases[0].moved > 0) == owns_some);  // each copies its own
        }
      }
    }
  }
}

TEST_CASE("several devices: rows of a long prompt pass in pieces, none of which is written before it was read") {
  TierReference reference(test::tiny_folder());
  constexpr uint32_t kRows = 700;  // three pieces there, five or six back
  const auto wanted = reference.run(kFirst, kRows, 3);
  for (uint64_t seed = 1; seed < 9; ++seed) {
    CAPTURE(seed);
    ExpertPlace place(test::tiny_folder(), true, UINT64_MAX, seed);
    place.add_device(20);
    Tiers cards(place, {.vram = 20, .ram = 12}, {.mode = MissMode::move}, kRows);
    RoutedRows rows(place, kFirst, kRows, 3);
    CHECK(rows.run(*cards.executor, Phase::prefill) == wanted);
  }
}

TEST_CASE("several devices: where all experts have room together, none is read or copied twice, and none comes back") {
  TierReference reference(test::tiny_folder());
  ExpertPlace place(test::tiny_folder(), true);
  place.add_device(64);
  Tiers cards(place, {.vram = 64, .ram = 6}, {.mode = MissMode::move});
  check_passes(reference, place, cards);
  const auto stats = cards.executor->stats();
  const uint64_t moved = stats.vram->phases[0].moved + stats.vram->phases[1].moved;
  CHECK(moved == stats.vram->used);
  CHECK(stats.misses() == moved);
  CHECK(cards.counts().returned + cards.counts().evictions == 0);
  CHECK(stats.vram->cards[0].used + stats.vram->cards[1].used == stats.vram->used);
  CHECK(cards.executor->places().device.size() == stats.vram->used);
}

TEST_CASE("several devices: each finds by itself what it has of the chosen experts, and the host waits once") {
  TierReference reference(test::tiny_folder());
  ExpertPlace place(test::tiny_folder(), true);
  place.add_device(64);
  Tiers cards(place, {.vram = 64}, {.mode = MissMode::move});
  REQUIRE(fill_devices(*cards.store, cards.executor->backends(), place.options({kFirst, kSecond}), nullptr, {}));
  const std::array counts = {static_cast<test::DeferredDevice&>(*place.device).counts(),
                             static_cast<test::DeferredDevice&>(*place.further.front()).counts()};
  for (const LayerId layer : {kFirst, kSecond}) {
    RoutedRows rows(place, layer, 5, 3);
    cards.executor->begin_pass({.phase = Phase::decode, .rows = 5, .draft_rows = 0});
    const std::array before = {*counts[0], *counts[1]};
    REQUIRE(cards.executor->run(rows.routed, rows.y, {}));
    CHECK(counts[0]->synchronisations + counts[1]->synchronisations ==
          before[0].synchronisations + before[1].synchronisations + 1);
    for (size_t i = 0; i < counts.size(); ++i) {
      CHECK(counts[i]->held == before[i].held + 1);
      CHECK(counts[i]->parts == before[i].parts);
    }
    CHECK(rows.run(*cards.executor) == reference.run(layer, 5, 3));
  }
}

TEST_CASE("several devices: all experts are brought before a run where they have room, and nothing is read in it") {
  TierReference reference(test::tiny_folder());
  ExpertPlace place(test::tiny_folder(), true);
  place.add_device(64);
  Tiers cards(place, {.vram = 64, .ram = 6}, {.mode = MissMode::move});
  REQUIRE(fill_devices(*cards.store, cards.executor->backends(), place.options({kFirst, kSecond}), nullptr, {}));
  const auto filled = cards.executor->stats();
  CHECK(filled.vram->used == 128);
  CHECK(filled.misses() == 128);
  check_passes(reference, place, cards);
  CHECK(cards.executor->stats().misses() == 128);
  CHECK(cards.counts().moved == 0);
  std::stop_source stopped;
  stopped.request_stop();
  ExpertPlace again(test::tiny_folder(), true);
  again.add_device(64);
  Tiers empty(again, {.vram = 64, .ram = 6}, {.mode = MissMode::move});
  const auto given_up = fill_devices(*empty.store, empty.executor->backends(), again.options({kFirst, kSecond}),
                                     nullptr, stopped.get_token());
  REQUIRE_FALSE(given_up);
  CHECK(given_up.error().kind == ErrorKind::cancelled);
}

TEST_CASE("several devices: experts belong to each in proportion to its slots, a layer's lie spread") {
  const std::vector<SlotLayout> layouts = {{.slot_bytes = 10, .experts = 32, .layers = {kFirst, kSecond}}};
  const ExpertHomes even(layouts, 16, std::vector<uint64_t>{9, 9});
  CHECK(even.count(0) == 16);
  for (uint32_t expert = 1; expert < 16; ++expert)
    CHECK(even.of(kFirst, ExpertId(expert)) != even.of(kFirst, ExpertId(expert - 1)));
  const ExpertHomes uneven(layouts, 16, std::vector<uint64_t>{24, 8});
  CHECK(uneven.count(0) == 24);
  CHECK(uneven.count(1) == 8);
  const ExpertHomes one_is_empty(layouts, 16, std::vector<uint64_t>{0, 5});
  CHECK(one_is_empty.count(1) == 32);
  const ExpertHomes none(layouts, 16, std::vector<uint64_t>{0, 0, 0});
  CHECK(none.count(2) >= 10);
}

TEST_CASE("several devices: slots are level as far as there is room, and no more than experts") {
  using Slots = std::vector<uint64_t>;
  CHECK(level_slots(Slots{200, 200}, 256) == Slots{128, 128});
  CHECK(level_slots(Slots{100, 300}, 256) == Slots{100, 156});
  CHECK(level_slots(Slots{300, 100, 80}, 256) == Slots{88, 88, 80});
  CHECK(level_slots(Slots{10, 20}, 256) == Slots{10, 20});
  CHECK(level_slots(Slots{9, 9, 9}, 8) == Slots{3, 3, 2});
}

TEST_CASE("several devices: a further device that is full says so") {
  ExpertPlace place(test::tiny_folder(), true);
  auto host = kernels::make_cpu_device({.threads = 2, .instruction_set = {}});
  REQUIRE(host);
  place.further.push_back(std::make_unique<test::DeferredDevice>(std::move(*host), 1000));
  place.further_slots.push_back(8);
  auto cpu = kernels::make_cpu_device({.threads = 2, .instruction_set = {}});
  REQUIRE(cpu);
  PinnedSlots pinned(*place.device, 1 << 16, 1 << 17);
  auto store =
      StreamedStore::make(**cpu, place.weights(),
                          {.shape = place.shape(), .layers = {kFirst}, .slots = 6, .policy = lru(), .memory = &pinned});
  REQUIRE(store);
  const auto made =
      RoutedExperts::make_tiered(place.target(cpu->get()), place.checkpoint(), **store, place.executor_shape(7),
                                 {.experts = place.options({kFirst}), .slots = 8, .policy = lru()}, {});
  REQUIRE_FALSE(made);
  CHECK(made.error().kind == ErrorKind::budget);
}

}  // namespace dspack::runtime::several_devices_test
