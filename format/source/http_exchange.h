// One HTTP request with a body and its whole answer, as an API wants them: JSON to a Hub, a slice of a file to a
// storage. Redirects are not followed: what is sent is meant for one address. No transport in it.
// Threads: plain values and pure functions. Lifetime: an HttpCall borrows the file of its slice.
// Source: RFC 9110 section 10.2.3 (Retry-After), draft-ietf-httpapi-ratelimit-headers-09 (RateLimit).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/ids.h"
#include "format/file_system.h"
#include "format/source/http_answer.h"

namespace dspack::format {

/// Bytes of a file, read while they are sent.
struct FileSlice {
  const ReadFile* file = nullptr;
  ByteRange range;
  std::function<void(uint64_t)> on_sent{};  // bytes given to the connection since the beginning of the attempt
};

struct HttpCall {
  std::string method = "GET";
  std::string url;
  std::string name;          // what errors call it: `url` may hold a signature
  std::string bearer_token;  // empty: none
  std::vector<std::string> headers{};
  std::string body{};  // of a method with a body, unless `slice` is given
  std::optional<FileSlice> slice{};
  uint64_t answer_limit_bytes = 16ULL << 20;
  long silence_seconds = 60;  // no byte either way for so long: the answer counts as lost
  /// On a connection of its own. On one that was used before, curl takes a server that closes without an answer for one
  /// that had closed already, and sends the request again: no harm to most, but a second pull request is one too many.
  bool only_once = false;
};

struct HttpReply {
  long status = 0;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case; of the final answer

  /// Empty: not there.
  [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;
  [[nodiscard]] bool good() const { return status >= 200 && status < 300; }
};

/// One line of a head, with its line end. A status line starts a new answer.
void add_reply_line(HttpReply& reply, std::string_view line);

/// What a server that is busy asks to wait: Retry-After in seconds, else the window of RateLimit: "api";r=0;t=55, and a
/// second more; nullopt: it does not say.
[[nodiscard]] std::optional<double> asked_wait_seconds(const HttpReply& reply);

/// An answer that may be another one later (408, 429, 5xx); nullopt: it is final. The request may have been carried out
/// all the same, unless the status is 429.
[[nodiscard]] std::optional<HttpFailure> passing_failure(const HttpReply& reply, std::string_view name);

}  // namespace dspack::format
