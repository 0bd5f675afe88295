// The paths of the server, and their description in the form OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0), whose
// fields are those of field_table.h: `x-treatment` says what becomes of each, `x-unless` which values of a refused one
// ask for nothing.
// Threads: thread-safe (pure functions).
#pragma once

#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// "GET, HEAD" or "POST"; empty: there is no such path.
[[nodiscard]] std::string_view allowed_methods(std::string_view path);
[[nodiscard]] OrderedJson openapi_description();

}  // namespace dspack::runtime
