// What dsrun plan prints, for people and for machines.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include "format/json.h"
#include "runtime/cli/plan_verb.h"

namespace dspack::runtime {

[[nodiscard]] std::string to_text(const Outlook& outlook, const PlanOptions& options);
[[nodiscard]] format::Json to_json(const Outlook& outlook, const PlanOptions& options);

}  // namespace dspack::runtime
