#include "runtime/generate/session.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::session_test {
namespace {

Answer answer_of(Session& session, const std::vector<uint32_t>& prompt, const GenerateOptions& options) {
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  auto answer = session.generate(prompt, options, *sampler, [](uint32_t) { return true; }, {});
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  return *answer;
}

std::vector<float> logits_of(Session& session, const std::vector<uint32_t>& prompt, uint32_t chunk) {
  std::vector<float> logits;
  const auto append = [&logits](std::span<const float> rows) { logits.insert(logits.end(), rows.begin(), rows.end()); };
  REQUIRE(session.logits(prompt, chunk, append, {}));
  return logits;
}

std::vector<uint32_t> joined(std::vector<uint32_t> a, const std::vector<uint32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("session: a conversation that goes on computes only what is new, and says the same") {
  const auto prompts = test::golden_prompts();
  const GenerateOptions options{.max_tokens = 12, .end_tokens = {1}};
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  const Answer first = answer_of(session, prompts[0].tokens, options);
  const uint64_t computed = session.times().prefill_tokens;
  CHECK(computed == prompts[0].tokens.size());

  const std::vector<uint32_t> spoken = joined(prompts[0].tokens, first.tokens);
  const std::vector<uint32_t> next = joined(joined(spoken, {1}), prompts[1].tokens);
  const Answer second = answer_of(session, next, options);
  CHECK(session.times().prefill_tokens - computed == next.size() - spoken.size());

  test::RecordingModel fresh(test::tiny_folder());
  Session alone = fresh.session();
  CHECK(answer_of(alone, next, options).tokens == second.tokens);
}

TEST_CASE("session: repeated layers keep what they cached apart, and answers are as exact as without") {
  const auto prompts = test::golden_prompts();
  const GenerateOptions options{.max_tokens = 8, .end_tokens = {1}};
  test::RigOptions mapped;
  for (const uint32_t layer : {0, 1, 2, 1, 2, 3, 2, 3, 4})
    mapped.layer_map.emplace_back(layer);
  test::RecordingModel rig(test::tiny_folder(), mapped);
  Session session = rig.session();
  const Answer first = answer_of(session, prompts[0].tokens, options);
  CHECK(answer_of(session, prompts[0].tokens, options).tokens == first.tokens);  // from the cache but for one token
  const std::vector<uint32_t> next = joined(joined(prompts[0].tokens, first.tokens), prompts[1].tokens);
  const Answer second = answer_of(session, next, options);

  test::RecordingModel fresh(test::tiny_folder(), mapped);
  Session alone = fresh.session();
  CHECK(answer_of(alone, next, options).tokens == second.tokens);
  CHECK(logits_of(alone, next, 5) == logits_of(alone, next, 0));

  // Layers 1 to 3 are routed in twice or thrice; each expert is read once.
  const ExpertStoreStats stats = fresh.store().stats();
  CHECK(stats.misses() == stats.read_experts.size());
  CHECK(stats.resident_experts == stats.read_experts.size());
  std::set<ExpertKey> picked;
  for (const auto& [layer, experts] : fresh.recorder().routes()) {
    CHECK(layer < 5);
    for (const uint32_t expert : experts)
      picked.insert({LayerId(layer), ExpertId(expert)});
  }
  CHECK(picked == stats.read_experts);
}

TEST_CASE("session: another conversation, or the same again, starts where they part") {
  const auto prompts = test::golden_prompts();
  const GenerateOptions options{.max_tokens = 5, .end_tokens = {1}};
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  const Answer first = answer_of(session, prompts[0].tokens, options);
  answer_of(session, prompts[2].tokens, options);
  CHECK(answer_of(session, prompts[0].tokens, options).tokens == first.tokens);
  const uint64_t before = session.times().prefill_tokens;
  CHECK(answer_of(session, prompts[0].tokens, options).tokens == first.tokens);
  CHECK(session.times().prefill_tokens - before == 1);  // the last token is what an answer continues from
  session.clear();
  CHECK(answer_of(session, prompts[0].tokens, options).tokens == first.tokens);
}

TEST_CASE("session: a full context ends the answer") {
  const auto prompt = test::golden_prompts().back().tokens;
  const auto context = static_cast<uint32_t>(prompt.size() + 3);
  test::RecordingModel rig(test::tiny_folder(), {.context = context, .max_rows = 20});
  Session session = rig.session();
  const Answer answer = answer_of(session, prompt, {.max_tokens = 100, .end_tokens = {}});
  CHECK(answer.reason == StopReason::context_full);
  CHECK(answer.tokens.size() == 4);  // three positions, and one token that needs none
}

TEST_CASE("session: a prompt that cannot be run is refused") {
  test::RecordingModel rig(test::tiny_folder(), {.context = 8, .max_rows = 8});
  Session session = rig.session();
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  const auto refused = [&](const std::vector<uint32_t>& prompt, const char* part) {
    const auto answer = session.generate(prompt, {}, *sampler, [](uint32_t) { return true; }, {});
    REQUIRE_FALSE(answer);
    CAPTURE(answer.error().message);
    CHECK(answer.error().kind == ErrorKind::invalid);
    CHECK(answer.error().message.find(part) != std::string::npos);
  };
  refused({}, "no token");
  refused({0, 1152}, "token 1152");
  refused(std::vector<uint32_t>(9, 0), "--ctx");
}

TEST_CASE("session: an interruption ends the answer and leaves the session usable") {
  const auto prompt = test::golden_prompts().front();
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  std::stop_source stop;
  uint32_t heard = 0;
  const auto answer = session.generate(
      prompt.tokens, {.end_tokens = {1}}, *sampler,
      [&](uint32_t) {
        if (++heard == 3) stop.request_stop();
        return true;
      },
      stop.get_token());
  REQUIRE(answer);
  CHECK(answer->reason == StopReason::interrupted);
  CHECK(answer->tokens.size() == 3);
  std::vector<uint32_t> wanted = prompt.continuation;
  wanted.pop_back();
  CHECK(answer_of(session, prompt.tokens, {.end_tokens = {1}}).tokens == wanted);
}

TEST_CASE("session: the callback ends an answer with the token that it got, and the conversation can go on") {
  const auto prompt = test::golden_prompts().front();
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  uint32_t heard = 0;
  const auto answer =
      session.generate(prompt.tokens, {.end_tokens = {1}}, *sampler, [&](uint32_t) { return ++heard < 3; }, {});
  REQUIRE(answer);
  CHECK(answer->reason == StopReason::stopped);
  CHECK(answer->tokens.size() == 3);
  std::vector<uint32_t> wanted = prompt.continuation;
  wanted.pop_back();
  CHECK(answer_of(session, prompt.tokens, {.end_tokens = {1}}).tokens == wanted);
}

TEST_CASE("session: the sampler is told the whole conversation, prompt and answer") {
  const auto prompt = test::golden_prompts().front();
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  // So strong a penalty that no token comes twice, whether from the prompt or the answer.
  auto sampler = Sampler::make({.repetition_penalty = 1e6});
  REQUIRE(sampler);
  std::vector<uint32_t> spoken = prompt.tokens;
  const auto answer = session.generate(prompt.tokens, {.max_tokens = 20, .end_tokens = {}}, *sampler,
                                       [&](uint32_t token) {
                                         CHECK(std::ranges::find(spoken, token) == spoken.end());
                                         spoken.push_back(token);
                                         return true;
                                       },
                                       {});
  REQUIRE(answer);
  CHECK(answer->tokens.size() == 20);
}

TEST_CASE("session: a bias for a token outside the vocabulary is refused before anything is computed") {
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  auto sampler = Sampler::make({.logit_bias = {{1152, 1.0}}});
  REQUIRE(sampler);
  const auto answer =
      session.generate(test::golden_prompts().front().tokens, {}, *sampler, [](uint32_t) { return true; }, {});
  REQUIRE_FALSE(answer);
  CHECK(answer.error().message.find("token 1152") != std::string::npos);
  CHECK(session.times().prefill_tokens == 0);
}

}  // namespace
}  // namespace dspack::runtime::session_test
