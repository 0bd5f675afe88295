// Who may send requests: the names under which the server answers, pages of other origins, the API key.
// Threads: pure functions. Errors: a refusal, as the client gets it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/serve/answer_writer.h"
#include "runtime/serve/api_options.h"
#include "runtime/serve/http_server.h"

namespace dspack::runtime {

/// Why a request is not served; nullopt: it is.
[[nodiscard]] std::optional<ApiError> access_refusal(const HttpRequest& request, const ApiOptions& options);

/// CORS headers that allow pages of `origin`; empty: none.
[[nodiscard]] HttpReply::Headers cross_origin_headers(const std::string& origin);

/// A path that needs no key.
[[nodiscard]] bool is_health(std::string_view path);

}  // namespace dspack::runtime
