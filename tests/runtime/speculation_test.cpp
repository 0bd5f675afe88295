// Decoding with drafts says what decoding without them says, token by token, however it ends.
#include "runtime/generate/speculator.h"

#include <doctest/doctest.h>

#include <numeric>

#include "runtime/generate/session.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::speculation_test {
namespace {

using test::GoldenPrompt;

Sampler sampler_of(const SamplerOptions& options = {}) {
  auto sampler = Sampler::make(options);
  REQUIRE(sampler);
  return *sampler;
}

// Drafts that are made for sure, each number of them, and one if it pays.
std::vector<SpeculationOptions> all_ways() {
  std::vector<SpeculationOptions> ways;
  for (const std::optional<uint32_t> drafts :
       {std::optional(1U), std::optional(2U), std::optional(3U), std::optional<uint32_t>()})
    for (const MtpHidden hidden : {MtpHidden::post_norm, MtpHidden::pre_norm})
      ways.push_back({.drafts = drafts, .hidden = hidden});
  return ways;
}

struct Said {
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> heard;
  StopReason reason = StopReason::max_tokens;
  bool operator==(const Said&) const = default;
};

struct Ask {
  std::vector<uint32_t> prompt;
  GenerateOptions options;
  size_t stop_after = SIZE_MAX;       // tokens after which the callback wants no more
  size_t interrupt_after = SIZE_MAX;  // tokens after which a person does
};

Said say(Session& session, const Ask& ask, Sampler& sampler) {
  std::stop_source stop;
  Said said;
  const auto answer = session.generate(
      ask.prompt, ask.options, sampler,
      [&](uint32_t token) {
        said.heard.push_back(token);
        if (said.heard.size() == ask.interrupt_after) stop.request_stop();
        return said.heard.size() < ask.stop_after;
      },
      stop.get_token());
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  said.tokens = answer->tokens;
  said.reason = answer->reason;
  return said;
}

Said say(Session& session, const Ask& ask) {
  Sampler greedy = sampler_of();
  return say(session, ask, greedy);
}

TEST_CASE("speculation: greedy text of every golden prompt is that without drafts") {
  test::RecordingModel rig(test::tiny_folder());
  for (const SpeculationOptions& way : all_ways()) {
    CAPTURE(way.drafts.value_or(0));
    Session session = rig.session(way);
    for (const GoldenPrompt& prompt : test::golden_prompts()) {
      CAPTURE(prompt.name);
      std::vector<uint32_t> wanted = prompt.continuation;
      const auto limit = static_cast<uint32_t>(wanted.size());
      if (prompt.ends_with_eos) wanted.pop_back();
      const Said said = say(session, {.prompt = prompt.tokens, .options = {.max_tokens = limit, .end_tokens = {1}}});
      CHECK(said.tokens == wanted);
      CHECK(said.heard == wanted);
      CHECK(said.reason == (prompt.ends_with_eos ? StopReason::end_token : StopReason::max_tokens));
    }
    const SpeculationStats& stats = session.speculator()->stats();
    CHECK(stats.steps == session.times().decode_passes);
    CHECK(stats.accepted <= stats.drafted);
    CHECK(stats.accepted == std::accumulate(stats.stood.begin(), stats.stood.end(), uint64_t{0}));
    if (!way.drafts) continue;
    // The first draft stands nearly always (the model card says 99.3 %), so passes are saved.
    CHECK(stats.stood[0] > 0.9 * static_cast<double>(stats.tried[0]));
    CHECK(session.times().decode_passes < 0.7 * static_cast<double>(session.times().decode_tokens));
  }
}

TEST_CASE("speculation: answers end where they end without drafts") {
  const GoldenPrompt prompt = test::golden_prompts().front();
  const std::vector<uint32_t>& words = prompt.continuation;
  std::vector<Ask> asks;
  for (uint32_t i = 1; i < words.size(); ++i) {
    asks.push_back({.prompt = prompt.tokens, .options = {.max_tokens = i, .end_tokens = {1}}});
    asks.push_back({.prompt = prompt.tokens, .options = {.end_tokens = {words[i]}}});  // inside of drafts, too
    asks.push_back({.prompt = prompt.tokens, .options = {.end_tokens = {1}}, .stop_after = i});
    asks.push_back({.prompt = prompt.tokens, .options = {.end_tokens = {1}}, .interrupt_after = i});
  }
  test::RecordingModel plain_rig(test::tiny_folder());
  test::RecordingModel rig(test::tiny_folder());
  for (const uint32_t drafts : {1U, 2U, 3U, 5U}) {
    CAPTURE(drafts);
    Session plain = plain_rig.session();
    plain.clear();
    Session session = rig.session(SpeculationOptions{.drafts = drafts});
    // One conversation after the other in the same session: each finds the caches as the last one left them.
    for (size_t i = 0; i < asks.size(); ++i) {
      CAPTURE(i);
      const Said wanted = say(plain, asks[i]);
      CHECK(say(session, asks[i]) == wanted);
      CHECK(session.times().decode_tokens == plain.times().decode_tokens);
      // And goes on from there.
      std::vector<uint32_t> more = asks[i].prompt;
      more.insert(more.end(), wanted.tokens.begin(), wanted.tokens.end());
      more.push_back(7);
      const Ask next{.prompt = more, .options = {.max_tokens = 4, .end_tokens = {}}};
      const uint64_t computed = session.times().prefill_tokens;
      CHECK(say(session, next) == say(plain, next));
      CHECK(session.times().prefill_tokens - computed <= 2);
    }
  }
}

TEST_CASE("speculation: a full context ends the answer at the same token") {
  const GoldenPrompt prompt = test::golden_prompts().front();
  const auto length = static_cast<uint32_t>(prompt.tokens.size());
  for (uint32_t room = 0; room < 7; ++room) {
    CAPTURE(room);
    test::RecordingModel rig(test::tiny_folder(), {.context = length + room, .max_rows = 4});
    const Ask ask{.prompt = prompt.tokens, .options = {}};
    Session plain = rig.session();
    const Said wanted = say(plain, ask);
    CHECK(wanted.reason == StopReason::context_full);
    CHECK(wanted.tokens.size() == room + 1);
    for (const uint32_t drafts : {1U, 3U, 9U}) {
      Session session = rig.session(SpeculationOptions{.drafts = drafts});
      CHECK(say(session, ask) == wanted);
    }
  }
}

TEST_CASE("speculation: what the sampler makes of the tokens so far holds for drafts") {
  const GoldenPrompt prompt = test::golden_prompts().back();
  const SamplerOptions options{.repetition_penalty = 4};
  const Ask ask{.prompt = prompt.tokens, .options = {.max_tokens = 30, .end_tokens = {}}};
  test::RecordingModel plain_rig(test::tiny_folder());
  Session plain = plain_rig.session();
  Sampler one = sampler_of(options);
  const Said wanted = say(plain, ask, one);
  CHECK(wanted.tokens != say(plain, ask).tokens);  // it does change the text
  test::RecordingModel rig(test::tiny_folder());
  for (const uint32_t drafts : {1U, 4U}) {
    Session session = rig.session(SpeculationOptions{.drafts = drafts});
    Sampler other = sampler_of(options);
    CHECK(say(session, ask, other) == wanted);
  }
}

TEST_CASE("speculation: a conversation of several turns, forth and back") {
  const auto prompts = test::golden_prompts();
  test::RecordingModel plain_rig(test::tiny_folder());
  test::RecordingModel rig(test::tiny_folder());
  Session plain = plain_rig.session();
  Session session = rig.session(SpeculationOptions{.drafts = 2});
  const auto both = [&](const std::vector<uint32_t>& tokens) {
    const Ask ask{.prompt = tokens, .options = {.max_tokens = 9, .end_tokens = {1}}};
    const Said wanted = say(plain, ask);
    CHECK(say(session, ask) == wanted);
    std::vector<uint32_t> spoken = tokens;
    spoken.insert(spoken.end(), wanted.tokens.begin(), wanted.tokens.end());
    return spoken;
  };
  const auto after = [](std::vector<uint32_t> spoken, const std::vector<uint32_t>& next) {
    spoken.insert(spoken.end(), next.begin(), next.end());
    return spoken;
  };
  const std::vector<uint32_t> first = both(prompts[0].tokens);
  const std::vector<uint32_t> second = both(after(first, prompts[1].tokens));
  both(after(first, prompts[2].tokens));  // back to where the first answer ended
  both(second);
  both(prompts[3].tokens);
  session.clear();
  plain.clear();
  both(prompts[0].tokens);
}

TEST_CASE("speculation: a seed's text is that without drafts, whatever their number, and so is its continuation") {
  const auto prompts = test::golden_prompts();
  const std::vector<SamplerOptions> samplings = {{.temperature = 0.7, .seed = 3},
                                                 {.temperature = 1.5, .seed = 4},
                                                 {.temperature = 3, .top_k = 40, .top_p = 0.9, .seed = 5},
                                                 {.temperature = 2, .min_p = 0.02, .seed = 6},
                                                 {.temperature = 1.5, .presence_penalty = 0.5, .seed = 7},
                                                 {.temperature = 1.5, .repetition_penalty = 1.2, .seed = 8}};
  test::RecordingModel plain_rig(test::tiny_folder());
  test::RecordingModel rig(test::tiny_folder());
  Session plain = plain_rig.session();
  std::vector<Said> wanted;
  std::vector<Ask> asks;
  for (size_t i = 0; i < samplings.size(); ++i) {
    asks.push_back({.prompt = prompts[i % prompts.size()].tokens, .options = {.max_tokens = 16, .end_tokens = {}}});
    Sampler sampler = sampler_of(samplings[i]);
    wanted.push_back(say(plain, asks.back(), sampler));
  }
  for (const std::optional<uint32_t> drafts : {std::optional(1U), std::optional(4U), std::optional<uint32_t>()}) {
    CAPTURE(drafts.value_or(0));
    Session session = rig.session(SpeculationOptions{.drafts = drafts});
    for (size_t i = 0; i < samplings.size(); ++i) {
      CAPTURE(i);
      Sampler sampler = sampler_of(samplings[i]);
      CHECK(say(session, asks[i], sampler) == wanted[i]);
      // Continued from its middle: the penalties of presence and frequency alone know where the answer began.
      if (samplings[i].presence_penalty != 0) continue;
      Ask rest = asks[i];
      rest.prompt.insert(rest.prompt.end(), wanted[i].tokens.begin(), wanted[i].tokens.begin() + 7);
      rest.options.max_tokens = 9;
      Sampler other = sampler_of(samplings[i]);
      CHECK(say(session, rest, other).tokens ==
            std::vector<uint32_t>(wanted[i].tokens.begin() + 7, wanted[i].tokens.end()));
    }
    const SpeculationStats& stats = session.speculator()->stats();
    if (!drafts) continue;
    CHECK(stats.accepted > 20);
    CHECK(stats.drafted - stats.accepted > 20);
  }
  // Another seed, another text.
  Sampler other = sampler_of({.temperature = 1.5, .seed = 5});
  CHECK(say(plain, asks[1], other) != wanted[1]);
}

}  // namespace
}  // namespace dspack::runtime::speculation_test
