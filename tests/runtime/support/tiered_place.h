// Experts that one or several devices hold some of, over a store of the others, and what the CPU's executor makes of
// the same tokens, which must be the same, bit for bit. Threads: one. Lifetime: Tiers borrow their ExpertPlace.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/experts/pinned_slots.h"
#include "runtime/experts/policy/lru.h"
#include "tests/runtime/support/expert_place.h"

namespace dspack::test {

// Layers with routed experts, of tiny-v3.
inline constexpr LayerId kFirst(1);
inline constexpr LayerId kSecond(2);

inline runtime::PolicyFactory lru() {
  return [] { return std::make_unique<runtime::LruPolicy>(); };
}

struct TierSize {
  uint64_t vram = 0;              // slots of the first device
  std::optional<uint64_t> ram{};  // absent: for all
};

/// A place's devices hold some experts, over a store that holds others.
struct Tiers {
  Tiers(ExpertPlace& place, const TierSize& size, const runtime::MissOptions& miss = {.mode = runtime::MissMode::move},
        uint32_t wave_tokens = 7, runtime::PrefetchMode prefetch = runtime::PrefetchMode::off, bool returns = true)
      : pinned(*place.device, 1 << 16, 1 << 17) {
    auto cpu = kernels::make_cpu_device({.threads = 2, .instruction_set = {}});
    REQUIRE(cpu);
    host = std::move(*cpu);
    auto made = runtime::StreamedStore::make(*host, place.weights(),
                                             {.shape = place.shape(),
                                              .layers = {kFirst, kSecond},
                                              .slots = size.ram,
                                              .least_slots = 1,
                                              .policy = lru(),
                                              .prefetch = prefetch,
                                              .memory = &pinned});
    REQUIRE(made);
    store = std::move(*made);
    auto tiered = runtime::RoutedExperts::make_tiered(
        place.target(host.get()), place.checkpoint(), *store, place.executor_shape(wave_tokens),
        {.experts = place.options({kFirst, kSecond}),
         .slots = size.vram,
         .policy = lru(),
         .prefetch = prefetch,
         .ahead_bytes = 8192,
         .returns = returns && miss.effective() != runtime::MissMode::compute},
        miss);
    REQUIRE_MESSAGE(tiered, (tiered ? "" : tiered.error().message));
    executor = std::move(*tiered);
  }
  [[nodiscard]] runtime::VramPhaseStats counts(runtime::Phase phase = runtime::Phase::decode) const {
    return executor->stats().vram->phases[static_cast<size_t>(phase)];
  }

  runtime::PinnedSlots pinned;
  std::unique_ptr<kernels::Device> host;
  std::unique_ptr<runtime::StreamedStore> store;
  std::unique_ptr<runtime::RoutedExperts> executor;
};

/// What the CPU's executor makes of the same tokens.
class TierReference {
 public:
  explicit TierReference(const std::filesystem::path& folder) : place_(folder) {
    auto made = runtime::StreamedStore::make(
        *place_.device, place_.weights(),
        {.shape = place_.shape(), .layers = {kFirst, kSecond}, .slots = {}, .policy = lru()});
    REQUIRE(made);
    store_ = std::move(*made);
    auto streamed = runtime::RoutedExperts::stream(place_.target(), *store_, place_.executor_shape(64));
    REQUIRE(streamed);
    streamed_ = std::move(*streamed);
  }
  std::vector<float> run(LayerId layer, uint32_t count, unsigned seed, uint32_t most_experts = UINT32_MAX) {
    RoutedRows rows(place_, layer, count, seed, most_experts);
    return rows.run(*streamed_);
  }

 private:
  ExpertPlace place_;
  std::unique_ptr<runtime::StreamedStore> store_;
  std::unique_ptr<runtime::RoutedExperts> streamed_;
};

/// Tokens and prompts of these lengths (more than 16 rows: a prompt), each through all layers.
inline void check_some_passes(TierReference& reference, ExpertPlace& place, Tiers& tiers,
                              const std::vector<uint32_t>& counts = {1, 1, 2, 1, 7, 1, 16, 1, 23, 1},
                              const std::vector<LayerId>& layers = {kFirst, kSecond}) {
  unsigned seed = 0;
  for (const uint32_t count : counts) {
    for (const LayerId layer : layers) {
      CAPTURE(count);
      CAPTURE(layer.value);
      RoutedRows rows(place, layer, count, ++seed);
      const runtime::Phase phase = count > 16 ? runtime::Phase::prefill : runtime::Phase::decode;
      REQUIRE(rows.run(*tiers.executor, phase) == reference.run(layer, count, seed));
    }
  }
}

}  // namespace dspack::test
