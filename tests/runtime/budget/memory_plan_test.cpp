// What a memory limit makes of a model's needs; nothing is loaded.
#include "runtime/budget/memory_plan.h"

#include <doctest/doctest.h>

namespace dspack::runtime::memory_plan_test {
namespace {

constexpr uint64_t kMB = 1'000'000;
constexpr uint64_t kGB = 1'000'000'000;

// DeepSeek-V3 in FP8: 61 layers, the first three dense; 58 x 256 experts of 44 MB, 8 a token and layer.
MemoryNeeds v3() {
  MemoryNeeds needs;
  for (uint32_t layer = 0; layer < 61; ++layer)
    needs.layers.push_back({.id = LayerId(layer), .bytes = layer < 3 ? 583 * kMB : 233 * kMB});
  needs.process_bytes = 60 * kMB;
  needs.reserve_bytes = 140 * kMB;
  needs.decompression_bytes = 100 * kMB;
  needs.head_bytes = 1'850 * kMB;
  needs.kv_bytes = 576 * kMB;
  needs.longest = {.chunk = 4096, .wave = 256};
  needs.activation_bytes = [](PassRows rows) { return 20 * kMB + rows.chunk * 320'000ULL; };
  needs.layouts = {{.slot_bytes = 44 * kMB, .experts = 14848, .layers = {}}};
  needs.top_k = 8;
  needs.experts_per_token = 464;
  return needs;
}

uint64_t layer_bytes(const MemoryNeeds& needs) {
  uint64_t bytes = 0;
  for (const auto& layer : needs.layers)
    bytes += layer.bytes;
  return bytes;
}

MemoryPlan plan_of(const MemoryNeeds& needs, const MemoryLimits& limits) {
  auto plan = make_memory_plan(needs, limits);
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  return *plan;
}

TEST_CASE("memory plan: without a limit everything stays") {
  const MemoryPlan plan = plan_of(v3(), {});
  CHECK(plan.slot_count == 14848);
  CHECK(plan.rows.chunk == 4096);
  CHECK(plan.layers.streamed.empty());
  CHECK(plan.layers.resident_bytes == layer_bytes(v3()));
  CHECK(memory_note(plan, "x").empty());
}

TEST_CASE("memory plan: for every limit the sum stays within it and nothing that fits is left out") {
  const MemoryNeeds needs = v3();
  uint64_t slots_before = 0;
  size_t streamed_before = needs.layers.size();
  for (uint64_t limit = 4 * kGB; limit < 800 * kGB; limit += limit / 7) {
    CAPTURE(limit);
    const MemoryPlan plan = plan_of(needs, {.bytes = limit, .source = "--ram", .experts = {}});
    CHECK(plan.total_bytes() <= limit);
    CHECK(plan.slot_count >= 10);
    CHECK(plan.slot_count <= 14848);
    const bool full = plan.slot_count == 14848 || plan.total_bytes() + 44 * kMB > limit;
    CHECK(full);
    if (!plan.layers.streamed.empty()) CHECK(plan.slot_bytes <= 10 * 44 * kMB + 583 * kMB);  // layers come first
    CHECK(plan.layers.streamed.size() <= streamed_before);
    CHECK(plan.slot_count + 20 >= slots_before);  // a longer chunk may cost a few
    slots_before = plan.slot_count;
    streamed_before = plan.layers.streamed.size();
  }
  CHECK(slots_before == 14848);
}

TEST_CASE("memory plan: the floor is a number that works, and one byte less does not") {
  const MemoryNeeds needs = v3();
  const auto refused = make_memory_plan(needs, {.bytes = kGB, .source = "--ram 1GB", .experts = {}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(refused.error().message.starts_with("--ram 1GB is too little"));
  CHECK(refused.error().message.find("--ctx") != std::string::npos);
  // process, reserve, decompression, head, cache, one row, ten experts, one buffer of the largest layer
  const uint64_t floor = (60 + 140 + 100 + 1850 + 576 + 20 + 440 + 583) * kMB + 320'000;
  CHECK(refused.error().message.find(std::to_string(floor) + " bytes") != std::string::npos);
  const MemoryPlan plan = plan_of(needs, {.bytes = floor, .source = "--ram", .experts = {}});
  CHECK(plan.slot_count == 10);
  CHECK(plan.rows.chunk == 1);
  CHECK(plan.layers.streamed.size() == 61);
  CHECK(plan.layers.buffers == 1);
  CHECK(plan.layers.streamed_bytes == layer_bytes(needs));
  CHECK_FALSE(make_memory_plan(needs, {.bytes = floor - 1, .source = "--ram", .experts = {}}));
}

TEST_CASE("memory plan: few layers stream, the small ones from the end, and repeated ones last") {
  MemoryNeeds needs = v3();
  needs.layers[60].uses = 2;
  const MemoryPlan plan = plan_of(needs, {.bytes = 16 * kGB, .source = "--ram", .experts = {}});
  REQUIRE_FALSE(plan.layers.streamed.empty());
  CHECK(plan.layers.buffers == 2);
  CHECK(plan.layers.buffer_bytes == 2 * 233 * kMB);
  CHECK(plan.layers.streamed.back() == LayerId(59));
  CHECK(plan.layers.streamed.size() < 30);
  CHECK(plan.layers.streamed_bytes == plan.layers.streamed.size() * 233 * kMB);
  CHECK(memory_note(plan, "x").find("read in every pass") != std::string::npos);
}

TEST_CASE("memory plan: below one token's experts it says so with the number") {
  const MemoryPlan plan = plan_of(v3(), {.bytes = 32 * kGB, .source = "--ram", .experts = {}});
  CHECK(plan.slot_count < 464);
  const std::string note = memory_note(plan, "random");
  CHECK(note.find("below one token's 464 (20.4 GB)") != std::string::npos);
  CHECK(note.find("policy random") != std::string::npos);
  CHECK(memory_note(plan_of(v3(), {.bytes = 64 * kGB, .source = "--ram", .experts = {}}), "random").empty());
}

TEST_CASE("memory plan: the chunk shrinks with the budget") {
  CHECK(plan_of(v3(), {.bytes = 64 * kGB, .source = "", .experts = {}}).rows.chunk == 4096);
  const MemoryPlan small = plan_of(v3(), {.bytes = 8 * kGB, .source = "", .experts = {}});
  CHECK(small.rows.chunk < 4096);
  CHECK(small.rows.chunk >= 1024);
}

TEST_CASE("memory plan: --experts sizes the slots") {
  const auto with = [](std::string_view text, std::optional<uint64_t> bytes) {
    return make_memory_plan(v3(), {.bytes = bytes, .source = "--ram X", .experts = *parse_expert_amount(text)});
  };
  CHECK(with("464", {})->slot_count == 464);
  CHECK(with("12%", {})->slot_count == 1781);
  CHECK(with("100%", {})->slot_count == 14848);
  CHECK(with("999999", {})->slot_count == 14848);
  CHECK(with("10", {})->slot_count == 10);
  const auto few = with("9", {});
  REQUIRE_FALSE(few);
  CHECK(few.error().message.find("at least 10") != std::string::npos);
  CHECK_FALSE(with("0.01%", {}));
  // Both: the number, if it fits.
  CHECK(with("500", 60 * kGB)->slot_count == 500);
  CHECK(with("500", 60 * kGB)->layers.streamed.empty());
  const auto both = with("2000", 60 * kGB);
  REQUIRE_FALSE(both);
  CHECK(both.error().kind == ErrorKind::budget);
  CHECK(both.error().message.find("contradict") != std::string::npos);
  CHECK(both.error().message.find("room for") != std::string::npos);
  CHECK(with("10", 4 * kGB)->layers.streamed.size() > 50);  // the least that it takes is no contradiction
}

TEST_CASE("memory plan: slots of several sizes share the room") {
  MemoryNeeds needs = v3();
  needs.layouts = {{.slot_bytes = 44 * kMB, .experts = 1000, .layers = {}},
                   {.slot_bytes = 22 * kMB, .experts = 3000, .layers = {}}};
  const MemoryPlan plan = plan_of(needs, {.bytes = 40 * kGB, .source = "", .experts = {}});
  CHECK(plan.total_bytes() <= 40 * kGB);
  CHECK(plan.total_bytes() > 40 * kGB - 44 * kMB);
  REQUIRE(plan.slots.size() == 2);
  const double first = static_cast<double>(plan.slots[0]) / 1000;
  const double second = static_cast<double>(plan.slots[1]) / 3000;
  CHECK(first == doctest::Approx(second).epsilon(0.05));
  CHECK(plan_of(needs, {.bytes = {}, .source = "", .experts = parse_expert_amount("25%").value()}).slot_count == 1000);
}

TEST_CASE("memory plan: a dense model, and sizes beyond every machine") {
  MemoryNeeds dense = v3();
  dense.layouts.clear();
  CHECK(plan_of(dense, {.bytes = 30 * kGB, .source = "", .experts = {}}).slot_count == 0);
  CHECK(plan_of(dense, {.bytes = 30 * kGB, .source = "", .experts = parse_expert_amount("10").value()}).slots.empty());
  MemoryNeeds hostile = v3();
  hostile.kv_bytes = UINT64_MAX;
  CHECK_FALSE(make_memory_plan(hostile, {.bytes = UINT64_MAX - 1, .source = "", .experts = {}}));
  hostile = v3();
  hostile.layouts[0].slot_bytes = UINT64_MAX / 2;
  CHECK_FALSE(make_memory_plan(hostile, {.bytes = 100 * kGB, .source = "", .experts = {}}));
  hostile = v3();
  hostile.layers[5].bytes = UINT64_MAX - 5;
  hostile.layers[6].bytes = UINT64_MAX - 5;
  CHECK_FALSE(make_memory_plan(hostile, {.bytes = 100 * kGB, .source = "", .experts = {}}));
}

TEST_CASE("memory amounts: numbers and shares") {
  CHECK(parse_memory_amount("24GB")->of(0) == 24 * kGB);
  CHECK(parse_memory_amount("8G")->of(0) == 8ULL << 30);
  CHECK(parse_memory_amount("50%")->of(1001) == 500);
  CHECK(parse_memory_amount("12.5%")->of(800) == 100);
  CHECK(parse_memory_amount("100%")->of(UINT64_MAX) == UINT64_MAX);
  for (const char* text : {"", "%", "0%", "-5%", "101%", "nan%", "inf%", "5 %", "5%%", "x", "1.5", "1e1%"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_memory_amount(text));
    CHECK_FALSE(parse_expert_amount(text));
  }
  for (const char* text : {"0", "-1", "5GB", "18446744073709551616"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_expert_amount(text));
  }
  CHECK(parse_expert_amount("464")->of(10) == 464);
}

TEST_CASE("default limit: what is available, and something stays") {
  CHECK(default_limit(64 * kGB, 50 * kGB, kGB) == 50 * kGB + kGB - 64 * kGB / 20);
  CHECK(default_limit(4 * kGB, 100 * kMB, 10 * kMB) == 60 * kMB);
  CHECK(default_limit(0, 0, 7) == 7);
  CHECK(default_limit(UINT64_MAX, UINT64_MAX, UINT64_MAX) == UINT64_MAX);
}

}  // namespace
}  // namespace dspack::runtime::memory_plan_test
