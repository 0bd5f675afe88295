// The keywords of JSON Schema, and what becomes of each: the reading of schemas, the grammar and docs/serve.md have it
// from here. A keyword that is in no line is a remark. Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace dspack::runtime {

/// Types of values as bits. A number is whole or not; "integer" is a number that is whole.
using Types = uint32_t;
inline constexpr Types kNull = 1, kBoolean = 2, kString = 4, kArray = 8, kObject = 16, kWhole = 32, kFraction = 64;
inline constexpr Types kNumber = kWhole | kFraction;
inline constexpr Types kAnyType = 127;

struct SchemaKeyword {
  enum class Treatment {
    held,     // no token is chosen that breaks it
    checked,  // the finished answer is looked at, and a fault is told
    remark,   // says nothing of values
    refused,
  };
  std::string_view name;
  Types types = 0;  // of which values it speaks; 0: of all
  Treatment treatment = Treatment::held;
  std::string_view text = {};  // what else is to be known
};

[[nodiscard]] std::span<const SchemaKeyword> schema_keywords();
[[nodiscard]] std::string_view to_string(SchemaKeyword::Treatment treatment);

}  // namespace dspack::runtime
