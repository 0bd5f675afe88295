// What several schemas together say of a value's type, and the tightest of their bounds.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/text/schema_cases.h"
#include "runtime/text/schema_keywords.h"

namespace dspack::runtime {

/// Those of which a value of all the schemas can be; where none names any, those of their keywords.
[[nodiscard]] Types types_of(const SchemaList& all);
/// Whether one of them has a keyword for values of some type.
[[nodiscard]] bool has_typed_keywords(const SchemaList& all);
/// The tightest of a keyword's numbers in all the schemas.
[[nodiscard]] std::optional<uint64_t> bound_of(const SchemaList& all, const char* keyword, bool is_least);

}  // namespace dspack::runtime
