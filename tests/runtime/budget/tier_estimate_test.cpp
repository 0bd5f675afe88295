// The arithmetic of expected speed where a GPU computes, on made-up machines.
#include "runtime/budget/speed_estimate.h"

#include <doctest/doctest.h>

namespace dspack::runtime::tier_estimate_test {
namespace {

using doctest::Approx;

// Two experts of 40 MB a token in each of ten layers of eight. A GPU: 1 ms a layer, 0.5 ms an expert; the link takes
// 2 ms an expert, the CPU 3 ms, the disk 10 ms.
constexpr SpeedShape kShape{.dense_layers = 1, .moe_layers = 10, .top_k = 2, .experts = 8};
constexpr uint64_t kExpert = 40'000'000;
const TierTimes kTimes{
    .gpu = {.dense_layer = 0.002, .moe_layer = 0.001, .experts = 0.001, .distinct = 2, .head = 0.003},
    .link = {.one = 0.002, .several = 0.016, .count = 8, .expert_bytes = kExpert},
    .host_expert = 0.003,
    .reads = {.one = 0.010, .several = 0.080, .count = 8, .expert_bytes = kExpert}};
constexpr double kFixed = 0.002 + 10 * 0.001 + 0.003;
constexpr MissOptions kMove{.mode = MissMode::move, .is_deterministic = false};
constexpr MissOptions kCompute{.mode = MissMode::compute, .is_deterministic = false};
constexpr MissOptions kAuto{.mode = MissMode::automatic, .is_deterministic = false};

double routed_seconds(const MissOptions& miss, const TierRates& rates) {
  return (estimate_tiered_decode(kShape, kTimes, miss, rates).seconds - kFixed) / kShape.moe_layers;
}

// Slots of 80 experts; 20 a token.
MemoryPlan plan_with(std::optional<uint64_t> vram, uint64_t ram) {
  MemoryPlan plan;
  plan.experts = 80;
  plan.experts_per_token = 20;
  plan.slot_count = ram;
  plan.rows.chunk = 64;
  plan.vram.emplace();
  plan.vram->slots = vram;
  return plan;
}

TEST_CASE("tier estimate: what the GPU holds it computes, whatever becomes of misses") {
  for (const MissOptions& miss : {kMove, kCompute, kAuto}) {
    const DecodeEstimate decode = estimate_tiered_decode(kShape, kTimes, miss, {.vram = 1, .ram = 0});
    CHECK(decode.seconds == Approx(kFixed + 10 * 0.001));
    CHECK(decode.bytes == 0);
    CHECK(decode.link_bytes == 0);
    CHECK(decode.host_bytes == 0);
    CHECK(decode.hit_rate == 1);
  }
}

TEST_CASE("tier estimate: experts in the host's memory are copied, computed there, or shared") {
  const TierRates ram{.vram = 0, .ram = 1};
  CHECK(routed_seconds(kMove, ram) == Approx(2 * 0.002 + 0.0005));
  CHECK(routed_seconds(kCompute, ram) == Approx(2 * 0.003));
  // One each: the CPU's takes longer than copy and compute.
  CHECK(routed_seconds(kAuto, ram) == Approx(0.003));
  const DecodeEstimate shared = estimate_tiered_decode(kShape, kTimes, kAuto, ram);
  CHECK(shared.link_bytes == Approx(10.0 * kExpert));
  CHECK(shared.host_bytes == Approx(10.0 * kExpert));
  CHECK(shared.bytes == 0);
  CHECK(estimate_tiered_decode(kShape, kTimes, kMove, ram).link_bytes == Approx(20.0 * kExpert));
  CHECK(estimate_tiered_decode(kShape, kTimes, kCompute, ram).host_bytes == Approx(20.0 * kExpert));
}

TEST_CASE("tier estimate: what no memory has is read, and then copied and computed, or computed by the CPU") {
  CHECK(routed_seconds(kMove, {}) == Approx(0.020 + 0.002 + 0.0005));
  CHECK(routed_seconds(kCompute, {}) == Approx(0.020 + 0.003));
  CHECK(routed_seconds(kAuto, {}) == Approx(0.020 + 0.0025));
  const DecodeEstimate decode = estimate_tiered_decode(kShape, kTimes, kMove, {});
  CHECK(decode.bytes == Approx(20.0 * kExpert));
  CHECK(decode.link_bytes == Approx(20.0 * kExpert));
}

TEST_CASE("tier estimate: it is averaged over where a token's experts are") {
  // Both on the GPU 1/4: 1 ms. One 1/2: max(0.5, 2) + 0.5 ms moved, 3 ms computed. None 1/4, as above.
  const TierRates half{.vram = 0.5, .ram = 0.5};
  CHECK(routed_seconds(kMove, half) == Approx(0.25 * 0.001 + 0.5 * 0.0025 + 0.25 * 0.0045));
  CHECK(routed_seconds(kCompute, half) == Approx(0.25 * 0.001 + 0.5 * 0.003 + 0.25 * 0.006));
  CHECK(routed_seconds(kAuto, half) == Approx(0.25 * 0.001 + 0.5 * 0.0025 + 0.25 * 0.003));
  // One in the host's memory and one on the disk: the read is longer than all else.
  const TierRates mixed{.vram = 0, .ram = 0.5};
  CHECK(routed_seconds(kMove, mixed) == Approx(0.25 * 0.0045 + 0.5 * (0.010 + 0.0025) + 0.25 * 0.0225));
}

TEST_CASE("tier estimate: auto is never slower than what it chooses from, and move where runs must repeat") {
  for (int vram = 0; vram <= 100; vram += 10) {
    for (int ram = 0; ram <= 100 - vram; ram += 10) {
      const TierRates rates{.vram = vram / 100.0, .ram = ram / 100.0};
      const double automatic = routed_seconds(kAuto, rates);
      CHECK(automatic <= routed_seconds(kMove, rates) * 1.0000001);
      CHECK(automatic <= routed_seconds(kCompute, rates) * 1.0000001);
      CHECK(routed_seconds({.mode = MissMode::automatic, .is_deterministic = true}, rates) ==
            routed_seconds(kMove, rates));
    }
  }
}

TEST_CASE("tier estimate: no expert is in both memories") {
  const auto check = [](const TierRates& rates, double vram, double ram) {
    CHECK(rates.vram == Approx(vram));
    CHECK(rates.ram == Approx(ram));
  };
  check(uniform_tier_rates(plan_with(40, 20)), 0.5, 0.25);
  check(uniform_tier_rates(plan_with(40, 80)), 0.5, 0.5);
  check(uniform_tier_rates(plan_with(0, 20)), 0, 0.25);
  check(uniform_tier_rates(plan_with(80, 10)), 1, 0);
  check(uniform_tier_rates(plan_with({}, 0)), 1, 0);
  check(tier_rates_at(plan_with(40, 20), 0.8), 0.8, 0.1);
  // 30 % are re-used; of the rest what uniform routing gives.
  check(local_tier_rates(plan_with(40, 20), kMove), 0.3 + 0.7 * 0.5, 0.7 * 0.25);
  check(local_tier_rates(plan_with(40, 20), kCompute), 0.5, 0.3 + 0.7 * 0.75 - 0.5);
  check(local_tier_rates(plan_with(16, 16), kAuto), 0.2, 0.3 + 0.7 * 0.4 - 0.2);
  check(local_tier_rates(plan_with(8, 8), kAuto), 0.1, 0.1);
  check(local_tier_rates(plan_with(80, 10), kAuto), 1, 0);
}

TEST_CASE("tier estimate: the first token fills the GPU's empty slots, whatever misses become later") {
  const double moved = estimate_tiered_decode(kShape, kTimes, kMove, {}).seconds;
  CHECK(estimate_cold_decode(kShape, plan_with(20, 20), kTimes, kCompute).seconds == Approx(moved));
  CHECK(estimate_cold_decode(kShape, plan_with(0, 20), kTimes, kCompute).seconds ==
        Approx(estimate_tiered_decode(kShape, kTimes, kCompute, {}).seconds));
}

TEST_CASE("tier estimate: a prompt takes the longest of computing, copying and reading") {
  TierTimes times = kTimes;
  times.gpu.experts = 0.016;  // of 32 rows, which go to all eight experts but for 0.1 %
  const double distinct = distinct_experts(kShape, 32);
  CHECK(distinct == Approx(8).epsilon(0.001));
  const PrefillEstimate read = estimate_gpu_prefill(kShape, plan_with(0, 20), times, 32, 32);
  CHECK(read.experts == Approx(80).epsilon(0.001));
  CHECK(read.bytes == Approx(80.0 * kExpert).epsilon(0.001));
  CHECK(read.link_bytes == Approx(read.bytes));
  CHECK(read.seconds == Approx(0.002 + 10 * (0.001 + 0.080 + 0.002 + 0.002)).epsilon(0.001));

  TierTimes fast_disk = times;
  fast_disk.reads = {.one = 0.0001, .several = 0.0008, .count = 8, .expert_bytes = kExpert};
  CHECK(estimate_gpu_prefill(kShape, plan_with(0, 20), fast_disk, 32, 32).seconds ==
        Approx(0.002 + 10 * (0.001 + 0.016 + 0.002)).epsilon(0.001));
  fast_disk.link = {.one = 0.0001, .several = 0.0008, .count = 8, .expert_bytes = kExpert};
  CHECK(estimate_gpu_prefill(kShape, plan_with(0, 20), fast_disk, 32, 32).seconds ==
        Approx(0.002 + 10 * (0.001 + 0.016)).epsilon(0.001));

  // Twice as long, in two chunks: what has room in a memory comes once.
  MemoryPlan chunks = plan_with(40, 40);
  chunks.rows.chunk = 32;
  const PrefillEstimate twice = estimate_gpu_prefill(kShape, chunks, times, 32, 64);
  CHECK(twice.experts == Approx(80).epsilon(0.001));
  CHECK(twice.link_bytes == Approx(120.0 * kExpert).epsilon(0.001));
  chunks = plan_with(0, 20);
  chunks.rows.chunk = 32;
  CHECK(estimate_gpu_prefill(kShape, chunks, times, 32, 64).experts == Approx(160).epsilon(0.001));
  CHECK(estimate_gpu_prefill(kShape, chunks, times, 32, 0).seconds == 0);
}

TEST_CASE("tier estimate: a GPU that holds all computes, and has to be filled first") {
  MemoryPlan plan = plan_with({}, 0);
  const PrefillEstimate prefill = estimate_gpu_prefill(kShape, plan, kTimes, 32, 64);
  CHECK(prefill.seconds == Approx(2 * (0.002 + 10 * 0.001 + 10 * 0.001)));
  CHECK(prefill.bytes == 0);
  CHECK(prefill.link_bytes == 0);
  plan.vram->expert_bytes = 80 * kExpert;
  plan.vram->layers.resident_bytes = 20 * kExpert;
  CHECK(estimate_loading(plan, kTimes) == Approx(100 * 0.010));  // the disk is slower than the link
}

TEST_CASE("tier estimate: copies behind each other") {
  CHECK(kTimes.link.seconds(0) == 0);
  CHECK(kTimes.link.seconds(3) == Approx(0.006));
  CHECK(kTimes.link.rate() == Approx(20e9));
  constexpr LinkTimes kSlowStart{.one = 0.004, .several = 0.011, .count = 8, .expert_bytes = kExpert};
  CHECK(kSlowStart.seconds(1) == Approx(0.004));
  CHECK(kSlowStart.seconds(15) == Approx(0.018));
  CHECK(kSlowStart.rate() == Approx(40e9));
  constexpr LinkTimes kNoisy{.one = 0.02, .several = 0.016, .count = 8, .expert_bytes = kExpert};
  CHECK(kNoisy.seconds(4) == Approx(0.008));
  CHECK(LinkTimes().rate() == 0);
}

TEST_CASE("tier estimate: layers that stream cross the link while others compute, or are read first") {
  MemoryPlan plan = plan_with(80, 0);
  const DecodeEstimate without = estimate_tiered_decode(kShape, kTimes, kMove, {.vram = 1, .ram = 0});
  const auto with = [&] { return with_streamed_layers(without, kShape, plan, kTimes); };
  CHECK(with().seconds == Approx(without.seconds));
  // The link takes 2 ms for 40 MB: 40 ms for 800, of which 15 pass while layers compute.
  plan.vram->layers = {.streamed = {}, .streamed_bytes = 20 * kExpert, .buffers = 2, .buffer_bytes = 0};
  CHECK(with().seconds == Approx(without.seconds + 0.040 - kFixed));
  CHECK(with().link_bytes == Approx(without.link_bytes + 20.0 * kExpert));
  CHECK(with().bytes == without.bytes);
  plan.vram->layers.buffers = 1;
  CHECK(with().seconds == Approx(without.seconds + 0.040));
  // Half of them are read from a disk of 4 GB/s: longer than all are copied.
  plan.layers.streamed_bytes = 10 * kExpert;
  CHECK(with().seconds == Approx(without.seconds + 0.100));
  CHECK(with().bytes == Approx(without.bytes + 10.0 * kExpert));
  const PrefillEstimate prompt = estimate_gpu_prefill(kShape, plan, kTimes, 1, 128);  // in two chunks
  const PrefillEstimate experts = estimate_gpu_prefill(kShape, plan_with(80, 0), kTimes, 1, 128);
  CHECK(prompt.link_bytes == Approx(experts.link_bytes + 2 * 20.0 * kExpert));
  CHECK(prompt.bytes == Approx(experts.bytes + 2 * 10.0 * kExpert));
}

TEST_CASE(
    "tier estimate: several GPUs take as long as the busiest, which has more than its share of a token's experts") {
  MemoryPlan plan = plan_with(20, 0);
  CHECK(gpu_shares(plan, 2).busiest_of_token == 1);
  plan.further.resize(1);
  plan.further.front().slots = 20;
  const GpuShares even = gpu_shares(plan, 2);
  CHECK(even.busiest_of_token == Approx(0.75));  // both on one GPU in half of the cases
  CHECK(even.busiest == Approx(0.5));
  CHECK(even.further == Approx(0.5));
  CHECK(gpu_shares(plan, 8).busiest_of_token ==
        Approx(5.09375 / 8));  // the larger of a binomial of 8 halves and its rest
  plan.further.front().slots = 60;
  CHECK(gpu_shares(plan, 1).busiest_of_token == Approx(1));
  CHECK(gpu_shares(plan, 2).busiest == Approx(0.75));
  SpeedShape shape = kShape;
  shape.shares = even;
  const DecodeEstimate decode = estimate_tiered_decode(shape, kTimes, kMove, {.vram = 1, .ram = 0});
  CHECK(decode.seconds == Approx(kFixed + 10 * 0.00075));
  const auto prompt = [&](uint64_t row_bytes) {
    shape.row_bytes = row_bytes;
    return estimate_gpu_prefill(shape, plan, kTimes, 64, 64).seconds;
  };
  // 64 rows of input and half of 128 results cross the link of 20 GB/s in each of ten layers.
  CHECK(prompt(1'000'000) - prompt(0) == Approx(10 * 64 * 0.5 * 3 * 1e6 / 20e9));
}

}  // namespace
}  // namespace dspack::runtime::tier_estimate_test
