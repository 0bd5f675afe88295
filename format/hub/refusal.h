// What the Hub's refusals mean to the user, and the remedy.
// Threads: thread-safe (pure functions). Source: huggingface_hub, utils/_http.py (X-Error-Code); a Hub that knows the
// token answers 403 or 404 where access is missing, and 401 only to an invalid token.
#pragma once

#include <string>
#include <string_view>

#include "format/http/request.h"

namespace dspack::format {

struct HubRequest {
  std::string endpoint;
  std::string repository;
  std::string revision;  // as errors shall call it
  bool has_token = false;
};

/// `failure` in the user's words. Kinds: not_found is kept for a file that is not there, which callers may do without;
/// a repository or revision that is not there is `network`, like all that this failure may be otherwise.
[[nodiscard]] Error explain_refusal(const HubRequest& request, const HttpFailure& failure);

/// "HTTP 403: what the server says"
[[nodiscard]] std::string words_of(const HttpResponse& answer);

/// The same for a call that writes, which got an `answer` that is not good. `called`: what errors name it.
[[nodiscard]] Error explain_write_refusal(const HubRequest& request, const HttpResponse& answer,
                                          std::string_view called);

}  // namespace dspack::format
