// The forward pass against transformers (FP32 on dequantised weights); tests/tools says how the goldens were made.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/generate/session.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::golden_test {
namespace {

using test::GoldenPrompt;

constexpr double kMaxNmse = 1e-8;

std::vector<float> all_logits(Session& session, const std::vector<uint32_t>& tokens, uint32_t chunk = 0) {
  std::vector<float> logits;
  const auto done = session.logits(
      tokens, chunk, [&](std::span<const float> rows) { logits.insert(logits.end(), rows.begin(), rows.end()); }, {});
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  return logits;
}

size_t argmax(std::span<const float> row) {
  return static_cast<size_t>(std::ranges::max_element(row) - row.begin());
}

TEST_CASE("golden: logits of every prompt are transformers', and so is every argmax") {
  test::RecordingModel rig(test::tiny_folder());
  const auto stored = test::read_safetensors(test::golden_folder() / "logits.safetensors");
  const uint32_t vocab = rig.model().config().vocab;
  Session session = rig.session();
  for (const GoldenPrompt& prompt : test::golden_prompts()) {
    CAPTURE(prompt.name);
    REQUIRE(stored.contains(prompt.name));
    const std::vector<float> wanted = stored.at(prompt.name).as<float>();
    const std::vector<float> got = all_logits(session, prompt.logits_tokens);
    const test::ErrorReport report = test::compare(got, stored.at(prompt.name).as_double(), vocab);
    MESSAGE(prompt.name, ": ", report);
    CHECK_FALSE(report.count_mismatch);
    CHECK(report.not_a_number == 0);
    CHECK(report.nmse <= kMaxNmse);
    for (size_t row = 0; row < prompt.logits_tokens.size(); ++row) {
      CAPTURE(row);
      CHECK(argmax(std::span(got).subspan(row * vocab, vocab)) ==
            argmax(std::span(wanted).subspan(row * vocab, vocab)));
    }
  }
}

TEST_CASE("golden: greedy continuations are transformers'") {
  test::RecordingModel rig(test::tiny_folder());
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  for (const GoldenPrompt& prompt : test::golden_prompts()) {
    CAPTURE(prompt.name);
    Session session = rig.session();
    session.clear();
    std::vector<uint32_t> wanted = prompt.continuation;
    const auto limit = static_cast<uint32_t>(wanted.size());
    if (prompt.ends_with_eos) wanted.pop_back();
    std::vector<uint32_t> heard;
    const auto answer = session.generate(prompt.tokens, {.max_tokens = limit, .end_tokens = {1}}, *sampler,
                                         [&](uint32_t token) {
                                           heard.push_back(token);
                                           return true;
                                         },
                                         {});
    REQUIRE(answer);
    CHECK(answer->tokens == wanted);
    CHECK(heard == wanted);
    CHECK(answer->reason == (prompt.ends_with_eos ? StopReason::end_token : StopReason::max_tokens));
  }
}

/// Hands over the residual stream after the embedding ("embed") and after each layer of the pass ("layer.3").
class LayerTrace final : public Trace {
 public:
  using Check = std::function<void(const std::string& name, const kernels::Rows& rows)>;
  LayerTrace(uint32_t tokens, Check check) : tokens_(tokens), check_(std::move(check)) {}
  [[nodiscard]] uint32_t tokens() const override { return tokens_; }
  void input(std::string_view /*module*/, const kernels::Rows& /*rows*/, uint32_t /*total_rows*/) override {}
  void output(std::string_view module, const kernels::Rows& rows, uint32_t /*total_rows*/) override {
    constexpr std::string_view kLayers = "model.layers.";
    if (module == "model.embed_tokens") check_("embed", rows);
    if (!module.starts_with(kLayers)) return;
    const std::string number(module.substr(kLayers.size()));
    if (number.find('.') == std::string::npos) check_("layer." + number, rows);
  }
  void routing(std::string_view /*module*/, const Routing& /*routing*/) override {}
  [[nodiscard]] Result<void> status() const override { return {}; }

 private:
  uint32_t tokens_;
  Check check_;
};

TEST_CASE("golden: hidden states after every layer and the router's choices") {
  test::RecordingModel rig(test::tiny_folder());
  const auto stored = test::read_safetensors(test::golden_folder() / "activations.safetensors");
  const GoldenPrompt prompt = test::golden_prompts().front();
  size_t compared = 0;
  const auto check = [&](const std::string& name, const kernels::Rows& hidden) {
    CAPTURE(name);
    REQUIRE(stored.contains(name));
    std::vector<float> values(size_t{hidden.rows} * hidden.cols);
    rig.queue().download(std::as_writable_bytes(std::span(values)), hidden.data);
    rig.queue().synchronize();
    const test::ErrorReport report = test::compare(values, stored.at(name).as_double(), hidden.cols);
    CAPTURE(report);
    CHECK_FALSE(report.count_mismatch);
    CHECK(report.nmse <= kMaxNmse);
    ++compared;
  };
  Sequence sequence = rig.sequence();
  LayerTrace trace(static_cast<uint32_t>(prompt.logits_tokens.size()), check);
  const auto hidden =
      rig.model().forward({.sequence = sequence, .tokens = prompt.logits_tokens}, rig.scratch(), {}, {.trace = &trace});
  REQUIRE(hidden);
  check("final_norm", hidden->final);
  CHECK(compared == rig.model().config().layers + 2);

  CHECK(rig.recorder().routes().size() == 4);
  for (const auto& [layer, ids] : rig.recorder().routes()) {
    CAPTURE(layer);
    const std::vector<int64_t> wanted = stored.at("router." + std::to_string(layer) + ".ids").as<int64_t>();
    CHECK(std::vector<int64_t>(ids.begin(), ids.end()) == wanted);
  }
}

TEST_CASE("exact mode: logits are bitwise equal for any thread count, chunk and wave") {
  const auto prompts = test::golden_prompts();
  const auto longest =
      std::ranges::max_element(prompts, {}, [](const GoldenPrompt& prompt) { return prompt.logits_tokens.size(); });
  test::RecordingModel reference(test::tiny_folder());
  Session reference_session = reference.session();
  const std::vector<float> wanted = all_logits(reference_session, longest->logits_tokens);

  const std::vector<test::RigOptions> rigs = {
      {.threads = 2},
      {.threads = 3},
      {.threads = 2, .wave_rows = 5, .wave_tokens = 7, .slots = 2},
      {.threads = 1, .wave_rows = 1, .wave_tokens = 1, .slots = 1},
  };
  for (const test::RigOptions& options : rigs) {
    test::RecordingModel rig(test::tiny_folder(), options);
    Session session = rig.session();
    for (const uint32_t chunk : {0U, 1U, 7U}) {
      CAPTURE(options.threads);
      CAPTURE(options.wave_rows);
      CAPTURE(chunk);
      CHECK(test::first_difference(all_logits(session, longest->logits_tokens, chunk), wanted) == wanted.size());
    }
  }
}

}  // namespace
}  // namespace dspack::runtime::golden_test
