// A checkpoint's experts and a device for them, and tokens that are routed to them: for tests of executors.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/routed_experts.h"
#include "runtime/generate/loaded_model.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/support/deferred_device.h"

namespace dspack::test {

/// A checkpoint's experts, and a device for them.
struct ExpertPlace {
  explicit ExpertPlace(const std::filesystem::path& folder, bool is_deferred = false, uint64_t most_bytes = UINT64_MAX,
                       uint64_t seed = 1)
      : opened(folder), config(opened.config) {
    auto host = kernels::make_cpu_device({.threads = 2, .instruction_set = {}});
    REQUIRE(host);
    device = std::move(*host);
    if (is_deferred) device = std::make_unique<DeferredDevice>(std::move(device), most_bytes, seed);
    queue = device->make_queue();
  }

  [[nodiscard]] runtime::Tier& weights() { return opened.access->weights(); }
  [[nodiscard]] const format::Checkpoint& checkpoint() const { return opened.checkpoint(); }
  [[nodiscard]] runtime::ExpertShape shape() const {
    return {.hidden = config.hidden, .expert_inner = config.expert_inner, .quantization = config.quantization};
  }
  [[nodiscard]] runtime::DeviceExperts options(std::set<LayerId> layers) const {
    return {.shape = shape(), .experts = config.experts, .layers = std::move(layers)};
  }
  [[nodiscard]] runtime::ExecutorShape executor_shape(uint32_t wave_tokens) const {
    return {.hidden = config.hidden,
            .expert_inner = config.expert_inner,
            .experts = config.experts,
            .top_k = config.top_k,
            .wave_tokens = wave_tokens};
  }
  [[nodiscard]] runtime::RoutedExperts::Target target(kernels::Device* host = nullptr) {
    runtime::RoutedExperts::Target target{.device = *device, .queue = *queue, .host = host};
    for (size_t i = 0; i < further.size(); ++i)
      target.further.push_back({.device = further[i].get(), .vram_slots = further_slots[i]});
    return target;
  }
  /// One more device, of the first one's kind, with so many slots. Where the first one is deferred.
  void add_device(uint64_t slots) {
    auto host = kernels::make_cpu_device({.threads = 2, .instruction_set = {}});
    REQUIRE(host);
    further.push_back(std::make_unique<DeferredDevice>(std::move(*host), dynamic_cast<const DeferredDevice&>(*device)));
    further_slots.push_back(slots);
  }
  /// Experts that are all in the device's memory.
  Result<std::unique_ptr<runtime::RoutedExperts>> load(const runtime::DeviceExperts& what, uint32_t wave_tokens = 64,
                                                       format::Progress* progress = nullptr,
                                                       const std::stop_token& stop = {}) {
    return runtime::RoutedExperts::make(
        target(), weights(),
        {.placement = runtime::ExpertPlacement::resident,
         .store = {.shape = what.shape, .layers = what.layers, .slots = {}, .policy = {}},
         .shape = executor_shape(wave_tokens),
         .progress = progress},
        stop);
  }

  OpenedCheckpoint opened;
  runtime::ModelConfig config;
  std::unique_ptr<kernels::Device> device;
  std::vector<std::unique_ptr<kernels::Device>> further;
  std::vector<uint64_t> further_slots;
  std::unique_ptr<kernels::Queue> queue;
};

/// RoutedRows with random values, each routed to different experts.
struct RoutedRows {
  RoutedRows(ExpertPlace& place, LayerId layer, uint32_t count, unsigned seed, uint32_t most_experts = UINT32_MAX)
      : rows(count), place_(place) {
    const runtime::ModelConfig& config = place.config;
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
        .layer = layer, .x = x, .ids = {memory.get(), float_bytes}, .weights = {memory.get(), 2 * count * row_bytes}};
  }

  std::vector<float> run(runtime::ExpertExecutor& executor, runtime::Phase phase = runtime::Phase::decode) {
    executor.begin_pass({.phase = phase, .rows = rows, .draft_rows = 0});
    const auto done = executor.run(routed, y, {});
    REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
    std::vector<float> values(size_t{rows} * y.cols);
    place_.queue->download(std::as_writable_bytes(std::span(values)), y.data);
    place_.queue->synchronize();
    return values;
  }

  std::unique_ptr<kernels::Buffer> memory;
  kernels::Rows x, y;
  runtime::RoutedTokens routed;
  uint32_t rows;

 private:
  ExpertPlace& place_;
};

}  // namespace dspack::test
