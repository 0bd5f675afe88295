// The command line of `dsrun replay`, and the options of runs that concern policies and traces.
// Threads: plain values. Errors: a command line that cannot be understood becomes an Exit with status 2.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/base/result.h"
#include "runtime/budget/memory_options.h"
#include "runtime/generate/loaded_model.h"

namespace CLI {
class App;
}  // namespace CLI

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

/// dsrun replay TRACE
struct ReplayOptions {
  std::string trace;
  std::vector<SlotCount> slots;
  std::string policy;  // empty: all
  uint64_t seed = 1;
  bool json = false;
};

/// --policy and --trace. `load` must live until the command line was parsed.
void add_policy_options(CLI::App& app, LoadOptions& load);

}  // namespace dspack::runtime
