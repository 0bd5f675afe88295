// DeepSeek-V4 on devices. On one that is made of the CPU's and records passes the bits are the CPU's, whatever the
// passes and wherever its experts lie; on the emulated GPU the logits are the references'.
#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "runtime/generate/session.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/window_rig.h"
#include "tests/support/deferred_device.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::window_device_test {
namespace {

using Tokens = std::vector<uint32_t>;

/// v4: windows alone, entries of 128, chosen entries of 4, a module for drafts; v4-pro: entries in the first layers;
/// v4-dspark: drafts in blocks.
const std::vector<std::string> kVariants = {"v4", "v4-pro", "v4-dspark"};

LoadOptions on_cpu() {
  LoadOptions options;
  options.context = 300;
  options.threads = 2;
  options.device.kind = DeviceKind::cpu;
  return options;
}

/// Devices made of the CPU's; the counts of each are kept, by its number.
using Counts = std::vector<std::shared_ptr<const test::DeferredCounts>>;
LoadOptions on_device(const std::shared_ptr<Counts>& counts) {
  LoadOptions options = on_cpu();
  options.device.kind = DeviceKind::cuda;
  const auto first = std::make_shared<test::DeferredDevice*>();
  options.device.open_gpu = [counts, first](size_t place) -> Result<std::unique_ptr<kernels::Device>> {
    TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
    auto made = place == 0 ? std::make_unique<test::DeferredDevice>(std::move(inner))
                           : std::make_unique<test::DeferredDevice>(std::move(inner), **first);
    if (place == 0) *first = made.get();
    counts->push_back(made->counts());
    return std::unique_ptr<kernels::Device>(std::move(made));
  };
  return options;
}

std::unique_ptr<LoadedModel> load(const std::string& variant, const LoadOptions& options) {
  auto loaded = test::load_folder(test::family_folder() / variant, options);
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  return std::move(*loaded);
}

/// Logits of all rows, in passes of these lengths in turn after a first one.
std::vector<float> logits_of(LoadedModel& loaded, const Tokens& tokens, size_t first, const std::vector<size_t>& rows) {
  const Engine engine = loaded.engine();
  auto sequence = engine.model.make_sequence();
  REQUIRE(sequence);
  const size_t vocab = engine.model.config().vocab;
  std::vector<float> all;
  for (size_t turn = 0; sequence->length() < tokens.size(); ++turn) {
    const size_t count = turn == 0 ? first : rows[turn % rows.size()];
    const auto next =
        std::span(tokens).subspan(sequence->length(), std::min(count, tokens.size() - sequence->length()));
    const auto length = static_cast<uint32_t>(next.size());
    engine.model.experts().begin_pass({.phase = length > 1 ? Phase::prefill : Phase::decode, .rows = length});
    const auto states = engine.model.forward({.sequence = *sequence, .tokens = next}, engine.scratch, {},
                                             {.end = engine.picker.end_of_pass(length)});
    REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
    std::vector<float> logits(length * vocab);
    engine.picker.logits(states->final, logits);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

Tokens text_of(LoadedModel& loaded, const Tokens& prompt, size_t tokens) {
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  Session session = test::session_of(loaded);
  const auto answer = session.generate(prompt, {.max_tokens = static_cast<uint32_t>(tokens), .end_tokens = {}},
                                       *sampler, [](uint32_t) { return true; }, {});
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  return answer->tokens;
}

TEST_CASE("window on a device: recorded passes of any length have the CPU's bits") {
  for (const std::string& variant : kVariants) {
    CAPTURE(variant);
    const Tokens tokens = test::WindowGolden(variant).ids("long.tokens");
    const auto wanted = logits_of(*load(variant, on_cpu()), tokens, tokens.size(), {});
    const auto counts = std::make_shared<Counts>();
    const auto loaded = load(variant, on_device(counts));
    // About the ends of windows and blocks.
    for (const size_t first : {1U, 20U, 125U, 250U}) {
      for (const std::vector<size_t>& rows : {std::vector<size_t>{1}, {2, 8, 1, 5}}) {
        CAPTURE(first);
        CAPTURE(rows.size());
        CHECK(test::first_difference(logits_of(*loaded, tokens, first, rows), wanted) == wanted.size());
      }
    }
    CHECK(counts->front()->steps > 300);
  }
}

TEST_CASE("window on a device: text with drafts is the CPU's, with recorded steps") {
  for (const char* variant : {"v4", "v4-dspark"}) {
    CAPTURE(variant);
    const Tokens tokens = test::WindowGolden(variant).ids("long.tokens");
    for (const size_t prompt : {5U, 120U}) {
      CAPTURE(prompt);
      const Tokens first(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(prompt));
      const Tokens wanted = text_of(*load(variant, on_cpu()), first, 24);
      for (const std::optional<uint32_t> drafts : {std::optional<uint32_t>(1), {3}, {}}) {
        const auto counts = std::make_shared<Counts>();
        LoadOptions options = on_device(counts);
        options.speculation = SpeculationOptions{.drafts = drafts};
        CHECK(text_of(*load(variant, options), first, 24) == wanted);
        CHECK(counts->front()->steps > 0);
      }
    }
  }
}

TEST_CASE("window on devices: with some experts there, on one or two, logits are the CPU's, bit for bit") {
  for (const std::string& variant : kVariants) {
    CAPTURE(variant);
    Tokens tokens = test::WindowGolden(variant).ids("long.tokens");
    tokens.resize(150);
    const auto wanted = logits_of(*load(variant, on_cpu()), tokens, tokens.size(), {});
    for (const size_t devices : {1U, 2U}) {
      for (const uint64_t vram : {0U, 2U, 9U}) {
        CAPTURE(devices);
        CAPTURE(vram);
        LoadOptions options = on_device(std::make_shared<Counts>());
        if (devices == 2) options.device.gpus = {0, 1};
        options.device.vram_experts = Amount{.number = vram, .percent = {}};
        const auto loaded = load(variant, options);
        CHECK(test::first_difference(logits_of(*loaded, tokens, 120, {1, 4}), wanted) == wanted.size());
        CHECK(loaded->experts().stats().vram);
      }
    }
  }
}

#ifdef DSPACK_EMULATED_CUDA
TEST_CASE("window on the emulated GPU: logits are the references', in recorded passes too") {
  // Of v4-pro fewer rows, since the emulated GPU is slow: its two streams and its experts by token.
  for (const auto& [variant, length] : {std::pair<std::string, uint32_t>("v4", 132), {"v4-pro", 20}}) {
    CAPTURE(variant);
    const test::WindowGolden golden(variant);
    Tokens tokens = golden.ids("long.tokens");
    tokens.resize(length);
    LoadOptions options = on_cpu();
    options.device.kind = DeviceKind::cuda;
    options.device.cuda_library = DSPACK_EMULATED_CUDA;
    options.device.cublaslt = "off";
    const auto loaded = load(variant, options);
    const auto logits = logits_of(*loaded, tokens, length - 10, {1, 1, 1, 1, 3});
    std::vector<double> wanted = golden.stored.at("long.logits").as_double();
    wanted.resize(logits.size());
    const test::ErrorReport report = test::compare(logits, wanted, loaded->model().config().vocab);
    MESSAGE(variant, ": ", report);
    CHECK(report.nmse <= 1e-10);
  }
}
#endif

}  // namespace
}  // namespace dspack::runtime::window_device_test
