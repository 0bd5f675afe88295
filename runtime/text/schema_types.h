// What several schemas together say of a value's type, and the tightest of their bounds.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/text/schema_cases.h"

namespace dspack::runtime {

/// Types as bits. A number is whole or not; "integer" is a number that is whole.
using Types = uint32_t;
inline constexpr Types kNull = 1, kBoolean = 2, kString = 4, kArray = 8, kObject = 16, kWhole = 32, kFraction = 64;
inline constexpr Types kAnyType = 127;

/// Those of which a value of all the schemas can be; where none names any, those of their keywords.
[[nodiscard]] Types types_of(const SchemaList& all);
/// Whether one of them has a keyword for values of some type.
[[nodiscard]] bool has_typed_keywords(const SchemaList& all);
/// The tightest of a keyword's numbers in all the schemas.
[[nodiscard]] std::optional<uint64_t> bound_of(const SchemaList& all, const char* keyword, bool is_least);

}  // namespace dspack::runtime
