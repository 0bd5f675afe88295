// Random experts on a device, tokens, and their routes, for tests through the operations of ops.h.
// Threads: as the Lab. Lifetime: borrows the Lab's memory. Errors: fail the test case.
#pragma once

#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/kernels/lab.h"
#include "tests/kernels/weights.h"

namespace dspack::test {

struct PartsCase {
  Dtype dtype;
  uint32_t experts, hidden, inner, block, top_k, tokens;
  std::optional<PackedCodes> packed = std::nullopt;
};

/// Experts on the device, tokens and their routes.
struct PutExperts {
  PutExperts(Lab& lab, const PartsCase& c, Random& random) : shape(c) {
    std::vector<kernels::ExpertMatrices> matrices;
    const auto put = [&](uint32_t out, uint32_t in) {
      return random_weight({c.dtype, out, in, c.packed ? 1 : c.block, c.block, c.packed}, random).put(lab);
    };
    for (uint32_t i = 0; i < c.experts; ++i)
      matrices.push_back(
          {.gate = put(c.inner, c.hidden), .up = put(c.inner, c.hidden), .down = put(c.hidden, c.inner), .limit = 1});
    auto made = lab.device().make_expert_table(matrices);
    REQUIRE(made);
    table = std::move(*made);
    std::vector<uint32_t> order(c.experts);
    std::iota(order.begin(), order.end(), 0U);
    for (uint32_t token = 0; token < c.tokens; ++token) {
      std::vector<uint32_t> left = order;
      for (uint32_t slot = 0; slot < c.top_k; ++slot) {
        const uint32_t at = random.below(static_cast<uint32_t>(left.size()));
        ids.push_back(left[at]);
        left.erase(left.begin() + at);
      }
    }
    x = {.data = lab.put(random.normals(size_t{c.tokens} * c.hidden)),
         .rows = c.tokens,
         .cols = c.hidden,
         .stride = c.hidden};
    std::vector<float> mixed;
    for (size_t i = 0; i < ids.size(); ++i)
      mixed.push_back(random.uniform(0.05F, 1.0F));
    weights = lab.put(mixed);
    for (const bool parts_only : {false, true}) {
      auto allocated = lab.device().allocate(lab.device().experts_scratch_bytes({.hidden = c.hidden,
                                                                                 .inner = c.inner,
                                                                                 .experts = c.experts,
                                                                                 .top_k = c.top_k,
                                                                                 .rows = c.tokens,
                                                                                 .parts_only = parts_only}));
      REQUIRE(allocated);
      (parts_only ? parts_scratch : scratch) = std::move(*allocated);
    }
  }

  /// All of the experts, into poisoned rows.
  kernels::ExpertsArgs args(Lab& lab) const {
    return {.table = table.get(),
            .x = x,
            .ids = lab.put(ids),
            .weights = weights,
            .top_k = shape.top_k,
            .scratch = {.buffer = scratch.get(), .offset_bytes = 0},
            .y = {.data = lab.poisoned(size_t{shape.tokens} * shape.hidden),
                  .rows = shape.tokens,
                  .cols = shape.hidden,
                  .stride = shape.hidden}};
  }
  std::vector<float> at_once(Lab& lab) const {
    const kernels::ExpertsArgs all = args(lab);
    lab.queue().run_experts(all);
    return lab.get(all.y.data, size_t{shape.tokens} * shape.hidden);
  }

  PartsCase shape;
  std::unique_ptr<kernels::ExpertTable> table;
  std::vector<uint32_t> ids;
  kernels::Rows x;
  kernels::Slice weights;
  std::unique_ptr<kernels::Buffer> scratch;
  std::unique_ptr<kernels::Buffer> parts_scratch;  // for run_expert_parts alone
};

}  // namespace dspack::test
