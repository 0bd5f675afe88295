// Prompts in the expert store: each expert once, a window of slots, and the limit on what is read.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"
#include "tests/runtime/support/fake_tier.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::streamed_prefill_test {
namespace {

using test::ExpertFolder;

constexpr uint32_t kExperts = 32;
constexpr uint64_t kExpertBytes = 3ULL * ExpertFolder::kHidden * ExpertFolder::kInner + 3 * sizeof(float);

struct Lab {
  explicit Lab(uint64_t slots, std::optional<uint64_t> max_fetch = {}, unsigned depth = 8)
      : folder(kExperts), storage(folder) {
    storage.set_depth(depth);
    auto made = StreamedStore::make(
        *device, storage,
        {.shape = {.hidden = ExpertFolder::kHidden, .expert_inner = ExpertFolder::kInner, .quantization = {}},
         .slots = slots,
         .policy = [] { return std::make_unique<LruPolicy>(); },
         .max_fetch = max_fetch});
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    store = std::move(*made);
  }

  // Every expert once; expert e is last wanted by row e * 7 % kExperts of as many.
  std::unique_ptr<ExpertRequest> prompt(uint32_t layer) {
    std::vector<ExpertDemand> demands;
    for (uint32_t expert = 0; expert < kExperts; ++expert)
      demands.push_back(
          {.expert = ExpertId(expert), .rows = 1, .first_row = row_of(expert), .last_row = row_of(expert)});
    auto made = store->request(LayerId(layer), demands);
    REQUIRE(made);
    return std::move(*made);
  }
  static uint32_t row_of(uint32_t expert) { return expert * 7 % kExperts; }

  Result<void> decode(uint32_t layer, uint32_t expert) {
    store->begin_pass({});
    TRY_ASSIGN(const auto request, store->request(LayerId(layer), {{.expert = ExpertId(expert)}}));
    TRY_ASSIGN(const ExpertLease lease, request->next({}));
    return {};
  }

  ExpertFolder folder;
  test::FakeTier storage;
  std::unique_ptr<kernels::Device> device = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  std::unique_ptr<StreamedStore> store;
};

TEST_CASE("prefill: each expert is read once, whatever the number of slots") {
  for (const uint64_t slots : {1U, 2U, 8U, 20U, 64U}) {
    CAPTURE(slots);
    Lab lab(slots);
    lab.store->begin_pass({.phase = Phase::prefill, .rows = kExperts});
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const auto request = lab.prompt(layer);
      std::set<size_t> taken;
      for (uint32_t i = 0; i < kExperts; ++i) {
        const auto lease = request->next({});
        REQUIRE(lease);
        taken.insert(lease->index());
      }
      CHECK(taken.size() == kExperts);
    }
    for (const auto& [key, loads] : lab.storage.loads())
      CHECK(loads == 1);
    CHECK(lab.store->stats().misses() == 2 * kExperts);
  }
}

TEST_CASE("prefill: what only early tokens want is read first, as many at a time as keep the storage busy") {
  Lab lab(2 * kExperts);
  lab.storage.hold();
  lab.store->begin_pass({.phase = Phase::prefill, .rows = kExperts});
  const auto request = lab.prompt(0);
  lab.storage.wait_for_held(1);
  const uint64_t begun = lab.store->stats().misses();
  CHECK(begun >= lab.storage.depth());
  CHECK(begun <= kExperts / 2);
  for (const ExpertKey key : lab.store->stats().read_experts)
    CHECK(Lab::row_of(key.expert.value) < begun);
  lab.storage.let_all_through();
  {
    const auto lease = request->next({});
    REQUIRE(lease);
    CHECK(lab.store->stats().misses() == begun);
  }
  CHECK(lab.store->stats().misses() == begun + 1);  // the next begins as a lease ends
}

TEST_CASE("prefill: afterwards the slots hold what the last tokens used, of all layers") {
  Lab lab(20, {}, 2);
  lab.store->begin_pass({.phase = Phase::prefill, .rows = kExperts});
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const auto request = lab.prompt(layer);
    for (uint32_t i = 0; i < kExperts; ++i)
      REQUIRE(request->next({}));
  }
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    if (Lab::row_of(expert) < kExperts - 8) continue;
    for (uint32_t layer = 0; layer < 2; ++layer)
      REQUIRE(lab.decode(layer, expert));
  }
  CHECK(lab.store->stats().phases[static_cast<size_t>(Phase::decode)].hits == 16);
}

TEST_CASE("prefill: reads beyond --max-fetch end the run with the figures, and a new prompt begins anew") {
  Lab lab(2, 3 * kExpertBytes);
  const PromptShape prompt{.layers = {LayerId(0)}, .top_k = 1, .tokens = 1, .chunk = 1};
  CHECK(lab.store->begin_prompt(prompt).experts == 1);
  for (uint32_t expert = 0; expert < 3; ++expert)
    REQUIRE(lab.decode(0, expert));
  REQUIRE(lab.decode(0, 2));  // in memory
  const auto over = lab.decode(0, 9);
  REQUIRE_FALSE(over);
  CHECK(over.error().kind == ErrorKind::budget);
  CHECK(over.error().message.find("layer 0, expert 9") != std::string::npos);
  CHECK(over.error().message.find("--max-fetch allows 36.9 kB") != std::string::npos);
  (void)lab.store->begin_prompt(prompt);
  CHECK(lab.decode(0, 9));
}

TEST_CASE("prefill: a prompt of the trained model reads each expert once with a tenth of the slots, same logits") {
  const test::GoldenPrompt prompt = test::golden_prompts().front();
  std::vector<float> expected;
  for (const std::optional<uint64_t> slots : {std::optional<uint64_t>(), std::optional<uint64_t>(32)}) {
    test::RecordingModel rig(test::tiny_folder(), {.slots = slots});
    rig.model().experts().begin_pass({.phase = Phase::prefill, .rows = static_cast<uint32_t>(prompt.tokens.size())});
    Sequence sequence = rig.sequence();
    const auto hidden = rig.model().forward({.sequence = sequence, .tokens = prompt.tokens}, rig.scratch(), {});
    REQUIRE(hidden);
    std::vector<float> logits(rig.model().config().vocab);
    rig.picker().logits(rows_of(hidden->final, hidden->final.rows - 1, 1), logits);
    if (expected.empty()) expected = logits;
    CHECK(logits == expected);
    const ExpertStoreStats stats = rig.store().stats();
    CHECK(stats.misses() == stats.read_experts.size());
    CHECK(stats.misses() > 32);
  }
}

}  // namespace
}  // namespace dspack::runtime::streamed_prefill_test
