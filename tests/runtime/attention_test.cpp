// The absorbed form of attention against the published one, which expands keys and values
// (support/expanded_attention.h), and the expanded form against transformers.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/generate/session.h"
#include "runtime/validation/comparer.h"
#include "runtime/validation/recording.h"
#include "tests/runtime/support/expanded_attention.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/overlaid_model.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::attention_test {
namespace {

enum class Form { absorbed, expanded };

/// Runs the tokens in one pass and returns their logits; `trace` hears of it.
std::vector<float> run(test::RecordingModel& rig, const std::vector<uint32_t>& tokens, Form form,
                       Trace* trace = nullptr) {
  Session session = rig.session();
  test::ExpandedAttention expanded(rig.context(), rig.model(), session.sequence(), static_cast<uint32_t>(tokens.size()),
                                   trace);
  std::vector<float> all;
  const auto keep = [&](std::span<const float> rows) { all.insert(all.end(), rows.begin(), rows.end()); };
  const auto done = session.logits(tokens, 0, keep, {}, form == Form::expanded ? &expanded : trace);
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  CHECK((form == Form::expanded) == (expanded.replaced() > 0));
  return all;
}

Recording opened(const format::Path& path) {
  auto recording = Recording::open(format::posix_file_system(), path);
  REQUIRE_MESSAGE(recording, (recording ? "" : recording.error().message));
  return std::move(*recording);
}

Comparison compared(test::RecordingModel& rig, const std::vector<uint32_t>& tokens, Form form,
                    const format::Path& reference, const std::optional<double>& tolerance = {}) {
  const Recording recording = opened(reference);
  Comparer comparer(rig.queue(), rig.model().config(), recording, static_cast<uint32_t>(tokens.size()),
                    {.tolerance = tolerance});
  run(rig, tokens, form, &comparer);
  auto comparison = comparer.finish();
  REQUIRE_MESSAGE(comparison, (comparison ? "" : comparison.error().message));
  return std::move(*comparison);
}

/// transformers' modules (tests/tools/tiny_v3/activations.py), and the tokens that they are of.
format::Path golden_modules() {
  return test::golden_folder() / "modules.safetensors";
}

std::vector<uint32_t> golden_tokens() {
  const auto tokens = opened(golden_modules()).input_ids();
  REQUIRE(tokens);
  REQUIRE(*tokens);
  return **tokens;
}

void record(test::RecordingModel& rig, const std::vector<uint32_t>& tokens, Form form, const format::Path& path) {
  auto recorder = Recorder::create(rig.queue(), format::posix_file_system(), rig.model(),
                                   {.tokens = tokens, .patterns = {}, .path = path});
  REQUIRE_MESSAGE(recorder, (recorder ? "" : recorder.error().message));
  run(rig, tokens, form, recorder->get());
  REQUIRE((*recorder)->seal({}));
}

double worst_output(const Comparison& comparison) {
  double worst = 0;
  for (const ComparedModule& module : comparison.modules) {
    if (module.output) worst = std::max(worst, module.output->relative());
  }
  return worst;
}

TEST_CASE("attention: expanded keys and values give the logits of the absorbed form, whatever the wave") {
  test::RecordingModel rig(test::tiny_folder());
  test::RecordingModel waves(test::tiny_folder(), {.wave_rows = 7});
  for (const test::GoldenPrompt& prompt : test::golden_prompts()) {
    CAPTURE(prompt.name);
    const std::vector<float> wanted = run(rig, prompt.logits_tokens, Form::absorbed);
    const std::vector<float> got = run(rig, prompt.logits_tokens, Form::expanded);
    const size_t vocab = rig.model().config().vocab;
    const test::ErrorReport report = test::compare(got, std::vector<double>(wanted.begin(), wanted.end()), vocab);
    MESSAGE(prompt.name, ": ", report);
    CHECK(report.nmse <= 1e-8);
    CHECK(report.nmse > 0);  // two implementations, not one
    CHECK(test::first_difference(run(waves, prompt.logits_tokens, Form::expanded), got) == got.size());
  }
}

TEST_CASE("attention: the modules of both forms agree, and so do the likeliest tokens") {
  const test::TempFolder folder;
  const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
  test::RecordingModel rig(test::tiny_folder());
  record(rig, tokens, Form::expanded, folder.path() / "expanded");
  const Comparison comparison = compared(rig, tokens, Form::absorbed, folder.path() / "expanded", 1e-5);
  CHECK(comparison.within_tolerance());
  CHECK(worst_output(comparison) > 0);
  REQUIRE(comparison.logits);
  CHECK(comparison.logits->same_top == tokens.size());
}

TEST_CASE("attention: so they do for every member of the family") {
  const test::TempFolder folder;
  const std::vector<uint32_t> tokens = {1, 5, 17, 30, 44, 9};
  const std::vector<std::string> variants = test::family_variants();
  CHECK(variants.size() > 10);
  for (const std::string& name : variants) {
    CAPTURE(name);
    test::RecordingModel rig(test::family_folder() / name, {.context = 32, .max_rows = 32});
    record(rig, tokens, Form::expanded, folder.path() / name);
    const double tolerance = 2.5e-6 * rig.model().config().layers;  // errors grow from layer to layer
    const Comparison comparison = compared(rig, tokens, Form::absorbed, folder.path() / name, tolerance);
    MESSAGE(name, ": worst module ", worst_output(comparison), " of ", tolerance);
    CHECK(comparison.within_tolerance());
    CHECK(worst_output(comparison) > 0);
  }
}

TEST_CASE("attention: the expanded keys and values are transformers', as is all that follows from them") {
  test::RecordingModel rig(test::tiny_folder());
  const Comparison comparison = compared(rig, golden_tokens(), Form::expanded, golden_modules());
  const auto keys =
      std::ranges::find(comparison.modules, "model.layers.3.self_attn.kv_b_proj", &ComparedModule::module);
  REQUIRE(keys != comparison.modules.end());
  CHECK(keys->output->relative() < 5e-6);
  CHECK(worst_output(comparison) < 5e-6);
}

// A part of layer 3's kv_b_proj is zero. The expanded form shows it there; the absorbed form, which has no such module,
// in the next one that reads what came of it.
TEST_CASE("attention: an error in what only the expanded form computes is named there") {
  const std::string wrong = "model.layers.3.self_attn.kv_b_proj.weight";
  const test::TempFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(test::tiny_folder())) {
    if (entry.path().extension() != ".safetensors") continue;
    auto tensors = test::read_safetensors(entry.path());
    const auto found = tensors.find(wrong);
    if (found == tensors.end()) continue;
    test::StoredTensor& tensor = found->second;
    std::fill_n(tensor.bytes.begin(), 80, '\0');
    folder.write(
        "wrong.safetensors",
        test::safetensors_file({{wrong, std::string(to_string(tensor.dtype)), tensor.shape, std::move(tensor.bytes)}}));
  }
  const test::OverlaidModel model({.overlays = {folder.path() / "wrong.safetensors"}});
  test::RecordingModel rig(model.path());
  const auto departure = [&](Form form) {
    const Comparison comparison = compared(rig, golden_tokens(), form, golden_modules());
    REQUIRE(comparison.first_departure() != nullptr);
    return comparison.first_departure()->module;
  };
  CHECK(departure(Form::expanded) == "model.layers.3.self_attn.kv_b_proj");
  CHECK(departure(Form::absorbed) == "model.layers.3.self_attn.o_proj");
}

}  // namespace
}  // namespace dspack::runtime::attention_test
