// Experts that all lie in device memory: what is loaded, what is computed, and that it is what a streamed run computes.
#include "runtime/experts/resident_executor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"
#include "runtime/model/scratch.h"
#include "runtime/storage/local_storage.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/overlaid_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/deferred_device.h"

namespace dspack::runtime {
namespace {

constexpr LayerId kLayer(1);

/// A checkpoint's experts, and a device for them.
struct Place {
  explicit Place(const std::filesystem::path& folder, bool is_deferred = false, uint64_t most_bytes = UINT64_MAX) {
    auto opened = format::open_repository(folder.string(), {}, format::posix_file_system());
    REQUIRE(opened);
    repository = std::move(*opened);
    auto read = read_model_config(*repository, {});
    REQUIRE(read);
    config = *read;
    auto catalogue = format::Checkpoint::open(*repository, 2, {});
    REQUIRE_MESSAGE(catalogue, (catalogue ? "" : catalogue.error().message));
    checkpoint = std::make_unique<format::Checkpoint>(std::move(*catalogue));
    storage = std::make_unique<LocalStorage>(*repository, *checkpoint, LocalStorageOptions{.max_open = 16});
    auto host = kernels::make_cpu_device({.threads = 2, .instruction_set = {}});
    REQUIRE(host);
    device = std::move(*host);
    if (is_deferred) device = std::make_unique<test::DeferredDevice>(std::move(device), most_bytes);
    queue = device->make_queue();
  }

  [[nodiscard]] ExpertShape shape() const {
    return {.hidden = config.hidden, .expert_inner = config.expert_inner, .fp8_block = config.fp8_block};
  }
  [[nodiscard]] ResidentOptions options(std::set<LayerId> layers = {kLayer}) const {
    return {.shape = shape(), .experts = config.experts, .layers = std::move(layers)};
  }
  [[nodiscard]] ExecutorShape executor_shape(uint32_t wave_tokens) const {
    return {.hidden = config.hidden,
            .expert_inner = config.expert_inner,
            .experts = config.experts,
            .top_k = config.top_k,
            .wave_tokens = wave_tokens,
            .tile_tokens = 4};
  }
  Result<std::unique_ptr<ResidentExperts>> load(const ResidentOptions& what, format::Progress* progress = nullptr,
                                                const std::stop_token& stop = {}) {
    return ResidentExperts::load(*device, *queue, *storage, what, progress, stop);
  }

  std::unique_ptr<format::Repository> repository;
  ModelConfig config;
  std::unique_ptr<format::Checkpoint> checkpoint;
  std::unique_ptr<LocalStorage> storage;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Queue> queue;
};

/// Tokens with random values, each routed to different experts.
struct Tokens {
  Tokens(Place& place, uint32_t count, unsigned seed, uint32_t most_experts = UINT32_MAX) : rows(count), place_(place) {
    const ModelConfig& config = place.config;
    std::mt19937 random(seed);
    const auto value = [&] { return static_cast<float>(random() % 2001) / 1000.0F - 1.0F; };
    std::vector<float> values(size_t{count} * (2 * config.hidden + config.top_k));
    std::ranges::generate(values, value);
    std::vector<uint32_t> ids;
    std::vector<uint32_t> order(std::min(config.experts, most_experts));
    std::iota(order.begin(), order.end(), 0U);
    for (uint32_t token = 0; token < count; ++token) {
      std::ranges::shuffle(order, random);
      ids.insert(ids.end(), order.begin(), order.begin() + config.top_k);
    }
    const uint64_t float_bytes = values.size() * sizeof(float);
    auto allocated = place.device->allocate(float_bytes + ids.size() * sizeof(uint32_t));
    REQUIRE(allocated);
    memory = std::move(*allocated);
    place.queue->upload({memory.get(), 0}, std::as_bytes(std::span(values)));
    place.queue->upload({memory.get(), float_bytes}, std::as_bytes(std::span(ids)));
    place.queue->synchronize();
    const uint64_t row_bytes = uint64_t{config.hidden} * sizeof(float);
    x = {.data = {memory.get(), 0}, .rows = count, .cols = config.hidden, .stride = config.hidden};
    y = {.data = {memory.get(), count * row_bytes}, .rows = count, .cols = config.hidden, .stride = config.hidden};
    routed = {
        .layer = kLayer, .x = x, .ids = {memory.get(), float_bytes}, .weights = {memory.get(), 2 * count * row_bytes}};
  }

  std::vector<float> run(ExpertExecutor& executor) {
    executor.begin_pass({.phase = Phase::decode, .rows = rows, .draft_rows = 0});
    const auto done = executor.run(routed, y, {});
    REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
    std::vector<float> values(size_t{rows} * y.cols);
    place_.queue->download(std::as_writable_bytes(std::span(values)), y.data);
    place_.queue->synchronize();
    return values;
  }

  std::unique_ptr<kernels::Buffer> memory;
  kernels::Rows x, y;
  RoutedTokens routed;
  uint32_t rows;

 private:
  Place& place_;
};

void check_against_grouped(const std::filesystem::path& folder, bool is_deferred) {
  Place here(folder, is_deferred);
  Place there(folder);
  auto experts = here.load(here.options());
  REQUIRE_MESSAGE(experts, (experts ? "" : experts.error().message));
  auto store =
      StreamedStore::make(*there.device, *there.storage,
                          {.shape = there.shape(), .layers = {kLayer}, .slots = {}, .policy = [](uint64_t, uint64_t) {
                             return std::make_unique<LruPolicy>();
                           }});
  REQUIRE(store);
  auto grouped = GroupedExecutor::make(*there.device, *there.queue, **store, there.executor_shape(5));
  REQUIRE(grouped);
  auto resident = ResidentExecutor::make(*here.device, *here.queue, **experts, here.executor_shape(7));
  REQUIRE(resident);
  CHECK((*resident)->can_record());
  for (const uint32_t count : {1U, 2U, 7U, 8U, 23U}) {
    CAPTURE(count);
    Tokens mine(here, count, count);
    Tokens theirs(there, count, count);
    CHECK(mine.run(**resident) == theirs.run(**grouped));
  }
  // Every token to the same experts.
  Tokens mine(here, 11, 3, here.config.top_k);
  Tokens theirs(there, 11, 3, here.config.top_k);
  CHECK(mine.run(**resident) == theirs.run(**grouped));
}

TEST_CASE("resident executor: bit for bit what the grouped one computes, in waves and token by token") {
  check_against_grouped(test::tiny_folder(), false);
}

TEST_CASE("resident executor: the same where the host cannot address the experts") {
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
  Place place(test::tiny_folder(), is_deferred);
  auto experts = place.load(place.options());
  REQUIRE(experts);
  auto executor = ResidentExecutor::make(*place.device, *place.queue, **experts, place.executor_shape(64));
  REQUIRE(executor);
  Tokens tokens(place, 6, 9);
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

TEST_CASE("resident executor: who listens to single experts hears them, and the result is the same") {
  check_listening(false);
  check_listening(true);
}

class CountingProgress final : public format::Progress {
 public:
  void started(std::string_view what, uint64_t total_bytes, uint64_t) override {
    work = what;
    total = total_bytes;
  }
  void advanced(uint64_t bytes) override { done += bytes; }
  void file_done() override {}
  void note(std::string_view) override {}
  void finished() override { is_finished = true; }
  std::string work;
  uint64_t total = 0, done = 0;
  bool is_finished = false;
};

TEST_CASE("resident experts: loading tells how far it is, what it took and what it read") {
  Place place(test::tiny_folder(), true);
  const ResidentOptions what = place.options({kLayer, LayerId(3)});
  CountingProgress progress;
  const auto experts = place.load(what, &progress);
  REQUIRE(experts);
  CHECK(progress.work == "loading experts");
  CHECK(progress.total == (*experts)->size_bytes());
  CHECK(progress.done == progress.total);
  CHECK(progress.is_finished);
  const auto foretold = ResidentExperts::bytes_for(*place.checkpoint, what);
  REQUIRE(foretold);
  CHECK(*foretold == (*experts)->size_bytes());
  const ExpertStoreStats& stats = (*experts)->stats();
  CHECK(stats.resident_experts == 2 * place.config.experts);
  CHECK(stats.read_experts.size() == stats.resident_experts);
  CHECK(stats.resident_bytes == (*experts)->size_bytes());
  uint64_t stored = 0;
  for (const ExpertKey& key : stats.read_experts)
    for (const format::Extent& extent : place.checkpoint->expert_extents(key))
      stored += extent.range.size();
  CHECK(stats.bytes_read() == stored);
  CHECK(stats.opened_files.size() == 2);

  const auto none = place.load(place.options({}));
  REQUIRE(none);
  CHECK((*none)->size_bytes() == 0);
}

TEST_CASE(
    "resident experts: an expert that is missing, memory that is too small, and an interruption end the loading") {
  const auto refusal = [](Place& place, const std::stop_token& stop = {}) {
    const auto experts = place.load(place.options(), nullptr, stop);
    REQUIRE_FALSE(experts);
    return experts.error();
  };
  const test::OverlaidModel part({.drop_prefix = "model.layers.1.mlp.experts.5."});
  Place incomplete(part.path());
  const Error missing = refusal(incomplete);
  CAPTURE(missing.message);
  CHECK(missing.kind == ErrorKind::not_found);
  CHECK(missing.message.find("layer 1, expert 5") != std::string::npos);
  CHECK(missing.message.find("fetch it") != std::string::npos);

  Place small(test::tiny_folder(), true, 4096);
  const Error budget = refusal(small);
  CAPTURE(budget.message);
  CHECK(budget.kind == ErrorKind::budget);
  CHECK(budget.message.find("experts of layer 1") != std::string::npos);

  std::stop_source stop;
  stop.request_stop();
  Place whole(test::tiny_folder());
  CHECK(refusal(whole, stop.get_token()).kind == ErrorKind::cancelled);
}

TEST_CASE("resident experts: experts of one layer that are stored in different ways are refused by name") {
  test::AlteredVariant variant("f16");
  test::RawTensor& tensor = variant.tensor("model.layers.1.mlp.experts.1.up_proj.weight");
  REQUIRE(tensor.dtype == "F16");
  tensor.dtype = "BF16";
  Place place(variant.write());
  const auto experts = place.load(place.options());
  REQUIRE_FALSE(experts);
  CAPTURE(experts.error().message);
  CHECK(experts.error().kind == ErrorKind::unsupported);
  CHECK(experts.error().message.find("layer 1, expert 1: its up_proj") != std::string::npos);
}

}  // namespace
}  // namespace dspack::runtime
