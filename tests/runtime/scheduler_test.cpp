#include "runtime/generate/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/scheduling.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::scheduler_test {
namespace {

using test::finish;
using test::Listener;
using test::sampler_of;
using test::scheduler_of;
using test::submit_one;

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

TEST_CASE("scheduler: prompts are read in order of arrival, beside the answers of earlier ones") {
  test::RecordingModel rig(test::tiny_folder(), {.max_rows = 16});
  const auto scheduler = scheduler_of(rig, {.places = 3});
  std::vector<std::shared_ptr<Listener>> heard;
  std::vector<std::vector<uint32_t>> seen;  // tokens read of every prompt, at each first token
  for (uint32_t i = 0; i < 3; ++i) {
    heard.push_back(std::make_shared<Listener>([&, i] {
      if (heard[i]->tokens.size() > 1) return true;
      seen.emplace_back();
      for (const auto& each : heard)
        seen.back().push_back(each->read());
      return true;
    }));
    const std::vector<uint32_t> prompt(40, i + 5);
    REQUIRE(submit_one(*scheduler,
                       {.prompt = prompt, .max_tokens = 20, .sampler = sampler_of({}), .listener = heard.back()}));
  }
  finish(*scheduler);
  REQUIRE(seen.size() == 3);
  for (uint32_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(heard[i]->tokens.size() == 20);
    for (uint32_t other = 0; other < 3; ++other) {
      CAPTURE(other);
      // A pass that ends a prompt begins the next one.
      if (other > i + 1) CHECK(seen[i][other] == 0);
      if (other == i + 1) CHECK(seen[i][other] < 16);
      if (other <= i) CHECK(seen[i][other] == 40);
    }
  }
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

}  // namespace
}  // namespace dspack::runtime::scheduler_test
