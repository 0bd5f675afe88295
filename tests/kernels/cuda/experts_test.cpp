#include "kernels/cuda/experts/experts.h"

#include <algorithm>

#include "kernels/cuda/experts/expert_tiles.h"
#include "tests/kernels/cuda/experts_lab.h"

namespace dspack::test::experts_test {
namespace {

namespace cuda = kernels::cuda;

/// Roundings on the way of one term into its output (device/dot.cuh): whole chunks of up to 16 values by fma and then
/// one fma a chunk of the lane, or one rounded product and an fma for every value of the lane; five sums of lanes.
double exact_steps(uint32_t in) {
  constexpr double kLanes = 32;
  constexpr double kChunk = 16;  // values, at most
  return kChunk * std::ceil(in / (kLanes * kChunk)) + kChunk + 1 + 5;
}

std::vector<float> run(const ExpertsCase& c, const std::vector<RandomExpert>& experts, const Routing& routing,
                       uint64_t seed) {
  GpuLab lab(seed);
  return run_on(lab, put_experts(lab, c, experts), routing, cuda::run_experts);
}

void check(const ExpertsCase& c, const std::vector<RandomExpert>& experts, const Routing& routing, Random& random) {
  CAPTURE(c);
  CAPTURE(routing.tokens);
  const auto got = run(c, experts, routing, random.below(1000));
  const Bounded wanted = expected(c, experts, routing, exact_steps, [](const Bounded& x) { return x; });
  const ErrorReport report = compare(got, wanted.values, c.hidden);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(beyond_bound(got, wanted.values, wanted.bounds) == 0);
}

std::vector<ExpertsCase> awkward_cases(Dtype dtype) {
  return {
      {dtype, 3, 1, 1, 0, 0, 1},        {dtype, 5, 48, 32, 16, 16, 2},         {dtype, 4, 131, 17, 0, 0, 3},
      {dtype, 7, 160, 96, 128, 128, 4}, {dtype, 6, 80, 50, 3, 7, 2},           {dtype, 2, 544, 33, 1, 544, 2},
      {dtype, 4, 64, 48, 1, 1000, 3},   {dtype, 4, 64, 48, 64, 1000, 2, true},
  };
}

void check_type(Dtype dtype) {
  Random random;
  CAPTURE(random.seed());
  for (const ExpertsCase& c : awkward_cases(dtype)) {
    const auto experts = random_experts(c, random);
    for (const uint32_t tokens : {1U, random.between(2, 4)})
      check(c, experts, random_routing(c, tokens, random), random);
  }
}

/// Alone, among others, beside itself (every tile has a second input row), in other orders of threads.
void check_bits(Dtype dtype) {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t block : {16U, 7U}) {
    const ExpertsCase c{dtype, 4, 80, 48, block, block, 3};
    CAPTURE(c);
    const auto experts = random_experts(c, random);
    const Routing together = random_routing(c, 9, random);
    const auto all = run(c, experts, together, 1);
    CHECK(all == run(c, experts, together, 2));
    for (const uint32_t token : {0U, 8U}) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(token * c.hidden);
      const std::vector<float> row(first, first + static_cast<std::ptrdiff_t>(c.hidden));
      const Routing one = part_of(together, c, token);
      CHECK(run(c, experts, one, 3) == row);
      Routing two = one;
      two.tokens = 2;
      two.x.insert(two.x.end(), one.x.begin(), one.x.end());
      two.ids.insert(two.ids.end(), one.ids.begin(), one.ids.end());
      two.weights.insert(two.weights.end(), one.weights.begin(), one.weights.end());
      const auto both = run(c, experts, two, 4);
      CHECK(std::equal(row.begin(), row.end(), both.begin()));
      CHECK(std::equal(row.begin(), row.end(), both.begin() + c.hidden));
    }
  }
}

}  // namespace

TEST_CASE("cuda: routed experts in E4M3 agree with double precision") {
  check_type(Dtype::f8_e4m3);
}
TEST_CASE("cuda: routed experts in BF16 agree with double precision") {
  check_type(Dtype::bf16);
}
TEST_CASE("cuda: routed experts in F16 agree with double precision") {
  check_type(Dtype::f16);
}
TEST_CASE("cuda: routed experts in F32 agree with double precision") {
  check_type(Dtype::f32);
}
TEST_CASE("cuda: experts of I8") {
  check_type(Dtype::i8);
}

TEST_CASE("cuda: routed experts of four bits agree with double precision") {
  Random random;
  CAPTURE(random.seed());
  for (const PackedCodes& packed : kPackedCodes) {
    for (const ExpertsCase& c : {ExpertsCase{Dtype::u8, 4, 160, 96, 1, 32, 3, false, packed},
                                 ExpertsCase{Dtype::u8, 3, 64, 48, 1, 16, 2, false, packed},
                                 ExpertsCase{Dtype::u8, 3, 74, 50, 1, 1000, 2, false, packed}}) {
      const auto experts = random_experts(c, random);
      for (const uint32_t tokens : {1U, 2U, 5U})
        check(c, experts, random_routing(c, tokens, random), random);
    }
  }
}

TEST_CASE("cuda: routed experts of DeepSeek-V3's sizes, cut") {
  Random random;
  CAPTURE(random.seed());
  for (const auto& [hidden, inner] : {std::pair{7168U, 16U}, std::pair{20U, 2048U}}) {
    const ExpertsCase c{Dtype::f8_e4m3, 2, hidden, inner, 128, 128, 1};
    const auto experts = random_experts(c, random);
    for (const uint32_t tokens : {1U, 2U})
      check(c, experts, random_routing(c, tokens, random), random);
  }
}

TEST_CASE("cuda: all tokens to one expert, each to another, and experts without tokens") {
  Random random;
  CAPTURE(random.seed());
  const ExpertsCase c{Dtype::f8_e4m3, 40, 48, 32, 128, 128, 2};
  const auto experts = random_experts(c, random);
  Routing routing = random_routing(c, 20, random);
  std::ranges::fill(routing.ids, 39U);
  check(c, experts, routing, random);
  for (uint32_t i = 0; i < routing.ids.size(); ++i)
    routing.ids[i] = 39 - i;
  check(c, experts, routing, random);
}

TEST_CASE("cuda: the bits of a token's experts hang on it alone, E4M3") {
  check_bits(Dtype::f8_e4m3);
}
TEST_CASE("cuda: the bits of a token's experts hang on it alone, BF16") {
  check_bits(Dtype::bf16);
}
TEST_CASE("cuda: the bits of a token's experts hang on it alone, F16") {
  check_bits(Dtype::f16);
}
TEST_CASE("cuda: the bits of a token's experts hang on it alone, F32") {
  check_bits(Dtype::f32);
  check_bits(Dtype::i8);
}

TEST_CASE("cuda: a NaN among an expert's weights reaches its tokens and no others") {
  Random random;
  CAPTURE(random.seed());
  const ExpertsCase c{Dtype::f8_e4m3, 3, 64, 32, 128, 128, 1};
  auto experts = random_experts(c, random);
  experts[1].up.bytes[5 * c.hidden + 37] = 0xff;
  Routing routing = random_routing(c, 3, random);
  routing.ids = {0, 1, 2};
  const auto got = run(c, experts, routing, 0);
  for (size_t i = 0; i < got.size(); ++i)
    CHECK(std::isnan(got[i]) == (i / c.hidden == 1));
}

TEST_CASE("cuda: one recording of routed experts serves every routing") {
  Random random;
  CAPTURE(random.seed());
  const ExpertsCase c{Dtype::f8_e4m3, 9, 48, 32, 16, 16, 2};
  const auto experts = random_experts(c, random);
  for (const uint32_t tokens : {1U, 6U}) {
    const Routing first = random_routing(c, tokens, random);
    const Routing second = random_routing(c, tokens, random);
    GpuLab lab(0);
    const auto task = put_experts(lab, c, experts);
    std::unique_ptr<gpu::Graph> graph;
    const auto got = run_on(lab, task, first, [&](gpu::Stream& stream, const cuda::ExpertsTask& whole) {
      stream.begin_recording();
      cuda::run_experts(stream, whole);
      graph = stream.end_recording();
      stream.run(*graph);
      stream.synchronize();
      // The same addresses with other contents.
      for (uint32_t token = 0; token < tokens; ++token) {
        stream.copy_to_device(const_cast<float*>(whole.x.data) + token * whole.x.stride,
                              second.x.data() + size_t{token} * c.hidden, c.hidden * sizeof(float));
      }
      stream.copy_to_device(const_cast<uint32_t*>(whole.ids), second.ids.data(), second.ids.size() * sizeof(uint32_t));
      stream.copy_to_device(const_cast<float*>(whole.weights), second.weights.data(),
                            second.weights.size() * sizeof(float));
      stream.run(*graph);
    });
    CHECK(got == run(c, experts, second, 7));
  }
}

TEST_CASE("cuda: assignments are sorted by expert, stably, and cut into tiles") {
  Random random;
  CAPTURE(random.seed());
  for (const auto& [experts, tokens, top_k, tile] :
       std::initializer_list<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>>{{1, 2, 1, 4},
                                                                                 {5, 33, 2, 4},
                                                                                 {256, 8, 8, 4},
                                                                                 {300, 2, 6, 64},
                                                                                 {7, 200, 3, 64},
                                                                                 {64, 40, 6, 8},
                                                                                 {1, 1025, 1, 64},
                                                                                 {3, 600, 2, 64},
                                                                                 {256, 300, 8, 64},
                                                                                 {301, 700, 6, 64}}) {
    CAPTURE(experts);
    CAPTURE(tokens);
    const uint32_t assignments = tokens * top_k;
    std::vector<uint32_t> ids;
    for (uint32_t i = 0; i < assignments; ++i)
      ids.push_back(random.below(random.below(3) == 0 ? 1 + experts / 4 : experts));
    GpuLab lab(random.below(1000));
    cuda::ExpertsTask task;
    task.experts = experts;
    task.tokens = tokens;
    task.top_k = top_k;
    task.ids = lab.put(ids);
    const kernels::ExpertsShape shape{.hidden = 1, .inner = 1, .experts = experts, .top_k = top_k, .rows = tokens};
    const uint64_t bytes = cuda::experts_scratch_bytes(shape, kernels::Precision::exact);
    const auto scratch =
        cuda::lay_out_experts(lab.put(std::vector<uint8_t>(bytes, 0xff)), shape, kernels::Precision::exact);
    const auto made = cuda::make_expert_tiles(lab.stream(), task, scratch, tile);
    const auto order = lab.get(made.order, assignments);
    std::vector<uint32_t> wanted(assignments);
    for (uint32_t i = 0; i < assignments; ++i)
      wanted[i] = i;
    std::ranges::stable_sort(wanted, {}, [&](uint32_t i) { return ids[i]; });
    CHECK(order == wanted);
    const uint32_t count = lab.get(made.tile_count, 1)[0];
    REQUIRE(count <= cuda::most_expert_tiles(assignments, experts, tile));
    uint32_t next = 0;
    const auto tiles = lab.get(made.tiles, count);
    for (size_t i = 0; i < tiles.size(); ++i) {
      CHECK(tiles[i].first == next);
      CHECK(tiles[i].count >= 1);
      CHECK(tiles[i].count <= tile);
      // Only the last tile of an expert is not full.
      if (i > 0 && tiles[i - 1].expert == tiles[i].expert) CHECK(tiles[i - 1].count == tile);
      for (uint32_t at = next; at < next + tiles[i].count; ++at)
        CHECK(ids[order[at]] == tiles[i].expert);
      next += tiles[i].count;
    }
    CHECK(next == assignments);
  }
}

// [tokens * top_k, hidden] of results has the caller of run_expert_parts: of V3, 229 KB a token of 295 KB.
TEST_CASE("cuda: scratch for parts alone has no second place for results") {
  kernels::ExpertsShape shape{.hidden = 7168, .inner = 2048, .experts = 256, .top_k = 8, .rows = 4096};
  const uint64_t whole = cuda::experts_scratch_bytes(shape, kernels::Precision::exact);
  shape.parts_only = true;
  const uint64_t inner = uint64_t{shape.rows} * shape.top_k * shape.inner * sizeof(float);
  CHECK(cuda::experts_scratch_bytes(shape, kernels::Precision::exact) == inner);
  CHECK(whole > inner + uint64_t{shape.rows} * shape.top_k * shape.hidden * sizeof(float));
}

TEST_CASE("cuda: the worst routing's tiles are counted, and no fewer") {
  for (uint32_t experts = 1; experts < 7; ++experts) {
    for (uint32_t assignments = 1; assignments < 30; ++assignments) {
      for (const uint32_t tile : {1U, 4U, 8U}) {
        // One assignment for each expert, and the rest to the first.
        const uint32_t others = std::min(experts - 1, assignments - 1);
        const uint64_t worst = others + ceil_div(assignments - others, tile);
        CHECK(cuda::most_expert_tiles(assignments, experts, tile) >= worst);
        uint64_t most = 0;  // of all numbers of experts that get one assignment each
        for (uint32_t single = 0; single <= others; ++single)
          most = std::max(most, single + ceil_div(assignments - single, tile));
        CHECK(cuda::most_expert_tiles(assignments, experts, tile) == most);
      }
    }
  }
}

TEST_CASE("cuda: launches of routed experts are within every card's limits") {
  constexpr unsigned kSharedOfAll = 99 << 10;
  for (const auto& [dtype, out, in] :
       std::initializer_list<std::tuple<Dtype, uint32_t, uint32_t>>{{Dtype::f8_e4m3, 2048, 7168},
                                                                    {Dtype::f8_e4m3, 7168, 2048},
                                                                    {Dtype::bf16, 1408, 2048},
                                                                    {Dtype::f32, 1, 1},
                                                                    {Dtype::f16, 3'000'000, 17}}) {
    for (const uint32_t tokens : {1U, 2U, 3U, 8U, 4096U, 1'000'000U}) {
      CAPTURE(out);
      CAPTURE(tokens);
      const uint64_t tiles = tokens == 1 ? 8 : cuda::most_expert_tiles(8ULL * tokens, 256, cuda::exact_tile(tokens));
      const auto choice = cuda::choose_experts({{kernels::coding_of(dtype).value(), out, in}, true}, 2, tokens, tiles);
      CHECK(choice.shape.grid_x >= 1);
      CHECK(choice.shape.grid_y >= 1);
      CHECK(choice.shape.grid_y <= 65'535);
      CHECK(choice.shape.shared_bytes <= kSharedOfAll);
      CHECK(choice.staged_groups >= choice.tokens);
      CHECK(choice.tokens >= std::min(tokens, cuda::kExactTokens));
    }
  }
  // One token of DeepSeek-V3: eight experts, enough blocks for any card, whole inputs in shared memory, and weights
  // under way.
  constexpr unsigned kUnderWay = 16 << 10;
  const auto gate_up = cuda::choose_experts({{kernels::Coding::f8_e4m3, 2048, 7168, 128, 128}, true}, 2, 1, 8);
  CHECK(gate_up.shape.grid_x == 8);
  CHECK(gate_up.shape.grid_y == 128);
  CHECK(gate_up.shape.shared_bytes == 7168 * sizeof(float) + kUnderWay);
  const auto down = cuda::choose_experts({{kernels::Coding::f8_e4m3, 7168, 2048, 128, 128}, true}, 1, 1, 8);
  CHECK(down.shape.grid_x * down.shape.grid_y >= 768);
  CHECK(down.shape.shared_bytes == 2048 * sizeof(float) + kUnderWay);
}

}  // namespace dspack::test::experts_test
