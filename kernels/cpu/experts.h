// The routed experts of a layer on the CPU: tokens are grouped by expert, so that each expert is multiplied once for
// all of its tokens; results are summed in the router's order.
// Threads: one call per queue at a time. Lifetime: a table borrows the experts' buffers; scratch is borrowed for the
// call. Errors: none; shapes have been checked.
#pragma once

#include <vector>

#include "kernels/cpu/products.h"
#include "kernels/ops.h"

namespace dspack::kernels {

class CpuExpertTable final : public ExpertTable {
 public:
  explicit CpuExpertTable(std::span<const ExpertMatrices> experts) : experts_(experts.begin(), experts.end()) {}
  [[nodiscard]] uint32_t size() const override { return static_cast<uint32_t>(experts_.size()); }
  [[nodiscard]] const ExpertMatrices& operator[](uint32_t expert) const { return experts_[expert]; }
  [[nodiscard]] std::span<const ExpertMatrices> all() const { return experts_; }

 private:
  std::vector<ExpertMatrices> experts_;
};

[[nodiscard]] uint64_t grouped_experts_scratch_bytes(const ExpertsShape& shape);

/// Uses other operations of `queue`. `ids`: args.ids, readable by the host.
void run_experts_grouped(Queue& queue, Products& products, const CpuExpertTable& table, std::span<const uint32_t> ids,
                         const ExpertsArgs& args);
/// Same for single experts, without the sum. `experts`: all experts of the table, or args.experts.
void run_grouped_parts(Queue& queue, Products& products, std::span<const ExpertMatrices> experts,
                       const ExpertPartsArgs& args);

}  // namespace dspack::kernels
