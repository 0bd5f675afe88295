// Routed experts in one launch have the bits of separate launches.
#include "kernels/cuda/experts/experts.h"

#include <algorithm>

#include "tests/kernels/cuda/experts_lab.h"

namespace dspack::test::experts_fused_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::Precision;

enum class Launches { fused, separate };

struct Outcome {
  std::vector<float> y;
  uint64_t launches = 0;
};

Outcome run(const ExpertsCase& c, const std::vector<RandomExpert>& experts, const Routing& routing, Precision precision,
            Launches launches, uint64_t seed) {
  GpuLab lab(seed);
  Outcome outcome;
  outcome.y = run_on(lab, put_experts(lab, c, experts), routing, [&](gpu::Stream& stream, cuda::ExpertsTask task) {
    if (launches == Launches::separate) task.counters = nullptr;
    const uint64_t before = gpu::emulator_counts().launches;
    if (precision == Precision::exact) {
      cuda::run_experts(stream, task);
    } else {
      cuda::run_experts_tensor(stream, task, precision);
    }
    stream.synchronize();
    outcome.launches = gpu::emulator_counts().launches - before;
  });
  return outcome;
}

/// One launch, one that sorts where there is more than one token, and one that rounds the tokens for tensor cores; with
/// the bits of separate ones, of which two round.
void check(const ExpertsCase& c, uint32_t tokens, Precision precision, Random& random) {
  CAPTURE(c);
  CAPTURE(tokens);
  CAPTURE(to_string(precision));
  const auto experts = random_experts(c, random);
  const Routing routing = random_routing(c, tokens, random);
  const uint64_t sorting = tokens > 1 ? 1 : 0;
  const Outcome separate = run(c, experts, routing, precision, Launches::separate, random.below(1000));
  const uint64_t rounding = precision == Precision::exact ? 0 : 1;
  CHECK(separate.launches == 3 + sorting + 2 * rounding);
  CHECK(std::ranges::none_of(separate.y, [](float value) { return std::isnan(value); }));
  for (int turn = 0; turn < 3; ++turn) {
    const Outcome fused = run(c, experts, routing, precision, Launches::fused, random.below(1000));
    CHECK(fused.launches == 1 + sorting + rounding);
    CHECK(fused.y == separate.y);
  }
}

}  // namespace

TEST_CASE("cuda: exact experts in one launch have the bits of separate launches") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t tokens : {1U, 2U, 3U, 4U}) {
    check({Dtype::f8_e4m3, 5, 80, 48, 16, 16, 3}, tokens, Precision::exact, random);
    check({Dtype::f8_e4m3, 9, 272, 144, 128, 128, 2}, tokens, Precision::exact, random);
    check({Dtype::bf16, 3, 72, 40, 0, 0, 4}, tokens, Precision::exact, random);
    check({Dtype::u8, 4, 160, 96, 1, 32, 2, false, kPackedCodes[0]}, tokens, Precision::exact, random);
    check({Dtype::u8, 4, 96, 64, 1, 16, 3, false, kPackedCodes[5]}, tokens, Precision::exact, random);
    check({Dtype::u8, 3, 64, 96, 1, 32, 2, false, kPackedCodes[7]}, tokens, Precision::exact, random);
  }
}

TEST_CASE("cuda: experts on tensor cores in one launch have the bits of separate launches") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t tokens : {1U, 2U, 8U}) {
    check({Dtype::f8_e4m3, 5, 272, 144, 128, 128, 2}, tokens, Precision::bf16, random);
    check({Dtype::f8_e4m3, 9, 144, 80, 16, 64, 3}, tokens, Precision::fp8, random);
    check({Dtype::bf16, 3, 72, 40, 0, 0, 4}, tokens, Precision::bf16, random);
    check({Dtype::u8, 4, 160, 96, 1, 32, 2, false, kPackedCodes[0]}, tokens, Precision::bf16, random);
    check({Dtype::u8, 4, 256, 128, 1, 16, 3, false, kPackedCodes[5]}, tokens, Precision::fp8, random);
  }
}

// So few blocks that those of down run beside those of gate and up that they wait for.
TEST_CASE("cuda: experts in one launch wait for their inputs") {
  Random random;
  CAPTURE(random.seed());
  for (int turn = 0; turn < 4; ++turn) {
    check({Dtype::f8_e4m3, 2, 48, 48, 0, 0, 1}, 1, Precision::exact, random);
    check({Dtype::f8_e4m3, 2, 48, 144, 0, 0, 1}, 2, Precision::bf16, random);
  }
}

TEST_CASE("cuda: blocks of one launch that take several groups of rows") {
  Random random;
  CAPTURE(random.seed());
  const ExpertsCase c{Dtype::f8_e4m3, 8, 6208, 16, 0, 0, 8};
  const cuda::MatrixForm down{{kernels::coding_of(c.dtype).value(), c.hidden, c.inner}, true};
  REQUIRE(cuda::choose_experts(down, 1, 1, c.top_k).shape.grid_y == 97);  // four groups of 16 rows
  check(c, 1, Precision::exact, random);
}

TEST_CASE("cuda: whatever is not few common experts is launched separately") {
  Random random;
  CAPTURE(random.seed());
  const auto launches = [&](const ExpertsCase& c, uint32_t tokens, Precision precision) {
    const auto experts = random_experts(c, random);
    return run(c, experts, random_routing(c, tokens, random), precision, Launches::fused, 1).launches;
  };
  CHECK(launches({Dtype::f8_e4m3, 3, 64, 48, 0, 0, 1}, 5, Precision::exact) == 4);
  CHECK(launches({Dtype::f8_e4m3, 3, 64, 48, 0, 0, 1}, 9, Precision::bf16) == 6);
  CHECK(launches({Dtype::f16, 3, 64, 48, 0, 0, 1}, 1, Precision::exact) == 3);
  CHECK(launches({Dtype::f8_e4m3, 3, 64, 48, 0, 0, 1, true}, 1, Precision::exact) == 3);
}

TEST_CASE("cuda: one launch or separate ones: by tokens, tiles and counters") {
  const gpu::LaunchShape gate_up{.grid_x = 8, .grid_y = 128, .threads = 256, .shared_bytes = 28'672};
  const gpu::LaunchShape down{.grid_x = 8, .grid_y = 112, .threads = 256, .shared_bytes = 8192};
  const auto one = cuda::choose_fused_experts(gate_up, down, 1, 1);
  REQUIRE(one.has_value());
  CHECK(one->tiles == 8);
  CHECK(one->gate_up_blocks == 128);
  CHECK(one->down_blocks == 112);
  CHECK(one->launch.grid_x == 8 * (128 + 112));
  CHECK(one->launch.grid_y == 1);
  CHECK(one->launch.threads == 256);
  CHECK(one->launch.shared_bytes == 28'672);
  const auto counters = cuda::lay_out_fused_counters(nullptr, *one, 1);
  CHECK(counters.size == 2 + 8 + 112);

  CHECK(cuda::choose_fused_experts(gate_up, down, 4, 4).has_value());
  CHECK_FALSE(cuda::choose_fused_experts(gate_up, down, 5, 4).has_value());
  CHECK_FALSE(cuda::choose_fused_experts(gate_up, down, 9, 64).has_value());
  // Of the 16 blocks of 128 values of each tile, too, where they are rounded.
  const auto rounding = cuda::choose_fused_experts(gate_up, down, 1, 1, 16);
  REQUIRE(rounding.has_value());
  CHECK(cuda::lay_out_fused_counters(nullptr, *rounding, 1).size == 2 + 8 + 8 * 16 + 112);
  CHECK_FALSE(cuda::choose_fused_experts(gate_up, down, 1, 1, 2048).has_value());
  // Counters: 2 + tiles + tokens * blocks of down.
  const auto with = [&](unsigned tiles, unsigned blocks) {
    gpu::LaunchShape first = gate_up;
    gpu::LaunchShape second = down;
    first.grid_x = second.grid_x = tiles;
    second.grid_y = blocks;
    return cuda::choose_fused_experts(first, second, 2, 2).has_value();
  };
  CHECK(with(8, (cuda::kFusedCounters - 10) / 2));
  CHECK_FALSE(with(9, (cuda::kFusedCounters - 8) / 2));
}

}  // namespace dspack::test::experts_fused_test
