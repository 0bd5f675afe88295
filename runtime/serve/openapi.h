// The paths of the server, and their description as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0). Fields come
// from field_table.h: `x-treatment` is the treatment, `x-unless` lists the accepted values of a refused field.
// Threads: thread-safe (pure functions).
#pragma once

#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// "GET, HEAD" or "POST"; empty: no such path.
[[nodiscard]] std::string_view allowed_methods(std::string_view path);
[[nodiscard]] OrderedJson openapi_description();

}  // namespace dspack::runtime
