// A small DeepSeek-V4 of tests/data/family whose module drafts, with its golden, and a sequence that may draft.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/generate/session.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::test {

struct WindowGolden {
  explicit WindowGolden(const std::string& variant)
      : stored(read_safetensors(family_folder() / variant / "golden.safetensors")) {}
  [[nodiscard]] std::vector<uint32_t> ids(const std::string& name) const {
    const auto values = stored.at(name).as<int32_t>();
    return {values.begin(), values.end()};
  }
  std::map<std::string, StoredTensor> stored;
};

struct WindowRig : RecordingModel {
  static constexpr uint32_t kContext = 300;
  explicit WindowRig(const std::string& variant, RigOptions options = {})
      : RecordingModel(family_folder() / variant,
                       [&] {
                         options.context = kContext;
                         options.max_rows = kContext;
                         return options;
                       }()),
        golden(variant),
        tokens(golden.ids("long.tokens")),
        sequence(RecordingModel::sequence(runtime::Model::Drafting::mtp)) {}

  [[nodiscard]] runtime::MtpState& state() { return *sequence.mtp(); }
  [[nodiscard]] uint32_t vocab() { return model().config().vocab; }
  /// How many residuals are kept.
  [[nodiscard]] uint32_t room() { return runtime::MtpState::residuals_for(model().config(), kContext); }

  void pass(std::span<const uint32_t> more) {
    model().experts().begin_pass({.phase = runtime::Phase::prefill, .rows = static_cast<uint32_t>(more.size())});
    const auto states = model().forward({.sequence = sequence, .tokens = more}, scratch(), {});
    REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
  }
  /// The golden's tokens from the sequence's length on, up to `end`.
  void go_on(uint32_t end) { pass(std::span(tokens).subspan(sequence.length(), end - sequence.length())); }
  /// The golden's tokens after each pending position.
  [[nodiscard]] std::span<const uint32_t> next_tokens() {
    return std::span<const uint32_t>(tokens).subspan(state().length() + 1, state().pending());
  }

  WindowGolden golden;
  std::vector<uint32_t> tokens;
  runtime::Sequence sequence;
};

/// Greedy and sampled text with each of these numbers of drafts (absent: auto) is that without, for prompts of 1, 5 and
/// 120 tokens, so that answers cross the borders of blocks of 4 and of 128.
inline void check_drafted_text(const std::string& variant, std::span<const std::optional<uint32_t>> numbers) {
  CAPTURE(variant);
  WindowRig rig(variant);
  for (const double temperature : {0.0, 1.0}) {
    for (const uint32_t prompt : {1U, 5U, 120U}) {
      CAPTURE(temperature);
      CAPTURE(prompt);
      const auto text = [&](const std::optional<runtime::SpeculationOptions>& way) {
        runtime::Session session = rig.session(way);
        auto sampler = runtime::Sampler::make({.temperature = temperature, .seed = 7});
        REQUIRE(sampler);
        const auto answer = session.generate(std::span(rig.tokens).first(prompt), {.max_tokens = 24, .end_tokens = {}},
                                             *sampler, [](uint32_t) { return true; }, {});
        REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
        if (way && way->drafts) CHECK(session.speculator()->stats().drafted > 0);
        return answer->tokens;
      };
      const std::vector<uint32_t> wanted = text(std::nullopt);
      CHECK(wanted.size() == 24);
      for (const std::optional<uint32_t> drafts : numbers)
        CHECK(text(runtime::SpeculationOptions{.drafts = drafts}) == wanted);
    }
  }
}

}  // namespace dspack::test
