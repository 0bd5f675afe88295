// A JSON schema as a grammar: the texts that it has are JSON, and their values are of the schema. Strings are bounded
// and matched by their values, whatever their text writes for a character; names that a schema leaves free are none of
// those that it lists; numbers are compared as decimals.
// Threads: thread-safe (a pure function). Errors: unsupported (what no grammar holds an answer to), invalid (bounds
// that leave nothing), naming the place within the schema.
#pragma once

#include <string>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// `schema`: as accept_schema gives it. The grammar is in xgrammar's EBNF; its first rule is "root".
[[nodiscard]] Result<std::string> schema_grammar(const OrderedJson& schema);

}  // namespace dspack::runtime
