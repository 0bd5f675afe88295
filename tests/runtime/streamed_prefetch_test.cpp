// Prefetching in the expert store, against a storage that holds, fails and counts.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"
#include "tests/runtime/support/fake_tier.h"

namespace dspack::runtime::streamed_prefetch_test {
namespace {

using test::ExpertFolder;

ExpertKey key_of(uint32_t layer, uint32_t expert) {
  return {.layer = LayerId(layer), .expert = ExpertId(expert)};
}

struct Lab {
  explicit Lab(std::optional<uint64_t> slots, PrefetchMode mode = PrefetchMode::on, unsigned depth = 8)
      : folder(6), storage(folder) {
    storage.set_depth(depth);
    auto made = StreamedStore::make(
        *device, storage,
        {.shape = {.hidden = ExpertFolder::kHidden, .expert_inner = ExpertFolder::kInner, .quantization = {}},
         .slots = slots,
         .policy = [] { return std::make_unique<LruPolicy>(); },
         .prefetch = mode});
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    store = std::move(*made);
    store->begin_pass({});
  }

  std::unique_ptr<ExpertRequest> request(uint32_t layer, const std::vector<uint32_t>& experts) {
    std::vector<ExpertDemand> demands;
    for (const uint32_t expert : experts)
      demands.push_back({.expert = ExpertId(expert)});
    auto made = store->request(LayerId(layer), demands);
    REQUIRE(made);
    return std::move(*made);
  }
  static void take(ExpertRequest& request, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const auto lease = request.next({});
      REQUIRE_MESSAGE(lease, (lease ? "" : lease.error().message));
    }
  }
  void run(uint32_t layer, const std::vector<uint32_t>& experts) { take(*request(layer, experts), experts.size()); }
  void expect(uint32_t layer, const std::vector<uint32_t>& experts) {
    std::vector<ExpertId> ids;
    for (const uint32_t expert : experts)
      ids.emplace_back(expert);
    store->expect(LayerId(layer), ids);
  }
  void announce(uint32_t layer, const std::vector<uint32_t>& experts) {
    std::vector<ExpertDemand> demands;
    for (const uint32_t expert : experts)
      demands.push_back({.expert = ExpertId(expert)});
    store->announce(LayerId(layer), demands);
  }
  void wait_until(const std::function<bool(const PhaseStats&)>& done) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done(decode())) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
  }
  [[nodiscard]] PhaseStats decode() const { return store->stats().phases[static_cast<size_t>(Phase::decode)]; }
  [[nodiscard]] int loads(uint32_t layer, uint32_t expert) const {
    const auto all = storage.loads();
    const auto found = all.find(key_of(layer, expert));
    return found == all.end() ? 0 : found->second;
  }

  ExpertFolder folder;
  test::FakeTier storage;
  std::unique_ptr<kernels::Device> device = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  std::unique_ptr<StreamedStore> store;
};

constexpr uint64_t kExpertBytes = 3ULL * ExpertFolder::kHidden * ExpertFolder::kInner + 3 * sizeof(float);

TEST_CASE("prefetch: what was expected and read is a hit, and counts as useful") {
  Lab lab({});
  CHECK(lab.store->wants_forecast());
  lab.run(0, {0, 1});
  lab.expect(1, {2, 3, 4});
  lab.wait_until([](const PhaseStats& counts) { return counts.prefetched_bytes == 3 * kExpertBytes; });
  lab.run(1, {5, 3, 2});
  const PhaseStats counts = lab.decode();
  CHECK(counts.hits == 2);
  CHECK(counts.all_misses() == 3);
  CHECK(counts.prefetches == 3);
  CHECK(counts.useful_prefetches == 2);
  CHECK(counts.useful_bytes == 2 * kExpertBytes);
  CHECK(counts.foreseeable == 3);
  CHECK(counts.foreseen == 2);
  CHECK(counts.expected == 3);
  CHECK(counts.wasted_bytes == 0);  // expert 4 is still there
  CHECK(lab.loads(1, 2) == 1);
}

TEST_CASE("prefetch: nothing is read on the chance while something is wanted") {
  Lab lab({});
  lab.storage.hold();
  const auto request = lab.request(0, {0, 1});
  lab.storage.wait_for_held(2);
  lab.expect(1, {2});
  lab.storage.let_through(key_of(0, 0));
  Lab::take(*request, 1);
  CHECK(lab.decode().prefetches == 0);
  lab.storage.let_through(key_of(0, 1));
  Lab::take(*request, 1);
  lab.storage.wait_for_held(1);
  CHECK(lab.storage.held() == std::set<ExpertKey>{key_of(1, 2)});
  lab.storage.let_all_through();
}

TEST_CASE("prefetch: what is wanted while it is on its way is waited for, not read twice") {
  Lab lab({});
  lab.storage.hold();
  lab.expect(1, {2});
  lab.storage.wait_for_held(1);
  const auto request = lab.request(1, {2, 3});
  CHECK_FALSE(request->is_ready());
  lab.storage.let_all_through();
  Lab::take(*request, 2);
  CHECK(lab.decode().late == 1);
  CHECK(lab.decode().useful_prefetches == 1);
  CHECK(lab.loads(1, 2) == 1);
}

TEST_CASE("prefetch: what turns out not to be wanted is given up, and does not hold up what is") {
  Lab lab({}, PrefetchMode::on, 2);  // one thread prefetches
  lab.storage.hold();
  lab.expect(1, {2, 3, 4});
  lab.storage.wait_for_held(1);
  const auto request = lab.request(1, {5});
  lab.storage.let_through(key_of(1, 5));
  Lab::take(*request, 1);  // though the block of expert 2 that has begun is still held
  lab.storage.let_all_through();
  lab.wait_until([&](const PhaseStats&) { return lab.store->stats().resident_experts == 1; });
  CHECK(lab.decode().prefetches == 2);
  CHECK(lab.loads(1, 3) == 0);
  CHECK(lab.loads(1, 4) == 0);
  CHECK(lab.decode().wasted_bytes < kExpertBytes);
  CHECK(lab.decode().wasted_bytes == lab.decode().prefetched_bytes);
}

TEST_CASE("prefetch: a failure is no error, and what failed is read again when it is wanted") {
  Lab lab({});
  lab.storage.fail(key_of(1, 2), 1);
  SUBCASE("before it is wanted") {
    lab.expect(1, {2});
    lab.wait_until([&](const PhaseStats&) { return lab.store->stats().resident_experts == 0; });
    lab.run(1, {2});
    CHECK(lab.decode().all_misses() == 1);
  }
  SUBCASE("while it is wanted") {
    lab.storage.hold();
    lab.expect(1, {2});
    lab.storage.wait_for_held(1);
    const auto request = lab.request(1, {2});
    lab.storage.let_all_through();
    Lab::take(*request, 1);
    CHECK(lab.loads(1, 2) == 2);
  }
}

TEST_CASE("prefetch: no slot is taken from an expert that this layer or the next one may need") {
  Lab lab(3);
  lab.run(0, {5});
  lab.run(0, {0, 1});
  lab.expect(1, {2, 3});
  lab.wait_until([](const PhaseStats& counts) { return counts.prefetched_bytes == kExpertBytes; });
  CHECK(lab.decode().prefetches == 1);  // in the place of expert 5
  lab.run(0, {0, 1});
  CHECK(lab.decode().hits == 2);
  lab.run(0, {3});  // the oldest that may go
  CHECK(lab.decode().wasted_bytes == kExpertBytes);
}

TEST_CASE("prefetch: the only slot comes back from a prefetch that is not wanted") {
  Lab lab(1, PrefetchMode::on, 2);
  lab.storage.hold();
  lab.expect(1, {2});
  lab.storage.wait_for_held(1);
  const auto request = lab.request(1, {3});
  lab.storage.let_all_through();
  Lab::take(*request, 1);
  CHECK(lab.decode().evictions == 0);
}

TEST_CASE("prefetch: off means that nothing is read on the chance") {
  Lab lab({}, PrefetchMode::off);
  CHECK_FALSE(lab.store->wants_forecast());
  lab.expect(1, {2});
  CHECK(lab.decode().prefetches == 0);
}

TEST_CASE(
    "announced: read ahead of its layer, over a network and in a prompt too, and counted as the miss that it is") {
  Lab lab({}, PrefetchMode::automatic);
  lab.storage.set_tier(Medium::network);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const uint32_t first = phase == Phase::prefill ? 0 : 2;
    lab.store->begin_pass({.phase = phase});
    lab.announce(0, {first, first + 1});
    lab.announce(1, {first, first + 1});
    lab.wait_until([&](const PhaseStats&) { return lab.store->stats().resident_experts == 2 * first + 4; });
    lab.run(0, {first, first + 1});
    lab.run(1, {first, first + 1});
    lab.run(1, {first});  // a second wave: it is there
    const PhaseStats counts = lab.store->stats().phases[static_cast<size_t>(phase)];
    CHECK(counts.all_misses() == 4);
    CHECK(counts.bytes[static_cast<size_t>(Medium::network)] == 4 * kExpertBytes);
    CHECK(counts.hits + counts.late == 1);
    CHECK(counts.prefetches + counts.prefetched_bytes + counts.useful_bytes == 0);
    CHECK(lab.loads(1, first) == 1);
  }
}

TEST_CASE("announced: what is wanted now goes first, and takes no slot of an announced layer while there is another") {
  Lab lab(4, PrefetchMode::automatic, 2);  // one thread reads ahead
  lab.run(0, {4, 5});
  lab.store->begin_pass({});
  lab.storage.hold();
  lab.announce(1, {2, 3});
  lab.storage.wait_for_held(1);
  auto request = lab.request(0, {0});  // in the place of expert 4 or 5
  lab.storage.let_through(key_of(0, 0));
  Lab::take(*request, 1);  // though what was announced is still held
  request.reset();
  lab.storage.let_all_through();
  lab.run(1, {2, 3});
  CHECK(lab.decode().evictions == 1);
  CHECK(lab.loads(1, 2) == 1);
  CHECK(lab.loads(1, 3) == 1);
  CHECK(lab.decode().all_misses() == 2 + 3);
}

TEST_CASE("announced: more than there are slots for waits until the layers before let theirs go") {
  Lab lab(2, PrefetchMode::automatic);
  lab.announce(0, {0, 1});
  lab.announce(1, {2, 3});
  lab.run(0, {0, 1});
  lab.run(1, {2, 3});
  CHECK(lab.decode().all_misses() == 4);
  CHECK(lab.loads(0, 0) + lab.loads(0, 1) + lab.loads(1, 2) + lab.loads(1, 3) == 4);
}

TEST_CASE("announced: with prefetch off, nothing is read ahead") {
  Lab lab({}, PrefetchMode::off);
  lab.announce(1, {2});
  CHECK(lab.store->stats().resident_experts == 0);
  lab.run(1, {2});
  CHECK(lab.decode().all_misses() == 1);
}

TEST_CASE("announced: a failure is no error, and what failed is read again when it is wanted") {
  Lab lab({}, PrefetchMode::automatic);
  lab.storage.fail(key_of(1, 2), 1);
  lab.announce(1, {2});
  lab.run(1, {2});
  CHECK(lab.loads(1, 2) == 2);
}

TEST_CASE("announced: a pass that was given up leaves what it has read to the next one") {
  Lab lab({}, PrefetchMode::automatic);
  lab.announce(1, {2, 3});
  lab.wait_until([&](const PhaseStats&) { return lab.store->stats().resident_experts == 2; });
  lab.store->begin_pass({});
  lab.announce(1, {2});
  lab.run(1, {2});
  CHECK(lab.decode().hits + lab.decode().late == 1);
  CHECK(lab.loads(1, 2) == 1);
}

TEST_CASE("prefetch: whatever is expected and fails, every demand is met, and the bytes add up") {
  std::mt19937 random(3);
  for (const uint64_t slots : {1U, 2U, 3U, 5U, 12U}) {
    CAPTURE(slots);
    Lab lab(slots);
    uint64_t taken = 0;
    for (int pass = 0; pass < 60; ++pass) {
      lab.store->begin_pass({});
      if (pass % 3 == 0) {
        for (uint32_t layer = 0; layer < 2; ++layer)
          lab.announce(layer, {static_cast<uint32_t>(random()) % 6});
      }
      for (uint32_t layer = 0; layer < 2; ++layer) {
        const uint32_t first = static_cast<uint32_t>(random()) % 6;
        const uint32_t guess = static_cast<uint32_t>(random()) % 6;
        const auto request = lab.request(layer, {first, (first + 2) % 6});
        lab.expect(1 - layer, {guess, (guess + 1) % 6});
        if (random() % 4 == 0) continue;  // nothing of it is taken
        Lab::take(*request, 2);
        taken += 2;
      }
    }
    // Bytes of a prefetch count when it ends, so all that is still on its way is waited for.
    lab.store->begin_pass({});
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const auto request = lab.request(layer, {0, 1, 2, 3, 4, 5});
      Lab::take(*request, 6);
      taken += 6;
    }
    const PhaseStats counts = lab.decode();
    CHECK(counts.hits + counts.late + counts.all_misses() >= taken);
    CHECK(counts.hits + counts.late + counts.all_misses() <= 240 + 12 + 40);  // 40 announced in vain
    CHECK(counts.useful_bytes + counts.wasted_bytes <= counts.prefetched_bytes);
  }
}

}  // namespace
}  // namespace dspack::runtime::streamed_prefetch_test
