// One HTTP request, its answer, and the failure to get one. No I/O.
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

/// Bytes of a file, read as they are sent.
struct FileSlice {
  const ReadFile* file = nullptr;
  ByteRange range;
  std::function<void(uint64_t)> on_sent{};  // gets the bytes passed to the connection since the attempt began
};

struct HttpRequest {
  std::string method = "GET";  // HEAD does not follow redirects: the first answer counts
  std::string url;
  std::string name{};          // name in errors; empty: `url`. Links may hold secrets
  std::string bearer_token{};  // sent only to the URL's own host, not after redirects; never in messages
  std::string hidden{};        // another secret to keep out of messages: a token for another host

  // For methods with a body.
  std::vector<std::string> headers{};  // "Name: value"
  std::string body{};                  // unused if `slice` is set
  std::optional<FileSlice> slice{};
  /// Use a new connection. On a reused one, curl takes a server that closes it without an answer for one that had
  /// closed it before, and repeats the request: harmless for most, but a second pull request is one too many.
  bool only_once = false;

  // The data that is requested, and how.
  std::optional<ByteRange> range{};  // nullopt: the whole file
  bool is_link = false;              // `url` is where an earlier answer led: its expiry says nothing about the file
  bool stays_home = false;           // for APIs: a redirect to another scheme, host or port is refused
  bool is_payload = false;           // weights: any rate is accepted; all else has a minimum rate (AnswerPace)
  /// A call of an API: every answer is good except 408, 429 and 5xx, which may pass. Redirects are not followed, since
  /// the request is meant for one address. For other requests 200 is good, and 206 with exactly the range.
  bool any_status = false;
  uint64_t answer_limit_bytes = 16ULL << 20;  // limit for an answer kept in memory; beyond it: budget
  unsigned silence_seconds = 0;  // a connection without a byte for this long counts as lost; 0: the client's limit

  // Expectations; an answer that contradicts them is `corrupt`. Empty: anything.
  std::string expected_version{};            // if it differs, the file has changed
  std::optional<uint64_t> expected_bytes{};  // size of the whole file
  std::string expected_commit{};             // checked if the answer names a commit
  std::string expected_linked_etag{};        // checked if the answer has one

  [[nodiscard]] bool is_head() const { return method == "HEAD"; }
};

/// The status of an answer that asks for fewer requests.
inline constexpr long kTooManyRequests = 429;

struct HttpResponse {
  long status = 0;
  std::string body{};                  // if there is no sink
  std::string etag{};                  // as sent
  std::string version;                 // ETag without quotes and W/, else Last-Modified, else empty
  std::optional<uint64_t> file_bytes;  // size of the whole file, from Content-Range or Content-Length
  // The Hub's headers for a file that it stores elsewhere, and the place. The answers of a redirect chain are merged:
  // the Hub sends these headers, the storage that it redirects to does not.
  std::string linked_etag;                  // X-Linked-Etag without quotes and W/
  std::optional<uint64_t> linked_bytes;     // X-Linked-Size
  std::string repo_commit;                  // X-Repo-Commit
  std::string location;                     // as sent
  std::optional<ContentDigest> declared{};  // digest of the whole file; none if the file is sent encoded
  bool has_part_md5 = false;  // Content-MD5 came with a part: unclear whether it covers the part or the file
  std::string next_page;      // target of Link: rel="next", as sent
  std::string effective_url;  // the answer's URL, after all redirects
  std::string error_code{};   // X-Error-Code: RepoNotFound, GatedRepo, ...
  std::string words{};        // a refusal's message for people: X-Error-Message, else from the body

  [[nodiscard]] bool good() const { return status >= 200 && status < 300; }
};

/// The outcome of a failed attempt. `may_pass`: another attempt may succeed. Unless there was an answer, it is unknown
/// whether the request was carried out.
struct HttpFailure {
  Error error;
  bool may_pass = false;
  std::optional<double> wait_seconds = std::nullopt;  // requested by the server (RateLimit, Retry-After)
  bool wrong_answer = false;    // it contradicts the request: another attempt may meet a correct server
  bool link_expired = false;    // the link has expired or is invalid; the file's own address may lead to a new one
  bool no_such_host = false;    // or no name server answered: may pass only if the host was reached before
  long status = 0;              // 0: no answer
  std::string error_code = {};  // as in HttpResponse, like the next two
  std::string repo_commit = {};
  std::string words = {};
};

}  // namespace dspack::format
