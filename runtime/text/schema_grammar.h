// A JSON schema as a grammar: the texts that it has are JSON, and their values are of the schema but for what a grammar
// cannot count or compare; with that an answer is checked when it has ended (schema_validator.h). Strings are bounded
// and matched by their values, whatever their text writes for a character; names that a schema leaves free are none of
// those that it lists; numbers are compared as decimals.
//
// Narrower than the schema, since an answer is to end: where nothing is said of further names beside "properties", or
// of further items beside "prefixItems", there are none; keywords of one type mean a value of that type; formats are
// those that are written daily. Wider: "not", "contains", "uniqueItems", "dependentRequired" and the like, the
// exclusion in "oneOf", lengths beside a pattern, a second pattern, look-around, "multipleOf" of what is not whole.
// Threads: thread-safe (pure functions). Errors: those of JsonSchema::read, unsupported (a pattern of names that no
// grammar has), invalid (too many combinations; no value is of it), naming the place within the schema.
#pragma once

#include <string>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// In xgrammar's EBNF; its first rule is "root".
[[nodiscard]] Result<std::string> schema_grammar(const OrderedJson& schema);

/// How a family writes the arguments of a call that are no JSON object: each between marks, strings as they stand.
enum class ArgumentStyle { glm, dsml };
/// The grammar of such arguments; `schema` is that of an object.
[[nodiscard]] Result<std::string> arguments_grammar(const OrderedJson& schema, ArgumentStyle style);

}  // namespace dspack::runtime
