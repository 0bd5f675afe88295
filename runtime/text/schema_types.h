// The types that several schemas together allow a value, and the tightest of their bounds.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/text/schema_cases.h"
#include "runtime/text/schema_keywords.h"

namespace dspack::runtime {

/// The types that a value of all the schemas can have; if no schema names a type, the types of their keywords.
[[nodiscard]] Types types_of(const SchemaList& all);
/// Whether one of them has a keyword for values of a certain type.
[[nodiscard]] bool has_typed_keywords(const SchemaList& all);
/// The tightest value of a numeric keyword in all the schemas.
[[nodiscard]] std::optional<uint64_t> bound_of(const SchemaList& all, const char* keyword, bool is_least);

}  // namespace dspack::runtime
