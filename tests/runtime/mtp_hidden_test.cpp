// The hidden state that a module was trained on; modules with an output head of their own; checkpoints without a
// module. tests/data/tiny-v3-mtp says how its two heads were made.
#include <doctest/doctest.h>

#include "runtime/generate/loaded_model.h"
#include "runtime/generate/session.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/runtime/support/overlaid_model.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::mtp_hidden_test {
namespace {

Result<std::unique_ptr<LoadedModel>> load(const std::filesystem::path& folder, const SpeculationOptions& speculation) {
  return LoadedModel::load(test::open_checkpoint(folder),
                           {.context = 128, .threads = 1, .instruction_set = {}, .speculation = speculation}, {});
}

struct Outcome {
  std::vector<std::vector<uint32_t>> texts;  // of all golden prompts
  double acceptance = 0;
};

Outcome run(const std::filesystem::path& folder, MtpHidden hidden) {
  auto loaded = load(folder, {.drafts = 1, .hidden = hidden});
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  auto session = (*loaded)->start_session();
  REQUIRE(session);
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  Outcome outcome;
  for (const test::GoldenPrompt& prompt : test::golden_prompts()) {
    const auto limit = static_cast<uint32_t>(prompt.continuation.size());
    const auto answer = session->generate(prompt.tokens, {.max_tokens = limit, .end_tokens = {1}}, *sampler,
                                          [](uint32_t) { return true; }, {});
    REQUIRE(answer);
    outcome.texts.push_back(answer->tokens);
  }
  const SpeculationStats& stats = session->speculator()->stats();
  outcome.acceptance = static_cast<double>(stats.accepted) / static_cast<double>(stats.drafted);
  return outcome;
}

TEST_CASE("mtp hidden: drafts are better with the state that a head was trained with, and the text is the same") {
  const std::vector<std::vector<uint32_t>> wanted = run(test::tiny_folder(), MtpHidden::post_norm).texts;
  for (const auto& [head, right, wrong] : {std::tuple{"pre-norm", MtpHidden::pre_norm, MtpHidden::post_norm},
                                           std::tuple{"post-norm", MtpHidden::post_norm, MtpHidden::pre_norm}}) {
    CAPTURE(std::string(head));
    const test::OverlaidModel model({.overlays = {test::overlay("uneven"), test::overlay(head)}});
    const Outcome set_right = run(model.path(), right);
    const Outcome set_wrong = run(model.path(), wrong);
    MESSAGE(std::string(head), ": acceptance right ", set_right.acceptance, ", wrong ", set_wrong.acceptance);
    CHECK(set_right.acceptance > 0.9);
    CHECK(set_wrong.acceptance < set_right.acceptance - 0.03);
    // The overlays leave the main model's function alone, so all of them say what tiny-v3 says.
    CHECK(set_right.texts == wanted);
    CHECK(set_wrong.texts == wanted);
  }
}

TEST_CASE("mtp hidden: the uneven main model's logits are tiny-v3's, bit for bit") {
  const test::OverlaidModel model({.overlays = {test::overlay("uneven")}});
  test::RecordingModel uneven(model.path());
  test::RecordingModel even(test::tiny_folder());
  const auto logits_of = [](test::RecordingModel& rig) {
    std::vector<float> logits;
    Session session = rig.session();
    const auto keep = [&](std::span<const float> rows) { logits.assign(rows.begin(), rows.end()); };
    REQUIRE(session.logits(test::golden_prompts().back().logits_tokens, 0, keep, {}));
    return logits;
  };
  CHECK(logits_of(uneven) == logits_of(even));
}

TEST_CASE("mtp hidden: an output head that differs from the main model's is loaded on its own") {
  const test::OverlaidModel model({.overlays = {test::overlay("uneven"), test::overlay("post-norm")}});
  test::RecordingModel own(model.path());
  CHECK_FALSE(own.mtp().shares_head());
  test::RecordingModel shared(test::tiny_folder());
  CHECK(shared.mtp().shares_head());
  constexpr uint64_t kHeadBytes = 2 * 1152 * 192;
  CHECK(own.mtp().weight_bytes() == shared.mtp().weight_bytes() + kHeadBytes);
}

TEST_CASE("mtp: copies that a checkpoint leaves out are the main model's") {
  const test::OverlaidModel model({.drop_prefix = "model.layers.5.shared_head.head"});
  test::RecordingModel rig(model.path());
  CHECK(rig.mtp().shares_head());
  const test::OverlaidModel other({.drop_prefix = "model.layers.5.embed_tokens"});
  test::RecordingModel second(other.path());
  CHECK(second.mtp().shares_embedding());
  CHECK(run(other.path(), MtpHidden::post_norm).texts == run(test::tiny_folder(), MtpHidden::post_norm).texts);
}

TEST_CASE("mtp: a model without a module says so, and runs without where that was left open") {
  const test::OverlaidModel none({.config = {{"num_nextn_predict_layers", 0}}});
  const test::OverlaidModel absent({.drop_prefix = "model.layers.5."});
  const auto refused = [](const std::filesystem::path& folder, ErrorKind kind, const char* part) {
    const auto loaded = load(folder, {.drafts = 1});
    REQUIRE_FALSE(loaded);
    CAPTURE(loaded.error().message);
    CHECK(loaded.error().kind == kind);
    CHECK(loaded.error().message.find(part) != std::string::npos);
    CHECK(loaded.error().message.find("--mtp") != std::string::npos);
    const auto automatic = load(folder, {});
    REQUIRE(automatic);
    CHECK((*automatic)->mtp() == nullptr);
    const auto session = (*automatic)->start_session();
    REQUIRE(session);
    CHECK(session->speculator() == nullptr);
  };
  refused(none.path(), ErrorKind::unsupported, "num_nextn_predict_layers");
  refused(absent.path(), ErrorKind::not_found, "model.layers.5");
}

}  // namespace
}  // namespace dspack::runtime::mtp_hidden_test
