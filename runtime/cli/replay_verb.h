// dsrun replay TRACE: recorded routes through every eviction policy.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/budget/memory_options.h"

namespace dspack::runtime {

/// A number of slots: as such, as a share of all experts, or as memory.
struct SlotCount {
  Amount amount;
  bool is_memory = false;  // bytes, not experts

  /// "1856", "12.5%", "64GB". Errors: invalid.
  [[nodiscard]] static Result<SlotCount> parse(std::string_view text);
  /// At least 1. `expert_bytes` is what a slot takes.
  [[nodiscard]] uint64_t slots(uint64_t experts, uint64_t expert_bytes) const;
};

struct ReplayOptions {
  std::string trace;
  std::vector<SlotCount> slots;
  std::string policy;  // empty: all
  uint64_t seed = 1;
  bool json = false;
};

}  // namespace dspack::runtime
