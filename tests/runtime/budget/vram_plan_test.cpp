// What a GPU's memory makes of a model's needs; nothing is loaded.
#include "runtime/budget/vram_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/budget/memory_plan.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMB = 1'000'000;
constexpr uint64_t kGB = 1'000'000'000;

// DeepSeek-V2-Lite in BF16: 27 layers, the first dense; 26 x 64 experts of 17.3 MB, 6 a token and layer.
MemoryNeeds lite() {
  MemoryNeeds needs;
  SlotLayout layout{.slot_bytes = 17'300'000, .experts = 1664, .layers = {}};
  for (uint32_t layer = 0; layer < 27; ++layer) {
    needs.layers.push_back({.id = LayerId(layer), .bytes = layer == 0 ? 150 * kMB : 60 * kMB});
    if (layer > 0) layout.layers.emplace_back(layer);
  }
  needs.layouts = {layout};
  needs.resident_expert_bytes = 1664 * 17'299'968ULL;  // without what slots leave free
  needs.process_bytes = 200 * kMB;
  needs.reserve_bytes = 100 * kMB;
  needs.decompression_bytes = 30 * kMB;
  needs.staging_bytes = 70 * kMB;
  needs.head_bytes = 420 * kMB;
  needs.mtp_bytes = 300 * kMB;
  needs.kv_bytes = 250 * kMB;
  needs.longest_chunk = 4096;
  needs.activation_bytes = [](uint32_t rows) { return 10 * kMB + rows * 500'000ULL; };
  needs.workspace_bytes = [](uint32_t rows) { return kMB + std::min(rows, 256U) * 500'000ULL; };
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
  CHECK(plan.expert_bytes == 1664 * 17'299'968ULL);
  CHECK(plan.layer_bytes == (150 + 26 * 60) * kMB);
  CHECK(plan.max_rows == 4096);
  CHECK(plan.limit_bytes == 84 * kGB);
  CHECK(plan.total_bytes() == plan.reserve_bytes + plan.head_bytes + plan.mtp_bytes + plan.kv_bytes +
                                  plan.activation_bytes + plan.workspace_bytes + plan.layer_bytes + plan.expert_bytes);
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
    CHECK(plan.expert_bytes == 1664 * 17'299'968ULL);
    CHECK(plan.max_rows >= rows_before);
    rows_before = plan.max_rows;
  }
  CHECK(rows_before == 4096);
  CHECK(plan_of(lite(), card(floor)).max_rows == 1);
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

TEST_CASE("vram plan: workspace that does not fit makes the chunk shorter, and is named") {
  MemoryNeeds needs = lite();
  const uint64_t longest = plan_of(needs, card(84 * kGB)).total_bytes();
  needs.workspace_bytes = [](uint32_t rows) { return rows > 1000 ? 10 * kGB : 3 * kMB; };
  const VramPlan plan = plan_of(needs, card(longest));
  CHECK(plan.max_rows == 512);
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
  needs.activation_bytes = [](uint32_t) { return kMB; };
  needs.workspace_bytes = {};
  CHECK(plan_of(needs, small).reserve_bytes <= (64ULL << 20) / 16);
}

TEST_CASE("vram plan: needs beyond 2^64 bytes are refused, not wrapped") {
  MemoryNeeds hostile = lite();
  hostile.resident_expert_bytes = UINT64_MAX - 10;
  CHECK(named_bytes(refusal_of(hostile, card(84 * kGB))) == UINT64_MAX);
}

TEST_CASE("memory plan with a GPU: the host keeps the process and what is on its way") {
  const MemoryNeeds needs = lite();
  const auto plan = make_gpu_memory_plan(needs, {}, card(84 * kGB));
  REQUIRE(plan);
  CHECK(plan->total_bytes() == (200 + 100 + 30 + 70) * kMB);
  CHECK(plan->slot_count == 1664);
  CHECK(plan->streamed.empty());
  CHECK(plan->max_rows == 4096);
  REQUIRE(plan->vram);
  CHECK(memory_note(*plan, "x").empty());

  const MemoryLimits enough{.bytes = 400 * kMB, .source = "--ram 400MB", .experts = {}};
  CHECK(make_gpu_memory_plan(needs, enough, card(84 * kGB)));
  const MemoryLimits little{.bytes = 400 * kMB - 1, .source = "--ram 400MB", .experts = {}};
  const auto refused = make_gpu_memory_plan(needs, little, card(84 * kGB));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(named_bytes(refused.error().message) == 400 * kMB);
}

TEST_CASE("memory plan with a GPU: some of the experts is not what it does") {
  const auto with = [](const Amount& amount) {
    return make_gpu_memory_plan(lite(), {.bytes = {}, .source = {}, .experts = amount}, card(84 * kGB));
  };
  CHECK(with({.number = 0, .percent = 100}));
  CHECK(with({.number = 2000, .percent = {}}));
  const auto refused = with({.number = 0, .percent = 50});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
}

}  // namespace
}  // namespace dspack::runtime
