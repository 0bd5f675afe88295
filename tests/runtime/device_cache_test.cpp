// In which order a device's cache has experts copied: what nobody waits for takes the link from no demand.
#include "runtime/experts/device_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "runtime/experts/pinned_slots.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"
#include "tests/runtime/support/expert_place.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::device_cache_test {
namespace {

using test::ExpertPlace;

constexpr LayerId kFirst(1);
constexpr LayerId kSecond(2);
constexpr uint64_t kPieceBytes = 8192;  // of experts of some 37 KB
constexpr ExpertPass kPass{.phase = Phase::decode, .rows = 1, .draft_rows = 0};

PolicyFactory lru() {
  return [] { return std::make_unique<LruPolicy>(); };
}

/// A cache over a store that has some experts of two layers in memory.
struct Lab {
  explicit Lab(uint64_t seed, uint64_t slots = 8)
      : place(test::tiny_folder(), true, UINT64_MAX, seed), pinned(*place.device) {
    host = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
    store = std::move(*StreamedStore::make(
        *host, place.weights(),
        {.shape = place.shape(), .layers = {kFirst, kSecond}, .slots = {}, .policy = lru(), .memory = &pinned}));
    store->begin_pass(kPass);
    for (const LayerId layer : {kFirst, kSecond}) {
      auto request = store->request(layer, {demand(0), demand(1), demand(2), demand(3)});
      REQUIRE(request);
      for (int i = 0; i < 4; ++i)
        REQUIRE((*request)->next({}));
    }
    cache = std::move(*DeviceCache::make(*place.device, place.checkpoint(), *store,
                                         {.experts = place.options({kFirst, kSecond}),
                                          .slots = slots,
                                          .policy = lru(),
                                          .prefetch = PrefetchMode::on,
                                          .ahead_bytes = kPieceBytes}));
    cache->begin_pass(kPass);
    pieces = copies(kPieceBytes);
    whole = copies(UINT64_MAX);
    REQUIRE(pieces > kPiecesAhead);
    counts = static_cast<test::DeferredDevice&>(*place.device).counts();
  }

  static ExpertDemand demand(uint32_t expert) { return {.expert = ExpertId(expert)}; }
  void want(LayerId layer, uint32_t expert) {
    const ExpertDemand wanted = demand(expert);
    cache->begin_layer(layer, {&wanted, 1});
    if (cache->use(layer, wanted) != nullptr) return;
    (void)cache->move(layer, wanted, *store->lease_if_ready({.layer = layer, .expert = wanted.expert}), true);
  }
  void expect(LayerId layer, std::vector<uint32_t> experts) {
    std::vector<ExpertId> ids;
    for (const uint32_t expert : experts)
      ids.emplace_back(expert);
    cache->prefetch(layer, ids);
  }
  [[nodiscard]] uint64_t prefetches() const {
    return cache->stats().phases[static_cast<size_t>(Phase::decode)].prefetches;
  }
  [[nodiscard]] uint64_t uploads() const { return counts->uploads.size(); }
  /// Copies of an expert, none of more than `most_bytes`.
  [[nodiscard]] uint64_t copies(uint64_t most_bytes) {
    const auto layout = lay_out_experts(place.checkpoint(), place.options({kFirst}), ExpertPresence::all)->at(kFirst);
    const auto to = *place.device->allocate(layout.expert_bytes);
    const auto lease = *store->lease_if_ready({.layer = kFirst, .expert = ExpertId(0)});
    return pieces_of(layout, lease.weights(), weights_at(layout, {to.get(), 0}), most_bytes).size();
  }

  ExpertPlace place;
  PinnedSlots pinned;
  std::unique_ptr<kernels::Device> host;
  std::unique_ptr<StreamedStore> store;
  std::unique_ptr<DeviceCache> cache;
  uint64_t pieces = 0, whole = 0;  // copies of an expert that is copied ahead, and of a demand
  std::shared_ptr<const test::DeferredCounts> counts;
};

/// Of what was uploaded from then on, the most that was under way before it.
uint64_t most_before(const Lab& lab, uint64_t first) {
  uint64_t most = 0;
  for (uint64_t i = first; i < lab.uploads(); ++i)
    most = std::max(most, lab.counts->uploads[i].under_way);
  return most;
}

constexpr int kOften = 2000;  // each time the device may do some of its work

}  // namespace

TEST_CASE(
    "device cache: what nobody waits for is copied behind demands, a piece after the other, one expert at a time") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Lab lab(seed);
    lab.want(kFirst, 0);
    REQUIRE(lab.uploads() == lab.whole);
    lab.expect(kSecond, {0, 1, 2});
    for (int i = 0; i < kOften && lab.cache->advance(); ++i)
      CHECK(lab.uploads() >= lab.whole + (std::max<uint64_t>(lab.prefetches(), 1) - 1) * lab.pieces);
    CHECK(lab.prefetches() == 3);
    CHECK(lab.uploads() == lab.whole + 3 * lab.pieces);
    // The demand had arrived before, and beside a piece there is no more than one other.
    CHECK(most_before(lab, lab.whole) <= (kPiecesAhead - 1) * kPieceBytes);
  }
}

TEST_CASE("device cache: a demand waits for no more than the pieces under way, and pieces wait for it") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Lab lab(seed);
    lab.expect(kSecond, {0});
    const uint64_t before = lab.uploads();
    REQUIRE(before <= kPiecesAhead);
    lab.want(kFirst, 1);
    CHECK(lab.uploads() - before == lab.whole);
    REQUIRE(lab.prefetches() == 1);
    CHECK(lab.counts->uploads[before].under_way <= kPiecesAhead * kPieceBytes);
    for (int i = 0; i < kOften && lab.cache->advance(); ++i) {
    }
    CHECK(lab.uploads() == lab.pieces + lab.whole);
    CHECK(most_before(lab, before + lab.whole) <= (kPiecesAhead - 1) * kPieceBytes);
  }
}

TEST_CASE(
    "device cache: an expert that is demanded while pieces of it are left comes at once, and is counted as useful") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Lab lab(seed);
    lab.expect(kSecond, {0});
    lab.want(kSecond, 0);
    CHECK(lab.uploads() == lab.pieces);  // all were there
    CHECK_FALSE(lab.cache->advance());
    CHECK(lab.uploads() == lab.pieces);
    while (lab.cache->reap_oldest()) {
    }
    CHECK(lab.counts->arrived_bytes == lab.counts->uploaded_bytes);
    CHECK(lab.cache->stats().phases[static_cast<size_t>(Phase::decode)].useful_prefetches == 1);
    CHECK(lab.cache->stats().phases[static_cast<size_t>(Phase::decode)].moved == 0);
  }
}

TEST_CASE("device cache: an expert that was expected and is not wanted is given up, unless all of it is on its way") {
  Lab lab(1);
  lab.expect(kSecond, {0});
  lab.want(kSecond, 1);
  CHECK_FALSE(lab.cache->holds({.layer = kSecond, .expert = ExpertId(0)}));
  const auto counts = [&] { return lab.cache->stats().phases[static_cast<size_t>(Phase::decode)]; };
  CHECK(counts().wasted_bytes == lab.counts->uploads[0].bytes + lab.counts->uploads[1].bytes);
  CHECK(counts().prefetched_bytes == counts().wasted_bytes);
  CHECK_FALSE(lab.cache->advance());
  lab.expect(kFirst, {3});
  for (int i = 0; i < kOften && lab.cache->advance(); ++i) {
  }
  const uint64_t wasted = counts().wasted_bytes;
  lab.want(kFirst, 2);
  CHECK(lab.cache->holds({.layer = kFirst, .expert = ExpertId(3)}));
  CHECK(counts().wasted_bytes == wasted);
}

TEST_CASE("device cache: an expert that the CPU has computed is copied behind the layer's demands") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Lab lab(seed);
    const ExpertDemand computed = Lab::demand(0);
    const auto lease = [&](uint32_t expert) {
      return *lab.store->lease_if_ready({.layer = kFirst, .expert = ExpertId(expert)});
    };
    lab.cache->begin_layer(kFirst, {&computed, 1});
    lab.cache->computed_by_host(kFirst, computed, lease(0), true);
    CHECK(lab.uploads() == 0);  // results of the CPU's other experts go first
    lab.want(kFirst, 1);
    CHECK(lab.uploads() == lab.whole);
    lab.cache->computed_by_host(kFirst, Lab::demand(2), lease(2), true);
    for (int i = 0; i < kOften && lab.cache->advance(); ++i) {
    }
    CHECK(lab.uploads() == lab.whole + lab.pieces);  // one expert at a time: 2 was not taken
    CHECK(most_before(lab, lab.whole) <= (kPiecesAhead - 1) * kPieceBytes);
    CHECK(lab.cache->stats().phases[static_cast<size_t>(Phase::decode)].promoted == 1);
  }
}

/// A device whose slots are full of the first experts of a layer, over a host that has few of these: not kFirstToLeave,
/// which is the first that would leave the device, and those behind it.
struct Full {
  explicit Full(uint64_t seed) : place(test::tiny_folder(), true, UINT64_MAX, seed) {
    host = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
    const auto make_store = [&](std::optional<uint64_t> slots) {
      auto made = std::move(*StreamedStore::make(
          *host, place.weights(), {.shape = place.shape(), .layers = {kFirst}, .slots = slots, .policy = lru()}));
      made->begin_pass(kPass);
      return made;
    };
    store = make_store(kHostSlots);
    whole = make_store(std::nullopt);
    cache = std::move(*DeviceCache::make(*place.device, place.checkpoint(), *store,
                                         {.experts = place.options({kFirst}),
                                          .slots = kSlots,
                                          .policy = lru(),
                                          .ahead_bytes = kPieceBytes,
                                          .returns = true}));
    cache->begin_pass(kPass);
    for (uint32_t expert = 0; expert < kSlots; ++expert)
      move(expert);
    for (uint32_t expert = 0; expert < kFirstToLeave; ++expert)
      use(expert);
  }
  void use(uint32_t expert) {
    const ExpertDemand demand{.expert = ExpertId(expert)};
    cache->begin_layer(kFirst, {&demand, 1});
    REQUIRE(cache->use(kFirst, demand) != nullptr);
  }
  void move(uint32_t expert) {
    const ExpertDemand demand{.expert = ExpertId(expert)};
    cache->begin_layer(kFirst, {&demand, 1});
    auto request = store->request(kFirst, {demand});
    REQUIRE(request);
    (void)cache->move(kFirst, demand, *(*request)->next({}), true);
    while (cache->reap_oldest()) {
    }
  }
  [[nodiscard]] bool device_has(uint32_t expert) const { return cache->holds(key(expert)); }
  /// The host has it, with the bytes of the file.
  [[nodiscard]] bool host_has(uint32_t expert) {
    const auto lease = store->lease_if_ready(key(expert));
    if (!lease) return false;
    const ExpertDemand demand{.expert = ExpertId(expert)};
    auto request = whole->request(kFirst, {demand});
    const ExpertLease wanted = *(*request)->next({});
    const auto bytes = [](const Linear& matrix, size_t plane) {
      const kernels::Slice& at = matrix.weight().planes[plane];
      return kernels::host_bytes(*at.buffer)
          .subspan(at.offset_bytes, kernels::plane_size(matrix.weight(), plane).bytes);
    };
    for (const auto matrix : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down})
      for (const size_t plane : {kernels::kCodes, kernels::kScales})
        CHECK(std::ranges::equal(bytes(lease->weights().*matrix, plane), bytes(wanted.weights().*matrix, plane)));
    return true;
  }
  void advance() {
    for (int i = 0; i < kOften && cache->advance(); ++i) {
    }
  }
  static ExpertKey key(uint32_t expert) { return {.layer = kFirst, .expert = ExpertId(expert)}; }

  static constexpr uint32_t kSlots = 32;  // of which two are kept empty
  static constexpr uint32_t kHostSlots = 8;
  static constexpr uint32_t kFirstToLeave = kHostSlots - 1;  // of what is spare, the host keeps what came first
  ExpertPlace place;
  std::unique_ptr<kernels::Device> host;
  std::unique_ptr<StreamedStore> store, whole;
  std::unique_ptr<DeviceCache> cache;
};

constexpr uint32_t kLeaves = Full::kFirstToLeave;

TEST_CASE("device cache: experts that are to leave go back to the host one by one, until some slots are empty") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Full full(seed);
    CHECK_FALSE(full.host_has(kLeaves));
    full.advance();
    for (const uint32_t expert : {kLeaves, kLeaves + 1}) {
      CHECK_FALSE(full.device_has(expert));
      CHECK(full.host_has(expert));
    }
    CHECK(full.device_has(kLeaves + 2));
    const auto counts = full.cache->stats().phases[static_cast<size_t>(Phase::decode)];
    CHECK(counts.returned == 2);
    CHECK(counts.evictions == 2);
    full.move(40);  // takes an empty slot
    CHECK(full.device_has(kLeaves + 2));
    full.advance();
    CHECK(full.host_has(kLeaves + 2));
  }
}

TEST_CASE("device cache: an expert that is wanted on its way back stays") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Full full(seed);
    REQUIRE(full.cache->advance());  // it is on its way
    full.use(kLeaves);
    full.advance();
    CHECK(full.device_has(kLeaves));  // and the host's copy was the first to make room for the next
    CHECK_FALSE(full.host_has(kLeaves));
    CHECK_FALSE(full.device_has(kLeaves + 1));
    CHECK_FALSE(full.device_has(kLeaves + 2));
    const auto returned = [&] { return full.cache->stats().phases[static_cast<size_t>(Phase::decode)].returned; };
    CHECK(returned() == 3);
    for (const uint32_t other : {40, 41, 42}) {
      full.move(other);
      full.advance();
    }
    CHECK(returned() == 6);
  }
}

TEST_CASE(
    "device cache: a host without a slot takes nothing back, and what is on its way when the cache goes arrives") {
  Full full(1);
  std::vector<ExpertLease> held;
  for (const ExpertKey key : full.store->held())
    held.push_back(*full.store->lease_if_ready(key));
  REQUIRE(held.size() == Full::kHostSlots);
  CHECK_FALSE(full.cache->advance());
  CHECK(full.device_has(kLeaves));
  held.pop_back();
  full.move(40);  // as if nothing could go back
  CHECK_FALSE(full.device_has(kLeaves));
  held.clear();
  REQUIRE(full.cache->advance());
  full.cache.reset();
  CHECK(full.host_has(kLeaves + 1));
}

TEST_CASE("device cache: an expert that the host has leaves without a copy") {
  Full full(1);
  for (uint32_t expert = kLeaves; expert < Full::kSlots; ++expert)
    full.use(expert);
  CHECK_FALSE(full.cache->advance());
  for (const uint32_t expert : {0, 1}) {
    CHECK_FALSE(full.device_has(expert));
    CHECK(full.host_has(expert));
  }
  CHECK(full.cache->stats().phases[static_cast<size_t>(Phase::decode)].returned == 0);
}

TEST_CASE("device cache: what is held has arrived, and stays until it is let go") {
  bool was_on_its_way = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Lab lab(seed, 2);
    CHECK(lab.cache->hold(kFirst).empty());
    lab.want(kFirst, 0);
    if (lab.cache->hold(kFirst).empty()) {
      was_on_its_way = true;
    } else {
      CHECK(lab.counts->arrived_bytes == lab.counts->uploaded_bytes);
    }
    lab.want(kFirst, 1);
    while (lab.cache->reap_oldest()) {
    }
    const auto entries = lab.cache->hold(kFirst);
    REQUIRE(entries.size() > 2);
    CHECK(entries[0] != entries[1]);
    for (size_t expert = 0; expert < entries.size(); ++expert)
      CHECK((entries[expert] == kernels::kNoEntry) == (expert > 1));
    lab.expect(kSecond, {0});
    CHECK(lab.prefetches() == 0);
    lab.cache->let_go();
    lab.expect(kSecond, {0});
    CHECK(lab.prefetches() == 1);
    CHECK_FALSE(lab.cache->holds({.layer = kFirst, .expert = ExpertId(0)}));
    CHECK(lab.cache->hold(kSecond).empty());  // pieces of it are left
  }
  CHECK(was_on_its_way);
}

TEST_CASE("experts in pieces: none is larger than asked for, and together they are the expert") {
  ExpertPlace place(test::tiny_folder());
  Lab lab(1);
  const auto layouts = lay_out_experts(place.checkpoint(), place.options({kFirst}), ExpertPresence::all);
  REQUIRE(layouts);
  const ExpertLayout& layout = layouts->at(kFirst);
  const auto to = place.device->allocate(layout.expert_bytes);
  REQUIRE(to);
  const ExpertLease lease = *lab.store->lease_if_ready({.layer = kFirst, .expert = ExpertId(0)});
  const ExpertWeights target = weights_at(layout, {.buffer = to->get(), .offset_bytes = 0});
  for (const uint64_t most : {uint64_t{100}, uint64_t{256}, layout.expert_bytes}) {
    std::ranges::fill((*to)->host(), std::byte{0xff});
    upload_expert(*place.queue, layout, lease.weights(), target);
    place.queue->synchronize();
    const std::vector<std::byte> whole((*to)->host().begin(), (*to)->host().end());
    std::ranges::fill((*to)->host(), std::byte{0xff});
    uint64_t bytes = 0;
    for (const ExpertPiece& piece : pieces_of(layout, lease.weights(), target, most)) {
      CHECK(piece.host.size() <= most);
      bytes += piece.host.size();
      place.queue->upload(piece.device, piece.host);
    }
    place.queue->synchronize();
    CHECK(std::ranges::equal((*to)->host(), whole));
    CHECK(bytes <= layout.expert_bytes);
  }
}

}  // namespace dspack::runtime::device_cache_test
