// Results of every policy, and of the optimum, on recorded routes; as values, as a table, as JSON.
// Threads: thread-safe (pure functions). Errors: none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/json.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/replay/simulate.h"

namespace dspack::runtime {

struct PolicyOutcome {
  std::string name;
  ReplayResult result;
  /// The share of LRU's excess misses over the optimum that this policy avoids: 0 is LRU, 1 the optimum, below 0 is
  /// worse than LRU. Over all misses, including prompts'. Absent: LRU is the optimum.
  std::optional<double> gap_closed;
};

/// The outcomes for one number of slots.
struct ReplayReport {
  uint64_t slots = 0;
  std::vector<PolicyOutcome> outcomes;  // the policies in the order requested, then "optimum"
};

/// `policies` need not contain LRU. Precondition: slots >= 1. Takes a second per policy and some 100,000 uses.
[[nodiscard]] ReplayReport replay(const Workload& workload, uint64_t slots, std::span<const NamedPolicy> policies);

/// Describes the trace in one line, without a line end. It contains the trace's own text: not safe for a terminal as it
/// is.
[[nodiscard]] std::string describe(const Workload& workload);
[[nodiscard]] std::string to_table(const Workload& workload, const ReplayReport& report);
/// All reports: docs/traces.md lists the fields.
[[nodiscard]] format::Json to_json(const Workload& workload, std::span<const ReplayReport> reports);

}  // namespace dspack::runtime
