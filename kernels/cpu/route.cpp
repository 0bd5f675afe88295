// DeepSeek-V3 inference/model.py, class Gate; the 1e-20 is from the Hub's modeling_deepseek.py.
#include "kernels/cpu/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "format/base/check.h"

namespace dspack::kernels {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

// In double precision and rounded once: a choice between two experts must not depend on how a library rounds exp.
void apply_sigmoid(std::span<float> scores) {
  for (float& score : scores)
    score = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(score))));
}

void apply_softmax(std::span<float> scores) {
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores)
    sum += std::exp(score - largest);
  for (float& score : scores)
    score = static_cast<float>(std::exp(score - largest) / sum);
}

/// As torch's softplus, which is the identity above 20 (DeepSeek-V4 inference/model.py, class Gate).
void apply_sqrt_softplus(std::span<float> scores) {
  for (float& score : scores) {
    const double x = score;
    score = static_cast<float>(std::sqrt(x > 20 ? x : std::log1p(std::exp(x))));
  }
}

/// The index of the largest value not yet taken, the lowest among equals. NaN never compares larger, so for any values
/// the result is an index in range that was not taken.
uint32_t best_index(std::span<const float> values, const std::vector<bool>& taken) {
  uint32_t best = std::numeric_limits<uint32_t>::max();
  for (uint32_t i = 0; i < values.size(); ++i) {
    if (taken[i]) continue;
    if (best >= values.size() || values[i] > values[best]) best = i;
  }
  return best;
}

float score_of_group(std::span<const float> group, GroupScore how) {
  float first = kExcluded;
  float second = kExcluded;
  for (const float score : group) {
    second = std::max(second, std::min(first, score));
    first = std::max(first, score);
  }
  return how == GroupScore::top2_sum && group.size() > 1 ? first + second : first;
}

/// One flag per expert: true if its group is not among the best.
std::vector<bool> excluded_experts(const RouteTask& task, std::span<const float> choice) {
  std::vector<bool> excluded(choice.size(), false);
  if (task.groups_kept == task.groups) return excluded;
  const size_t group_size = choice.size() / task.groups;
  std::vector<float> group_scores(task.groups);
  for (size_t g = 0; g < task.groups; ++g) {
    group_scores[g] = score_of_group(choice.subspan(g * group_size, group_size), task.group_score);
  }
  std::vector<bool> kept(task.groups, false);
  for (uint32_t n = 0; n < task.groups_kept; ++n)
    kept[best_index(group_scores, kept)] = true;
  for (size_t expert = 0; expert < choice.size(); ++expert)
    excluded[expert] = !kept[expert / group_size];
  return excluded;
}

void choose_experts(const RouteTask& task, std::span<const float> scores, std::span<const float> bias,
                    std::span<uint32_t> ids) {
  std::vector<float> choice(scores.begin(), scores.end());
  for (size_t expert = 0; expert < bias.size(); ++expert)
    choice[expert] += bias[expert];
  std::vector<bool> taken = excluded_experts(task, choice);
  for (uint32_t& id : ids) {
    id = best_index(choice, taken);
    taken[id] = true;
  }
}

}  // namespace

void route_row(const RouteTask& task, uint32_t row) {
  const std::span<float> scores(task.logits + uint64_t{row} * task.experts, task.experts);
  const std::span<float> weights(task.weights + uint64_t{row} * task.top_k, task.top_k);
  const std::span<uint32_t> ids(task.ids + uint64_t{row} * task.top_k, task.top_k);
  switch (task.score) {
    case ScoreFunction::sigmoid: apply_sigmoid(scores); break;
    case ScoreFunction::softmax: apply_softmax(scores); break;
    case ScoreFunction::sqrt_softplus: apply_sqrt_softplus(scores); break;
  }
  if (task.by_token.empty()) {
    choose_experts(task, scores, {task.bias, task.bias == nullptr ? 0 : task.experts}, ids);
  } else {
    const uint32_t token = task.by_token.tokens[row];
    DSPACK_CHECK(token < task.by_token.vocabulary, "a token outside the vocabulary");
    std::copy_n(task.by_token.experts + uint64_t{token} * task.top_k, task.top_k, ids.begin());
  }
  float sum = 0;
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    DSPACK_CHECK(ids[slot] < scores.size(), "an expert that there is not");
    weights[slot] = scores[ids[slot]];
    sum += weights[slot];
  }
  for (float& weight : weights)
    weight = (task.normalise ? weight / (sum + 1e-20F) : weight) * task.scale;
}

}  // namespace dspack::kernels
