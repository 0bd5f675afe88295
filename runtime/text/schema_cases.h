// Enumerates the ways in which one value can satisfy several schemas at once. "allOf", "anyOf", "oneOf", "if" and
// "$ref" compose schemas, also beside other keywords; here they are expanded, until each way is a list of schemas whose
// remaining keywords must all hold. Such a list also has types that it allows a value, and bounds.
// Threads: pure functions. Lifetime: lists view the schema. Errors: invalid (more ways than kMaxCases), naming the
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/json_schema.h"
#include "runtime/text/schema_keywords.h"

namespace dspack::runtime {

/// Limit of combinations of alternatives for one value.
inline constexpr size_t kMaxCases = 256;

/// Schemas within one schema, all of which must hold; empty: any value.
using SchemaList = std::vector<const OrderedJson*>;

/// The ways, in the order of the alternatives. Each valid value satisfies one of them; for "oneOf" and "if" they are
/// wider: they ignore that no second alternative may hold, and that "if" must not hold with "else".
[[nodiscard]] Result<std::vector<SchemaList>> schema_cases(const JsonSchema& schema, const SchemaList& all);

/// The same schemas in a canonical order, without duplicates, schemas that accept everything and schemas that only
/// refer to another one: so equal lists have the same values.
[[nodiscard]] SchemaList canonical_list(const JsonSchema& schema, const SchemaList& all);

/// The types that a value of all the schemas can have; if no schema names a type, the types of their keywords.
[[nodiscard]] Types types_of(const SchemaList& all);
/// Whether one of them has a keyword for values of a certain type.
[[nodiscard]] bool has_typed_keywords(const SchemaList& all);
/// The tightest value of a numeric keyword in all the schemas.
[[nodiscard]] std::optional<uint64_t> bound_of(const SchemaList& all, const char* keyword, bool is_least);

}  // namespace dspack::runtime
