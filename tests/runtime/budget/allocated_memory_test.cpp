// A plan against the buffers that a device is then asked for.
#include <doctest/doctest.h>

#include "runtime/generate/session.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/deferred_device.h"

namespace dspack::runtime::allocated_memory_test {
namespace {

const std::vector<uint32_t> kPrompt = {1, 17, 59, 5, 42, 7, 7, 31, 2, 60, 33};

struct Configuration {
  const char* model;  // a member of the family; nullptr: tiny-v3
  std::optional<uint64_t> vram_experts = {};
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
    LoadOptions options;
    options.threads = 2;
    options.sequences = each.sequences;
    options.context = each.context;
    options.memory.kv_dtype = each.kv_dtype;
    options.device.kind = DeviceKind::cuda;
    if (each.drafts) options.speculation = SpeculationOptions{.drafts = *each.drafts};
    if (each.vram_experts) options.device.vram_experts = Amount{.number = *each.vram_experts, .percent = {}};
    options.device.open_gpu = [&device](size_t) -> Result<std::unique_ptr<kernels::Device>> {
      TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
      auto made = std::make_unique<test::DeferredDevice>(std::move(inner));
      device = made.get();
      return std::unique_ptr<kernels::Device>(std::move(made));
    };
    const auto folder = each.model == nullptr ? test::tiny_folder() : test::family_folder() / each.model;
    auto loaded = test::load_folder(folder, options);
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    std::vector<Session> sessions;
    for (uint32_t i = 0; i < each.sequences; ++i)
      sessions.push_back(test::session_of(**loaded));
    auto sampler = Sampler::make({});
    REQUIRE(sampler);
    const auto answer = sessions.back().generate(kPrompt, {.max_tokens = 5, .end_tokens = {}}, *sampler,
                                                 [](uint32_t) { return true; }, {});
    REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
    const VramPlan& plan = *(*loaded)->memory_plan().vram;
    const uint64_t planned = plan.total_bytes() - plan.reserve_bytes;
    const uint64_t allocated = device->allocated_bytes() + unproven_copy(**loaded);
    CHECK(allocated == planned);
  }
}

}  // namespace dspack::runtime::allocated_memory_test
