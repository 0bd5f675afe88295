// Checks whether a value satisfies a JSON schema: all its keywords, and formats as in string_formats.h. Answers are
// checked when they have ended, since a grammar enforces only a part of the schema (schema_grammar.h).
//
// Numbers are decimals: 1.0 is 1, and whole; nothing is rounded, and compared numbers have at most kMaxDigits digits.
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

  /// The fault of a value and its place; nullopt: the value satisfies the schema.
  [[nodiscard]] Result<std::optional<std::string>> fault(const OrderedJson& value);
  /// Whether a value satisfies a schema within the schema.
  [[nodiscard]] Result<bool> is_of(const OrderedJson& value, const OrderedJson& schema);
  /// Whether a pattern matches anywhere in a text.
  [[nodiscard]] Result<bool> has_pattern(std::string_view text, const std::string& pattern,
                                         uint32_t most_steps = ValuePattern::kMaxSteps);

 private:
  class Check;
  const JsonSchema& schema_;
  std::map<std::string, ValuePattern> patterns_;
};

/// The fault of a text that must be JSON of a schema; nullopt: none. Errors count as faults: a value that cannot be
/// checked is not accepted.
[[nodiscard]] std::optional<std::string> schema_fault(std::string_view text, const OrderedJson& schema);

}  // namespace dspack::runtime
