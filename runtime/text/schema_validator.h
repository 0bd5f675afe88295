// Whether a value is of a JSON schema: all that its keywords say, and formats as string_formats.h reads them. Answers
// are checked so when they have ended, since a grammar holds them to a part of it alone (schema_grammar.h).
//
// Numbers are decimals: 1.0 is 1, and whole; nothing is rounded, and what is compared has kMostDigits digits at most.
// Threads: single-thread. Lifetime: views the schema. Errors: budget (more steps than a check may take; a value nested
// too deep), unsupported or invalid (a pattern, a number of too many digits).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/text/json_schema.h"
#include "runtime/text/value_pattern.h"

namespace dspack::runtime {

class SchemaValidator {
 public:
  explicit SchemaValidator(const JsonSchema& schema) : schema_(schema) {}

  /// What is wrong with a value, and where in it; nullopt: it is of the schema.
  [[nodiscard]] Result<std::optional<std::string>> fault(const OrderedJson& value);
  /// Whether it is of a schema within the schema.
  [[nodiscard]] Result<bool> is_of(const OrderedJson& value, const OrderedJson& schema);
  /// Whether a pattern is found in a text.
  [[nodiscard]] Result<bool> has_pattern(std::string_view text, const std::string& pattern,
                                         uint32_t most_steps = ValuePattern::kMostSteps);

 private:
  class Check;
  const JsonSchema& schema_;
  std::map<std::string, ValuePattern> patterns_;
};

/// What is wrong with a text that is to be JSON of a schema; nullopt: nothing. Errors are among it: what could not be
/// checked is not passed off.
[[nodiscard]] std::optional<std::string> schema_fault(std::string_view text, const OrderedJson& schema);

}  // namespace dspack::runtime
