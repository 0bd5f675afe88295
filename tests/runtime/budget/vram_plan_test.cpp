// What a GPU's memory makes of a model's needs; nothing is loaded.
#include "runtime/budget/vram_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/budget/memory_plan.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime::vram_plan_test {
namespace {

constexpr uint64_t kMB = 1'000'000;
constexpr uint64_t kGB = 1'000'000'000;
constexpr uint64_t kDeviceExpert = 17'299'968;  // without what slots leave free

// DeepSeek-V2-Lite in BF16: 27 layers, the first dense; 26 x 64 experts of 17.3 MB, 6 a token and layer.
MemoryNeeds lite() {
  MemoryNeeds needs;
  SlotLayout layout{.slot_bytes = 17'300'000, .experts = 1664, .layers = {}};
  for (uint32_t layer = 0; layer < 27; ++layer) {
    needs.layers.push_back({.id = LayerId(layer), .bytes = layer == 0 ? 150 * kMB : 60 * kMB});
    if (layer > 0) layout.layers.emplace_back(layer);
  }
  needs.layouts = {layout};
  needs.resident_expert_bytes = 1664 * kDeviceExpert;
  needs.process_bytes = 200 * kMB;
  needs.reserve_bytes = 100 * kMB;
  needs.decompression_bytes = 30 * kMB;
  needs.staging_bytes = 12 * 17'300'000ULL;
  needs.head_bytes = 420 * kMB;
  needs.mtp_bytes = 300 * kMB;
  needs.kv_bytes = 250 * kMB;
  needs.longest = {.chunk = 8192, .wave = 4096};
  needs.activation_bytes = [](PassRows rows) { return 10 * kMB + rows.chunk * 300'000ULL + rows.wave * 200'000ULL; };
  needs.workspace_bytes = [](uint32_t wave) { return kMB + std::min(wave, 256U) * 500'000ULL; };
  needs.device_layouts = {{.slot_bytes = kDeviceExpert, .experts = 1664, .layers = layout.layers}};
  needs.tiered_activation_bytes = [](PassRows rows) {
    return 20 * kMB + rows.chunk * 400'000ULL + rows.wave * 200'000ULL;
  };
  needs.further_activation_bytes = [](PassRows rows) { return rows.chunk * 200'000ULL; };
  needs.further_workspace_bytes = 2 * kMB;
  needs.host_scratch_bytes = 3 * kMB;
  needs.top_k = 6;
  needs.experts_per_token = 26 * 6;
  return needs;
}

VramLimits card(uint64_t free_bytes, std::optional<uint64_t> asked = {}) {
  return {.device = "a card", .card_bytes = 85 * kGB, .free_bytes = free_bytes, .asked_bytes = asked};
}

VramPlan plan_of(const MemoryNeeds& needs, const VramLimits& limits) {
  auto plan = make_vram_plan(needs, limits);
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  return *plan;
}

std::string refusal_of(const MemoryNeeds& needs, const VramLimits& limits) {
  const auto plan = make_vram_plan(needs, limits);
  REQUIRE_FALSE(plan);
  CHECK(plan.error().kind == ErrorKind::budget);
  return plan.error().message;
}

uint64_t named_bytes(const std::string& message) {
  const std::string before = "at least ";
  const size_t at = message.find(before);
  REQUIRE(at != std::string::npos);
  return std::stoull(message.substr(at + before.size()));
}

TEST_CASE("vram plan: all of the model and the longest chunk, where there is room") {
  const VramPlan plan = plan_of(lite(), card(84 * kGB));
  CHECK(plan.expert_bytes == 1664 * kDeviceExpert);
  CHECK(plan.layers.resident_bytes == (150 + 26 * 60) * kMB);
  CHECK(plan.rows.chunk == 4096);
  CHECK(plan.limit_bytes == 84 * kGB);
  CHECK(plan.total_bytes() == plan.reserve_bytes + plan.head_bytes + plan.mtp_bytes + plan.kv_bytes +
                                  plan.activation_bytes + plan.workspace_bytes + plan.layers.resident_bytes +
                                  plan.expert_bytes);
  CHECK(plan.workspace_bytes == 129 * kMB);
  CHECK(plan.reserve_bytes >= 256ULL << 20);
}

TEST_CASE(
    "vram plan: less room makes the chunk shorter, never the model smaller, and the floor is a number that works") {
  const uint64_t floor = named_bytes(refusal_of(lite(), card(10 * kGB)));
  uint32_t rows_before = 1;
  for (uint64_t free = floor; free < 40 * kGB; free += 97 * kMB) {
    CAPTURE(free);
    const VramPlan plan = plan_of(lite(), card(free));
    CHECK(plan.total_bytes() <= free);
    CHECK(plan.expert_bytes == 1664 * kDeviceExpert);
    CHECK(plan.rows.chunk >= rows_before);
    rows_before = plan.rows.chunk;
  }
  CHECK(rows_before == 4096);
  CHECK(plan_of(lite(), card(floor)).rows.chunk == 1);
  CHECK(named_bytes(refusal_of(lite(), card(floor - 1))) == floor);
}

TEST_CASE("vram plan: what is free and what was asked for both hold, and the refusal names the one that is short") {
  CHECK(plan_of(lite(), card(84 * kGB, 40 * kGB)).limit_bytes == 40 * kGB);
  CHECK(plan_of(lite(), card(50 * kGB, 80 * kGB)).limit_bytes == 50 * kGB);
  CHECK(refusal_of(lite(), card(84 * kGB, 20 * kGB)).starts_with("--vram 20.0 GB is too little"));
  CHECK(refusal_of(lite(), card(20 * kGB, 40 * kGB)).starts_with("the memory that is free on a card (20.0 GB of 85.0"));
  CHECK(refusal_of(lite(), card(20 * kGB)).find("--device cpu") != std::string::npos);
}

TEST_CASE("vram plan: a card that says nothing of itself has no limit but the one that was asked for") {
  CHECK_FALSE(plan_of(lite(), {}).limit_bytes);
  CHECK(plan_of(lite(), {.device = {}, .card_bytes = 0, .free_bytes = 0, .asked_bytes = 50 * kGB}).limit_bytes ==
        50 * kGB);
}

TEST_CASE("vram plan: workspace that does not fit makes waves shorter, and is named") {
  MemoryNeeds needs = lite();
  const uint64_t longest = plan_of(needs, card(84 * kGB)).total_bytes();
  needs.workspace_bytes = [](uint32_t wave) { return wave > 1000 ? 10 * kGB : 3 * kMB; };
  const VramPlan plan = plan_of(needs, card(longest));
  CHECK(plan.rows == PassRows{.chunk = 4096, .wave = 512});
  CHECK(plan.workspace_bytes == 3 * kMB);
  needs.workspace_bytes = [](uint32_t) { return 77 * kGB; };
  CHECK(refusal_of(needs, card(84 * kGB)).find("77.0 GB for workspace") != std::string::npos);
}

TEST_CASE("vram plan: a small card keeps a small reserve") {
  MemoryNeeds needs = lite();
  const VramLimits small{.device = "s", .card_bytes = 64ULL << 20, .free_bytes = 64ULL << 20, .asked_bytes = {}};
  needs.layouts.clear();
  needs.resident_expert_bytes = 0;
  needs.layers.clear();
  needs.head_bytes = needs.mtp_bytes = needs.kv_bytes = 0;
  needs.activation_bytes = [](PassRows) { return kMB; };
  needs.workspace_bytes = {};
  CHECK(plan_of(needs, small).reserve_bytes <= (64ULL << 20) / 16);
}

TEST_CASE("vram plan: needs beyond 2^64 bytes are refused, not wrapped") {
  MemoryNeeds hostile = lite();
  hostile.resident_expert_bytes = UINT64_MAX - 10;
  CHECK(named_bytes(refusal_of(hostile, card(84 * kGB))) == UINT64_MAX);
}

VramPlan tiered_of(const MemoryNeeds& needs, const VramLimits& limits, const std::optional<Amount>& experts = {}) {
  auto plan = make_tiered_vram_plan(needs, limits, experts);
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  REQUIRE(plan->slots);
  return *plan;
}

std::string tiered_refusal(const MemoryNeeds& needs, const VramLimits& limits,
                           const std::optional<Amount>& experts = {}) {
  const auto plan = make_tiered_vram_plan(needs, limits, experts);
  REQUIRE_FALSE(plan);
  CHECK(plan.error().kind == ErrorKind::budget);
  return plan.error().message;
}

constexpr Amount kNone{};
Amount number(uint64_t experts) {
  return {.number = experts, .percent = {}};
}
Amount percent(double share) {
  return {.number = 0, .percent = share};
}

MemoryLimits ram(std::optional<uint64_t> bytes, std::optional<Amount> experts = {}) {
  return {.bytes = bytes, .source = "--ram", .experts = experts};
}

MemoryPlan gpu_plan_of(const MemoryNeeds& needs, const MemoryLimits& limits, const VramLimits& vram,
                       const GpuExperts& experts = {}) {
  auto plan = make_gpu_memory_plan(needs, limits, vram, experts);
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  REQUIRE(plan->vram);
  return *plan;
}

VramLimits without_streaming(VramLimits limits) {
  limits.may_stream = false;
  return limits;
}

TEST_CASE("tiered vram plan: the floor is everything but experts and two that pass through; it is named and works") {
  const std::string refusal = tiered_refusal(lite(), without_streaming(card(2 * kGB)));
  CHECK(refusal.starts_with("the memory that is free on a card (2.00 GB of 85.0"));
  CHECK(refusal.find("for two experts") != std::string::npos);
  const uint64_t floor = named_bytes(refusal);
  for (const VramLimits& limits : {card(floor), without_streaming(card(floor))}) {
    const VramPlan plan = tiered_of(lite(), limits);
    CHECK(plan.total_bytes() == floor);
    CHECK(plan.slots == 0);
    CHECK(plan.rows.chunk == 1);
    CHECK(plan.expert_bytes == 2 * kDeviceExpert);
    CHECK(plan.layers.resident_bytes == (150 + 26 * 60) * kMB);
    CHECK(plan.layers.streamed.empty());
    CHECK_FALSE(plan.holds_all());
  }
  CHECK(named_bytes(tiered_refusal(lite(), without_streaming(card(floor - 1)))) == floor);
}

TEST_CASE("vram plan: below that layers stream, down to one buffer for all of them, if they may") {
  const uint64_t all_stay = named_bytes(tiered_refusal(lite(), without_streaming(card(2 * kGB))));
  const uint64_t floor = named_bytes(tiered_refusal(lite(), card(kGB)));
  CHECK(named_bytes(tiered_refusal(lite(), card(floor - 1))) == floor);
  const VramPlan least = tiered_of(lite(), card(floor));
  CHECK(least.rows.chunk == 1);
  CHECK(least.layers.streamed.size() == 27);
  CHECK(least.layers.buffers == 1);
  CHECK(least.layers.buffer_bytes == 150 * kMB);
  CHECK(least.layers.resident_bytes == 0);
  CHECK(least.layers.streamed_bytes == (150 + 26 * 60) * kMB);
  uint64_t streamed_before = least.layers.streamed_bytes;
  for (uint64_t free = floor; free < all_stay; free += 11 * kMB) {
    CAPTURE(free);
    const VramPlan plan = tiered_of(lite(), card(free));
    CHECK(plan.total_bytes() <= free);
    CHECK_FALSE(plan.layers.streamed.empty());
    CHECK(std::ranges::is_sorted(plan.layers.streamed));
    if (free > floor + 150 * kMB) CHECK(plan.layers.buffers == 2);
    // Activations may take an eighth of what is left; so a little more memory may mean one layer less that stays.
    CHECK(plan.layers.streamed_bytes <= streamed_before + 60 * kMB);
    streamed_before = plan.layers.streamed_bytes;
  }
  CHECK(streamed_before < 400 * kMB);
  CHECK(tiered_of(lite(), card(all_stay)).layers.streamed.empty());
}

TEST_CASE(
    "vram plan: a model without experts streams likewise, and the host's memory keeps what it can of the layers") {
  MemoryNeeds needs = lite();
  needs.layouts.clear();
  needs.device_layouts.clear();
  needs.resident_expert_bytes = needs.experts_per_token = 0;
  needs.staging_bytes = 0;
  const VramLimits half = card(2500 * kMB);
  REQUIRE_FALSE(make_vram_plan(needs, without_streaming(half)));
  const MemoryPlan rich = gpu_plan_of(needs, ram(10 * kGB), half);
  REQUIRE(rich.vram->holds_all());
  const LayerPlan& copied = rich.vram->layers;
  REQUIRE_FALSE(copied.streamed.empty());
  CHECK(rich.vram->total_bytes() <= 2500 * kMB);
  CHECK(rich.layers.streamed.empty());
  CHECK(rich.layers.resident_bytes == copied.streamed_bytes);
  CHECK(rich.total_bytes() == (200 + 100 + 30) * kMB + 3 * kMB + copied.streamed_bytes);
  CHECK(memory_note(rich, "x").find("are copied there in every pass") != std::string::npos);
  CHECK(memory_note(rich, "x").find("are read in every pass") == std::string::npos);
  const MemoryPlan poor = gpu_plan_of(needs, ram(800 * kMB), half);
  CHECK(poor.vram->layers.streamed == copied.streamed);
  CHECK_FALSE(poor.layers.streamed.empty());
  CHECK(poor.layers.buffers == 2);
  CHECK(poor.total_bytes() <= 800 * kMB);
  CHECK(std::ranges::includes(copied.streamed, poor.layers.streamed));
  CHECK(memory_note(poor, "x").find("are read in every pass") != std::string::npos);
}

TEST_CASE("tiered vram plan: more memory means more for experts and activations, and nothing that fits is left out") {
  const uint64_t floor = named_bytes(tiered_refusal(lite(), without_streaming(card(2 * kGB))));
  uint64_t used_before = 0;
  uint64_t slots_before = 0;
  PassRows rows_before{.chunk = 0, .wave = 0};
  for (uint64_t free = floor; free < 36 * kGB; free += 37 * kMB) {
    CAPTURE(free);
    const VramPlan plan = tiered_of(lite(), card(free));
    CHECK(plan.total_bytes() <= free);
    const bool is_full = plan.slots == 1664U || plan.total_bytes() + kDeviceExpert > free;
    CHECK(is_full);
    CHECK(plan.rows.chunk >= rows_before.chunk);
    // Fewer only where a longer chunk, or longer waves, take their place.
    if (plan.rows == rows_before) CHECK(*plan.slots >= slots_before);
    const uint64_t used = plan.expert_bytes + plan.activation_bytes + plan.workspace_bytes;
    CHECK(used + kDeviceExpert > used_before);
    used_before = used;
    slots_before = *plan.slots;
    rows_before = plan.rows;
  }
  CHECK(slots_before == 1664);
  // A chunk of 4,096 rows would save 1,664 copies, and cost 47 slots, which 512 tokens would find 2,280 times.
  CHECK(rows_before == PassRows{.chunk = 2048, .wave = 2048});
}

TEST_CASE("tiered vram plan: as many experts as are asked for") {
  const VramLimits large = card(84 * kGB);
  CHECK(tiered_of(lite(), large, number(464)).slots == 464U);
  CHECK(tiered_of(lite(), large, number(464)).expert_bytes == 466 * kDeviceExpert);
  CHECK(tiered_of(lite(), large, percent(25)).slots == 416U);
  CHECK(tiered_of(lite(), large, number(99999)).slots == 1664U);
  CHECK(tiered_of(lite(), large, percent(100)).slots == 1664U);
  CHECK(tiered_of(lite(), large, kNone).slots == 0U);
  CHECK(tiered_of(lite(), large, kNone).rows == PassRows{.chunk = 8192, .wave = 4096});
  // More than fit, with the number of bytes that would do.
  const std::string refusal = tiered_refusal(lite(), card(10 * kGB), number(600));
  CHECK(refusal.find("for 600 experts") != std::string::npos);
  CHECK(tiered_of(lite(), card(named_bytes(refusal)), number(600)).slots == 600U);
  CHECK(named_bytes(tiered_refusal(lite(), card(named_bytes(refusal) - 1), number(600))) == named_bytes(refusal));
}

TEST_CASE("tiered vram plan: layers of several layouts share the slots, each with a window of its own") {
  MemoryNeeds needs = lite();
  needs.device_layouts = {{.slot_bytes = 10 * kMB, .experts = 600, .layers = {}},
                          {.slot_bytes = 20 * kMB, .experts = 200, .layers = {}}};
  CHECK(tiered_of(needs, card(84 * kGB), kNone).expert_bytes == 2 * (10 + 20) * kMB);
  const VramPlan half = tiered_of(needs, card(84 * kGB), number(400));
  CHECK(half.slots == 400U);
  CHECK(half.expert_bytes == (302 * 10 + 102 * 20) * kMB);
  const VramPlan fitted = tiered_of(needs, card(8 * kGB));
  CHECK(*fitted.slots > 0);
  CHECK(fitted.total_bytes() <= 8 * kGB);
  CHECK(fitted.total_bytes() + 30 * kMB > 8 * kGB);
}

TEST_CASE("tiered vram plan: needs beyond 2^64 bytes are refused, not wrapped") {
  MemoryNeeds hostile = lite();
  hostile.kv_bytes = UINT64_MAX - 10;
  CHECK(named_bytes(tiered_refusal(hostile, without_streaming(card(84 * kGB)))) == UINT64_MAX);
  hostile = lite();
  hostile.layers[3].bytes = hostile.layers[4].bytes = UINT64_MAX / 2 + 1;
  CHECK(named_bytes(tiered_refusal(hostile, without_streaming(card(84 * kGB)))) == UINT64_MAX);
}

TEST_CASE("memory plan with a GPU: where all fits, the host keeps the process and what is on its way") {
  const MemoryNeeds needs = lite();
  const uint64_t least = (200 + 100 + 30) * kMB + needs.staging_bytes;
  const MemoryPlan plan = gpu_plan_of(needs, {}, card(84 * kGB));
  CHECK(plan.vram->holds_all());
  CHECK(plan.total_bytes() == least);
  CHECK(plan.slot_count == 1664);
  CHECK(plan.layers.streamed.empty());
  CHECK(plan.rows.chunk == 4096);
  CHECK(memory_note(plan, "x").empty());
  CHECK(gpu_plan_of(needs, ram(least), card(84 * kGB)).vram->holds_all());
  // Who insists is told what it takes; else the GPU holds some, for which less of the host's memory will do.
  const auto refused = make_gpu_memory_plan(needs, ram(least - 1), card(84 * kGB), {.vram = percent(100)});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(named_bytes(refused.error().message) == least);
  CHECK_FALSE(gpu_plan_of(needs, ram(least - 1), card(84 * kGB)).vram->holds_all());
}

TEST_CASE(
    "memory plan with a GPU: all experts there if they fit, else as many as do, over those in the host's memory") {
  const MemoryPlan plan = gpu_plan_of(lite(), ram(10 * kGB), card(12 * kGB));
  REQUIRE_FALSE(plan.vram->holds_all());
  CHECK(*plan.vram->slots > 400);
  CHECK(plan.vram->total_bytes() <= 12 * kGB);
  CHECK(plan.rows == plan.vram->rows);
  // The host has neither layers nor caches, but experts, and the CPU's scratch for them.
  CHECK(plan.layers.resident_bytes == 0);
  CHECK(plan.head_bytes + plan.mtp_bytes + plan.kv_bytes == 0);
  CHECK(plan.activation_bytes == 3 * kMB);
  CHECK(plan.slot_count > 500);
  CHECK(plan.slot_bytes == plan.slot_count * 17'300'000);
  CHECK(plan.total_bytes() <= 10 * kGB);
  CHECK(plan.total_bytes() + 17'300'000 > 10 * kGB);
  CHECK(plan.layers.streamed.empty());
  CHECK(gpu_plan_of(lite(), ram({}), card(12 * kGB)).slot_count == 1664);
}

TEST_CASE("memory plan with a GPU: who asks for some has some, though all would fit") {
  const auto slots = [](const GpuExperts& experts) {
    return gpu_plan_of(lite(), {}, card(84 * kGB), experts).vram->slots;
  };
  CHECK(slots({.vram = number(40)}) == 40U);
  CHECK(slots({.vram = percent(50)}) == 832U);
  CHECK(slots({.vram = kNone}) == 0U);
  CHECK_FALSE(slots({.vram = percent(100)}));
  CHECK_FALSE(slots({.vram = number(1664)}));
  // Experts of a distant model come when a router picks them, unless all are asked for.
  CHECK(slots({.vram = {}, .as_they_come = true}) == 1664U);
  CHECK_FALSE(slots({.vram = percent(100), .as_they_come = true}));
  // So where some are missing, which only matters when a router picks them.
  MemoryNeeds part = lite();
  part.may_be_resident = false;
  part.resident_expert_bytes = 0;
  CHECK(gpu_plan_of(part, {}, card(84 * kGB)).vram->slots == 1664U);
  CHECK(gpu_plan_of(part, {}, card(84 * kGB), {.vram = percent(100)}).vram->slots == 1664U);
  MemoryNeeds dense = lite();
  dense.layouts.clear();
  dense.device_layouts.clear();
  dense.resident_expert_bytes = 0;
  CHECK(gpu_plan_of(dense, {}, card(84 * kGB), {.vram = number(3)}).vram->holds_all());
}

TEST_CASE("memory plan with a GPU: the host's floor is one layer's experts of a token, and two on their way") {
  const uint64_t floor = (200 + 100 + 30 + 3) * kMB + 8 * 17'300'000ULL;
  const auto refused = make_gpu_memory_plan(lite(), ram(100 * kMB), card(12 * kGB));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(named_bytes(refused.error().message) == floor);
  CHECK(gpu_plan_of(lite(), ram(floor), card(12 * kGB)).slot_count == 8);
  CHECK_FALSE(make_gpu_memory_plan(lite(), ram(floor - 1), card(12 * kGB)));
}

TEST_CASE("memory plan with a GPU: --experts is of the host's memory, and contradicts what it has no room for") {
  CHECK(gpu_plan_of(lite(), ram({}, number(100)), card(12 * kGB)).slot_count == 100);
  CHECK(gpu_plan_of(lite(), ram({}, percent(50)), card(12 * kGB)).slot_count == 832);
  const auto few = make_gpu_memory_plan(lite(), ram({}, number(7)), card(12 * kGB));
  REQUIRE_FALSE(few);
  CHECK(few.error().message.find("allow at least 8") != std::string::npos);
  const auto both = make_gpu_memory_plan(lite(), ram(2 * kGB, number(1000)), card(12 * kGB));
  REQUIRE_FALSE(both);
  CHECK(both.error().kind == ErrorKind::budget);
  CHECK(both.error().message.find("--experts and --ram contradict each other") != std::string::npos);
  CHECK(both.error().message.find("room for") != std::string::npos);
}

TEST_CASE("memory plan with a GPU: both memories together are below one token's experts") {
  const MemoryPlan plan = gpu_plan_of(lite(), ram({}, number(60)), card(84 * kGB), {.vram = number(40)});
  CHECK(memory_note(plan, "x").find("holds 100 experts, below one token's 156") != std::string::npos);
  CHECK(memory_note(gpu_plan_of(lite(), ram({}, number(60)), card(84 * kGB), {.vram = number(100)}), "x").empty());
}

TEST_CASE("gpu memory plan: several cards keep as many experts as each has room for, and no more than there are") {
  const MemoryNeeds needs = lite();
  const std::vector<VramLimits> others = {card(8 * kGB)};
  const auto plan = make_gpu_memory_plan(needs, ram({}), card(12 * kGB), {}, others);
  REQUIRE(plan);
  REQUIRE(plan->further.size() == 1);
  const VramPlan& further = plan->further.front();
  CHECK(*plan->vram->slots == *tiered_of(needs, card(12 * kGB)).slots);
  CHECK(plan->vram_slots() == *plan->vram->slots + *further.slots);
  CHECK(further.total_bytes() <= 8 * kGB);
  CHECK(further.total_bytes() + kDeviceExpert > 8 * kGB);  // not one more fits
  CHECK(further.head_bytes + further.kv_bytes + further.layers.total_bytes() == 0);
  CHECK(further.activation_bytes == needs.further_activation_bytes(plan->rows));
  // Together they have room for all: each half of them, and nothing is left over.
  const auto both = make_gpu_memory_plan(needs, ram({}), card(24 * kGB), {}, std::vector{card(24 * kGB)});
  REQUIRE(both);
  CHECK(*both->vram->slots == 832);
  CHECK(*both->further.front().slots == 832);
  const auto all =
      make_gpu_memory_plan(needs, ram({}), card(24 * kGB), {.vram = percent(100)}, std::vector{card(24 * kGB)});
  REQUIRE(all);
  CHECK(all->vram_slots() == 1664);
  CHECK(all->fills_gpus);
  CHECK(all->slot_count == kReaderSlots);  // experts only pass through the host's memory
  CHECK_FALSE(plan->fills_gpus);
  // The first has room for all: the others have nothing to do.
  const auto one = make_gpu_memory_plan(needs, ram({}), card(84 * kGB), {}, others);
  REQUIRE(one);
  CHECK(one->vram->holds_all());
  CHECK(one->further.empty());
  // So many on each.
  const auto few = make_gpu_memory_plan(needs, ram({}), card(84 * kGB), {.vram = number(50)}, others);
  REQUIRE(few);
  CHECK(few->vram_slots() == 100);
}

TEST_CASE("gpu memory plan: a further card without room is refused, and so are all experts without room for them") {
  const MemoryNeeds needs = lite();
  const auto none = make_gpu_memory_plan(needs, ram({}), card(12 * kGB), {}, std::vector{card(200 * kMB)});
  REQUIRE_FALSE(none);
  CHECK(none.error().kind == ErrorKind::budget);
  CHECK(none.error().message.find("a further GPU's 0 experts") != std::string::npos);
  const auto few =
      make_gpu_memory_plan(needs, ram({}), card(12 * kGB), {.vram = percent(100)}, std::vector{card(8 * kGB)});
  REQUIRE_FALSE(few);
  CHECK(few.error().message.find("no room for all 1664 experts together") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime::vram_plan_test
