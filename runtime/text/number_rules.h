// Numbers of several schemas together as rules of a grammar: within their bounds, and of whole ones the multiples.
// Threads: single-thread. Errors: those of json_number.
#pragma once

#include <optional>
#include <string>

#include "format/base/result.h"
#include "runtime/text/grammar_rules.h"
#include "runtime/text/schema_cases.h"

namespace dspack::runtime {

/// nullopt: no number is of all of them. Where no grammar of a bearable size has the multiples alone, it has all
/// numbers within the bounds.
[[nodiscard]] Result<std::optional<std::string>> number_rule(GrammarRules& rules, const SchemaList& all,
                                                             bool are_whole);

}  // namespace dspack::runtime
