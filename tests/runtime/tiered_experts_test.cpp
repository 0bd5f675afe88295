// Experts of which a device holds some: whatever it holds, and in whatever order copies and work run, the result is
// that of the CPU's executor, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/runtime/support/family.h"
#include "tests/runtime/support/overlaid_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/runtime/support/tiered_place.h"

namespace dspack::runtime::tiered_experts_test {
namespace {

using test::check_some_passes;
using test::ExpertPlace;
using test::kFirst;
using test::kSecond;
using test::lru;
using test::RoutedRows;
using test::TierReference;
using test::Tiers;

TEST_CASE("tiered experts: bit for bit the CPU's result at every size of either tier") {
  TierReference reference(test::tiny_folder());
  for (const bool is_deferred : {false, true}) {
    for (const uint64_t vram : {0, 1, 3, 9, 64, 128}) {
      for (const uint64_t ram : {1, 2, 6, 128}) {
        CAPTURE(is_deferred);
        CAPTURE(vram);
        CAPTURE(ram);
        ExpertPlace place(test::tiny_folder(), is_deferred, UINT64_MAX, vram + ram);
        Tiers tiers(place, {.vram = vram, .ram = ram});
        check_some_passes(reference, place, tiers);
      }
    }
  }
}

TEST_CASE("tiered experts: the same whoever computes what is missing") {
  TierReference reference(test::tiny_folder());
  for (const MissMode mode : {MissMode::automatic, MissMode::compute}) {
    for (const uint64_t seed : {1, 2, 3}) {
      ExpertPlace place(test::tiny_folder(), true, UINT64_MAX, seed);
      Tiers tiers(place, {.vram = 5, .ram = 4}, {.mode = mode});
      check_some_passes(reference, place, tiers);
      if (mode == MissMode::compute) CHECK(tiers.counts().moved == 5);  // what there was room for
      CHECK(tiers.counts().computed > 0);
      CHECK(tiers.counts(Phase::prefill).computed == 0);
    }
  }
}

TEST_CASE("tiered experts: other stored types, and experts that lie in a slot in another way than in a file") {
  for (const char* name : {"f16", "fp8-channel"}) {
    const auto folder = test::family_folder() / name;
    CAPTURE(name);
    TierReference reference(folder);
    ExpertPlace place(folder, true);
    Tiers tiers(place, {.vram = 3, .ram = 4});
    check_some_passes(reference, place, tiers, {1, 1, 2, 1, 7, 1, 16, 1, 23, 1}, {kFirst});
  }
}

TEST_CASE("tiered experts: hits, misses, evictions and bytes are counted") {
  ExpertPlace place(test::tiny_folder(), true);
  const uint32_t top_k = place.config.top_k;
  Tiers tiers(place, {.vram = top_k});
  RoutedRows rows(place, kFirst, 1, 5);
  const auto first = rows.run(*tiers.executor);
  CHECK(tiers.counts().moved == top_k);
  CHECK(tiers.counts().hits + tiers.counts().late == 0);
  CHECK(rows.run(*tiers.executor) == first);
  CHECK(tiers.counts().moved == top_k);
  CHECK(tiers.counts().hits + tiers.counts().late == top_k);
  CHECK(tiers.counts().evictions == 0);
  const auto stats = tiers.executor->stats();
  CHECK(stats.vram->used == top_k);
  CHECK(stats.vram->slots == top_k);
  CHECK(stats.vram->phases[1].moved_bytes == top_k * (stats.vram->bytes / (top_k + kVramWindow)));
  CHECK(stats.misses() == top_k);  // of the host's memory
  CHECK(tiers.executor->miss_counts().misses == top_k);

  RoutedRows others(place, kSecond, 1, 6);
  (void)others.run(*tiers.executor);
  CHECK(tiers.counts().moved == 2 * top_k);
  CHECK(tiers.counts().evictions == top_k);
}

// By the clock of a device that does everything at once; the other plays with time.
TEST_CASE("tiered experts: the bound of decoding is no more than what it took") {
  ExpertPlace place(test::tiny_folder());
  Tiers tiers(place, {.vram = 6, .ram = 4});
  for (unsigned seed = 1; seed < 8; ++seed) {
    RoutedRows rows(place, kFirst, 1, seed);
    (void)rows.run(*tiers.executor);
  }
  const DecodeBound& bound = tiers.executor->decode_bound();
  CHECK(bound.expert_seconds() > 0);
  CHECK(bound.compute_seconds() > 0);
  CHECK(bound.transfer_seconds() > 0);
  CHECK(bound.seconds(bound.expert_seconds()) <= bound.expert_seconds());
  CHECK(bound.seconds(bound.expert_seconds()) > 0);
}

/// Tokens of kFirst, one after the other; those of different kinds go to different experts.
void run_tokens(ExpertPlace& place, Tiers& tiers, std::initializer_list<uint32_t> kinds) {
  for (const uint32_t kind : kinds) {
    RoutedRows rows(place, kFirst, 1, 7);
    std::vector<uint32_t> ids(place.config.top_k);
    std::iota(ids.begin(), ids.end(), kind * place.config.top_k);
    place.queue->upload(rows.routed.ids, std::as_bytes(std::span(ids)));
    place.queue->synchronize();
    (void)rows.run(*tiers.executor);
  }
}

TEST_CASE("tiered experts: what is established on the device leaves the host's memory first") {
  ExpertPlace place(test::tiny_folder(), true);
  const uint32_t top_k = place.config.top_k;
  // Room for two tokens' experts in each tier.
  Tiers tiers(place, {.vram = 2 * top_k, .ram = 2 * top_k});
  const auto reads = [&] { return tiers.executor->stats().misses(); };
  run_tokens(place, tiers, {2, 1, 1, 1, 1, 3});  // the host's copies of 1 have gone, though those of 2 are older
  const uint64_t before = reads();
  CHECK(before == 3 * top_k);
  run_tokens(place, tiers, {2});
  CHECK(reads() == before);
  // A prefill pushes nothing out of the device's memory.
  const uint64_t evictions = tiers.counts().evictions;
  RoutedRows prompt(place, kSecond, 20, 9);
  (void)prompt.run(*tiers.executor, Phase::prefill);
  CHECK(tiers.counts().evictions + tiers.counts(Phase::prefill).evictions == evictions);
  const uint64_t moved = tiers.counts().moved;
  run_tokens(place, tiers, {2});
  CHECK(tiers.counts().moved == moved);
}

TEST_CASE("tiered experts: what has left the device is as good as any in the host's memory") {
  ExpertPlace place(test::tiny_folder(), true);
  const uint32_t top_k = place.config.top_k;
  Tiers tiers(place, {.vram = 2 * top_k, .ram = 3 * top_k});
  run_tokens(place, tiers, {1, 1, 1, 1, 2, 3, 1, 4, 3});  // 1 was established, left, and came again
  const uint64_t before = tiers.executor->stats().misses();
  run_tokens(place, tiers, {1});
  CHECK(tiers.executor->stats().misses() == before);
}

// Experts wander between the tiers: more of them are in either than there would be if the device dropped its own.
TEST_CASE(
    "tiered experts: what leaves the device goes back to the host's memory, with the same results and fewer reads") {
  TierReference reference(test::tiny_folder());
  std::map<bool, uint64_t> reads;
  for (const uint64_t seed : {1, 2, 3}) {
    for (const bool returns : {false, true}) {
      ExpertPlace place(test::tiny_folder(), true, UINT64_MAX, seed);
      Tiers tiers(place, {.vram = 48, .ram = 24}, {.mode = MissMode::move}, 7, PrefetchMode::off, returns);
      for (unsigned token = 1; token < 120; ++token) {
        for (const LayerId layer : {kFirst, kSecond}) {
          const unsigned kind = token * token % 31 + layer.value;  // tokens come again
          RoutedRows rows(place, layer, 1, kind);
          REQUIRE(rows.run(*tiers.executor) == reference.run(layer, 1, kind));
        }
      }
      reads[returns] += tiers.executor->stats().misses();
      CHECK((tiers.counts().returned > 0) == returns);
      CHECK(tiers.counts().returned <= tiers.counts().evictions);
    }
  }
  CAPTURE(reads[false]);
  CHECK(reads[true] < reads[false]);
}

/// Tells the tiers so many times in a row what the next layer will want.
void check_prefetches(int times, uint64_t seed) {
  ExpertPlace place(test::tiny_folder(), true, UINT64_MAX, seed);
  const uint32_t top_k = place.config.top_k;
  Tiers tiers(place, {.vram = 4 * top_k}, {.mode = MissMode::move}, 7, PrefetchMode::on);
  RoutedRows second(place, kSecond, 1, 6);
  const auto want = second.run(*tiers.executor);  // now the host has them
  for (unsigned kind = 10; kind < 30; ++kind) {   // and the device no longer
    RoutedRows rows(place, kFirst, 1, kind);
    (void)rows.run(*tiers.executor);
  }
  std::vector<uint32_t> ids(top_k);
  place.queue->download(std::as_writable_bytes(std::span(ids)), second.routed.ids);
  place.queue->synchronize();
  std::vector<ExpertId> expected;
  for (const uint32_t id : ids)
    expected.emplace_back(id);
  RoutedRows first(place, kFirst, 1, 5);
  first.routed.meanwhile = [&] {
    for (int i = 0; i < times; ++i)
      tiers.executor->expect(kSecond, expected);
  };
  REQUIRE(tiers.executor->wants_forecast());
  (void)first.run(*tiers.executor);
  const uint64_t moved = tiers.counts().moved;
  CHECK(second.run(*tiers.executor) == want);
  const uint64_t prefetches = tiers.counts().prefetches;
  CHECK(prefetches > 0);
  CHECK(prefetches <= top_k);
  CHECK(tiers.counts().moved == moved + top_k - prefetches);
  CHECK(tiers.counts().useful_prefetches == prefetches);
  CHECK(tiers.counts().wasted_bytes == 0);
}

TEST_CASE("tiered experts: what was expected is copied while other work runs, and found there") {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    check_prefetches(1, seed);
    check_prefetches(2, seed);
  }
}

// Routes are waited for once; forecasts, copies and the CPU's results never.
TEST_CASE("tiered experts: the host waits for the device once a layer, whoever computes and whatever is foreseen") {
  for (const MissMode mode : {MissMode::move, MissMode::compute, MissMode::automatic}) {
    for (const uint64_t seed : {1, 2, 3, 4}) {
      CAPTURE(seed);
      ExpertPlace place(test::tiny_folder(), true, UINT64_MAX, seed);
      Tiers tiers(place, {.vram = 24}, {.mode = mode}, 7, PrefetchMode::on);
      const auto counts = static_cast<test::DeferredDevice&>(*place.device).counts();
      auto shared = place.device->allocate_host(sizeof(uint32_t));
      REQUIRE(shared);
      uint64_t forecasts = 0;
      for (unsigned token = 0; token < 12; ++token) {
        for (const LayerId layer : {kFirst, kSecond}) {
          RoutedRows rows(place, layer, 1, token * 2 + layer.value);
          rows.routed.meanwhile = [&] {
            place.queue->copy({shared->get(), 0}, rows.routed.ids, sizeof(uint32_t));
            tiers.executor->expect(kSecond, {.computed = place.queue->mark(), .experts = [&] {
                                               ++forecasts;
                                               return std::vector<ExpertId>{ExpertId(token), ExpertId(token + 1)};
                                             }});
          };
          if (layer == kSecond) rows.routed.meanwhile = {};
          tiers.executor->begin_pass({.phase = Phase::decode, .rows = 1, .draft_rows = 0});
          const uint64_t before = counts->synchronisations;
          const uint64_t downloaded = counts->downloaded_bytes;
          REQUIRE(tiers.executor->run(rows.routed, rows.y, {}));
          CHECK(counts->synchronisations == before + 1);
          CHECK(counts->downloaded_bytes == downloaded);
          place.queue->synchronize();
        }
      }
      CHECK(forecasts > 0);
      if (mode == MissMode::compute) CHECK(tiers.counts().computed > 0);
    }
  }
}

// While the host waits for the routes the device computes those of its experts that they name.
TEST_CASE("tiered experts: what the device has it computes before the host knows that it is wanted") {
  TierReference reference(test::tiny_folder());
  ExpertPlace place(test::tiny_folder(), true);
  Tiers tiers(place, {.vram = 2 * place.executor_shape(7).experts});
  const auto counts = static_cast<test::DeferredDevice&>(*place.device).counts();
  for (const LayerId layer : {kFirst, kSecond}) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      RoutedRows(place, layer, 5, seed).run(*tiers.executor);
      RoutedRows again(place, layer, 5, seed);
      const uint64_t held = counts->held;
      const uint64_t parts = counts->parts;
      const uint64_t synchronisations = counts->synchronisations;
      tiers.executor->begin_pass({.phase = Phase::decode, .rows = 5, .draft_rows = 0});
      REQUIRE(tiers.executor->run(again.routed, again.y, {}));
      CHECK(counts->synchronisations == synchronisations + 1);
      CHECK(counts->held_at_wait == held + 1);
      CHECK(counts->held == held + 1);
      CHECK(counts->parts == parts);
      CHECK(again.run(*tiers.executor) == reference.run(layer, 5, seed));
    }
  }
  CHECK(tiers.counts().hits > 0);
}

TEST_CASE("tiered experts: routes, inputs and results of the CPU's experts come by no upload and no download") {
  TierReference reference(test::tiny_folder());
  ExpertPlace place(test::tiny_folder(), true);
  Tiers tiers(place, {.vram = 0}, {.mode = MissMode::compute});
  const auto counts = static_cast<test::DeferredDevice&>(*place.device).counts();
  for (const uint32_t count : {1U, 3U}) {
    RoutedRows rows(place, kFirst, count, 3);
    tiers.executor->begin_pass({.phase = Phase::decode, .rows = count, .draft_rows = 0});
    const size_t uploads = counts->uploads.size();
    const uint64_t downloaded = counts->downloaded_bytes;
    REQUIRE(tiers.executor->run(rows.routed, rows.y, {}));
    CHECK(counts->uploads.size() == uploads);
    CHECK(counts->downloaded_bytes == downloaded);
    CHECK(rows.run(*tiers.executor) == reference.run(kFirst, count, 3));
  }
  CHECK(tiers.counts().moved == 0);
  CHECK(tiers.counts().computed > 0);
}

/// Keeps how many rows of each module it is told of, and hears `tokens` rows of each token.
class Listener final : public Trace {
 public:
  explicit Listener(uint32_t tokens) : tokens_(tokens) {}
  [[nodiscard]] uint32_t tokens() const override { return tokens_; }
  void input(std::string_view, const kernels::Rows&, uint32_t) override {}
  void output(std::string_view module, const kernels::Rows& rows, uint32_t) override {
    heard[std::string(module)] += rows.rows;
  }
  void routing(std::string_view, const Routing&) override {}
  [[nodiscard]] Result<void> status() const override { return {}; }
  std::map<std::string, uint32_t> heard;

 private:
  uint32_t tokens_;
};

TEST_CASE("tiered experts: who listens to single experts hears them, and the result is the same") {
  ExpertPlace place(test::tiny_folder(), true);
  Tiers tiers(place, {.vram = 3, .ram = 2}, {.mode = MissMode::move}, 64);
  RoutedRows rows(place, kFirst, 6, 9);
  const auto plain = rows.run(*tiers.executor);
  Listener listener(6);
  rows.routed.trace = TraceScope(&listener, "experts");
  CHECK(rows.run(*tiers.executor) == plain);
  uint32_t heard = 0;
  for (const auto& [module, count] : listener.heard)
    if (std::ranges::count(module, '.') == 1) heard += count;  // an expert, not one of its matrices
  CHECK(heard == 6 * place.config.top_k);
  rows.routed.trace = {};
  CHECK(rows.run(*tiers.executor) == plain);
}

/// Counts what it hears of routes, if it wants any.
class Routes final : public RouteListener {
 public:
  void begin_pass(const ExpertPass& /*pass*/) override { ++passes; }
  [[nodiscard]] bool wants_routes() const override { return is_wanted; }
  [[nodiscard]] Result<void> record(LayerId layer, std::span<const uint32_t> ids) override {
    CHECK(layer == kFirst);
    heard += ids.size();
    return {};
  }

  bool is_wanted = false;
  uint64_t passes = 0, heard = 0;
};

TEST_CASE("tiered experts: routes are told to who wants them, and places are those of the slots in use") {
  ExpertPlace place(test::tiny_folder(), true);
  Tiers tiers(place, {.vram = 3, .ram = 12}, {.mode = MissMode::move});
  Routes routes;
  tiers.executor->add_listener(routes);
  RoutedRows rows(place, kFirst, 6, 9);
  const auto plain = rows.run(*tiers.executor);
  CHECK(routes.passes == 1);
  CHECK(routes.heard == 0);
  routes.is_wanted = true;
  CHECK(rows.run(*tiers.executor) == plain);
  CHECK(routes.heard == 6 * place.config.top_k);
  const ExpertStoreStats stats = tiers.executor->stats();
  const ExpertResidence places = tiers.executor->places();
  CHECK_FALSE(places.is_resident);
  CHECK(places.device.size() == stats.vram->used);
  CHECK(places.host.size() == stats.resident_experts);
  CHECK(places.device.size() > 0);
  CHECK(places.host.size() > 0);
}

TEST_CASE("tiered experts: an expert that is missing, an interruption and too little memory are errors") {
  const test::OverlaidModel part({.drop_prefix = "model.layers.1.mlp.experts."});
  ExpertPlace place(part.path(), true);
  Tiers tiers(place, {.vram = 3});
  RoutedRows rows(place, kFirst, 1, 1);
  tiers.executor->begin_pass({.phase = Phase::decode, .rows = 1, .draft_rows = 0});
  const auto missing = tiers.executor->run(rows.routed, rows.y, {});
  REQUIRE_FALSE(missing);
  CAPTURE(missing.error().message);
  CHECK(missing.error().kind == ErrorKind::not_found);
  CHECK(missing.error().message.find("layer 1, expert") != std::string::npos);

  ExpertPlace whole(test::tiny_folder(), true);
  Tiers running(whole, {.vram = 3});
  RoutedRows some(whole, kFirst, 1, 1);
  std::stop_source stop;
  stop.request_stop();
  running.executor->begin_pass({.phase = Phase::decode, .rows = 1, .draft_rows = 0});
  const auto stopped = running.executor->run(some.routed, some.y, stop.get_token());
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().kind == ErrorKind::cancelled);
  CHECK(some.run(*running.executor).size() == some.y.cols);  // and it goes on

  ExpertPlace small(test::tiny_folder(), true, 1 << 16);
  auto host = kernels::make_cpu_device({});
  REQUIRE(host);
  auto store = StreamedStore::make(**host, small.weights(),
                                   {.shape = small.shape(), .layers = {kFirst}, .slots = 4, .policy = lru()});
  REQUIRE(store);
  const auto refused =
      RoutedExperts::make_tiered(small.target(host->get()), small.checkpoint(), **store, small.executor_shape(4),
                                 {.experts = small.options({kFirst}), .slots = 64, .policy = lru()}, {});
  REQUIRE_FALSE(refused);
  CAPTURE(refused.error().message);
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(refused.error().message.find("66 experts") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime::tiered_experts_test
