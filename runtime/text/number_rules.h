// Grammar rules for numbers that several schemas describe together: within their bounds, and multiples if whole.
// Threads: single-thread. Errors: those of json_number.
#pragma once

#include <optional>
#include <string>

#include "format/base/result.h"
#include "runtime/text/grammar_rules.h"
#include "runtime/text/schema_cases.h"

namespace dspack::runtime {

/// nullopt: no number fits all schemas. If a grammar for the multiples would be too large, the rule accepts all numbers
/// within the bounds.
[[nodiscard]] Result<std::optional<std::string>> number_rule(GrammarRules& rules, const SchemaList& all,
                                                             bool are_whole);

}  // namespace dspack::runtime
