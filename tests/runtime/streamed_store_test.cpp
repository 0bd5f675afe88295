// The expert store against a storage that delays, reorders, fails and spoils.
#include "runtime/experts/streamed_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "tests/runtime/support/fake_tier.h"

namespace dspack::runtime::streamed_store_test {
namespace {

using test::ExpertFolder;

ExpertKey key_of(uint32_t layer, uint32_t expert) {
  return {.layer = LayerId(layer), .expert = ExpertId(expert)};
}

std::vector<ExpertDemand> demands_of(const std::vector<uint32_t>& experts, uint32_t row = 0) {
  std::vector<ExpertDemand> demands;
  for (const uint32_t expert : experts)
    demands.push_back({.expert = ExpertId(expert), .rows = 1, .first_row = row, .last_row = row});
  return demands;
}

struct Lab {
  explicit Lab(std::optional<uint64_t> slots, uint32_t experts = 6) : folder(experts), storage(folder) { make(slots); }

  void make(std::optional<uint64_t> slots) {
    auto made = StreamedStore::make(
        *device, storage,
        {.shape = {.hidden = ExpertFolder::kHidden, .expert_inner = ExpertFolder::kInner, .quantization = {}},
         .slots = slots,
         .policy = [] { return std::make_unique<LruPolicy>(); }});
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    store = std::move(*made);
  }

  // Whether a lease holds the bytes of its expert, scales included.
  [[nodiscard]] bool is_right(const ExpertWeights& weights, ExpertKey key) const {
    const auto same = [&](const Linear& linear, const char* projection) {
      const std::string name = "model.layers." + std::to_string(key.layer.value) + ".mlp.experts." +
                               std::to_string(key.expert.value) + "." + projection + ".weight";
      const std::string& data = folder.bytes.at(name);
      const std::string& scale = folder.bytes.at(name + "_scale_inv");
      const kernels::Weight& weight = linear.weight();
      const kernels::Slice codes = weight.planes[kernels::kCodes];
      const kernels::Slice scales = weight.planes[kernels::kScales];
      const auto memory = kernels::host_bytes(*codes.buffer);
      return std::memcmp(memory.data() + codes.offset_bytes, data.data(), data.size()) == 0 &&
             std::memcmp(memory.data() + scales.offset_bytes, scale.data(), scale.size()) == 0;
    };
    return same(weights.gate, "gate_proj") && same(weights.up, "up_proj") && same(weights.down, "down_proj");
  }

  // Takes all demands, one lease at a time; the order in which they came, or the first error.
  Result<std::vector<uint32_t>> run(uint32_t layer, const std::vector<uint32_t>& experts) {
    TRY_ASSIGN(const auto request, store->request(LayerId(layer), demands_of(experts)));
    std::vector<uint32_t> order;
    while (order.size() < experts.size()) {
      TRY_ASSIGN(const ExpertLease lease, request->next({}));
      const uint32_t expert = experts[lease.index()];
      CHECK(is_right(lease.weights(), key_of(layer, expert)));
      order.push_back(expert);
    }
    return order;
  }

  [[nodiscard]] PhaseStats decode() const { return store->stats().phases[static_cast<size_t>(Phase::decode)]; }

  ExpertFolder folder;
  test::FakeTier storage;
  std::unique_ptr<kernels::Device> device = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  std::unique_ptr<StreamedStore> store;
};

TEST_CASE("store: experts come with their own bytes at every number of slots, and what fits is read once") {
  for (const uint64_t slots : {1U, 2U, 3U, 5U, 12U}) {
    CAPTURE(slots);
    Lab lab(slots);
    for (int pass = 0; pass < 3; ++pass) {
      lab.store->begin_pass({});
      REQUIRE(lab.run(0, {0, 3, 5}));
      REQUIRE(lab.run(1, {1, 2, 4}));
    }
    CHECK(lab.store->stats().hits() + lab.store->stats().misses() == 18);
    CHECK(lab.store->stats().slots == slots);
    CHECK(lab.store->stats().resident_experts == std::min<uint64_t>(slots, 6));
    if (slots >= 6) CHECK(lab.store->stats().misses() == 6);
  }
}

TEST_CASE("store: all misses of a layer are read at once, and come in the order in which they arrive") {
  Lab lab(6);
  lab.storage.hold();
  const auto request = lab.store->request(LayerId(0), demands_of({0, 1, 2}));
  REQUIRE(request);
  lab.storage.wait_for_held(3);
  CHECK_FALSE((*request)->is_ready());
  for (const uint32_t expert : {2U, 0U, 1U}) {
    lab.storage.let_through(key_of(0, expert));
    const auto lease = (*request)->next({});
    REQUIRE(lease);
    CHECK(lease->index() == expert);
  }
}

TEST_CASE("store: what is in memory comes first, while the others are read") {
  Lab lab(6);
  REQUIRE(lab.run(0, {1, 2}));
  lab.storage.hold();
  const auto request = lab.store->request(LayerId(0), demands_of({0, 1, 2}));
  REQUIRE(request);
  lab.storage.wait_for_held(1);
  std::vector<size_t> first;
  for (int i = 0; i < 2; ++i) {
    CHECK((*request)->is_ready());
    const auto lease = (*request)->next({});
    REQUIRE(lease);
    first.push_back(lease->index());
  }
  CHECK(first == std::vector<size_t>{1, 2});
  CHECK_FALSE((*request)->is_ready());
  lab.storage.let_all_through();
  const auto last = (*request)->next({});
  REQUIRE(last);
  CHECK(last->index() == 0);
}

TEST_CASE("store: a leased expert keeps its slot, whatever else is wanted") {
  Lab lab(2);
  const auto request = lab.store->request(LayerId(0), demands_of({0, 1, 2, 3}));
  REQUIRE(request);
  std::optional<ExpertLease> held;
  {
    auto lease = (*request)->next({});
    REQUIRE(lease);
    held.emplace(std::move(*lease));
  }
  const auto expert = static_cast<uint32_t>(held->index());
  for (int i = 0; i < 3; ++i) {
    const auto lease = (*request)->next({});
    REQUIRE(lease);
    CHECK(lab.is_right(held->weights(), key_of(0, expert)));
  }
}

TEST_CASE("store: more leases than slots are an error, not a wait for ever") {
  Lab lab(2);
  const auto request = lab.store->request(LayerId(0), demands_of({0, 1, 2}));
  REQUIRE(request);
  const auto first = (*request)->next({});
  const auto second = (*request)->next({});
  REQUIRE((first && second));
  const auto third = (*request)->next({});
  REQUIRE_FALSE(third);
  CHECK(third.error().kind == ErrorKind::budget);
}

TEST_CASE("store: a failed read is the error of who wanted the expert, and the next one tries again") {
  Lab lab(3);
  lab.storage.fail(key_of(0, 1), 1);
  const auto failed = lab.run(0, {0, 1, 2});
  REQUIRE_FALSE(failed);
  CHECK(failed.error().kind == ErrorKind::io);
  CHECK(failed.error().message.find("layer 0, expert 1") != std::string::npos);
  REQUIRE(lab.run(0, {0, 1, 2}));
}

TEST_CASE("store: a request that is dropped half-way leaves nothing pinned") {
  Lab lab(2);
  lab.storage.hold();
  {
    const auto request = lab.store->request(LayerId(0), demands_of({0, 1}));
    REQUIRE(request);
    lab.storage.wait_for_held(2);
  }
  lab.storage.let_all_through();
  REQUIRE(lab.run(1, {0, 1}));
  REQUIRE(lab.run(0, {2, 3}));
}

TEST_CASE("store: waiting ends when the run is stopped") {
  Lab lab(2);
  lab.storage.hold();
  std::stop_source stop;
  const auto request = lab.store->request(LayerId(0), demands_of({0}));
  REQUIRE(request);
  lab.storage.wait_for_held(1);
  stop.request_stop();
  const auto lease = (*request)->next(stop.get_token());
  REQUIRE_FALSE(lease);
  CHECK(lease.error().kind == ErrorKind::cancelled);
}

TEST_CASE("store: spoiled bytes are found where digests are asked for, and fetched anew from a network only") {
  for (const auto tier : {Medium::disk, Medium::network}) {
    for (const int times : {1, 2}) {
      CAPTURE(static_cast<int>(tier));
      CAPTURE(times);
      Lab lab(4);
      lab.storage.add_digests(lab.folder);
      lab.storage.set_verify(true);
      lab.storage.set_tier(tier);
      lab.storage.spoil(key_of(0, 2), times);
      const auto got = lab.run(0, {1, 2});
      if (tier == Medium::network && times == 1) {
        CHECK(got);
        CHECK(lab.storage.loads().at(key_of(0, 2)) == 2);
        continue;
      }
      REQUIRE_FALSE(got);
      CHECK(got.error().kind == ErrorKind::corrupt);
      CHECK(got.error().message.find("weights.safetensors") != std::string::npos);
    }
  }
}

TEST_CASE("store: what came over the network is handed to the cache once, whole and right") {
  Lab lab(2);
  lab.storage.set_tier(Medium::network);
  REQUIRE(lab.run(0, {0, 1}));
  REQUIRE(lab.run(0, {0, 1}));
  lab.store.reset();  // waits for what is still to be written
  const auto kept = lab.storage.kept();
  REQUIRE(kept.size() == 2);
  std::string all;
  for (const uint32_t tensor : lab.storage.checkpoint().expert(key_of(0, 1)))
    all += lab.folder.bytes.at(lab.storage.checkpoint().tensors()[tensor].name);
  CHECK(kept.at(key_of(0, 1)) == all);
}

TEST_CASE("store: a cache that cannot be written ends the run with its reason") {
  Lab lab(1);
  lab.storage.set_tier(Medium::network);
  lab.storage.fail_keeping();
  auto got = lab.run(0, {0, 1, 2, 3});
  REQUIRE_FALSE(got);
  CHECK(got.error().message.find("the cache cannot be written") != std::string::npos);
}

TEST_CASE("store: drafts count as used only once they have stood") {
  Lab lab(3);
  // A pass of two rows, of which the second is drafted.
  const auto pass = [&](uint32_t certain, uint32_t drafted, uint32_t accepted) {
    lab.store->begin_pass({.phase = Phase::decode, .rows = 2, .draft_rows = 1});
    std::vector<ExpertDemand> demands = demands_of({certain});
    demands.push_back(demands_of({drafted}, 1).front());
    const auto request = lab.store->request(LayerId(0), std::move(demands));
    REQUIRE(request);
    for (int i = 0; i < 2; ++i)
      REQUIRE((*request)->next({}));
    lab.store->accept_drafts(accepted);
  };
  pass(0, 1, 0);
  CHECK(lab.decode().draft_misses == 1);
  pass(2, 3, 1);  // takes the slot of 1, which nobody but a draft wanted
  REQUIRE(lab.run(0, {0}));
  CHECK(lab.decode().all_misses() == 4);
  CHECK(lab.decode().hits == 1);
}

TEST_CASE("store: an expert that the checkpoint lacks is named") {
  Lab lab(2);
  const auto got = lab.run(1, {99});
  REQUIRE_FALSE(got);
  CHECK(got.error().kind == ErrorKind::not_found);
  CHECK(got.error().message.find("layer 1, expert 99") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime::streamed_store_test
