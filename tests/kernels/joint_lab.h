// What operations that several neighbours of a layer do together are held to: the bits of the operations alone, on the
// same queue, whatever its precision.
// Threads: as the Lab. Errors: fail the test case.
#pragma once

#include <vector>

#include "tests/kernels/put_experts.h"
#include "tests/support/numeric.h"

namespace dspack::test {

inline constexpr uint32_t kJointGap = 3;  // values between rows

struct Place {
  kernels::Rows rows;
  [[nodiscard]] std::vector<float> values(Lab& lab) const {
    return dense(lab.get(rows.data, size_t{rows.rows} * rows.stride), rows.rows, rows.cols, rows.stride);
  }
};

/// Poison between the rows, and in them unless there are values.
inline Place place(Lab& lab, uint32_t rows, uint32_t cols, const std::vector<float>& values = {}) {
  std::vector<float> stored(size_t{rows} * (cols + kJointGap), poison());
  for (size_t i = 0; i < values.size(); ++i)
    stored[i / cols * (cols + kJointGap) + i % cols] = values[i];
  return {{.data = lab.put(stored), .rows = rows, .cols = cols, .stride = cols + kJointGap}};
}

inline void check_products(Lab& lab, const std::vector<WeightCase>& shapes, uint32_t rows, Random& random) {
  CAPTURE(shapes.front());
  CAPTURE(rows);
  const Place x = place(lab, rows, shapes.front().in, random.normals(size_t{rows} * shapes.front().in));
  std::vector<kernels::Product> products;
  std::vector<Place> together;
  for (const WeightCase& shape : shapes) {
    together.push_back(place(lab, rows, shape.out));
    products.push_back({.weight = random_weight(shape, random).put(lab), .y = together.back().rows});
  }
  lab.queue().linear_each(products, x.rows);
  for (size_t i = 0; i < products.size(); ++i) {
    const Place alone = place(lab, rows, shapes[i].out);
    lab.queue().linear(products[i].weight, x.rows, alone.rows);
    CHECK(first_difference(together[i].values(lab), alone.values(lab)) == size_t{rows} * shapes[i].out);
    // And added to what is there.
    const auto before = random.normals(size_t{rows} * shapes[i].out);
    const Place sum = place(lab, rows, shapes[i].out, before);
    const Place scratch = place(lab, rows, shapes[i].out);
    const Place wanted = place(lab, rows, shapes[i].out, before);
    lab.queue().add_linear(products[i].weight, x.rows, sum.rows, scratch.rows);
    lab.queue().add(wanted.rows, alone.rows);
    CHECK(first_difference(sum.values(lab), wanted.values(lab)) == size_t{rows} * shapes[i].out);
  }
}

/// A gated MLP with places of its own.
struct PutMlp {
  PutMlp(Lab& lab, Dtype dtype, const kernels::Rows& x, uint32_t inner, uint32_t block, Random& random) {
    const auto put = [&](uint32_t out, uint32_t in) {
      return random_weight({dtype, out, in, block, block}, random).put(lab);
    };
    args = {.weights = {.gate = put(inner, x.cols), .up = put(inner, x.cols), .down = put(x.cols, inner), .limit = 1},
            .x = x,
            .inner = place(lab, x.rows, inner).rows,
            .scratch = place(lab, x.rows, inner).rows,
            .y = place(lab, x.rows, x.cols).rows};
  }
  /// In other places, step by step.
  Place run(Lab& lab) const {
    const Place gate = place(lab, args.x.rows, args.inner.cols);
    const Place up = place(lab, args.x.rows, args.inner.cols);
    Place y = place(lab, args.x.rows, args.x.cols);
    lab.queue().linear(args.weights.gate, args.x, gate.rows);
    lab.queue().linear(args.weights.up, args.x, up.rows);
    lab.queue().silu_multiply(gate.rows, up.rows, args.weights.limit);
    lab.queue().linear(args.weights.down, gate.rows, y.rows);
    return y;
  }
  kernels::MlpArgs args;
};

struct SharedCase {
  PartsCase experts;
  Dtype dtype;     // of the shared expert
  uint32_t inner;  // of it; 0: there is none
};

inline void check_block(Lab& lab, const SharedCase& c, Random& random) {
  CAPTURE(to_string(c.experts.dtype));
  CAPTURE(c.experts.tokens);
  CAPTURE(c.inner);
  const uint32_t tokens = c.experts.tokens;
  const uint32_t hidden = c.experts.hidden;
  const PutExperts experts(lab, c.experts, random);
  const kernels::ExpertsArgs args = experts.args(lab);
  const auto before = random.normals(size_t{tokens} * hidden);
  const Place residual = place(lab, tokens, hidden, before);
  const Place wanted = place(lab, tokens, hidden, before);
  const Place sum = place(lab, tokens, hidden, experts.at_once(lab));
  if (c.inner == 0) {
    lab.queue().add_moe({.experts = args, .residual = residual.rows});
  } else {
    const PutMlp shared(lab, c.dtype, experts.x, c.inner, c.dtype == Dtype::f8_e4m3 ? c.experts.block : 0, random);
    lab.queue().add_moe({.experts = args, .shared = &shared.args, .residual = residual.rows});
    lab.queue().add(sum.rows, shared.run(lab).rows);
  }
  lab.queue().add(wanted.rows, sum.rows);
  CHECK(first_difference(residual.values(lab), wanted.values(lab)) == size_t{tokens} * hidden);
}

/// run_mlp and add_mlp.
inline void check_mlp(Lab& lab, Dtype dtype, uint32_t rows, Random& random) {
  CAPTURE(to_string(dtype));
  CAPTURE(rows);
  const Place x = place(lab, rows, 272, random.normals(size_t{rows} * 272));
  const PutMlp mlp(lab, dtype, x.rows, 144, dtype == Dtype::f8_e4m3 ? 128 : 0, random);
  const auto before = random.normals(size_t{rows} * 272);
  const Place residual = place(lab, rows, 272, before);
  const Place wanted = place(lab, rows, 272, before);
  const Place alone = mlp.run(lab);
  lab.queue().add(wanted.rows, alone.rows);
  lab.queue().run_mlp(mlp.args);
  CHECK(Place{mlp.args.y}.values(lab) == alone.values(lab));
  lab.queue().add_mlp(mlp.args, residual.rows);
  CHECK(residual.values(lab) == wanted.values(lab));
}

/// rms_norm_for, and products that take what it has made.
inline void check_norm(Lab& lab, const std::vector<WeightCase>& readers, uint32_t rows, Random& random) {
  CAPTURE(readers.front());
  CAPTURE(rows);
  const uint32_t cols = readers.front().in;
  const kernels::Slice gain = lab.put(random.normals(cols));
  const Place x = place(lab, rows, cols, random.normals(size_t{rows} * cols));
  std::vector<kernels::Weight> weights;
  for (const WeightCase& reader : readers)
    weights.push_back(random_weight(reader, random).put(lab));
  const auto products = [&](const Place& normalised) {
    std::vector<std::vector<float>> all = {normalised.values(lab)};
    for (const kernels::Weight& weight : weights) {
      const Place y = place(lab, rows, weight.out);
      lab.queue().linear(weight, normalised.rows, y.rows);
      all.push_back(y.values(lab));
    }
    return all;
  };
  const Place together = place(lab, rows, cols);
  const Place alone = place(lab, rows, cols);
  lab.queue().rms_norm_for(weights, x.rows, gain, 1e-6F, together.rows);
  const auto got = products(together);
  lab.queue().rms_norm(x.rows, gain, 1e-6F, alone.rows);
  CHECK(got == products(alone));
}

}  // namespace dspack::test
