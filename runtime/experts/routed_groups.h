// Groups the tokens of a wave by the experts that they are routed to.
// Threads: pure. Lifetime: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/experts/expert_store.h"

namespace dspack::runtime {

/// The assignments of one expert within a wave.
struct RoutedGroup {
  ExpertDemand demand;
  std::vector<uint32_t> parts;  // token * top_k + slot, ascending
};

/// Groups by expert, ascending, so that files are read in their usual order. `chosen`: [tokens, top_k]; `first_row`:
/// the wave's first row in its pass.
[[nodiscard]] std::vector<RoutedGroup> group_by_expert(std::span<const uint32_t> chosen, uint32_t top_k,
                                                       uint32_t first_row);

}  // namespace dspack::runtime
