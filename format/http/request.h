// One HTTP request, its answer, and a failure to get one. No I/O.
// Threads: plain values. Lifetime: an HttpRequest borrows the file of its slice.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/file_system.h"
#include "format/http/content_digest.h"

namespace dspack::format {

/// Bytes of a file, read while they are sent.
struct FileSlice {
  const ReadFile* file = nullptr;
  ByteRange range;
  std::function<void(uint64_t)> on_sent{};  // bytes given to the connection since the beginning of the attempt
};

struct HttpRequest {
  std::string method = "GET";  // of HEAD the first answer counts: its redirects are not followed
  std::string url;
  std::string name{};          // what errors call it; empty: `url`. A link may hold what is not for logs
  std::string bearer_token{};  // sent to the URL's own host only, never to where it redirects; in no message
  std::string hidden{};        // what no message may repeat besides: a token that is meant for another host

  // What is sent with it, of a method with a body.
  std::vector<std::string> headers{};  // "Name: value"
  std::string body{};                  // unless `slice` is given
  std::optional<FileSlice> slice{};
  /// On a connection of its own. On one that was used before, curl takes a server that closes without an answer for one
  /// that had closed already, and sends the request again: no harm to most, but a second pull request is one too many.
  bool only_once = false;

  // What is asked for.
  std::optional<ByteRange> range{};  // nullopt: the whole file
  bool is_link = false;     // `url` is where an earlier answer led: it may expire, which then is no verdict on the file
  bool stays_home = false;  // an API's word: a redirect to another scheme, host or port is refused, not followed
  bool is_payload = false;  // weights, which may come as slowly as they do; all else has a least rate (AnswerPace)
  /// A call of an API: every answer is good but 408, 429 and 5xx, which may be another one later; and redirects are not
  /// followed, since what is sent is meant for one address. Otherwise good are 200, and 206 with exactly the range.
  bool any_status = false;
  uint64_t answer_limit_bytes = 16ULL << 20;  // of an answer that is kept in memory; more: budget
  unsigned silence_seconds = 0;               // no byte for so long: the connection counts as lost; 0: the client's

  // What a good answer must agree with; one that does not is `corrupt`. Empty: anything.
  std::string expected_version{};            // otherwise the file has changed
  std::optional<uint64_t> expected_bytes{};  // of the whole file
  std::string expected_commit{};             // where the answer names one
  std::string expected_linked_etag{};        // likewise

  [[nodiscard]] bool is_head() const { return method == "HEAD"; }
};

/// The status of an answer that asks for fewer requests.
inline constexpr long kTooManyRequests = 429;

struct HttpResponse {
  long status = 0;
  std::string body{};                  // where no sink took it
  std::string etag{};                  // as sent
  std::string version;                 // ETag without quotes and W/, else Last-Modified, else empty
  std::optional<uint64_t> file_bytes;  // size of the whole file, from Content-Range or Content-Length
  // What the Hub says of a file that it keeps elsewhere, and where that is. The answers of a chain of redirects count
  // together: the Hub names these, and the storage where it redirects does not know them.
  std::string linked_etag;                  // X-Linked-Etag without quotes and W/
  std::optional<uint64_t> linked_bytes;     // X-Linked-Size
  std::string repo_commit;                  // X-Repo-Commit
  std::string location;                     // as sent
  std::optional<ContentDigest> declared{};  // what headers say of the whole file; not of a file that is sent encoded
  bool has_part_md5 = false;                // Content-MD5 came with a part: of which of the two is anybody's guess
  std::string next_page;                    // target of Link: rel="next", as sent
  std::string effective_url;                // the answer's own, after all redirects
  std::string error_code{};                 // X-Error-Code: RepoNotFound, GatedRepo, ...
  std::string words{};                      // what a refusal says, for people: X-Error-Message, else of the body

  [[nodiscard]] bool good() const { return status >= 200 && status < 300; }
};

/// The outcome of one attempt. `may_pass`: trying again can help. Whether the request was carried out is not known,
/// unless there was an answer.
struct HttpFailure {
  Error error;
  bool may_pass = false;
  std::optional<double> wait_seconds = std::nullopt;  // what the server asks for (RateLimit, Retry-After)
  bool wrong_answer = false;    // it contradicts the request: another try may meet a server that does not
  bool link_expired = false;    // or is none; the file's own address may lead to a new one
  bool no_such_host = false;    // or a name server out of reach: may pass only where the host was known before
  long status = 0;              // 0: there was no answer
  std::string error_code = {};  // as in HttpResponse, like the next three
  std::string repo_commit = {};
  std::string words = {};
};

}  // namespace dspack::format
