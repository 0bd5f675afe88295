// The eviction policies that a replay compares: those of a run, and others that measured worse than the default
// (docs/performance.md) and are kept for comparison.
// Threads: thread-safe. Errors: none.
#pragma once

#include "runtime/experts/policy/policy_catalogue.h"

namespace dspack::runtime {

/// LRU first.
[[nodiscard]] std::span<const NamedPolicy> replay_policies();

}  // namespace dspack::runtime
