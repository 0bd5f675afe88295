// The keywords of JSON Schema and their treatment, used by the reader of schemas, the grammar and docs/serve.md. An
// unlisted keyword is a remark.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace dspack::runtime {

/// Types of values as bits. A number is whole or a fraction; "integer" is a whole number.
using Types = uint32_t;
inline constexpr Types kNull = 1, kBoolean = 2, kString = 4, kArray = 8, kObject = 16, kWhole = 32, kFraction = 64;
inline constexpr Types kNumber = kWhole | kFraction;
inline constexpr Types kAnyType = 127;

struct SchemaKeyword {
  enum class Treatment {
    held,     // enforced: no token that violates it is chosen
    checked,  // the finished answer is checked, and a fault reported
    remark,   // does not constrain values
    refused,
  };
  std::string_view name;
  Types types = 0;  // types of values that it applies to; 0: all
  Treatment treatment = Treatment::held;
  std::string_view text = {};  // details for users
};

[[nodiscard]] std::span<const SchemaKeyword> schema_keywords();
[[nodiscard]] std::string_view to_string(SchemaKeyword::Treatment treatment);

}  // namespace dspack::runtime
