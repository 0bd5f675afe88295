#include <algorithm>
#include <numeric>

#include "tests/kernels/definitions.h"
#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/numeric.h"

namespace dspack::test::route_test {
namespace {

using kernels::GroupScore;
using kernels::RouterArgs;
using kernels::ScoreFunction;

struct Routed {
  std::vector<float> scores;
  std::vector<uint32_t> ids;
  std::vector<float> weights;
};

Routed run_route(Lab& lab, RouterArgs args, const std::vector<float>& logits, const std::vector<float>& bias) {
  const size_t chosen = size_t{args.rows} * args.top_k;
  args.logits = lab.put(logits);
  if (!bias.empty()) args.bias = lab.put(bias);
  args.ids = lab.poisoned(chosen);
  args.weights = lab.poisoned(chosen);
  lab.queue().route(args);
  return {lab.get(args.logits, logits.size()), lab.get<uint32_t>(args.ids, chosen), lab.get(args.weights, chosen)};
}

/// Indices from the largest value to the smallest, the lower index first among equals.
std::vector<uint32_t> order_of(const std::vector<float>& values) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  return order;
}

/// The definition, on scores that are given: sort everything, keep what the best groups hold.
std::vector<uint32_t> reference_ids(const RouterArgs& args, std::vector<float> choice) {
  const size_t group_size = args.experts / args.groups;
  std::vector<float> group_scores;
  for (size_t g = 0; g < args.groups; ++g) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(g * group_size);
    std::vector<float> members(begin, begin + static_cast<std::ptrdiff_t>(group_size));
    std::sort(members.rbegin(), members.rend());
    const bool two = args.group_score == GroupScore::top2_sum && group_size > 1;
    group_scores.push_back(two ? members[0] + members[1] : members[0]);
  }
  const auto groups = order_of(group_scores);
  for (size_t n = args.groups_kept; n < groups.size(); ++n) {
    std::fill_n(choice.begin() + static_cast<std::ptrdiff_t>(groups[n] * group_size), group_size,
                -std::numeric_limits<float>::infinity());
  }
  auto ids = order_of(choice);
  ids.resize(args.top_k);
  return ids;
}

Doubles reference_scores(const std::vector<float>& logits, ScoreFunction function) {
  const Doubles exact(logits.begin(), logits.end());
  if (function == ScoreFunction::softmax) return softmax(exact);
  Doubles scores;
  for (const double logit : exact)
    scores.push_back(1 / (1 + std::exp(-logit)));
  return scores;
}

void check_row(const RouterArgs& args, const Routed& got, const std::vector<float>& logits,
               const std::vector<float>& bias, uint32_t row) {
  const auto first = static_cast<std::ptrdiff_t>(size_t{row} * args.experts);
  const std::vector<float> scores(got.scores.begin() + first, got.scores.begin() + first + args.experts);
  const Doubles exact = reference_scores({logits.begin() + first, logits.begin() + first + args.experts}, args.score);
  for (size_t e = 0; e < exact.size(); ++e)
    CHECK(std::abs(scores[e] - exact[e]) <= 1.01 * kRoundoff * exact[e]);
  std::vector<float> choice = scores;
  for (size_t e = 0; e < bias.size(); ++e)
    choice[e] += bias[e];
  const auto ids = reference_ids(args, choice);
  double sum = 0;
  for (const uint32_t id : ids)
    sum += exact[id];
  for (uint32_t slot = 0; slot < args.top_k; ++slot) {
    CAPTURE(slot);
    const size_t at = size_t{row} * args.top_k + slot;
    CHECK(got.ids[at] == ids[slot]);
    const double weight = exact[ids[slot]] / (args.normalise ? sum + 1e-20 : 1.0) * args.scale;
    // Scores, their sum (top_k roundings), quotient and product.
    CHECK(std::abs(got.weights[at] - weight) <= (args.top_k + 5) * kRoundoff * weight);
  }
}

RouterArgs random_router(Random& random) {
  RouterArgs args;
  args.rows = random.between(1, 4);
  args.groups = random.between(1, 8);
  args.experts = args.groups * random.between(1, 12);
  args.groups_kept = random.between(1, args.groups);
  args.top_k = random.between(1, args.experts / args.groups * args.groups_kept);
  args.score = random.below(2) == 0 ? ScoreFunction::sigmoid : ScoreFunction::softmax;
  args.group_score = random.below(2) == 0 ? GroupScore::top2_sum : GroupScore::max;
  args.normalise = random.below(2) == 0;
  args.scale = random.uniform(0.5F, 3.0F);
  return args;
}

TEST_CASE("route: agrees with sorting everything, with and without bias, groups and ties") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  Random random;
  CAPTURE(random.seed());
  for (int i = 0; i < 300; ++i) {
    const RouterArgs args = random_router(random);
    auto logits = random.normals(size_t{args.rows} * args.experts);
    auto bias = random.below(2) == 0 ? std::vector<float>{} : random.normals(args.experts);
    if (random.below(2) == 0) {  // few different values: ties among experts and among groups
      for (float& logit : logits)
        logit = static_cast<float>(random.below(3));
      for (float& value : bias)
        value = static_cast<float>(random.below(2)) - 1.0F;
    }
    CAPTURE(i);
    CAPTURE(args.experts);
    CAPTURE(args.groups);
    CAPTURE(args.groups_kept);
    CAPTURE(args.top_k);
    Lab lab(kPlainestSet, 1);
    const Routed got = run_route(lab, args, logits, bias);
    for (uint32_t row = 0; row < args.rows; ++row)
      check_row(args, got, logits, bias, row);
  }
}

TEST_CASE("route: the bias chooses and the score weighs") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  Lab lab(kPlainestSet, 1);
  RouterArgs args;
  args.rows = 1;
  args.experts = 4;
  args.top_k = 2;
  args.normalise = false;
  const Routed got = run_route(lab, args, {0, 3, 2, 1}, {10, 0, 0, 0});
  CHECK(got.ids == std::vector<uint32_t>{0, 1});
  CHECK(got.weights[0] == 0.5F);  // sigmoid(0), without the bias
}

TEST_CASE("route: an expert of a dropped group is not chosen, however good, and however negative the others") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  Lab lab(kPlainestSet, 1);
  RouterArgs args;
  args.rows = 1;
  args.experts = 6;
  args.groups = 2;
  args.groups_kept = 1;
  args.top_k = 3;
  // Group 0 has the best expert, group 1 the best pair. Two of group 1's biased scores are negative.
  const Routed got = run_route(lab, args, {9, -9, -9, 1, 1, -9}, {0, -5, -5, 0, 0, -3});
  CHECK(got.ids == std::vector<uint32_t>{3, 4, 5});
}

TEST_CASE("route: NaN gives some experts, all of them different and in range") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  Lab lab(kPlainestSet, 1);
  RouterArgs args;
  args.rows = 1;
  args.experts = 8;
  args.groups = 2;
  args.groups_kept = 1;
  args.top_k = 4;
  for (const ScoreFunction function : {ScoreFunction::sigmoid, ScoreFunction::softmax}) {
    args.score = function;
    auto ids = run_route(lab, args, std::vector<float>(8, std::nanf("")), {}).ids;
    std::ranges::sort(ids);
    CHECK(std::ranges::adjacent_find(ids) == ids.end());
    CHECK(ids.back() < 8);
  }
}

TEST_CASE("route: a row's result does not depend on the others or on threads") {
  SKIP_UNLESS_RUNS(kPlainestSet);
  Random random;
  CAPTURE(random.seed());
  RouterArgs args;
  args.rows = 40;
  args.experts = 256;
  args.groups = 8;
  args.groups_kept = 4;
  args.top_k = 8;
  const auto logits = random.normals(size_t{args.rows} * args.experts);
  const auto bias = random.normals(args.experts);
  Lab together(kPlainestSet, 3);
  const Routed all = run_route(together, args, logits, bias);
  RouterArgs one = args;
  one.rows = 1;
  for (uint32_t row = 0; row < args.rows; ++row) {
    Lab lab(kPlainestSet, 1);
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * args.experts);
    const Routed alone = run_route(lab, one, {first, first + args.experts}, bias);
    CHECK(std::equal(alone.ids.begin(), alone.ids.end(), all.ids.begin() + row * args.top_k));
    CHECK(std::equal(alone.weights.begin(), alone.weights.end(), all.weights.begin() + row * args.top_k));
  }
}

KERNEL_CASE("route: experts by token get the weights of their scores, by the root of softplus") {
  SKIP_UNLESS_SET_RUNS();
  constexpr uint32_t kRows = 3, kExperts = 12, kTopK = 4;
  const std::vector<float> logits = numbers(1, size_t{kRows} * kExperts, 12);
  const std::vector<float> bias = numbers(2, kExperts);
  const std::vector<uint32_t> tokens = {5, 0, 3};
  std::vector<uint32_t> table(6 * kTopK), given;
  for (size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<uint32_t>(i * 5 % kExperts);
  for (const uint32_t token : tokens)
    given.insert(given.end(), table.begin() + token * kTopK, table.begin() + (token + 1) * kTopK);
  for (const bool is_given : {true, false}) {
    CAPTURE(is_given);
    Lab lab(Set::kName);
    const kernels::Slice ids = lab.poisoned(given.size());
    kernels::ExpertsByTokenAt<kernels::SliceOf> by_token;
    if (is_given) by_token = {.experts = lab.put(table), .tokens = lab.put(tokens), .vocabulary = 6};
    const kernels::Slice weights = lab.poisoned(given.size());
    lab.queue().route({.logits = lab.put(logits),
                       .bias = is_given ? kernels::Slice() : lab.put(bias),
                       .ids = ids,
                       .weights = weights,
                       .rows = kRows,
                       .experts = kExperts,
                       .top_k = kTopK,
                       .score = kernels::ScoreFunction::sqrt_softplus,
                       .scale = 1.5F,
                       .by_token = by_token});
    const std::vector<uint32_t> chosen = lab.get<uint32_t>(ids, given.size());
    const std::vector<float> got = lab.get(weights, given.size());
    Doubles wanted;
    for (uint32_t row = 0; row < kRows; ++row) {
      const auto score = [&](uint32_t expert) {
        return std::sqrt(std::log1p(std::exp(static_cast<double>(logits[size_t{row} * kExperts + expert]))));
      };
      std::vector<uint32_t> best(kExperts);
      std::iota(best.begin(), best.end(), 0U);
      std::ranges::stable_sort(best, std::greater(), [&](uint32_t expert) { return score(expert) + bias[expert]; });
      double sum = 0;
      for (uint32_t slot = 0; slot < kTopK; ++slot) {
        const size_t at = size_t{row} * kTopK + slot;
        CHECK(chosen[at] == (is_given ? given[at] : best[slot]));
        sum += score(chosen[at]);
      }
      for (uint32_t slot = 0; slot < kTopK; ++slot)
        wanted.push_back(score(chosen[size_t{row} * kTopK + slot]) / sum * 1.5);
    }
    CHECK(nmse(got, wanted) <= 1e-13);
  }
}

}  // namespace
}  // namespace dspack::test::route_test
