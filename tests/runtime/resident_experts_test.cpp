// Experts that all lie in device memory: what is loaded, what is computed, and that it is what a streamed run computes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "runtime/experts/policy/lru.h"
#include "tests/runtime/support/expert_place.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/overlaid_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::resident_experts_test {
namespace {

using test::ExpertPlace;
using test::RoutedRows;

constexpr LayerId kLayer(1);

void check_against_grouped(const std::filesystem::path& folder, bool is_deferred) {
  ExpertPlace here(folder, is_deferred);
  ExpertPlace there(folder);
  auto resident = here.load(here.options({kLayer}), 7);
  REQUIRE_MESSAGE(resident, (resident ? "" : resident.error().message));
  auto store = StreamedStore::make(*there.device, there.weights(),
                                   {.shape = there.shape(), .layers = {kLayer}, .slots = {}, .policy = [] {
                                      return std::make_unique<LruPolicy>();
                                    }});
  REQUIRE(store);
  auto streamed = RoutedExperts::stream(there.target(), **store, there.executor_shape(5));
  REQUIRE(streamed);
  CHECK((*resident)->can_record());
  for (const uint32_t count : {1U, 2U, 7U, 8U, 23U}) {
    CAPTURE(count);
    RoutedRows mine(here, kLayer, count, count);
    RoutedRows theirs(there, kLayer, count, count);
    CHECK(mine.run(**resident) == theirs.run(**streamed));
  }
  // Every token to the same experts.
  RoutedRows mine(here, kLayer, 11, 3, here.config.top_k);
  RoutedRows theirs(there, kLayer, 11, 3, here.config.top_k);
  CHECK(mine.run(**resident) == theirs.run(**streamed));
}

TEST_CASE("resident experts: bit for bit what a streamed run computes, in waves and token by token") {
  check_against_grouped(test::tiny_folder(), false);
}

TEST_CASE("resident experts: the same where the host cannot address the experts") {
  check_against_grouped(test::tiny_folder(), true);
  check_against_grouped(test::family_folder() / "f16", true);
  check_against_grouped(test::family_folder() / "fp8-channel", true);
}

/// Keeps the names of the modules that it is told of, and hears `tokens` rows of each token.
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

void check_listening(bool is_deferred) {
  ExpertPlace place(test::tiny_folder(), is_deferred);
  auto executor = place.load(place.options({kLayer}));
  REQUIRE(executor);
  RoutedRows tokens(place, kLayer, 6, 9);
  const std::vector<float> plain = tokens.run(**executor);
  const uint64_t scratch = (*executor)->scratch_bytes();
  Listener listener(6);
  tokens.routed.trace = TraceScope(&listener, "experts");
  uint32_t called = 0;
  tokens.routed.meanwhile = [&] { ++called; };
  CHECK(tokens.run(**executor) == plain);
  CHECK(called == 1);
  uint32_t rows = 0;
  for (const auto& [module, count] : listener.heard)
    if (std::ranges::count(module, '.') == 1) rows += count;  // an expert, not one of its matrices
  CHECK(rows == 6 * place.config.top_k);
  CHECK((*executor)->scratch_bytes() > scratch);  // what listening took is counted

  tokens.routed.trace = {};
  CHECK(tokens.run(**executor) == plain);
  CHECK(called == 2);
}

TEST_CASE("resident experts: who listens to single experts hears them, and the result is the same") {
  check_listening(false);
  check_listening(true);
}

class CountingProgress final : public format::Progress {
 public:
  using format::Progress::note;
  using format::Progress::started;
  void started(const format::Work& begun) override {
    work = begun.what;
    total = begun.total_bytes;
  }
  void advanced(uint64_t bytes) override { done += bytes; }
  void item_done() override {}
  void note(format::NoteKind, std::string_view) override {}
  void finished() override { is_finished = true; }
  std::string work;
  uint64_t total = 0, done = 0;
  bool is_finished = false;
};

TEST_CASE("resident experts: loading tells how far it is, what it took and what it read") {
  ExpertPlace place(test::tiny_folder(), true);
  const DeviceExperts what = place.options({kLayer, LayerId(3)});
  CountingProgress progress;
  const auto experts = place.load(what, 64, &progress);
  REQUIRE(experts);
  CHECK(progress.work == "loading experts");
  const ExpertStoreStats stats = (*experts)->stats();
  CHECK(progress.total == stats.resident_bytes);
  CHECK(progress.done == progress.total);
  CHECK(progress.is_finished);
  const auto foretold = DeviceCache::bytes_for_all(place.checkpoint(), what);
  REQUIRE(foretold);
  CHECK(*foretold == stats.resident_bytes);
  CHECK(stats.resident_experts == 2 * place.config.experts);
  CHECK(stats.read_experts.size() == stats.resident_experts);
  CHECK(stats.slot_bytes == stats.resident_bytes);
  uint64_t stored = 0;
  for (const ExpertKey& key : stats.read_experts)
    for (const format::Extent& extent : place.checkpoint().expert_extents(key))
      stored += extent.range.size();
  CHECK(stats.bytes_read() == stored);
  CHECK(stats.opened_files.size() == 2);

  const auto none = place.load(place.options({}));
  REQUIRE(none);
  CHECK((*none)->stats().resident_bytes == 0);
}

TEST_CASE(
    "resident experts: an expert that is missing, memory that is too small, and an interruption end the loading") {
  const auto refusal = [](ExpertPlace& place, const std::stop_token& stop = {}) {
    const auto experts = place.load(place.options({kLayer}), 64, nullptr, stop);
    REQUIRE_FALSE(experts);
    return experts.error();
  };
  const test::OverlaidModel part({.drop_prefix = "model.layers.1.mlp.experts.5."});
  ExpertPlace incomplete(part.path());
  const Error missing = refusal(incomplete);
  CAPTURE(missing.message);
  CHECK(missing.kind == ErrorKind::not_found);
  CHECK(missing.message.find("layer 1, expert 5") != std::string::npos);
  CHECK(missing.message.find("fetch it") != std::string::npos);

  ExpertPlace small(test::tiny_folder(), true, 4096);
  const Error budget = refusal(small);
  CAPTURE(budget.message);
  CHECK(budget.kind == ErrorKind::budget);
  CHECK(budget.message.find("experts of layer 1") != std::string::npos);

  std::stop_source stop;
  stop.request_stop();
  ExpertPlace whole(test::tiny_folder());
  CHECK(refusal(whole, stop.get_token()).kind == ErrorKind::cancelled);
}

TEST_CASE("resident experts: experts of one layer that are stored in different ways are refused by name") {
  test::AlteredVariant variant("f16");
  test::RawTensor& tensor = variant.tensor("model.layers.1.mlp.experts.1.up_proj.weight");
  REQUIRE(tensor.dtype == "F16");
  tensor.dtype = "BF16";
  ExpertPlace place(variant.write());
  const auto experts = place.load(place.options({kLayer}));
  REQUIRE_FALSE(experts);
  CAPTURE(experts.error().message);
  CHECK(experts.error().kind == ErrorKind::unsupported);
  CHECK(experts.error().message.find("layer 1, expert 1: its up_proj") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime::resident_experts_test
