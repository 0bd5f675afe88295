// The ways in which one value can be of several schemas at once. "allOf", "anyOf", "oneOf", "if" and "$ref" compose
// schemas, also beside other keywords; here they are taken apart, until each way is a list of schemas of which only
// the keywords that are left are to be looked at, all of them.
// Threads: pure functions. Lifetime: lists view the schema. Errors: invalid (more ways than kMostCases), naming the
// place.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/json_schema.h"

namespace dspack::runtime {

/// Of all combinations of alternatives for one value.
inline constexpr size_t kMostCases = 256;

/// Schemas within one schema, all of which hold; empty: any value.
using SchemaList = std::vector<const OrderedJson*>;

/// The ways, in the order of the alternatives. Each value of the schemas is of one of them; of "oneOf" and "if" they
/// are wider: that no second alternative holds, and that "if" does not where "else" is chosen, is left out.
[[nodiscard]] Result<std::vector<SchemaList>> schema_cases(const JsonSchema& schema, const SchemaList& all);

/// The same schemas in one order, each once, without those that say nothing and those that only refer to another one:
/// lists that are equal then have the same values.
[[nodiscard]] SchemaList canonical_list(const JsonSchema& schema, const SchemaList& all);

}  // namespace dspack::runtime
