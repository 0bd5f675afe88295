#include "runtime/bench/floor.h"

#include <doctest/doctest.h>

#include "runtime/bench/bench.h"

namespace dspack::runtime::floor_test {
namespace {

ModelWork small_model() {
  ModelWork work;
  work.layers = {.bytes = 1000, .multiplications = 800};
  work.head = {.bytes = 300, .multiplications = 250};
  work.expert = {.bytes = 50, .multiplications = 40};
  work.module = {.bytes = 120, .multiplications = 100};
  work.experts_a_token = 6;
  work.cache_bytes = 10;
  work.scores = 7;
  work.expanded_scores = 3;
  work.expansion = 20;
  return work;
}

TEST_CASE("floor: one token after 99 others reads every weight that it needs once, and the cache") {
  const Work work = work_of(small_model(), {.passes = 1, .tokens = 1, .chosen = 1, .experts = 6, .first = 99});
  CHECK(work.bytes == 1000 + 300 + 6 * 50 + 100 * 10);
  // Over the cache as it is: 100 x 7, less than expanding 99 positions.
  CHECK(work.operations == 2 * (800 + 6 * 40 + 250));
  CHECK(work.attention == 2 * 700);
  CHECK(work.fetched == 0);
}

TEST_CASE("floor: a prompt shares its weights, and attends in the cheaper form") {
  const Work work =
      work_of(small_model(), {.passes = 1, .tokens = 100, .chosen = 1, .experts = 30, .fetched_bytes = 77, .first = 0});
  const double pairs = 100 * 101 / 2.0;
  CHECK(work.bytes == 1000 + 300 + 30 * 50 + pairs / 100 * 10);
  CHECK(work.operations == 2 * (100 * (800 + 6 * 40) + 250));
  CHECK(work.attention == 2 * pairs * 3);
  CHECK(work.fetched == 77);
}

TEST_CASE("floor: sparse attention scores every position and attends to some, once there are more than those") {
  ModelWork model = small_model();
  model.most_attended = 64;
  model.index_bytes = 2;
  model.index_scores = 1;
  const Work work = work_of(model, {.passes = 1, .tokens = 1, .chosen = 1, .experts = 6, .first = 99});
  CHECK(work.bytes == 1000 + 300 + 6 * 50 + 64 * 10 + 100 * 2);
  CHECK(work.operations == 2 * (800 + 6 * 40 + 250));
  CHECK(work.attention == 2 * (64 * 7 + 100));
  const PassCounts within{.passes = 1, .tokens = 64, .chosen = 1, .experts = 30, .first = 0};
  CHECK(work_of(model, within).bytes == work_of(small_model(), within).bytes);
  CHECK(work_of(model, within).operations == work_of(small_model(), within).operations);
  CHECK(work_of(model, within).attention == work_of(small_model(), within).attention);
  // Of 10 tokens from position 60 on four see all positions; six attend to 64 of the 65 to 70 that they score.
  const Work across = work_of(model, {.passes = 1, .tokens = 10, .chosen = 1, .experts = 30, .first = 60});
  const double pairs = 61 + 62 + 63 + 64 + 6 * 64, scored = 65 + 66 + 67 + 68 + 69 + 70;
  CHECK(across.bytes == doctest::Approx(1000 + 300 + 30 * 50 + (pairs * 10 + scored * 2) / 10));
  // Expanding the 60 positions before costs less than attending to latents.
  CHECK(across.operations == 2 * (10 * (800 + 6 * 40) + 250 + 60 * 20));
  CHECK(across.attention == 2 * (pairs * 3 + scored));
}

TEST_CASE("floor: drafting costs passes of the module") {
  const PassCounts plain{.passes = 3, .tokens = 5, .chosen = 3, .experts = 20, .first = 1};
  PassCounts drafted = plain;
  drafted.module_passes = 4;
  CHECK(work_of(small_model(), drafted).bytes == work_of(small_model(), plain).bytes + 4 * 120);
  CHECK(work_of(small_model(), drafted).operations == work_of(small_model(), plain).operations + 2 * 4 * 100);
}

TEST_CASE("floor: the longest of three times, and what takes it; what was not measured is no limit") {
  const Work work{.bytes = 1000, .operations = 6000, .attention = 900, .fetched = 100};
  CHECK(floor_of(work, {.bytes = 500, .operations = 6000, .fetched = 1000}).seconds == 2);
  CHECK(floor_of(work, {.bytes = 500, .operations = 6000, .fetched = 1000}).bound == "memory");
  CHECK(floor_of(work, {.bytes = 500, .operations = 1000, .fetched = 1000}).bound == "operations");
  CHECK(floor_of(work, {.bytes = 500, .operations = 6000, .fetched = 10}).bound == "fetching");
  CHECK(floor_of(work, {.bytes = 500, .operations = 3000, .exact_operations = 300}).seconds == 5);
  CHECK(floor_of(work, {}).seconds == 0);
}

TEST_CASE("benchmark cases: every number after every depth, as llama-bench calls them") {
  const auto cases = bench_cases({512, 0}, {128}, {0, 1024});
  REQUIRE(cases.size() == 4);
  CHECK(cases[0].name() == "pp512");
  CHECK(cases[1].name() == "tg128");
  CHECK(cases[2].name() == "pp512 @ d1024");
  CHECK(cases[3].name() == "tg128 @ d1024");
  CHECK(cases[2].positions() == 1536);
  CHECK(cases[1].positions() == 129);
  CHECK(bench_cases({0}, {0}, {7}).empty());
}

}  // namespace
}  // namespace dspack::runtime::floor_test
