// Whole models of which a device holds some experts: logits and greedy text are the CPU's, whatever lies where.
#include <doctest/doctest.h>

#include "runtime/generate/session.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/deferred_device.h"

namespace dspack::runtime::tiered_model_test {
namespace {

const std::vector<uint32_t> kPrompt = {1, 17, 59, 5, 42, 7, 7, 31, 2, 60, 33};

/// Experts that the device keeps, and that the host's memory keeps.
struct Sizes {
  uint64_t vram = 0;
  std::optional<uint64_t> ram = {};
};

LoadOptions on_device(const Sizes& sizes, MissMode miss, uint64_t seed) {
  LoadOptions options;
  options.threads = 2;
  options.device.vram_experts = Amount{.number = sizes.vram, .percent = {}};
  if (sizes.ram) options.memory.experts = Amount{.number = *sizes.ram, .percent = {}};
  options.device.miss = {.mode = miss, .is_deterministic = miss != MissMode::automatic};
  options.device.kind = DeviceKind::cuda;
  options.device.open_gpu = [seed](size_t) -> Result<std::unique_ptr<kernels::Device>> {
    TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
    return std::unique_ptr<kernels::Device>(std::make_unique<test::DeferredDevice>(std::move(inner), UINT64_MAX, seed));
  };
  return options;
}

/// The same on two devices.
LoadOptions on_two_devices(const Sizes& sizes, MissMode miss, uint64_t seed) {
  LoadOptions options = on_device(sizes, miss, seed);
  options.device.gpus = {0, 1};
  const auto first = std::make_shared<test::DeferredDevice*>();
  options.device.open_gpu = [seed, first](size_t place) -> Result<std::unique_ptr<kernels::Device>> {
    TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
    auto made = place == 0 ? std::make_unique<test::DeferredDevice>(std::move(inner), UINT64_MAX, seed)
                           : std::make_unique<test::DeferredDevice>(std::move(inner), **first);
    if (place == 0) *first = made.get();
    return std::unique_ptr<kernels::Device>(std::move(made));
  };
  return options;
}

TEST_CASE("tiered model: every member of the family gives the CPU's logits, bit for bit") {
  for (const std::string& name : test::family_variants()) {
    CAPTURE(name);
    const auto folder = test::family_folder() / name;
    auto plain = test::load_folder(folder);
    REQUIRE_MESSAGE(plain, (plain ? "" : plain.error().message));
    if ((*plain)->model().config().top_k == 0) continue;
    const auto wanted = test::logits_of(**plain, kPrompt);
    for (const uint64_t vram : {0, 1, 5}) {
      CAPTURE(vram);
      auto tiered = test::load_folder(folder, on_device({.vram = vram}, MissMode::automatic, vram + 1));
      REQUIRE_MESSAGE(tiered, (tiered ? "" : tiered.error().message));
      REQUIRE((*tiered)->experts().stats().vram);
      CHECK(test::logits_of(**tiered, kPrompt) == wanted);
    }
  }
}

struct Outcome {
  std::vector<uint32_t> tokens;
  VramPhaseStats decode;
};

Outcome run(const LoadOptions& options, std::optional<uint32_t> drafts) {
  LoadOptions with = options;
  if (drafts) with.speculation = SpeculationOptions{.drafts = *drafts};
  auto loaded = test::load_folder(test::tiny_folder(), with);
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  Session session = test::session_of(**loaded);
  const auto answer =
      session.generate(kPrompt, {.max_tokens = 20, .end_tokens = {}}, *sampler, [](uint32_t) { return true; }, {});
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  Outcome outcome{.tokens = answer->tokens, .decode = {}};
  if (const auto stats = (*loaded)->experts().stats(); stats.vram) outcome.decode = stats.vram->phases[1];
  return outcome;
}

TEST_CASE("tiered model: the CPU's greedy text at every size, with and without drafts, moved and computed") {
  const auto wanted = run(LoadOptions(), std::nullopt).tokens;
  REQUIRE(wanted.size() == 20);
  for (const std::optional<uint32_t> drafts :
       {std::optional<uint32_t>(), std::optional<uint32_t>(1), std::optional<uint32_t>(3)}) {
    for (const Sizes& sizes : {Sizes{.vram = 0, .ram = 12}, Sizes{.vram = 3, .ram = 12}, Sizes{.vram = 40, .ram = 30},
                               Sizes{.vram = 319, .ram = 320}}) {
      CAPTURE(drafts.value_or(0));
      CAPTURE(sizes.vram);
      for (const MissMode miss : {MissMode::move, MissMode::compute, MissMode::automatic})
        CHECK(run(on_device(sizes, miss, sizes.vram), drafts).tokens == wanted);
    }
  }
}

TEST_CASE("tiered model: the CPU's greedy text on two devices") {
  const auto wanted = run(LoadOptions(), std::nullopt).tokens;
  uint64_t seed = 0;
  for (const std::optional<uint32_t> drafts : {std::optional<uint32_t>(), std::optional<uint32_t>(2)}) {
    // 160 on each: all, which are read before the first token.
    for (const Sizes& sizes :
         {Sizes{.vram = 0, .ram = 12}, Sizes{.vram = 7, .ram = 12}, Sizes{.vram = 160, .ram = 12}}) {
      CAPTURE(drafts.value_or(0));
      CAPTURE(sizes.vram);
      for (const MissMode miss : {MissMode::move, MissMode::compute, MissMode::automatic}) {
        LoadOptions options = on_two_devices(sizes, miss, ++seed);
        options.prefetch = seed % 2 == 0 ? PrefetchMode::on : PrefetchMode::off;
        const Outcome outcome = run(options, drafts);
        CHECK(outcome.tokens == wanted);
        if (sizes.vram == 160 && drafts) CHECK(outcome.decode.moved + outcome.decode.computed == 0);
      }
    }
  }
}

// Which experts a device keeps depends on the order in which a disk brings them; who computes one must not.
TEST_CASE("tiered model: with a fixed choice equal runs compute the same on the CPU") {
  const auto first = run(on_device({.vram = 20, .ram = 24}, MissMode::compute, 1), 1).decode;
  const auto second = run(on_device({.vram = 20, .ram = 24}, MissMode::compute, 2), 1).decode;
  CHECK(first.computed > 0);
  CHECK(first.computed == second.computed);
  CHECK(first.moved == second.moved);
  CHECK(first.hits + first.late == second.hits + second.late);
  LoadOptions automatic = on_device({.vram = 20, .ram = 24}, MissMode::automatic, 1);
  automatic.device.miss.is_deterministic = true;
  CHECK(run(automatic, 1).decode.computed == 0);
}

}  // namespace
}  // namespace dspack::runtime::tiered_model_test
