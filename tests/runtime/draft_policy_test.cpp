// The policy with times and acceptance that are made up, so that what is best is known.
#include "runtime/generate/draft_policy.h"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <random>

namespace dspack::runtime::draft_policy_test {
namespace {

struct World {
  std::function<double(uint32_t drafts)> seconds;  // of a step
  double acceptance = 0;                           // of each draft, when those before it stood
  double catch_up = 0;                             // seconds a position
  double waiting = 0;                              // of a plain step's seconds, for its misses
};

struct Run {
  std::map<uint32_t, uint64_t> steps;  // by number of drafts
  double tokens = 0;
  double seconds = 0;
  uint32_t pending = 0;
};

void go(DraftPolicy& policy, const World& world, uint64_t steps, Run& run, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  for (uint64_t i = 0; i < steps; ++i) {
    const uint32_t drafts = policy.next(run.pending);
    DraftStep step{.drafted = drafts};
    while (step.accepted < drafts && uniform(random) < world.acceptance)
      ++step.accepted;
    step.seconds = world.seconds(drafts) * (0.95 + 0.1 * uniform(random));
    step.waiting_seconds = world.waiting * (1 + drafts);
    step.misses = world.waiting > 0 ? 100 * (1 + drafts) : 0;
    step.draft_misses = world.waiting > 0 ? 100 * drafts : 0;
    if (drafts > 0 && run.pending > 2) {
      step.catch_up_seconds = world.catch_up * run.pending;
      policy.record_catch_up(run.pending, step.catch_up_seconds);
    }
    run.pending = drafts > 0 ? step.accepted + 1 : run.pending + 1;
    policy.record(step);
    ++run.steps[drafts];
    run.tokens += step.accepted + 1;
    run.seconds += step.seconds + step.catch_up_seconds;
  }
}

Run run_of(const World& world, uint64_t steps) {
  DraftPolicy policy = DraftPolicy::automatic();
  std::mt19937 random(5);
  Run run;
  run.pending = 20;
  policy.expect_catch_up(world.catch_up);
  go(policy, world, steps, run, random);
  return run;
}

TEST_CASE("draft policy: a fixed number is what it says, whatever it costs") {
  DraftPolicy policy = DraftPolicy::fixed(3);
  for (int i = 0; i < 50; ++i) {
    CHECK(policy.next(10) == 3);
    policy.record({.drafted = 3, .accepted = 0, .seconds = 100});
  }
}

TEST_CASE("draft policy: a cheap draft that stands is made") {
  // Resident, bound by reading weights: a further position costs a tenth.
  const World cheap{.seconds = [](uint32_t k) { return 1 + 0.1 * k; }, .acceptance = 0.9};
  const Run run = run_of(cheap, 2000);
  CHECK(run.steps.at(1) > 1850);
  CHECK(run.tokens / run.seconds > 1.66);  // of 1.73
  // 1.6 / 1.35 = 1.19.
  const World middling{.seconds = [](uint32_t k) { return 1 + 0.35 * k; }, .acceptance = 0.6};
  CHECK(run_of(middling, 2000).steps.at(1) > 1500);
}

TEST_CASE("draft policy: of several drafts made at once, those pay whose chance is above what each costs") {
  DraftPolicy policy = DraftPolicy::automatic();
  CHECK(policy.least_chance() == 1);  // not measured: one draft only
  // Drafting costs a fifth of a step, each draft's position a tenth; the first is accepted.
  const auto run = [&](uint32_t drafts, int steps) {
    while (steps > 0) {
      const uint32_t drafted = policy.next(1) > 0 ? drafts : 0;
      policy.record(
          {.drafted = drafted, .accepted = std::min(drafted, 1U), .seconds = drafted == 0 ? 1 : 1.2 + 0.1 * drafted});
      steps -= drafted > 0;
    }
  };
  run(1, 300);
  CHECK(policy.least_chance() == doctest::Approx(0.3).epsilon(0.01));
  run(4, 300);
  CHECK(policy.least_chance() == doctest::Approx(0.15).epsilon(0.01));
}

TEST_CASE("draft policy: where drafts do not pay, looking costs less than three per cent") {
  // Experts from a disk: two positions cost nearly twice one, and half of the drafts fall.
  const World dear{.seconds = [](uint32_t k) { return 1 + 0.9 * k; }, .acceptance = 0.5, .catch_up = 0.01};
  for (const uint64_t steps : {2000, 20000}) {
    const Run run = run_of(dear, steps);
    CAPTURE(steps);
    CHECK(run.steps.at(0) > steps * 9 / 10);
    CHECK(run.seconds / run.tokens < 1.03);
    CHECK(run.steps.at(1) >= 8);  // it does look again
  }
  // Hopeless: each look costs dearly, so there are few.
  const World hopeless{.seconds = [](uint32_t k) { return k == 0 ? 1 : 10; }, .acceptance = 0};
  const Run run = run_of(hopeless, 5000);
  CHECK(run.seconds / run.tokens < 1.03);
}

TEST_CASE("draft policy: looking costs less than three per cent from the first step on") {
  for (const double draft : {0.2, 0.6, 1.0, 1.2}) {
    for (const double acceptance : {0.0, 0.3, 0.8}) {
      const World world{
          .seconds = [&](uint32_t k) { return 1 + draft * k; }, .acceptance = acceptance, .catch_up = 0.01};
      for (uint64_t steps = 5; steps < 400; steps += 13) {
        const Run run = run_of(world, steps);
        CAPTURE(draft);
        CAPTURE(acceptance);
        CAPTURE(steps);
        CHECK(run.seconds / run.tokens < 1.03);
      }
    }
  }
}

TEST_CASE("draft policy: drafts that could only double the misses are hardly tried") {
  const World starved{.seconds = [](uint32_t k) { return 1 + 0.9 * k; }, .acceptance = 0.85, .waiting = 0.85};
  CHECK(run_of(starved, 200).steps.at(0) == 200);
  const Run run = run_of(starved, 2000);
  CHECK(run.steps.at(0) > 1950);
  CHECK(run.seconds / run.tokens < 1.01);
  // Waiting is a part of the time: the experts of a draft are dear, its arithmetic is cheap.
  const World half{.seconds = [](uint32_t k) { return 1 + 0.5 * k; }, .acceptance = 0.85, .waiting = 0.4};
  CHECK(run_of(half, 2000).steps.at(0) < 1000);
}

TEST_CASE("draft policy: misses of drafts that outweigh the steps they save end drafting") {
  // What times say is hidden by pauses; what misses cost is not.
  DraftPolicy policy = DraftPolicy::automatic();
  const auto step = [&](uint64_t draft_misses) {
    const uint32_t drafts = policy.next(0);
    policy.record({.drafted = drafts,
                   .accepted = drafts,
                   .seconds = 1 + 0.1 * drafts,
                   .waiting_seconds = 0.001 * static_cast<double>(10 + draft_misses * drafts),
                   .misses = 10 + draft_misses * drafts,
                   .draft_misses = draft_misses * drafts});
    return drafts;
  };
  for (int i = 0; i < 200; ++i)
    step(1);
  CHECK(step(1) == 1);
  for (int i = 0; i < 20; ++i)
    step(3000);
  CHECK(step(3000) == 0);
}

TEST_CASE("draft policy: a change of costs is noticed, in both directions") {
  const World dear{.seconds = [](uint32_t k) { return 1 + 0.9 * k; }, .acceptance = 0.5};
  const World cheap{.seconds = [](uint32_t k) { return 1 + 0.1 * k; }, .acceptance = 0.95};
  DraftPolicy policy = DraftPolicy::automatic();
  std::mt19937 random(7);
  Run first;
  go(policy, dear, 1000, first, random);
  CHECK(first.steps[0] > 900);
  Run second;
  go(policy, cheap, 4000, second, random);  // what was far from paying is looked at at long intervals
  CHECK(second.steps[1] > 2000);
  Run third;
  go(policy, dear, 1000, third, random);
  CHECK(third.steps[0] > 800);
}

TEST_CASE("draft policy: one slow first step does not decide") {
  // The first draft loads the module's experts.
  const auto world = [](double first, bool& cold) {
    return World{.seconds =
                     [first, &cold](uint32_t k) {
                       if (k == 0) return 1.0;
                       const double seconds = cold ? first : 1.1;
                       cold = false;
                       return seconds;
                     },
                 .acceptance = 0.9};
  };
  bool cold = true;
  CHECK(run_of(world(4, cold), 1000).steps.at(1) > 750);
  // What it has cost is made up for before there is another look: 50 steps are two per cent of 2,500.
  cold = true;
  CHECK(run_of(world(50, cold), 8000).steps.at(1) > 5000);
}

TEST_CASE("draft policy: pauses of the machine do not decide") {
  std::mt19937 random(3);
  const auto paused = [&](double seconds) {
    return std::uniform_real_distribution<double>(0, 1)(random) < 0.05 ? 20 * seconds : seconds;
  };
  const World dear{.seconds = [&](uint32_t k) { return paused(1 + 0.9 * k); }, .acceptance = 0.5};
  CHECK(run_of(dear, 3000).steps.at(0) > 2600);
  const World cheap{.seconds = [&](uint32_t k) { return paused(1 + 0.1 * k); }, .acceptance = 0.9};
  CHECK(run_of(cheap, 3000).steps.at(1) > 2600);
}

TEST_CASE("draft policy: fewer drafts than asked for, where there is no room") {
  DraftPolicy policy = DraftPolicy::automatic();
  uint32_t asked = 0;
  for (int i = 0; i < 100; ++i) {
    asked += policy.next(0);
    policy.record({.drafted = 0, .accepted = 0, .seconds = 1});
  }
  CHECK(asked > 0);  // what was not tried is asked for again
}

}  // namespace
}  // namespace dspack::runtime::draft_policy_test
