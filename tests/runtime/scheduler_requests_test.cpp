// Scores of prompts, what waits together, and those who leave.
#include "runtime/generate/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <new>
#include <stdexcept>

#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/scheduling.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::scheduler_requests_test {
namespace {

using test::finish;
using test::Listener;
using test::sampler_of;
using test::scheduler_of;
using test::submit_one;

/// Logits after every token of a prompt, and its answer, of a session that has nothing else.
struct Alone {
  std::vector<float> logits;
  Answer answer;
};

Alone answer_alone(const std::vector<uint32_t>& prompt, uint32_t max_tokens) {
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  Alone alone;
  REQUIRE(session.logits(
      prompt, 0,
      [&](std::span<const float> rows) { alone.logits.insert(alone.logits.end(), rows.begin(), rows.end()); }, {}));
  session.clear();
  Sampler sampler = sampler_of({});
  auto answer = session.generate(prompt, {.max_tokens = max_tokens, .end_tokens = {1}}, sampler,
                                 [](uint32_t) { return true; }, {});
  REQUIRE(answer);
  alone.answer = *std::move(answer);
  alone.logits.resize(alone.logits.size() - session.vocab());  // the last row tells of the answer
  return alone;
}

TEST_CASE(
    "scheduler: scores of a prompt are a session's logits, in pieces, in company and where caches hold the prompt") {
  const auto prompts = test::golden_prompts();
  std::vector<Alone> wanted;
  for (size_t i = 0; i < 3; ++i)
    wanted.push_back(answer_alone(prompts[i].tokens, 4));
  for (const bool is_deferred : {false, true}) {
    for (const uint32_t places : {1U, 3U}) {
      for (const uint32_t max_rows : {5U, 100U}) {
        CAPTURE(is_deferred);
        CAPTURE(places);
        CAPTURE(max_rows);
        test::RecordingModel rig(test::tiny_folder(), {.max_rows = max_rows, .is_deferred = is_deferred});
        const KvIdentity identity{.digest = {}, .shape = rig.model().kv_shape(), .context = 128};
        PrefixCache cache(identity, {.memory_bytes = 1U << 24U}, [](const Error& error) { FAIL(error.message); });
        const auto scheduler = scheduler_of(rig, {.places = places, .cache = &cache});
        std::vector<std::shared_ptr<Listener>> heard;
        std::vector<Generation> generations;
        // Each prompt as usual, so that caches have it; scored, with and without an answer; and again as usual.
        for (size_t i = 0; i < 12; ++i) {
          heard.push_back(std::make_shared<Listener>());
          heard.back()->looks_at_logits = i % 2 == 0;
          const bool is_scored = i >= 3 && i < 9;
          generations.push_back({.prompt = prompts[i % 3].tokens,
                                 .max_tokens = i >= 6 && is_scored ? 0U : 4U,
                                 .end_tokens = {1},
                                 .sampler = sampler_of({}),
                                 .listener = heard.back(),
                                 .scores_prompt = is_scored});
        }
        REQUIRE(scheduler->submit(std::move(generations)));
        finish(*scheduler);
        for (size_t i = 0; i < heard.size(); ++i) {
          CAPTURE(i);
          const Alone& alone = wanted[i % 3];
          const bool is_scored = i >= 3 && i < 9;
          const bool is_answered = i < 6 || i >= 9;
          CHECK(heard[i]->error.empty());
          CHECK(heard[i]->ends == 1);
          CHECK(heard[i]->tokens == (is_answered ? alone.answer.tokens : std::vector<uint32_t>()));
          CHECK(heard[i]->stop == (is_answered ? alone.answer.reason : StopReason::max_tokens));
          CHECK(heard[i]->scored == (is_scored ? prompts[i % 3].tokens : std::vector<uint32_t>()));
          CHECK((heard[i]->scores == (is_scored ? alone.logits : std::vector<float>())));
          if (is_scored) CHECK(heard[i]->kept() == 0);
          CHECK(heard[i]->read() == prompts[i % 3].tokens.size());
        }
        CHECK(heard.back()->kept() == prompts[2].tokens.size() - 1);  // what a scored prompt leaves is of use
        if (places > 1 && max_rows > 5) CHECK(scheduler->counts().passes < heard.size() + 3);
      }
    }
  }
}

TEST_CASE(
    "scheduler: scores beside drafts; nobody's scores are not made; the end token is told, and no answer's part") {
  const auto prompts = test::golden_prompts();
  const auto ending =
      std::ranges::find_if(prompts, [](const test::GoldenPrompt& prompt) { return prompt.ends_with_eos; });
  REQUIRE(ending != prompts.end());
  test::RecordingModel rig(test::tiny_folder(), {.max_rows = 5});
  (void)rig.mtp();
  const auto scheduler = scheduler_of(rig, {.places = 1, .speculation = SpeculationOptions{.drafts = 2}});
  std::stop_source gone;
  const auto submit = [&](const std::vector<uint32_t>& prompt, uint32_t max_tokens, const std::stop_token& left) {
    auto listener = std::make_shared<Listener>();
    REQUIRE(submit_one(*scheduler, {.prompt = prompt,
                                    .max_tokens = max_tokens,
                                    .end_tokens = {1},
                                    .sampler = sampler_of({}),
                                    .listener = listener,
                                    .gone = left,
                                    .scores_prompt = true}));
    return listener;
  };
  const auto stays = submit(ending->tokens, 100, {});
  const auto leaves = submit(prompts[0].tokens, 100, gone.get_token());
  leaves->on_scores = [&gone] { gone.request_stop(); };
  const auto one_token = submit({5}, 0, {});
  finish(*scheduler);
  const Alone alone = answer_alone(ending->tokens, 100);
  CHECK((stays->scores == alone.logits));
  CHECK(stays->tokens == alone.answer.tokens);
  CHECK((stays->stop == StopReason::end_token && stays->ended_by == 1));
  CHECK(stays->drafts > 0);
  CHECK((leaves->scored.size() == 1 && leaves->scores.empty() && leaves->stop == StopReason::interrupted));
  CHECK((one_token->scored == std::vector<uint32_t>{5} && one_token->scores.empty()));
  CHECK((one_token->stop == StopReason::max_tokens && one_token->ends == 1));
}

TEST_CASE("scheduler: what is submitted together waits as one request, and all requests together have a bound") {
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 1, .waiting = 2});
  std::vector<std::shared_ptr<Listener>> heard;
  const auto submit = [&](size_t count) {
    std::vector<Generation> generations;
    for (size_t i = 0; i < count; ++i) {
      heard.push_back(std::make_shared<Listener>());
      generations.push_back({.prompt = {5}, .max_tokens = 0, .sampler = sampler_of({}), .listener = heard.back()});
    }
    return scheduler->submit(std::move(generations));
  };
  const auto too_many = submit(kMaxWaiting + 1);
  REQUIRE(!too_many);
  CHECK(too_many.error().kind == ErrorKind::invalid);  // never, also where nothing waits
  heard.clear();
  CHECK(submit(100));
  CHECK(submit(30));
  CHECK(scheduler->counts().waiting == 130);
  const auto third = submit(1);
  REQUIRE(!third);
  CHECK(third.error().message.find("2 requests are waiting already, for 130 answers") != std::string::npos);
  heard.pop_back();
  finish(*scheduler);
  CHECK(scheduler->counts().refused == 2);
  for (const auto& each : heard)
    CHECK((each->ends == 1 && each->stop == StopReason::max_tokens && each->tokens.empty()));
}

TEST_CASE("scheduler: those who leave while they wait make room at once, and hear of their end, during a pass, too") {
  const auto prompt = test::golden_prompts()[0].tokens;
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 1, .waiting = 2});
  const auto submit = [&](const std::shared_ptr<Listener>& listener, const std::stop_token& gone = {}) {
    return submit_one(
        *scheduler, {.prompt = prompt, .max_tokens = 3, .sampler = sampler_of({}), .listener = listener, .gone = gone});
  };
  std::vector<std::shared_ptr<Listener>> left;
  const auto later = std::make_shared<Listener>();
  bool looked = false;
  // Called in the thread of `run`, while the scheduler is not between passes.
  const auto answered = std::make_shared<Listener>([&] {
    if (std::exchange(looked, true)) return true;
    std::stop_source gone;
    for (int i = 0; i < 2; ++i) {
      left.push_back(std::make_shared<Listener>());
      CHECK(submit(left.back(), gone.get_token()));
    }
    CHECK(scheduler->counts().waiting == 2);
    CHECK(submit(later).error().kind == ErrorKind::budget);
    gone.request_stop();
    CHECK(scheduler->counts().waiting == 0);
    CHECK(submit(later));
    for (const auto& each : left)
      CHECK((each->ends == 1 && each->stop == StopReason::interrupted));
    CHECK(scheduler->counts().waiting == 1);
    scheduler->drain();
    return true;
  });
  REQUIRE(submit(answered));
  scheduler->run({});
  CHECK(looked);
  for (const auto& each : left)
    CHECK((each->ends == 1 && each->tokens.empty()));
  CHECK((later->ends == 1 && later->stop == StopReason::max_tokens));
  CHECK((answered->ends == 1 && answered->stop == StopReason::max_tokens));
  const SchedulerCounts counts = scheduler->counts();
  CHECK(counts.generations == 2);
  CHECK(counts.cancelled == 2);
  CHECK(counts.refused == 1);
}

TEST_CASE("scheduler: those who leave while they wait are dropped between two passes without another request") {
  const auto prompt = test::golden_prompts()[0].tokens;
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 1});
  std::stop_source gone;
  const auto leaving = std::make_shared<Listener>();
  int ends_at_third_token = 0;
  size_t heard = 0;
  const auto answered = std::make_shared<Listener>([&] {
    if (++heard == 1) gone.request_stop();
    if (heard == 3) ends_at_third_token = leaving->ends;
    return true;
  });
  for (const auto& each : {answered, leaving})
    REQUIRE(submit_one(*scheduler, {.prompt = prompt,
                                    .max_tokens = 4,
                                    .sampler = sampler_of({}),
                                    .listener = each,
                                    .gone = each == leaving ? gone.get_token() : std::stop_token()}));
  finish(*scheduler);
  CHECK(ends_at_third_token == 1);
  CHECK(leaving->ends == 1);
}

TEST_CASE("scheduler: what one listener throws is its own end, and the others get their answers") {
  const auto prompts = test::golden_prompts();
  const Alone alone = answer_alone(prompts[0].tokens, 8);
  for (const bool is_memory : {true, false}) {
    for (const int when : {0, 1, 2}) {
      CAPTURE(is_memory);
      CAPTURE(when);
      test::RecordingModel rig(test::tiny_folder(), {.max_rows = 5});
      const auto scheduler = scheduler_of(rig, {.places = 3});
      int calls = 0;
      const auto fault = [&] {
        if (calls++ < when) return true;
        if (is_memory) throw std::bad_alloc();
        throw std::runtime_error("a fault of this test");
      };
      // One that throws at a token, one with its scores, and one that does not.
      const auto at_token = std::make_shared<Listener>(fault);
      const auto at_scores = std::make_shared<Listener>();
      at_scores->on_scores = [&] { throw std::bad_alloc(); };
      const auto unharmed = std::make_shared<Listener>();
      for (const auto& each : {at_token, at_scores, unharmed})
        REQUIRE(submit_one(*scheduler, {.prompt = prompts[0].tokens,
                                        .max_tokens = 8,
                                        .end_tokens = {1},
                                        .sampler = sampler_of({}),
                                        .listener = each,
                                        .scores_prompt = each == at_scores}));
      finish(*scheduler);
      CHECK(at_token->ends == 1);
      CHECK(at_token->tokens.size() == static_cast<size_t>(when) + 1);
      CHECK(at_token->error == (is_memory ? "there is not enough memory for this answer now" : "a fault of this test"));
      CHECK((at_scores->ends == 1 && at_scores->tokens.empty() && !at_scores->error.empty()));
      CHECK((unharmed->ends == 1 && unharmed->error.empty() && unharmed->tokens == alone.answer.tokens));
      CHECK(scheduler->counts().failed == 2);
      CHECK(scheduler->counts().busy == 0);
    }
  }
}

TEST_CASE("scheduler: a conversation keeps its place and its prefix, whatever sub-agents come between its turns") {
  const auto prompts = test::golden_prompts();
  std::vector<uint32_t> main = prompts[0].tokens;  // what all begin with, then its own
  const size_t common = main.size();
  for (const auto& each : {prompts[1], prompts[2]})
    main.insert(main.end(), each.tokens.begin(), each.tokens.end());
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 2});
  std::vector<std::vector<uint32_t>> turns{main};
  for (uint32_t i = 0; i < 6; ++i) {
    turns.emplace_back(main.begin(), main.begin() + static_cast<std::ptrdiff_t>(common));
    for (uint32_t k = 0; k < 8; ++k)
      turns.back().push_back(10 + 8 * i + k);
  }
  main.push_back(7);
  turns.push_back(main);
  std::vector<std::shared_ptr<Listener>> heard;
  // Each comes when the one before has ended.
  const std::function<void()> go_on = [&] {
    const SchedulerCounts counts = scheduler->counts();
    if (counts.busy + counts.waiting > 0) return scheduler->between_passes(go_on);
    if (heard.size() == turns.size()) return scheduler->drain();
    heard.push_back(std::make_shared<Listener>());
    REQUIRE(submit_one(
        *scheduler,
        {.prompt = turns[heard.size() - 1], .max_tokens = 2, .sampler = sampler_of({}), .listener = heard.back()}));
    scheduler->between_passes(go_on);
  };
  scheduler->between_passes(go_on);
  scheduler->run({});
  CHECK(heard.back()->kept() == main.size() - 1);
  for (size_t i = 1; i + 1 < heard.size(); ++i)
    CHECK(heard[i]->kept() >= common);
}

TEST_CASE("scheduler: places go to clients in turn, and a full queue of one has room for another") {
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 1, .waiting = 4});
  std::vector<std::string> order;
  std::vector<std::shared_ptr<Listener>> heard;
  const auto ask = [&](const std::string& client) {
    heard.push_back(std::make_shared<Listener>([&order, client] {
      order.push_back(client);
      return true;
    }));
    return submit_one(
        *scheduler,
        {.prompt = {5}, .max_tokens = 1, .sampler = sampler_of({}), .listener = heard.back(), .client = client});
  };
  for (int i = 0; i < 4; ++i)
    REQUIRE(ask("a"));
  CHECK(!ask("a"));
  heard.pop_back();
  REQUIRE(ask("b"));
  CHECK((heard[3]->ends == 1 && heard[3]->error.starts_with("too many requests are waiting")));
  finish(*scheduler);
  CHECK(order == std::vector<std::string>{"a", "b", "a", "a"});
  CHECK(scheduler->counts().refused == 2);
}

TEST_CASE("scheduler: who leaves at the last moment before its turn gets no place") {
  const auto prompt = test::golden_prompts()[0].tokens;
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 1});
  std::stop_source first_gone;
  std::stop_source second_gone;
  const auto first = std::make_shared<Listener>();
  const auto second = std::make_shared<Listener>();
  for (const auto& [listener, gone] : {std::pair(first, &first_gone), {second, &second_gone}})
    REQUIRE(submit_one(*scheduler, {.prompt = prompt,
                                    .max_tokens = 4,
                                    .sampler = sampler_of({}),
                                    .listener = listener,
                                    .gone = gone->get_token()}));
  // While those who have left are told so; then the next one is looked at.
  first->on_end = [&] { second_gone.request_stop(); };
  first_gone.request_stop();
  finish(*scheduler);
  for (const auto& each : {first, second}) {
    CHECK(each->starts == 0);
    CHECK(each->tokens.empty());
    CHECK(each->ends == 1);
    CHECK(each->stop == StopReason::interrupted);
  }
  CHECK(scheduler->counts().prompt_tokens == 0);
}

}  // namespace
}  // namespace dspack::runtime::scheduler_requests_test
