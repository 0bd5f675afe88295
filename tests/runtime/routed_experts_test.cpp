// The executor with the CPU alone, over a store that hands experts out in an order of its own.
#include "runtime/experts/routed_experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::routed_experts_test {
namespace {

constexpr uint32_t kHidden = 24;
constexpr uint32_t kInner = 40;
constexpr uint32_t kExperts = 7;
constexpr uint32_t kTopK = 3;

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values)
    value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  return values;
}

std::unique_ptr<kernels::Buffer> buffer_of(kernels::Device& device, std::span<const std::byte> bytes) {
  auto buffer = device.allocate(bytes.size());
  REQUIRE(buffer);
  std::memcpy(kernels::host_bytes(**buffer).data(), bytes.data(), bytes.size());
  return std::move(*buffer);
}

/// Experts of random FP32 weights, made when they are asked for and handed out in an order of its own; remembers who
/// was.
class RandomStore final : public ExpertStore {
 public:
  explicit RandomStore(kernels::Device& device) : device_(device) {}

  void begin_pass(const ExpertPass&) override {}
  void accept_drafts(uint32_t) override {}
  void expect(LayerId, std::span<const ExpertId>) override {}

  Result<std::unique_ptr<ExpertRequest>> request(LayerId, std::vector<ExpertDemand> demands) override {
    if (failing_) return Error{ErrorKind::io, "no disk"};
    for (const ExpertDemand& demand : demands) {
      demands_.push_back(demand);
      Expert& expert = experts_[demand.expert.value];
      if (expert.memory != nullptr) continue;
      expert.memory = buffer_of(device_, std::as_bytes(std::span(weights_of(demand.expert.value))));
      expert.weights = {.gate = linear(*expert.memory, kInner, kHidden, 0),
                        .up = linear(*expert.memory, kInner, kHidden, 1),
                        .down = linear(*expert.memory, kHidden, kInner, 2)};
    }
    return std::unique_ptr<ExpertRequest>(std::make_unique<Shuffled>(*this, std::move(demands)));
  }

  /// gate [inner, hidden], up [inner, hidden], down [hidden, inner]
  static const std::vector<float>& weights_of(uint32_t expert) {
    static std::map<uint32_t, std::vector<float>> all;
    const auto [place, is_new] = all.try_emplace(expert);
    if (is_new) place->second = random_values(size_t{3} * kInner * kHidden, 100 + expert);
    return place->second;
  }

  void fail() { failing_ = true; }
  void shuffle(unsigned seed) { seed_ = seed; }
  void say_ready(bool ready) { ready_ = ready; }
  [[nodiscard]] const std::vector<ExpertDemand>& demands() const { return demands_; }

 private:
  struct Expert {
    std::unique_ptr<kernels::Buffer> memory;
    ExpertWeights weights;
  };

  class Shuffled final : public ExpertRequest {
   public:
    Shuffled(const RandomStore& store, std::vector<ExpertDemand> demands)
        : store_(store), demands_(std::move(demands)), order_(demands_.size()) {
      std::iota(order_.begin(), order_.end(), size_t{0});
      std::mt19937 random(store.seed_);
      std::ranges::shuffle(order_, random);
    }
    Result<ExpertLease> next(const std::stop_token&) override {
      const size_t index = order_.back();
      order_.pop_back();
      return ExpertLease(index, store_.experts_.at(demands_[index].expert.value).weights);
    }
    bool is_ready() override { return store_.ready_; }

   private:
    const RandomStore& store_;
    std::vector<ExpertDemand> demands_;
    std::vector<size_t> order_;
  };

  static Linear linear(kernels::Buffer& memory, uint32_t out, uint32_t in, uint64_t index) {
    const kernels::Slice codes{.buffer = &memory, .offset_bytes = index * kInner * kHidden * sizeof(float)};
    return Linear({{kernels::Coding::f32, out, in}, {codes}});
  }

  kernels::Device& device_;
  std::map<uint32_t, Expert> experts_;
  std::vector<ExpertDemand> demands_;
  unsigned seed_ = 1;
  bool ready_ = false;
  bool failing_ = false;
};

struct Routed {
  std::vector<float> x;        // [tokens, hidden]
  std::vector<uint32_t> ids;   // [tokens, top_k]
  std::vector<float> weights;  // [tokens, top_k]
};

Routed random_routing(uint32_t tokens, unsigned seed) {
  Routed routed{.x = random_values(size_t{tokens} * kHidden, seed), .ids = {}, .weights = {}};
  std::mt19937 random(seed);
  for (uint32_t token = 0; token < tokens; ++token) {
    std::vector<uint32_t> order{0, 1, 2, 3, 4, 6};  // expert 5 is never picked
    std::shuffle(order.begin(), order.end(), random);
    routed.ids.insert(routed.ids.end(), order.begin(), order.begin() + kTopK);
  }
  routed.weights = random_values(size_t{tokens} * kTopK, seed + 1);
  return routed;
}

/// One token after the other, one expert after the other, in double precision.
std::vector<double> naive(const Routed& routed) {
  const size_t tokens = routed.x.size() / kHidden;
  std::vector<double> y(routed.x.size(), 0.0);
  for (size_t part = 0; part < tokens * kTopK; ++part) {
    const std::vector<float>& w = RandomStore::weights_of(routed.ids[part]);
    const float* x = &routed.x[part / kTopK * kHidden];
    std::vector<double> inner(kInner);
    for (size_t o = 0; o < kInner; ++o) {
      double gate = 0;
      double up = 0;
      for (size_t i = 0; i < kHidden; ++i) {
        gate += double{w[o * kHidden + i]} * x[i];
        up += double{w[(kInner + o) * kHidden + i]} * x[i];
      }
      inner[o] = gate / (1 + std::exp(-gate)) * up;
    }
    for (size_t o = 0; o < kHidden; ++o) {
      double sum = 0;
      for (size_t i = 0; i < kInner; ++i)
        sum += double{w[size_t{2} * kInner * kHidden + o * kInner + i]} * inner[i];
      y[part / kTopK * kHidden + o] += double{routed.weights[part]} * sum;
    }
  }
  return y;
}

struct Bench {
  std::unique_ptr<kernels::Device> device = std::move(*kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
  std::unique_ptr<kernels::Queue> queue = device->make_queue();
  RandomStore store{*device};

  Result<std::vector<float>> run(const Routed& routed, uint32_t wave_tokens,
                                 const std::function<void()>& meanwhile = {}) {
    const auto tokens = static_cast<uint32_t>(routed.x.size() / kHidden);
    auto executor = RoutedExperts::stream(
        {.device = *device, .queue = *queue}, store,
        {.hidden = kHidden, .expert_inner = kInner, .experts = kExperts, .top_k = kTopK, .wave_tokens = wave_tokens});
    REQUIRE(executor);
    const auto x = buffer_of(*device, std::as_bytes(std::span(routed.x)));
    const auto ids = buffer_of(*device, std::as_bytes(std::span(routed.ids)));
    const auto weights = buffer_of(*device, std::as_bytes(std::span(routed.weights)));
    const auto y = buffer_of(*device, std::as_bytes(std::span(routed.x)));  // old values must not show
    TRY((*executor)->run({.layer = LayerId(1),
                          .x = {.data = {x.get()}, .rows = tokens, .cols = kHidden, .stride = kHidden},
                          .ids = {ids.get()},
                          .weights = {weights.get()},
                          .meanwhile = meanwhile},
                         {.data = {y.get()}, .rows = tokens, .cols = kHidden, .stride = kHidden}, {}));
    std::vector<float> result(routed.x.size());
    std::memcpy(result.data(), kernels::host_bytes(*y).data(), result.size() * sizeof(float));
    return result;
  }
};

TEST_CASE("routed experts: the sum of each token's experts, as a loop over tokens gives it") {
  for (const uint32_t tokens : {1U, 2U, 19U, 700U}) {
    CAPTURE(tokens);
    const Routed routed = random_routing(tokens, tokens);
    Bench bench;
    const auto got = bench.run(routed, 1024);
    REQUIRE(got);
    const test::ErrorReport report = test::compare(*got, naive(routed), kHidden);
    CAPTURE(report);
    CHECK(report.nmse < 1e-12);
  }
}

TEST_CASE("routed experts: waves and the order in which experts arrive do not change a bit") {
  const Routed routed = random_routing(19, 5);
  Bench bench;
  const auto whole = bench.run(routed, 64);
  REQUIRE(whole);
  for (const uint32_t wave : {1U, 4U, 19U}) {
    for (const uint32_t seed : {1U, 3U, 64U}) {
      CAPTURE(wave);
      CAPTURE(seed);
      bench.store.shuffle(wave * 100 + seed);
      const auto part = bench.run(routed, wave);
      REQUIRE(part);
      CHECK(test::first_difference(*part, *whole) == whole->size());
    }
  }
}

TEST_CASE("routed experts: each routed expert is asked for once a wave, with its rows, and no other") {
  const Routed routed = random_routing(19, 6);
  Bench bench;
  REQUIRE(bench.run(routed, 64));
  std::map<uint32_t, std::vector<uint32_t>> rows;
  for (uint32_t part = 0; part < routed.ids.size(); ++part)
    rows[routed.ids[part]].push_back(part / kTopK);
  REQUIRE(bench.store.demands().size() == rows.size());
  for (const ExpertDemand& demand : bench.store.demands()) {
    CAPTURE(demand.expert.value);
    const std::vector<uint32_t>& wanted = rows.at(demand.expert.value);
    CHECK(demand.rows == wanted.size());
    CHECK(demand.first_row == wanted.front());
    CHECK(demand.last_row == wanted.back());
  }
}

TEST_CASE("routed experts: other work is done once, whether or not there is something to wait for") {
  for (const bool ready : {true, false}) {
    for (const uint32_t wave : {4U, 64U}) {
      Bench bench;
      bench.store.say_ready(ready);
      int calls = 0;
      REQUIRE(bench.run(random_routing(19, 7), wave, [&] { ++calls; }));
      CHECK(calls == 1);
    }
  }
}

TEST_CASE("routed experts: what the store cannot give is the run's error") {
  Bench bench;
  bench.store.fail();
  const auto result = bench.run(random_routing(2, 1), 64);
  REQUIRE_FALSE(result);
  CHECK(result.error().kind == ErrorKind::io);
}

}  // namespace
}  // namespace dspack::runtime::routed_experts_test
