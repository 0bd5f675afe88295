#include "kernels/cuda/tokens/route.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/route.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/numeric.h"

namespace dspack::test::route_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::GroupScore;
using kernels::RouterArgs;
using kernels::ScoreFunction;

struct Routed {
  std::vector<float> scores;
  std::vector<uint32_t> ids;
  std::vector<float> weights;
};

Routed on_gpu(const RouterArgs& args, const std::vector<float>& logits, const std::vector<float>& bias, uint64_t seed) {
  GpuLab lab(seed);
  const size_t chosen = size_t{args.rows} * args.top_k;
  const cuda::RouteTask task{.logits = lab.put(logits),
                             .bias = bias.empty() ? nullptr : lab.put(bias),
                             .ids = lab.put(std::vector<uint32_t>(chosen, 0xdeadbeef)),
                             .weights = lab.poisoned(chosen),
                             .rows = args.rows,
                             .experts = args.experts,
                             .top_k = args.top_k,
                             .groups = args.groups,
                             .groups_kept = args.groups_kept,
                             .score = args.score,
                             .group_score = args.group_score,
                             .normalise = args.normalise,
                             .scale = args.scale};
  cuda::run_route(lab.stream(), task);
  return {lab.get(task.logits, logits.size()), lab.get(task.ids, chosen), lab.get(task.weights, chosen)};
}

Routed on_cpu(const RouterArgs& args, const std::vector<float>& logits, const std::vector<float>& bias) {
  const size_t chosen = size_t{args.rows} * args.top_k;
  Routed routed{logits, std::vector<uint32_t>(chosen), std::vector<float>(chosen)};
  kernels::RouteTask task = args.at([](kernels::Slice) { return nullptr; });
  task.logits = routed.scores.data();
  task.bias = bias.empty() ? nullptr : bias.data();
  task.ids = routed.ids.data();
  task.weights = routed.weights.data();
  for (uint32_t row = 0; row < args.rows; ++row)
    kernels::route_row(task, row);
  return routed;
}

/// The same bits, any NaN for any NaN.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return (std::isnan(x) && std::isnan(y)) || std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

/// Few values, so that experts and groups tie; sometimes NaN and infinities.
void make_awkward(std::vector<float>& values, Random& random, bool with_nan) {
  for (float& value : values) {
    value = static_cast<float>(random.below(3)) - 1.0F;
    if (with_nan && random.below(6) == 0) value = std::nanf("");
    if (with_nan && random.below(9) == 0) value = -std::numeric_limits<float>::infinity();
  }
}

RouterArgs random_router(Random& random) {
  RouterArgs args;
  args.rows = random.between(1, 3);
  args.groups = random.between(1, 8);
  args.experts = args.groups * random.between(1, 12);
  args.groups_kept = random.between(1, args.groups);
  args.top_k = random.between(1, std::min(32U, args.experts / args.groups * args.groups_kept));
  args.group_score = random.below(2) == 0 ? GroupScore::top2_sum : GroupScore::max;
  args.normalise = random.below(2) == 0;
  args.scale = random.uniform(0.5F, 3.0F);
  return args;
}

}  // namespace

TEST_CASE("cuda: sigmoid routing is the CPU's, bit for bit, ties and NaN included") {
  Random random;
  CAPTURE(random.seed());
  for (int i = 0; i < 150; ++i) {
    const RouterArgs args = random_router(random);
    auto logits = random.normals(size_t{args.rows} * args.experts);
    auto bias = random.below(2) == 0 ? std::vector<float>{} : random.normals(args.experts);
    if (i % 3 != 0) {
      make_awkward(logits, random, i % 3 == 2);
      make_awkward(bias, random, false);
    }
    CAPTURE(i);
    CAPTURE(args.experts);
    CAPTURE(args.groups);
    CAPTURE(args.groups_kept);
    CAPTURE(args.top_k);
    const Routed got = on_gpu(args, logits, bias, random.below(1000));
    const Routed wanted = on_cpu(args, logits, bias);
    CHECK(same(got.scores, wanted.scores));
    CHECK(got.ids == wanted.ids);
    CHECK(same(got.weights, wanted.weights));
  }
}

TEST_CASE("cuda: softmax scores are right to the last unit, and the choice among them is exact") {
  Random random;
  CAPTURE(random.seed());
  for (int i = 0; i < 80; ++i) {
    RouterArgs args = random_router(random);
    args.score = ScoreFunction::softmax;
    auto logits = random.normals(size_t{args.rows} * args.experts);
    if (i % 2 == 0) make_awkward(logits, random, false);
    CAPTURE(i);
    const Routed got = on_gpu(args, logits, {}, random.below(1000));
    const size_t group_size = args.experts / args.groups;
    for (size_t row = 0; row < args.rows; ++row) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * args.experts);
      const Doubles exact = softmax(Doubles(begin, begin + args.experts));
      const float* scores = got.scores.data() + row * args.experts;
      for (size_t e = 0; e < args.experts; ++e)
        CHECK(std::abs(static_cast<double>(scores[e]) - exact[e]) <= 1.01 * kRoundoff * exact[e]);
      // Sorting everything by the scores that it has.
      std::vector<double> group_scores(args.groups);
      for (size_t g = 0; g < args.groups; ++g) {
        std::vector<float> members(scores + g * group_size, scores + (g + 1) * group_size);
        std::ranges::sort(members, std::greater());
        const bool two = args.group_score == GroupScore::top2_sum && group_size > 1;
        group_scores[g] = static_cast<double>(two ? members[0] + members[1] : members[0]);
      }
      std::vector<size_t> groups(args.groups);
      std::iota(groups.begin(), groups.end(), 0);
      std::ranges::stable_sort(groups, [&](size_t a, size_t b) { return group_scores[a] > group_scores[b]; });
      std::vector<uint32_t> order;
      for (uint32_t e = 0; e < args.experts; ++e) {
        if (std::find(groups.begin(), groups.begin() + args.groups_kept, e / group_size) !=
            groups.begin() + args.groups_kept)
          order.push_back(e);
      }
      std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
      order.resize(args.top_k);
      const auto first = got.ids.begin() + static_cast<std::ptrdiff_t>(row * args.top_k);
      CHECK(std::equal(order.begin(), order.end(), first));
      float sum = 0;
      for (const uint32_t id : order)
        sum += scores[id];
      for (size_t slot = 0; slot < args.top_k; ++slot) {
        const float score = scores[order[slot]];
        CHECK(got.weights[row * args.top_k + slot] == (args.normalise ? score / (sum + 1e-20F) : score) * args.scale);
      }
    }
  }
}

TEST_CASE("cuda: a NaN among softmax's logits still gives different experts in range") {
  Random random;
  RouterArgs args;
  args.rows = 1;
  args.experts = 24;
  args.groups = 4;
  args.groups_kept = 2;
  args.top_k = 12;
  args.score = ScoreFunction::softmax;
  for (const size_t at : {size_t{0}, size_t{23}}) {
    auto logits = random.normals(args.experts);
    logits[at] = std::nanf("");
    const Routed got = on_gpu(args, logits, {}, 0);
    const Routed wanted = on_cpu(args, logits, {});
    CHECK(same(got.scores, wanted.scores));
    CHECK(got.ids == wanted.ids);
  }
}

TEST_CASE("cuda: DeepSeek-V3's routing, and 1,024 experts with 32 chosen; any order of threads") {
  Random random;
  CAPTURE(random.seed());
  RouterArgs args;
  args.rows = 3;
  args.experts = 256;
  args.groups = 8;
  args.groups_kept = 4;
  args.top_k = 8;
  args.scale = 2.5F;
  for (int turn = 0; turn < 2; ++turn) {
    const auto logits = random.normals(size_t{args.rows} * args.experts);
    const auto bias = random.normals(args.experts);
    const Routed wanted = on_cpu(args, logits, bias);
    for (const uint64_t seed : {1U, 2U, 3U}) {
      const Routed got = on_gpu(args, logits, bias, seed);
      CHECK(got.ids == wanted.ids);
      CHECK(same(got.weights, wanted.weights));
    }
    args.rows = 1;
    args.experts = 1024;
    args.groups = 1;
    args.groups_kept = 1;
    args.top_k = 32;
  }
}

TEST_CASE("cuda: launches of the router are within every card's limits") {
  constexpr unsigned kSharedOfAll = 99 << 10;
  for (const uint32_t experts : {1U, 33U, 256U, 4096U}) {
    for (const uint32_t groups : {1U, experts}) {
      const gpu::LaunchShape shape =
          cuda::choose_route_launch({.rows = 1'000'000, .experts = experts, .top_k = 1, .groups = groups});
      CHECK(shape.grid_x == 1'000'000);
      CHECK(shape.threads <= 256);
      CHECK(shape.threads % 32 == 0);
      CHECK(shape.shared_bytes <= kSharedOfAll);
    }
  }
}

}  // namespace dspack::test::route_test
