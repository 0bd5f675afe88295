#include "kernels/cuda/experts/experts.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/kernels/cuda/experts_lab.h"
#include "tests/kernels/cuda/rounded_inputs.h"

namespace dspack::test::experts_tensor_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::Precision;

constexpr Precision kModes[] = {Precision::bf16, Precision::fp8};

/// Products are exact. A tile of 16 columns is added with one rounding here (hardware: a few), then the chunks by fma;
/// the scales' product and, for fp8, the inputs' division are bounded by the rest.
/// Four bits take an fma each 32 columns, or two products and two fma.
double tensor_steps(uint32_t in) {
  return in / 4.0 + 16;
}

struct Result {
  std::vector<float> inner;  // [tokens * top_k, inner]: the input of down, before it is rounded
  std::vector<float> y;
};

Result run(const ExpertsCase& c, const std::vector<RandomExpert>& experts, const Routing& routing, Precision precision,
           uint64_t seed) {
  GpuLab lab(seed);
  void* scratch = nullptr;
  Result result;
  result.y =
      run_on(lab, put_experts(lab, c, experts), routing, [&](gpu::Stream& stream, const cuda::ExpertsTask& task) {
        REQUIRE(cuda::experts_fit_tensor_cores(task.form));
        cuda::run_experts_tensor(stream, task, precision);
        scratch = task.scratch;
      });
  const auto places = cuda::lay_out_experts(
      scratch, {.hidden = c.hidden, .inner = c.inner, .experts = c.experts, .top_k = c.top_k, .rows = routing.tokens},
      precision);
  result.inner = lab.get(places.inner, size_t{routing.tokens} * c.top_k * c.inner);
  return result;
}

Bounded rounded(const float* row, uint32_t count, Precision precision, Dtype weights) {
  return {rounded_inputs(std::vector<float>(row, row + count), 1, count, precision, weights), Doubles(count, 0.0)};
}

/// Weights whose inputs are rounded alike.
Dtype rounded_for(const ExpertsCase& c) {
  return c.packed ? Dtype::bf16 : c.dtype;
}

void check(const ExpertsCase& c, uint32_t tokens, Precision precision, Random& random) {
  CAPTURE(c);
  CAPTURE(tokens);
  CAPTURE(to_string(precision));
  const auto experts = random_experts(c, random);
  const Routing routing = random_routing(c, tokens, random);
  const Result got = run(c, experts, routing, precision, random.below(1000));
  Bounded inner;
  Bounded y;
  for (uint32_t token = 0; token < tokens; ++token) {
    const Bounded x = rounded(routing.x.data() + size_t{token} * c.hidden, c.hidden, precision, rounded_for(c));
    std::vector<Sum> sums(c.hidden);
    Doubles errors(c.hidden, 0.0);
    for (uint32_t assignment = token * c.top_k; assignment < (token + 1) * c.top_k; ++assignment) {
      const RandomExpert& expert = experts[routing.ids[assignment]];
      const Bounded row =
          activate(multiply(expert.gate.matrix, x, tensor_steps), multiply(expert.up.matrix, x, tensor_steps), c.limit);
      inner.values.insert(inner.values.end(), row.values.begin(), row.values.end());
      inner.bounds.insert(inner.bounds.end(), row.bounds.begin(), row.bounds.end());
      // From what down was given: its own bound is not drowned by that of rounding.
      const Bounded input =
          rounded(got.inner.data() + size_t{assignment} * c.inner, c.inner, precision, rounded_for(c));
      const Bounded part = multiply(expert.down.matrix, input, tensor_steps);
      for (uint32_t i = 0; i < c.hidden; ++i) {
        sums[i].add(routing.weights[assignment] * part.values[i]);
        errors[i] += std::abs(routing.weights[assignment]) * part.bounds[i];
      }
    }
    for (uint32_t i = 0; i < c.hidden; ++i) {
      y.values.push_back(sums[i].value);
      y.bounds.push_back(errors[i] + 1.001 * c.top_k * kRoundoff * (sums[i].magnitude + errors[i]));
    }
  }
  CHECK(beyond_bound(got.inner, inner.values, inner.bounds) == 0);
  CHECK(beyond_bound(got.y, y.values, y.bounds) == 0);
}

}  // namespace

TEST_CASE("cuda: routed experts on the tensor cores equal those of rounded inputs, few tokens") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision precision : kModes) {
    for (const ExpertsCase& c : std::initializer_list<ExpertsCase>{{Dtype::f8_e4m3, 3, 16, 16, 0, 0, 1},
                                                                   {Dtype::f8_e4m3, 5, 272, 144, 128, 128, 2},
                                                                   {Dtype::bf16, 4, 72, 40, 0, 0, 3},
                                                                   {Dtype::bf16, 3, 136, 200, 32, 64, 2}}) {
      for (const uint32_t tokens : {1U, 2U, 8U})
        check(c, tokens, precision, random);
    }
  }
}

TEST_CASE("cuda: routed experts on the tensor cores equal those of rounded inputs, many tokens") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision precision : kModes) {
    check({Dtype::f8_e4m3, 2, 144, 80, 128, 128, 1}, 140, precision, random);  // tiles of 64 and of fewer
    check({Dtype::f8_e4m3, 9, 80, 48, 16, 64, 3}, 40, precision, random);
    check({Dtype::bf16, 4, 40, 72, 0, 0, 2}, 50, precision, random);
  }
}

TEST_CASE("cuda: routed experts of four bits on the tensor cores") {
  Random random;
  CAPTURE(random.seed());
  for (const PackedCodes& packed : kPackedCodes) {
    const bool is_folded = packed.coding == kernels::Coding::e2m1;
    if (is_folded && packed.scale == kernels::ScaleCoding::f32) continue;  // does not fit tensor cores
    const uint32_t group = packed.scale == kernels::ScaleCoding::f8_e4m3 ? 16 : 32;
    const ExpertsCase c{Dtype::u8, 4, is_folded ? 256U : 160U, is_folded ? 128U : 96U, 1, group, 2, false, packed};
    for (const uint32_t tokens : {1U, 8U, 70U})
      check(c, tokens, Precision::bf16, random);
  }
}

TEST_CASE("cuda: routed experts of DeepSeek-V3's sizes on the tensor cores, cut") {
  Random random;
  CAPTURE(random.seed());
  check({Dtype::f8_e4m3, 2, 7168, 16, 128, 128, 1}, 1, Precision::bf16, random);
  check({Dtype::f8_e4m3, 2, 16, 2048, 128, 128, 1}, 10, Precision::fp8, random);
}

// One expert whose few tokens alone are rounded, then the others, for which all are.
TEST_CASE("cuda: experts on the tensor cores one after the other have the bits of all together") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kTokens = 40;
  for (const Precision precision : kModes) {
    for (const ExpertsCase& c :
         {ExpertsCase{Dtype::f8_e4m3, 9, 272, 144, 128, 128, 2}, ExpertsCase{Dtype::bf16, 9, 72, 40, 0, 0, 2}}) {
      CAPTURE(c);
      const auto experts = random_experts(c, random);
      Routing routing = random_routing(c, kTokens, random);
      for (uint32_t i = 0; i < kTokens * c.top_k; ++i)
        routing.ids[i] = i == 5 || i == 60 ? 0 : 1 + i % (c.experts - 1);
      const auto whole = run(c, experts, routing, precision, 1).y;
      std::vector<std::vector<uint32_t>> assignments(c.experts);
      for (uint32_t i = 0; i < kTokens * c.top_k; ++i)
        assignments[routing.ids[i]].push_back(i);
      std::vector<kernels::ExpertGroup> groups;
      for (uint32_t expert = 0; expert < c.experts; ++expert)
        groups.push_back({.entry = expert, .parts = assignments[expert]});
      GpuLab lab(random.below(1000));
      std::vector<float> parts;
      (void)run_on(lab, put_experts(lab, c, experts), routing, [&](gpu::Stream& stream, cuda::ExpertsTask task) {
        float* place = lab.poisoned(size_t{kTokens} * c.top_k * c.hidden);
        task.parts = {.data = place, .stride = c.hidden};
        for (const auto& some : {std::span(groups).first(1), std::span(groups).subspan(1)}) {
          const uint32_t most = cuda::largest_group(some);
          const auto cut = cuda::cut_expert_groups(some, cuda::tensor_tile(most));
          task.cut = cut.at(lab.put(cut.words), most);
          cuda::run_experts_tensor(stream, task, precision);
          stream.synchronize();
        }
        parts = lab.get(place, size_t{kTokens} * c.top_k * c.hidden);
      });
      std::vector<float> sums(whole.size(), 0.0F);
      for (uint32_t assignment = 0; assignment < kTokens * c.top_k; ++assignment) {
        for (uint32_t i = 0; i < c.hidden; ++i) {
          float& sum = sums[size_t{assignment / c.top_k} * c.hidden + i];
          sum = std::fma(routing.weights[assignment], parts[size_t{assignment} * c.hidden + i], sum);
        }
      }
      CHECK(sums == whole);
    }
  }
}

TEST_CASE("cuda: experts in BF16 without scales have the bits of scales of 1 on the tensor cores") {
  Random random;
  CAPTURE(random.seed());
  const ExpertsCase c{Dtype::bf16, 4, 328, 328, 0, 0, 2};
  const auto experts = random_experts(c, random);
  ExpertsCase scaled_case = c;
  scaled_case.block_out = 1;
  scaled_case.block_in = c.hidden;
  std::vector<RandomExpert> scaled;
  for (const RandomExpert& expert : experts)
    scaled.push_back({with_scales_of_one(expert.gate), with_scales_of_one(expert.up), with_scales_of_one(expert.down)});
  for (const uint32_t tokens : {1U, 2U, 8U, 50U}) {
    const Routing routing = random_routing(c, tokens, random);
    CHECK(run(c, experts, routing, Precision::bf16, 1).y == run(scaled_case, scaled, routing, Precision::bf16, 2).y);
  }
}

TEST_CASE("cuda: on the tensor cores, too, a token's experts hang on it alone") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision precision : kModes) {
    for (const Dtype dtype : {Dtype::f8_e4m3, Dtype::bf16}) {
      const ExpertsCase c{dtype, 3, 144, 64, 64, 64, 2};
      CAPTURE(c);
      const auto experts = random_experts(c, random);
      const Routing together = random_routing(c, 40, random);
      const auto all = run(c, experts, together, precision, 1).y;
      CHECK(all == run(c, experts, together, precision, 2).y);
      for (const uint32_t token : {0U, 17U, 39U}) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(token * c.hidden);
        const auto alone = run(c, experts, part_of(together, c, token), precision, 3).y;
        CHECK(std::equal(alone.begin(), alone.end(), first));
      }
    }
  }
}

TEST_CASE("cuda: experts that the tensor cores do not multiply exactly are left to the others") {
  const cuda::MatrixForm good{{kernels::Coding::f8_e4m3, 48, 64, 128, 128}, true};
  const cuda::MatrixForm down{{kernels::Coding::f8_e4m3, 64, 48, 128, 128}, true};
  CHECK(cuda::experts_fit_tensor_cores({good, down}));
  cuda::MatrixForm bad = good;
  bad.starts_aligned = false;
  CHECK_FALSE(cuda::experts_fit_tensor_cores({bad, down}));
  bad = good;
  bad.coding = kernels::Coding::f16;
  CHECK_FALSE(cuda::experts_fit_tensor_cores({bad, down}));
  bad = down;
  bad.in = 50;
  CHECK_FALSE(cuda::experts_fit_tensor_cores({good, bad}));
  bad = down;
  bad.coding = kernels::Coding::bf16;
  CHECK_FALSE(cuda::experts_fit_tensor_cores({good, bad}));
}

TEST_CASE("cuda: launches of routed experts on the tensor cores are within every card's limits") {
  constexpr unsigned kSharedOfAll = 99 << 10;
  for (const auto& [dtype, out, in] :
       std::initializer_list<std::tuple<Dtype, uint32_t, uint32_t>>{{Dtype::f8_e4m3, 2048, 7168},
                                                                    {Dtype::f8_e4m3, 7168, 2048},
                                                                    {Dtype::bf16, 1408, 2048},
                                                                    {Dtype::bf16, 8, 8},
                                                                    {Dtype::bf16, 30'000'000, 8}}) {
    for (const uint32_t tokens : {1U, 8U, 9U, 4096U, 1'000'000U}) {
      const uint64_t tiles = tokens == 1 ? 8 : cuda::most_expert_tiles(8ULL * tokens, 256, cuda::tensor_tile(tokens));
      const auto choice =
          cuda::choose_experts_tensor({{kernels::coding_of(dtype).value(), out, in}, true}, 2, tokens, tiles);
      CHECK(choice.shape.grid_x >= 1);
      CHECK(choice.shape.grid_y >= 1);
      CHECK(choice.shape.grid_y <= 65'535);
      CHECK(choice.shape.threads <= 256);
      CHECK(choice.shape.shared_bytes <= kSharedOfAll);
      CHECK(choice.staged_columns % kInputBlock == 0);
      CHECK(choice.tokens == cuda::tensor_tokens(tokens));
    }
  }
  const auto gate_up = cuda::choose_experts_tensor({{kernels::Coding::f8_e4m3, 2048, 7168, 128, 128}, true}, 2, 1, 8);
  CHECK(gate_up.shape.grid_x * gate_up.shape.grid_y == 512);
}

}  // namespace dspack::test::experts_tensor_test
