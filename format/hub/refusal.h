// Explains the Hub's refusals to the user, with the remedy.
// Threads: thread-safe (pure functions). Source: huggingface_hub, utils/_http.py (X-Error-Code); a Hub that accepts the
// token answers 403 or 404 if access is missing, and 401 only to an invalid token.
#pragma once

#include <string>
#include <string_view>

#include "format/http/request.h"

namespace dspack::format {

struct HubRequest {
  std::string endpoint;
  std::string repository;
  std::string revision;  // name in errors
  bool has_token = false;
};

/// Explains `failure` to the user. not_found is only used for a missing file, which callers may tolerate; a missing
/// repository or revision is `network`. Failures without an explanation keep their own error.
[[nodiscard]] Error explain_refusal(const HubRequest& request, const HttpFailure& failure);

/// "HTTP 403: the server's message"
[[nodiscard]] std::string words_of(const HttpResponse& answer);

/// The same for a writing call whose `answer` is not good. `called`: the call's name in errors.
[[nodiscard]] Error explain_write_refusal(const HubRequest& request, const HttpResponse& answer,
                                          std::string_view called);

}  // namespace dspack::format
