#include "runtime/generate/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::scheduler_test {
namespace {

/// Keeps what it is told.
class Listener final : public GenerationListener {
 public:
  explicit Listener(std::function<bool()> wants_more = [] { return true; }) : wants_more_(std::move(wants_more)) {}
  void started(uint32_t kept) override { kept_ = kept; }
  void prompt_read(uint32_t count) override { read_ = count; }
  void prompt_scored(std::span<const uint32_t> prompt, std::span<const float> logits) override {
    CHECK(tokens.empty());
    CHECK(ends == 0);
    scored.insert(scored.end(), prompt.begin(), prompt.end());
    scores.insert(scores.end(), logits.begin(), logits.end());
    if (on_scores) on_scores();
  }
  bool wants_logits() const override { return looks_at_logits; }
  void drafted(uint32_t count, uint32_t accepted_count) override {
    CHECK(accepted_count <= count);
    drafts += count;
    accepted += accepted_count;
  }
  bool token(uint32_t id, std::span<const float> logits) override {
    if (looks_at_logits) CHECK(logits.size() > id);
    if (logits.size() > id && is_greedy) CHECK(logits[id] == *std::ranges::max_element(logits));
    tokens.push_back(id);
    return wants_more_();
  }
  void end_token(uint32_t id, std::span<const float> logits) override {
    CHECK(!ended_by);
    if (looks_at_logits) CHECK(logits[id] == *std::ranges::max_element(logits));
    ended_by = id;
  }
  void ended(const Result<StopReason>& reason) override {
    ++ends;
    if (reason) stop = *reason;
    if (!reason) error = reason.error().message;
  }

  bool looks_at_logits = true;
  bool is_greedy = false;
  uint32_t drafts = 0, accepted = 0;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> scored;  // of the prompt
  std::vector<float> scores;     // before each but the first
  std::function<void()> on_scores;
  std::optional<uint32_t> ended_by;
  std::optional<StopReason> stop;
  std::string error;
  int ends = 0;
  [[nodiscard]] uint32_t kept() const { return kept_; }
  [[nodiscard]] uint32_t read() const { return read_; }

 private:
  std::function<bool()> wants_more_;
  uint32_t kept_ = 0;
  uint32_t read_ = 0;
};

Sampler sampler_of(const SamplerOptions& options) {
  auto sampler = Sampler::make(options);
  REQUIRE(sampler);
  return *std::move(sampler);
}

std::unique_ptr<Scheduler> scheduler_of(test::RecordingModel& rig, const SchedulerOptions& options) {
  auto scheduler = Scheduler::make(rig.engine(), options);
  REQUIRE(scheduler);
  return *std::move(scheduler);
}

Result<void> submit_one(Scheduler& scheduler, Generation generation) {
  return scheduler.submit(std::vector{std::move(generation)});
}

/// Runs until nothing is left.
void finish(Scheduler& scheduler) {
  scheduler.drain();
  scheduler.run({});
}

TEST_CASE("scheduler: answers made together are those made alone, greedy and drawn, whatever the places") {
  const auto prompts = test::golden_prompts();
  for (const uint32_t places : {1U, 2U, 4U}) {
    CAPTURE(places);
    test::RecordingModel rig(test::tiny_folder(), {.max_rows = 16});  // prompts come in pieces
    const auto scheduler = scheduler_of(rig, {.places = places, .waiting = 20});
    std::vector<std::shared_ptr<Listener>> heard;
    std::vector<SamplerOptions> sampling;
    for (size_t i = 0; i < 6; ++i) {
      heard.push_back(std::make_shared<Listener>());
      sampling.push_back({.temperature = i % 2 == 0 ? 0.0 : 0.9, .seed = i});
      REQUIRE(submit_one(*scheduler, {.prompt = prompts[i % prompts.size()].tokens,
                                      .max_tokens = static_cast<uint32_t>(5 + 3 * i),
                                      .end_tokens = {1},
                                      .sampler = sampler_of(sampling.back()),
                                      .listener = heard.back()}));
    }
    finish(*scheduler);
    for (size_t i = 0; i < heard.size(); ++i) {
      CAPTURE(i);
      test::RecordingModel fresh(test::tiny_folder());
      Session alone = fresh.session();
      Sampler sampler = sampler_of(sampling[i]);
      const auto answer = alone.generate(prompts[i % prompts.size()].tokens,
                                         {.max_tokens = static_cast<uint32_t>(5 + 3 * i), .end_tokens = {1}}, sampler,
                                         [](uint32_t) { return true; }, {});
      REQUIRE(answer);
      CHECK(heard[i]->tokens == answer->tokens);
      CHECK(heard[i]->stop == answer->reason);
      CHECK(heard[i]->ends == 1);
      CHECK(heard[i]->read() == prompts[i % prompts.size()].tokens.size());
    }
    const SchedulerCounts counts = scheduler->counts();
    CHECK(counts.generations == 6);
    CHECK(counts.busy == 0);
    if (places > 1) CHECK(counts.rows > counts.passes);
  }
}

TEST_CASE("scheduler: a conversation that goes on finds its cache, and others do not take it while one is free") {
  const auto prompts = test::golden_prompts();
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 2});
  const auto ask = [&](const std::vector<uint32_t>& prompt) {
    auto listener = std::make_shared<Listener>();
    REQUIRE(
        submit_one(*scheduler, {.prompt = prompt, .max_tokens = 4, .sampler = sampler_of({}), .listener = listener}));
    return listener;
  };
  const auto first = ask(prompts[0].tokens);
  const auto other = ask(prompts[1].tokens);
  std::vector<uint32_t> next = prompts[0].tokens;
  next.push_back(7);
  const auto second = ask(next);
  finish(*scheduler);
  CHECK(first->kept() == 0);
  CHECK(other->kept() < prompts[1].tokens.size());
  CHECK(second->kept() == prompts[0].tokens.size());
  CHECK(scheduler->counts().kept_tokens >= prompts[0].tokens.size());
}

TEST_CASE("scheduler: what a place loses to others comes back from the prefix cache, with the same answers") {
  const auto prompts = test::golden_prompts();
  std::vector<std::vector<uint32_t>> wanted;
  for (const bool has_cache : {false, true}) {
    CAPTURE(has_cache);
    test::RecordingModel rig(test::tiny_folder());
    const KvIdentity identity{.digest = {}, .shape = rig.model().kv_shape(), .context = 128};
    PrefixCache cache(identity, {.memory_bytes = 1U << 24U}, [](const Error& error) { FAIL(error.message); });
    const auto scheduler = scheduler_of(rig, {.places = 1, .cache = has_cache ? &cache : nullptr});
    std::vector<std::shared_ptr<Listener>> heard;
    for (size_t i = 0; i < 6; ++i) {
      std::vector<uint32_t> prompt = prompts[i % 3].tokens;
      if (i >= 3) prompt.push_back(7);
      heard.push_back(std::make_shared<Listener>());
      REQUIRE(submit_one(
          *scheduler,
          {.prompt = prompt, .max_tokens = 8, .sampler = sampler_of({.temperature = 0}), .listener = heard.back()}));
    }
    finish(*scheduler);
    std::vector<std::vector<uint32_t>> said;
    for (const auto& each : heard)
      said.push_back(each->tokens);
    if (!has_cache) wanted = said;
    CHECK(said == wanted);
    for (size_t i = 3; i < 6; ++i)
      CHECK((heard[i]->kept() == prompts[i % 3].tokens.size()) == has_cache);
    CHECK(scheduler->counts().cache.has_value() == has_cache);
    CHECK((cache.counts().memory_tokens > 0) == has_cache);
  }
}

TEST_CASE("scheduler: what cannot be answered, too many, those who leave and those who have enough") {
  const auto prompts = test::golden_prompts();
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 1, .waiting = 3});
  const auto submit = [&](std::vector<uint32_t> prompt, const std::shared_ptr<Listener>& listener,
                          const std::stop_token& gone = {}) {
    return submit_one(
        *scheduler,
        {.prompt = std::move(prompt), .max_tokens = 10, .sampler = sampler_of({}), .listener = listener, .gone = gone});
  };
  const auto nobody = std::make_shared<Listener>();
  CHECK(submit({}, nobody).error().kind == ErrorKind::invalid);
  CHECK(submit({UINT32_MAX}, nobody).error().kind == ErrorKind::invalid);
  CHECK(submit(std::vector<uint32_t>(1000, 5), nobody).error().kind == ErrorKind::invalid);
  const auto content = std::make_shared<Listener>([] { return false; });
  const auto left = std::make_shared<Listener>();
  std::stop_source gone;
  std::stop_source leaves_later;
  const auto leaving = std::make_shared<Listener>([&leaves_later] {
    leaves_later.request_stop();
    return true;
  });
  REQUIRE(submit(prompts[0].tokens, content));
  REQUIRE(submit(prompts[0].tokens, left, gone.get_token()));
  REQUIRE(submit(prompts[0].tokens, leaving, leaves_later.get_token()));
  CHECK(submit(prompts[0].tokens, nobody).error().kind == ErrorKind::budget);
  gone.request_stop();
  finish(*scheduler);
  CHECK(submit(prompts[0].tokens, nobody).error().kind == ErrorKind::conflict);
  CHECK((content->tokens.size() == 1 && content->stop == StopReason::stopped && content->ends == 1));
  CHECK((left->tokens.empty() && left->stop == StopReason::interrupted && left->ends == 1));
  CHECK((leaving->tokens.size() == 1 && leaving->stop == StopReason::interrupted && leaving->ends == 1));
  CHECK(nobody->ends == 0);
  CHECK(scheduler->counts().refused == 1);
}

TEST_CASE("scheduler: requests from several threads while it runs") {
  const auto prompts = test::golden_prompts();
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {.places = 3, .waiting = 100});
  std::jthread running([&](const std::stop_token& stop) { scheduler->run(stop); });
  std::vector<std::shared_ptr<Listener>> heard;
  for (size_t i = 0; i < 12; ++i)
    heard.push_back(std::make_shared<Listener>());
  {
    std::vector<std::jthread> clients;
    for (size_t t = 0; t < 3; ++t) {
      clients.emplace_back([&, t] {
        for (size_t i = t; i < heard.size(); i += 3) {
          auto sampler = Sampler::make({});
          const auto taken = submit_one(*scheduler, {.prompt = prompts[i % prompts.size()].tokens,
                                                     .max_tokens = 6,
                                                     .sampler = *std::move(sampler),
                                                     .listener = heard[i]});
          if (!taken) heard[i]->error = taken.error().message;
        }
      });
    }
  }
  scheduler->drain();
  running.join();
  for (size_t i = 0; i < heard.size(); ++i) {
    CHECK(heard[i]->error.empty());
    CHECK(heard[i]->ends == 1);
    CHECK(heard[i]->tokens == heard[i % prompts.size()]->tokens);
  }
}

TEST_CASE(
    "scheduler: who looks is called between passes by the thread that makes them, and at once while none is made") {
  test::RecordingModel rig(test::tiny_folder());
  const auto scheduler = scheduler_of(rig, {});
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> seen;  // tokens so far, at each look
  std::thread::id looker;
  const auto look = [&] {
    const std::lock_guard lock(mutex);
    seen.push_back(scheduler->counts().answer_tokens);
    looker = std::this_thread::get_id();
    changed.notify_all();
  };
  std::stop_source stop;
  std::thread running([&] { scheduler->run(stop.get_token()); });
  scheduler->between_passes(look);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return seen.size() == 1; });
    CHECK(seen[0] == 0);
  }
  const auto listener = std::make_shared<Listener>([&] {
    scheduler->between_passes(look);
    return true;
  });
  REQUIRE(submit_one(
      *scheduler,
      {.prompt = test::golden_prompts()[0].tokens, .max_tokens = 3, .sampler = sampler_of({}), .listener = listener}));
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return seen.size() == 4; });
    CHECK(seen == std::vector<uint64_t>{0, 1, 2, 3});
    CHECK(looker == running.get_id());
  }
  stop.request_stop();
  running.join();
}

TEST_CASE("scheduler: answers with drafts say what answers without say, alone and in company") {
  const auto prompts = test::golden_prompts();
  for (const uint32_t places : {1U, 3U}) {
    for (const std::optional<uint32_t> drafts : {std::optional<uint32_t>(2), std::optional<uint32_t>()}) {
      for (const bool looks : {false, true}) {
        CAPTURE(places);
        CAPTURE(drafts.value_or(0));
        CAPTURE(looks);
        test::RecordingModel rig(test::tiny_folder(), {.max_rows = 16});
        (void)rig.mtp();
        const auto scheduler =
            scheduler_of(rig, {.places = places, .speculation = SpeculationOptions{.drafts = drafts}});
        std::vector<std::shared_ptr<Listener>> heard;
        for (size_t i = 0; i < 5; ++i) {
          heard.push_back(std::make_shared<Listener>());
          heard.back()->looks_at_logits = looks;
          heard.back()->is_greedy = true;
          REQUIRE(submit_one(*scheduler, {.prompt = prompts[i % prompts.size()].tokens,
                                          .max_tokens = static_cast<uint32_t>(7 + 4 * i),
                                          .end_tokens = {1},
                                          .sampler = sampler_of({}),
                                          .listener = heard.back()}));
        }
        finish(*scheduler);
        uint64_t drafted = 0;
        for (size_t i = 0; i < heard.size(); ++i) {
          CAPTURE(i);
          test::RecordingModel fresh(test::tiny_folder());
          Session alone = fresh.session();
          Sampler sampler = sampler_of({});
          const auto answer = alone.generate(prompts[i % prompts.size()].tokens,
                                             {.max_tokens = static_cast<uint32_t>(7 + 4 * i), .end_tokens = {1}},
                                             sampler, [](uint32_t) { return true; }, {});
          REQUIRE(answer);
          CHECK(heard[i]->tokens == answer->tokens);
          CHECK(heard[i]->stop == answer->reason);
          drafted += heard[i]->drafts;
        }
        CHECK(scheduler->counts().drafted_tokens == drafted);
        if (drafts) CHECK(drafted > 0);
      }
    }
  }
}

TEST_CASE(
    "scheduler: what prompts begin with is computed once, and drawn answers to one prompt are those of their seeds") {
  const auto prompt = test::golden_prompts()[0].tokens;
  for (const bool has_drafts : {false, true}) {
    CAPTURE(has_drafts);
    test::RecordingModel rig(test::tiny_folder(), {.max_rows = 5});  // the prompt comes in pieces
    if (has_drafts) (void)rig.mtp();
    const auto speculation = has_drafts ? std::optional(SpeculationOptions{.drafts = 1}) : std::nullopt;
    const auto scheduler = scheduler_of(rig, {.places = 3, .speculation = speculation});
    std::vector<std::shared_ptr<Listener>> heard;
    std::vector<Generation> generations;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      heard.push_back(std::make_shared<Listener>());
      generations.push_back({.prompt = prompt,
                             .max_tokens = 9,
                             .sampler = sampler_of({.temperature = 0.8, .seed = seed}),
                             .listener = heard.back()});
    }
    REQUIRE(scheduler->submit(std::move(generations)));
    finish(*scheduler);
    const SchedulerCounts counts = scheduler->counts();
    CHECK(counts.prompt_tokens == prompt.size() + 2);  // the last token of each is computed
    CHECK(counts.copied_tokens == 2 * (prompt.size() - 1));
    for (uint64_t seed = 0; seed < 3; ++seed) {
      CAPTURE(seed);
      CHECK(heard[seed]->kept() == (seed == 0 ? 0 : prompt.size() - 1));
      test::RecordingModel fresh(test::tiny_folder());
      if (has_drafts) (void)fresh.mtp();
      Session alone = fresh.session(speculation);
      Sampler sampler = sampler_of({.temperature = 0.8, .seed = seed});
      const auto answer =
          alone.generate(prompt, {.max_tokens = 9, .end_tokens = {}}, sampler, [](uint32_t) { return true; }, {});
      REQUIRE(answer);
      CHECK(heard[seed]->tokens == answer->tokens);
    }
  }
}

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
  const auto too_many = submit(kMostWaiting + 1);
  REQUIRE(!too_many);
  CHECK(too_many.error().kind == ErrorKind::budget);
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

}  // namespace
}  // namespace dspack::runtime::scheduler_test
