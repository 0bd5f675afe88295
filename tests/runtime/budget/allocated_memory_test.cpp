// A plan against the buffers that a device is then asked for.
#include <doctest/doctest.h>

#include "kernels/cpu/cpu_device.h"
#include "runtime/generate/session.h"
#include "runtime/generate/stats.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/deferred_device.h"

namespace dspack::runtime::allocated_memory_test {
namespace {

const std::vector<uint32_t> kPrompt = {1, 17, 59, 5, 42, 7, 7, 31, 2, 60, 33};

struct Configuration {
  const char* model;                          // a member of the family; nullptr: tiny-v3
  std::optional<uint64_t> vram_experts = {};  // if set, a CPU has 40 slots
  std::optional<uint32_t> drafts = {};
  uint32_t sequences = 1;
  std::optional<uint32_t> context = {};
  Dtype kv_dtype = Dtype::f32;
};

const Configuration kConfigurations[] = {
    {.model = nullptr},
    {.model = nullptr, .context = 256},
    {.model = nullptr, .kv_dtype = Dtype::bf16},
    {.model = nullptr, .sequences = 5},
    {.model = nullptr, .vram_experts = 0},
    {.model = nullptr, .vram_experts = 40, .kv_dtype = Dtype::f8_e4m3},
    {.model = nullptr, .drafts = 1},
    {.model = nullptr, .drafts = 3, .sequences = 4},
    {.model = "v2-lite"},
    {.model = "kimi-k2", .vram_experts = 5},
    {.model = "v3.2-sparse", .drafts = 1, .sequences = 3},
    {.model = "glm-5.2", .drafts = 2, .kv_dtype = Dtype::f16},
};

LoadOptions options_of(const Configuration& configuration, DeviceKind device) {
  LoadOptions options;
  options.threads = 2;
  options.sequences = configuration.sequences;
  options.context = configuration.context;
  options.memory.kv_dtype = configuration.kv_dtype;
  options.device.kind = device;
  if (configuration.drafts) options.speculation = SpeculationOptions{.drafts = *configuration.drafts};
  return options;
}

std::filesystem::path folder_of(const Configuration& configuration) {
  return configuration.model == nullptr ? test::tiny_folder() : test::family_folder() / configuration.model;
}

/// Answers a prompt in the last of all sequences.
std::vector<Session> sessions_of(LoadedModel& loaded, uint32_t count) {
  std::vector<Session> sessions;
  for (uint32_t i = 0; i < count; ++i)
    sessions.push_back(test::session_of(loaded));
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  const auto answer = sessions.back().generate(kPrompt, {.max_tokens = 5, .end_tokens = {}}, *sampler,
                                               [](uint32_t) { return true; }, {});
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  return sessions;
}

/// The most that a CPU's queue takes for products and choices of positions; it grows as they come.
uint64_t queue_bytes(const LoadedModel& loaded, unsigned threads) {
  const ModelConfig& config = loaded.model().config();
  const uint32_t widest = std::max({config.hidden, config.dense_inner, config.shared_experts * config.expert_inner,
                                    config.expert_inner, config.heads * config.value_dim, config.q_rank});
  const uint64_t products = kernels::most_product_bytes(threads, loaded.memory_plan().rows.chunk, widest);
  return products +
         (config.indexer ? kernels::most_choose_bytes(threads, config.indexer->most, config.indexer->dim) : 0);
}

/// Bytes of the MTP module's copy of the output head, if no digest proves that it equals the model's. A plan counts it;
/// the module compares the bytes, which are equal in each of these models, and keeps no copy.
uint64_t unproven_copy(const LoadedModel& loaded) {
  if (loaded.mtp() == nullptr) return 0;
  const format::Checkpoint& checkpoint = loaded.checkpoint();
  const std::string module = "model.layers." + std::to_string(loaded.model().config().layers);
  const auto* copy = checkpoint.find(module + ".shared_head.head.weight");
  const auto* head = checkpoint.find("lm_head.weight");
  if (copy == nullptr || (head != nullptr && copy->digest && copy->digest == head->digest)) return 0;
  return copy->range.size();
}

}  // namespace

TEST_CASE("memory plan: a device is asked for what was planned, to the byte, in twelve configurations") {
  for (const Configuration& each : kConfigurations) {
    CAPTURE(std::string(each.model == nullptr ? "tiny-v3" : each.model));
    CAPTURE(each.vram_experts.value_or(UINT64_MAX));
    CAPTURE(each.drafts.value_or(0));
    CAPTURE(each.sequences);
    test::DeferredDevice* device = nullptr;
    LoadOptions options = options_of(each, DeviceKind::cuda);
    if (each.vram_experts) options.device.vram_experts = Amount{.number = *each.vram_experts, .percent = {}};
    options.device.open_gpu = [&device](size_t) -> Result<std::unique_ptr<kernels::Device>> {
      TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
      auto made = std::make_unique<test::DeferredDevice>(std::move(inner));
      device = made.get();
      return std::unique_ptr<kernels::Device>(std::move(made));
    };
    auto loaded = test::load_folder(folder_of(each), options);
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    const std::vector<Session> sessions = sessions_of(**loaded, each.sequences);
    const VramPlan& plan = *(*loaded)->memory_plan().vram;
    const uint64_t planned = plan.total_bytes() - plan.reserve_bytes;
    const uint64_t allocated = device->allocated_bytes() + unproven_copy(**loaded);
    CHECK(allocated == planned);
  }
}

TEST_CASE("memory plan: a run on the CPU takes what was planned, to the byte, in these configurations") {
  for (const Configuration& each : kConfigurations) {
    CAPTURE(std::string(each.model == nullptr ? "tiny-v3" : each.model));
    CAPTURE(each.drafts.value_or(0));
    CAPTURE(each.sequences);
    LoadOptions options = options_of(each, DeviceKind::cpu);
    constexpr uint64_t kFewSlots = 40;
    if (each.vram_experts) options.memory.experts = Amount{.number = kFewSlots, .percent = {}};
    auto loaded = test::load_folder(folder_of(each), options);
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    const std::vector<Session> sessions = sessions_of(**loaded, each.sequences);
    const RunStats stats = collect_stats(**loaded, sessions.back());
    const MtpStats module = stats.mtp.value_or(MtpStats{});
    const MemoryPlan& plan = (*loaded)->memory_plan();
    CHECK(stats.memory_bytes.weights - module.weight_bytes == plan.head_bytes + plan.layers.total_bytes());
    CHECK((stats.memory_bytes.kv_cache - module.cache_bytes) * each.sequences == plan.kv_bytes);
    CHECK(stats.memory_bytes.scratch - module.scratch_bytes + queue_bytes(**loaded, 2) == plan.activation_bytes);
    if (each.sequences == 1) {
      const uint64_t of_module = module.weight_bytes + module.cache_bytes + module.scratch_bytes;
      CHECK(of_module + unproven_copy(**loaded) == plan.mtp_bytes);
    }
    CHECK(stats.memory_bytes.experts <= plan.slot_bytes);
    if (each.vram_experts) CHECK(stats.memory_bytes.experts == plan.slot_bytes);
  }
}

}  // namespace dspack::runtime::allocated_memory_test
