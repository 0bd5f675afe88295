// A JSON schema as a grammar: its texts are JSON, and their values satisfy the schema except for conditions that a
// grammar cannot count or compare; for these the answer is checked when it has ended (schema_validator.h). Strings are
// bounded and matched by their values, however their text spells a character; names that a schema leaves free differ
// from those that it lists; numbers are compared as decimals.
//
// Narrower than the schema, since an answer must end: unless the schema mentions further names beside "properties", or
// further items beside "prefixItems", there are none; keywords of one type imply a value of that type; formats accept
// only common strings. Wider: "not", "contains", "uniqueItems", "dependentRequired" and the like, the exclusion in
// "oneOf", lengths beside a pattern, a second pattern, look-around, "multipleOf" a number that is not whole.
// Threads: thread-safe (pure functions). Errors: those of JsonSchema::read, unsupported (a pattern of names without a
// grammar), invalid (too many combinations; no value satisfies it), naming the place within the schema.
#pragma once

#include <string>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// The grammar in xgrammar's EBNF; its first rule is "root".
[[nodiscard]] Result<std::string> schema_grammar(const OrderedJson& schema);

/// How a family writes a call's arguments if not as a JSON object: each between marks, strings without quotes.
enum class ArgumentStyle { glm, dsml };
/// The grammar of such arguments; `schema` describes an object.
[[nodiscard]] Result<std::string> arguments_grammar(const OrderedJson& schema, ArgumentStyle style);

}  // namespace dspack::runtime
