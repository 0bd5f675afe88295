// The head of an HTTP answer, judged against the request before any byte of the body is used, and what a refusal says,
// fit for an error message: one short line, and nothing of a link that could be used by who reads it. No transport in
// it.
// Threads: pure functions; an HttpAnswer belongs to one thread at a time. Lifetime: it borrows the request. Source: RFC
// 9110, sections 14.4 (Content-Range), 15 (status codes) and 10.2.3 (Retry-After; seconds only, a date is passed over);
// the Hub's own headers as huggingface_hub reads them (file_download.py, utils/_http.py).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/http/headers.h"
#include "format/http/request.h"

namespace dspack::format {

/// Of a body (or a header): "error", "message" or the messages of "errors" of JSON, Code and Message of a storage's
/// XML, else the text itself; not a page of HTML. One line, as brief() of foreign_text.h has it; empty: nothing of use.
[[nodiscard]] std::string refusal_text(std::string_view body);

/// The text with "?..." cut off every URL in it: what follows may be a signature.
[[nodiscard]] std::string without_queries(std::string_view text);

/// The text with every occurrence of `secret` replaced; an empty secret leaves it as it is.
[[nodiscard]] std::string without_secret(std::string text, std::string_view secret);

/// Collects the lines of an answer's head, then judges them.
class HttpAnswer {
 public:
  explicit HttpAnswer(const HttpRequest& request) : request_(request) {}

  /// One line, with or without its line end. A status line ("HTTP/...") starts a new answer: what a redirect said
  /// before does not count. Lines after the body (trailers), thus after judge(), are passed over.
  void add_line(std::string_view line);

  /// A redirect that must not be followed, once its line is there: from https to http, where anybody on the way could
  /// change what comes, or away from home where the request stays there. nullopt: none.
  [[nodiscard]] const std::optional<HttpFailure>& refused_redirect() const { return refused_redirect_; }

  /// Judges status and headers, once all lines are there. nullopt: good, so what follows are bytes of the file. Errors:
  /// as in client.h.
  [[nodiscard]] std::optional<HttpFailure> judge(long status);

  /// Of the last judgement. After a good one, `file_bytes` is set for an answer to a range.
  [[nodiscard]] const HttpResponse& response() const { return response_; }
  /// After a good judgement of a request with a range: how many bytes of body belong to it. 0 for an empty file.
  [[nodiscard]] uint64_t range_bytes() const { return content_range_ ? content_range_->range.size() : 0; }
  /// After a good judgement: the file has no bytes, although a range was asked for.
  [[nodiscard]] bool empty_file() const { return empty_file_; }

  /// What a text of the server says, for a message: refusal_text of it, without the request's secrets.
  [[nodiscard]] std::string words_in(std::string_view text) const;
  /// "NAME: reason", the name without a password.
  [[nodiscard]] HttpFailure fail(ErrorKind kind, std::string_view reason, bool may_pass = false) const;

 private:
  void begin_answer(std::string_view status_line);
  void judge_redirect();
  [[nodiscard]] bool says_empty() const;
  [[nodiscard]] bool is_link_refused() const;
  std::optional<HttpFailure> judge_status();
  [[nodiscard]] HttpFailure fail_busy() const;
  std::optional<HttpFailure> judge_range();
  void judge_declared();
  [[nodiscard]] HttpFailure fail_wrong(ErrorKind kind, std::string_view reason) const;
  [[nodiscard]] std::optional<HttpFailure> judge_version() const;
  [[nodiscard]] std::optional<HttpFailure> judge_origin() const;

  const HttpRequest& request_;
  HttpResponse response_;
  std::optional<ContentRange> content_range_;
  std::optional<uint64_t> unsatisfied_size_;
  std::optional<uint64_t> retry_after_;
  std::optional<uint64_t> rate_limit_reset_;
  std::optional<HttpFailure> refused_redirect_;
  bool is_redirect_ = false;   // status 3xx
  bool is_elsewhere_ = false;  // a redirect has led to another host than the request's
  std::optional<ContentDigest> content_md5_;
  bool is_encoded_ = false;
  bool empty_file_ = false;
  bool judged_ = false;
};

}  // namespace dspack::format
