// Random experts, routings, and what they should give, with bounds; shared by the tests of exact and rounded products.
// Threads: pure functions. Lifetime: a PutExperts borrows its GpuLab.
#pragma once

#include <algorithm>

#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/weights.h"
#include "tests/support/numeric.h"

namespace dspack::test {

struct ExpertsCase {
  Dtype dtype = Dtype::f8_e4m3;
  uint32_t experts = 0;
  uint32_t hidden = 0;
  uint32_t inner = 0;
  uint32_t block_out = 0;
  uint32_t block_in = 0;
  uint32_t top_k = 1;
  bool misplaced = false;  // weights begin between multiples of 16 bytes
  std::optional<PackedCodes> packed = std::nullopt;
  float limit = 1;  // of gated values: many are greater
};

inline std::ostream& operator<<(std::ostream& out, const ExpertsCase& c) {
  const WeightCase shape{c.dtype, c.inner, c.hidden, c.block_out, c.block_in, c.packed};
  return out << c.experts << " experts " << kernels::facts_of(form_of(shape).coding).name << " [" << c.inner << ", "
             << c.hidden << "] blocks " << c.block_out << " x " << c.block_in << ", top " << c.top_k
             << (c.misplaced ? ", misplaced" : "");
}

struct RandomExpert {
  RandomWeight gate, up, down;
};

inline std::vector<RandomExpert> random_experts(const ExpertsCase& c, Random& random) {
  std::vector<RandomExpert> experts;
  for (uint32_t i = 0; i < c.experts; ++i) {
    experts.push_back({random_weight({c.dtype, c.inner, c.hidden, c.block_out, c.block_in, c.packed}, random),
                       random_weight({c.dtype, c.inner, c.hidden, c.block_out, c.block_in, c.packed}, random),
                       random_weight({c.dtype, c.hidden, c.inner, c.block_out, c.block_in, c.packed}, random)});
  }
  return experts;
}

/// Tokens and where they go.
struct Routing {
  uint32_t tokens = 0;
  std::vector<float> x;        // [tokens, hidden]
  std::vector<uint32_t> ids;   // [tokens, top_k]
  std::vector<float> weights;  // [tokens, top_k]
};

inline Routing random_routing(const ExpertsCase& c, uint32_t tokens, Random& random) {
  Routing routing{.tokens = tokens, .x = random.normals(size_t{tokens} * c.hidden), .ids = {}, .weights = {}};
  for (uint32_t i = 0; i < tokens * c.top_k; ++i) {
    routing.ids.push_back(random.below(c.experts));
    routing.weights.push_back(random.uniform(0.05F, 1.0F));
  }
  return routing;
}

inline Routing part_of(const Routing& routing, const ExpertsCase& c, uint32_t token) {
  const auto cut = [&](const auto& values, size_t width) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(token * width);
    return std::remove_cvref_t<decltype(values)>(first, first + static_cast<std::ptrdiff_t>(width));
  };
  return {1, cut(routing.x, c.hidden), cut(routing.ids, c.top_k), cut(routing.weights, c.top_k)};
}

/// A task on the device but for x, ids, weights, y and scratch.
inline kernels::cuda::ExpertsTask put_experts(GpuLab& lab, const ExpertsCase& c,
                                              const std::vector<RandomExpert>& experts) {
  std::vector<kernels::cuda::ExpertEntry> table;
  const size_t offset = c.misplaced ? bytes_of(c.dtype, 1) : 0;
  const auto put = [&](const RandomWeight& weight, const void*(&planes)[kernels::kPlanes]) {
    planes[kernels::kCodes] = lab.put(weight.bytes, offset);
    weight.put_planes(planes, [&](const auto& values) { return lab.put(values); });
  };
  for (const RandomExpert& expert : experts) {
    kernels::cuda::ExpertEntry& entry = table.emplace_back();
    put(expert.gate, entry.gate);
    put(expert.up, entry.up);
    put(expert.down, entry.down);
  }
  const auto form = [&](uint32_t out, uint32_t in) {
    return kernels::cuda::MatrixForm{form_of(WeightCase{c.dtype, out, in, c.block_out, c.block_in, c.packed}),
                                     !c.misplaced};
  };
  kernels::cuda::ExpertsTask task;
  task.table = lab.put(table);
  task.form = {.gate_up = form(c.inner, c.hidden), .down = form(c.hidden, c.inner), .limit = c.limit};
  task.experts = c.experts;
  task.top_k = c.top_k;
  return task;
}

/// Runs `operation` (run_experts or run_experts_tensor) with poisoned scratch and outputs and gaps between rows; few
/// tokens in one launch, unless the operation takes the counters away.
template <class Operation>
std::vector<float> run_on(GpuLab& lab, kernels::cuda::ExpertsTask task, const Routing& routing, Operation operation) {
  constexpr uint32_t kGap = 3;
  const uint32_t hidden = task.form.gate_up.in;
  const uint32_t stride = hidden + kGap;
  std::vector<float> x(size_t{routing.tokens} * stride, poison());
  for (size_t i = 0; i < routing.x.size(); ++i)
    x[i / hidden * stride + i % hidden] = routing.x[i];
  const uint64_t scratch_bytes = kernels::cuda::experts_scratch_bytes({.hidden = hidden,
                                                                       .inner = task.form.gate_up.out,
                                                                       .experts = task.experts,
                                                                       .top_k = task.top_k,
                                                                       .rows = routing.tokens},
                                                                      kernels::Precision::fp8);
  float* y = lab.poisoned(x.size());
  task.x = {.data = lab.put(x), .stride = stride};
  task.ids = lab.put(routing.ids);
  task.weights = lab.put(routing.weights);
  task.tokens = routing.tokens;
  task.scratch = lab.put(std::vector<uint8_t>(scratch_bytes, 0xff));
  task.y = {.data = y, .stride = stride};
  task.counters = lab.put(std::vector<uint32_t>(kernels::cuda::kFusedCounters, 0));
  operation(lab.stream(), task);
  const auto counters = lab.get(task.counters, kernels::cuda::kFusedCounters);
  CHECK(std::ranges::count(counters, 0U) == kernels::cuda::kFusedCounters);
  return dense(lab.get(y, x.size()), routing.tokens, hidden, stride);
}

/// Values with bounds of their errors.
struct Bounded {
  Doubles values;
  Doubles bounds;
};

/// `steps`: roundings on the way of one term into a dot product over `in` values.
template <class Steps>
Bounded multiply(const Matrix& matrix, const Bounded& x, Steps steps) {
  Bounded y;
  for (uint32_t o = 0; o < matrix.out; ++o) {
    double value = 0;
    double magnitude = 0;
    double inherited = 0;
    for (uint32_t i = 0; i < matrix.in; ++i) {
      const double weight = matrix.at(o, i);
      value += weight * x.values[i];
      magnitude += std::abs(weight) * (std::abs(x.values[i]) + x.bounds[i]);
      inherited += std::abs(weight) * x.bounds[i];
    }
    y.values.push_back(value);
    y.bounds.push_back(1.001 * steps(matrix.in) * kRoundoff * magnitude + inherited + 1e-40);
  }
  return y;
}

/// silu(gate) * up, both limited, which increases no error; the derivative of silu is at most 1.1 in magnitude, its own
/// roundings are bounded in elementwise_test.cpp.
inline Bounded activate(const Bounded& gate, const Bounded& up, double limit) {
  Bounded y;
  for (size_t i = 0; i < gate.values.size(); ++i) {
    const double left = silu(std::min(gate.values[i], limit));
    const double right = std::clamp(up.values[i], -limit, limit);
    const double left_error = 1.1 * gate.bounds[i];
    const double value = left * right;
    const double error = left_error * std::abs(right) + (std::abs(left) + left_error) * up.bounds[i];
    y.values.push_back(value);
    y.bounds.push_back(error + 6 * kRoundoff * (std::abs(value) + error) + 1e-36);
  }
  return y;
}

/// What a call should give. `round`: what becomes of the inputs of a product, a Bounded.
template <class Steps, class Round>
Bounded expected(const ExpertsCase& c, const std::vector<RandomExpert>& experts, const Routing& routing, Steps steps,
                 Round round) {
  Bounded all;
  for (uint32_t token = 0; token < routing.tokens; ++token) {
    const Routing one = part_of(routing, c, token);
    const Bounded x = round(Bounded{Doubles(one.x.begin(), one.x.end()), Doubles(c.hidden, 0.0)});
    std::vector<Sum> sums(c.hidden);
    Doubles errors(c.hidden, 0.0);
    for (uint32_t slot = 0; slot < c.top_k; ++slot) {
      const RandomExpert& expert = experts[one.ids[slot]];
      const Bounded inner =
          round(activate(multiply(expert.gate.matrix, x, steps), multiply(expert.up.matrix, x, steps), c.limit));
      const Bounded part = multiply(expert.down.matrix, inner, steps);
      for (uint32_t i = 0; i < c.hidden; ++i) {
        sums[i].add(one.weights[slot] * part.values[i]);
        errors[i] += std::abs(one.weights[slot]) * part.bounds[i];
      }
    }
    for (uint32_t i = 0; i < c.hidden; ++i) {
      all.values.push_back(sums[i].value);
      all.bounds.push_back(errors[i] + 1.001 * c.top_k * kRoundoff * (sums[i].magnitude + errors[i]));
    }
  }
  return all;
}

}  // namespace dspack::test
