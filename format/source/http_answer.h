// The head of an HTTP answer, judged against the request before any byte of the body is used. No transport in it.
// Threads: an HttpAnswer belongs to one thread at a time. Lifetime: it borrows the request. Source: RFC 9110, sections
// 14.4 (Content-Range), 15 (status codes) and 10.2.3 (Retry-After; seconds only, a date is passed over); the Hub's own
// headers as huggingface_hub reads them (file_download.py, utils/_http.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/source/content_digest.h"
#include "format/source/http_headers.h"

namespace dspack::format {

struct HttpRequest {
  std::string url;
  std::optional<ByteRange> range;            // nullopt: the whole file
  std::string bearer_token;                  // sent to the URL's own host only, never to where it redirects
  std::string expected_version;              // empty: any; otherwise a different one is `corrupt`: the file has changed
  std::optional<uint64_t> expected_bytes{};  // size that the whole file must have; otherwise `corrupt`
  std::string name{};                        // what errors call it; empty: `url`. A link may hold what is not for logs
  bool is_link = false;     // `url` is where an earlier answer led: it may expire, which then is no verdict on the file
  bool head_only = false;   // HEAD, and redirects are not followed: the first answer is what is asked for
  bool stays_home = false;  // an API's word: a redirect to another scheme, host or port is refused, not followed
  bool is_payload = false;  // weights, which may come as slowly as they do; all else has a least rate (answer_pace.h)
  std::string expected_commit{};       // empty: any; otherwise an answer that names another is `corrupt`
  std::string expected_linked_etag{};  // likewise
};

struct HttpResponse {
  long status = 0;
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
  std::string effective_url;                // the answer's own, behind all redirects
};

/// The outcome of one attempt. `may_pass`: trying again can help.
struct HttpFailure {
  Error error;
  bool may_pass = false;
  std::optional<double> wait_seconds = std::nullopt;  // what the server asks for (RateLimit, Retry-After)
  bool link_expired = false;                          // or is none; the file's own address may lead to a new one
  bool no_such_host = false;     // or a name server out of reach: may pass only where the host was known before
  long status = 0;               // 0: there was no answer
  std::string error_code = {};   // X-Error-Code: RepoNotFound, GatedRepo, ...
  std::string repo_commit = {};  // X-Repo-Commit, which comes with a refusal too
  std::string words = {};        // what the server says to it, for people: X-Error-Message, else of the body
};

/// Collects the lines of an answer's head, then judges them.
class HttpAnswer {
 public:
  explicit HttpAnswer(const HttpRequest& request) : request_(request) {}

  /// One line, with or without its line end. A status line ("HTTP/...") starts a new answer: what a redirect said
  /// before does not count. Lines behind the body (trailers), thus after judge(), are passed over.
  void add_line(std::string_view line);

  /// A redirect that must not be followed, once its line is there: from https to http, where anybody on the way could
  /// change what comes, or away from home where the request stays there. nullopt: none.
  [[nodiscard]] const std::optional<HttpFailure>& refused_redirect() const { return refused_redirect_; }

  /// Judges status and headers, once all lines are there. nullopt: good, so what follows are bytes of the file. Errors:
  /// as in http_client.h.
  [[nodiscard]] std::optional<HttpFailure> judge(long status);

  /// Of the last judgement. After a good one, `file_bytes` is set for an answer to a range.
  [[nodiscard]] const HttpResponse& response() const { return response_; }
  /// After a good judgement of a request with a range: how many bytes of body belong to it. 0 for an empty file.
  [[nodiscard]] uint64_t range_bytes() const { return content_range_ ? content_range_->range.size() : 0; }
  /// After a good judgement: the file has no bytes, although a range was asked for.
  [[nodiscard]] bool empty_file() const { return empty_file_; }

  /// "URL: reason", the URL without a password.
  [[nodiscard]] HttpFailure fail(ErrorKind kind, std::string_view reason, bool may_pass = false) const;

 private:
  void begin_answer(std::string_view status_line);
  void judge_redirect();
  [[nodiscard]] bool says_empty() const;
  [[nodiscard]] bool is_link_refused() const;
  std::optional<HttpFailure> judge_status();
  std::optional<HttpFailure> judge_range();
  void judge_declared();
  [[nodiscard]] std::optional<HttpFailure> judge_version() const;
  [[nodiscard]] std::optional<HttpFailure> judge_origin() const;

  const HttpRequest& request_;
  HttpResponse response_;
  std::optional<ContentRange> content_range_;
  std::optional<uint64_t> unsatisfied_size_;
  std::optional<uint64_t> retry_after_;
  std::optional<uint64_t> rate_limit_reset_;
  std::string error_code_;
  std::string error_message_;
  std::optional<HttpFailure> refused_redirect_;
  bool is_redirect_ = false;   // status 3xx
  bool is_elsewhere_ = false;  // a redirect has led to another host than the request's
  std::optional<ContentDigest> content_md5_;
  bool is_encoded_ = false;
  bool empty_file_ = false;
  bool judged_ = false;
};

}  // namespace dspack::format
