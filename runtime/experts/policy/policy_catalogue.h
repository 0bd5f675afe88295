// The eviction policies of a run, by name. Others, which measured worse, can be replayed (replay_policies.h).
// Threads: thread-safe. Errors: invalid (an unknown name; the text lists the known ones).
#pragma once

#include <span>
#include <string_view>

#include "format/base/result.h"
#include "runtime/experts/eviction_policy.h"

namespace dspack::runtime {

struct NamedPolicy {
  std::string_view name;
  std::string_view about;  // for a table or a help text
  std::unique_ptr<EvictionPolicy> (*make)(uint64_t slots, uint64_t seed);
};

inline constexpr std::string_view kDefaultPolicy = "reuse";

/// LRU first.
[[nodiscard]] std::span<const NamedPolicy> eviction_policies();
[[nodiscard]] Result<PolicyFactory> find_policy(std::string_view name);

}  // namespace dspack::runtime
