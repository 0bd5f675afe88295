// The arithmetic of expected speed, on made-up machines.
#include "runtime/budget/speed_estimate.h"

#include <doctest/doctest.h>

namespace dspack::runtime::speed_estimate_test {
namespace {

// DeepSeek-V3 on a machine whose layers take 2 ms, experts 0.5 ms each, and whose disk gives 11 GB/s.
constexpr SpeedShape kShape{.dense_layers = 3, .moe_layers = 58, .top_k = 8, .experts = 256};
constexpr ComputeTimes kCompute{
    .dense_layer = 0.004, .moe_layer = 0.002, .experts = 0.004, .distinct = 8, .head = 0.01};
constexpr uint64_t kExpert = 44'000'000;
constexpr ReadTimes kReads{.one = 0.004, .several = 0.032, .count = 8, .expert_bytes = kExpert};

MemoryPlan plan_with(uint64_t slots) {
  MemoryPlan plan;
  plan.slot_count = slots;
  plan.experts = 14848;
  plan.experts_per_token = 464;
  plan.rows.chunk = 4096;
  return plan;
}

TEST_CASE("speed: all in memory it is the sum of the computing") {
  const DecodeEstimate decode = estimate_decode(kShape, plan_with(14848), kCompute, kReads, 1);
  CHECK(decode.seconds == doctest::Approx(3 * 0.004 + 58 * (0.002 + 0.004) + 0.01));
  CHECK(decode.bytes == 0);
}

TEST_CASE("speed: nothing in memory it is reads, one expert behind") {
  const DecodeEstimate decode = estimate_decode(kShape, plan_with(10), kCompute, kReads, 0);
  CHECK(decode.seconds == doctest::Approx(3 * 0.004 + 58 * (0.002 + 0.032 + 0.0005) + 0.01));
  CHECK(decode.bytes == doctest::Approx(464.0 * kExpert));  // 20.4 GB
}

TEST_CASE("speed: more hits are never slower, and the mean lies between the ends") {
  double before = 1e9;
  for (int percent = 0; percent <= 100; percent += 5) {
    const DecodeEstimate decode = estimate_decode(kShape, plan_with(1000), kCompute, kReads, percent / 100.0);
    CHECK(decode.seconds <= before);
    before = decode.seconds;
  }
  const double half = estimate_decode(kShape, plan_with(1000), kCompute, kReads, 0.5).seconds;
  CHECK(half >= 3 * 0.004 + 58 * (0.002 + 0.016 + 0.0005) + 0.0099);  // at least that of the mean number of misses
}

TEST_CASE("speed: layers that stream hide behind computing where there are two buffers") {
  MemoryPlan plan = plan_with(14848);
  plan.layers.streamed_bytes = 1'000'000'000;
  plan.layers.buffers = 2;
  const double all = estimate_decode(kShape, plan_with(14848), kCompute, kReads, 1).seconds;
  const double two = estimate_decode(kShape, plan, kCompute, kReads, 1).seconds;
  plan.layers.buffers = 1;
  const double one = estimate_decode(kShape, plan, kCompute, kReads, 1).seconds;
  CHECK(one == doctest::Approx(all + 1.0 / 11));
  CHECK(two < one);
  CHECK(two >= all);
}

TEST_CASE("speed: hit rates that are assumed") {
  CHECK(uniform_hit_rate(plan_with(1484)) == doctest::Approx(0.1).epsilon(0.01));
  CHECK(local_hit_rate(plan_with(1484)) == doctest::Approx(0.37).epsilon(0.01));
  CHECK(local_hit_rate(plan_with(463)) == uniform_hit_rate(plan_with(463)));  // below one token
  CHECK(local_hit_rate(plan_with(14848)) == doctest::Approx(1));
  CHECK(uniform_hit_rate(MemoryPlan()) == 1);  // a dense model
}

TEST_CASE("speed: a cold prompt reads the experts that its tokens go to, in each chunk") {
  CHECK(distinct_experts(kShape, 1) == doctest::Approx(8));
  // 13 tokens about 221 GB of V3, 100 tokens about 627 GB.
  const auto bytes = [](uint32_t tokens) {
    return estimate_prefill(kShape, plan_with(464), kCompute, 1, kReads, tokens).bytes;
  };
  CHECK(bytes(13) == doctest::Approx(221e9).epsilon(0.02));
  CHECK(bytes(100) == doctest::Approx(627e9).epsilon(0.01));
  MemoryPlan chunked = plan_with(464);
  chunked.rows.chunk = 50;
  CHECK(estimate_prefill(kShape, chunked, kCompute, 1, kReads, 100).bytes ==
        doctest::Approx(2 * bytes(50)).epsilon(0.001));
  CHECK(estimate_prefill(kShape, plan_with(464), kCompute, 1, kReads, 100).seconds > bytes(100) / 11e9);
  CHECK(estimate_prefill(kShape, plan_with(464), kCompute, 1, kReads, 0).seconds == 0);
}

TEST_CASE("speed: reads of several experts at once") {
  constexpr ReadTimes kSlowStart{.one = 0.004, .several = 0.011, .count = 8, .expert_bytes = kExpert};
  CHECK(kSlowStart.seconds(0) == 0);
  CHECK(kSlowStart.seconds(1) == doctest::Approx(0.004));
  CHECK(kSlowStart.seconds(8) == doctest::Approx(0.011));
  CHECK(kSlowStart.seconds(15) == doctest::Approx(0.018));
  CHECK(kSlowStart.rate() == doctest::Approx(44e9));
  constexpr ReadTimes kNoisy{.one = 0.02, .several = 0.016, .count = 8, .expert_bytes = kExpert};
  CHECK(kNoisy.seconds(4) == doctest::Approx(0.008));
  constexpr ReadTimes kAlone{.one = 0.02, .several = 0.02, .count = 1, .expert_bytes = kExpert};
  CHECK(kAlone.seconds(2) == doctest::Approx(0.04));
}

}  // namespace
}  // namespace dspack::runtime::speed_estimate_test
