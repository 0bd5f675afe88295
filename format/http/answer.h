// Judges the head of an HTTP answer against its request before any byte of the body is used, and turns a refusal's text
// into one short line for error messages, without links that a reader could use. Independent of the transport.
// Threads: pure functions; an HttpAnswer belongs to one thread at a time. Lifetime: it borrows the request. Source: RFC
// 9110, sections 14.4 (Content-Range), 15 (status codes) and 10.2.3 (Retry-After; seconds only, a date is ignored); the
// Hub's own headers as huggingface_hub reads them (file_download.py, utils/_http.py).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/http/headers.h"
#include "format/http/request.h"

namespace dspack::format {

/// The message in a refusal's body (or a header): "error", "message" or the messages of "errors" in JSON, Code and
/// Message in a storage's XML, else the text itself unless it is HTML. One line, as brief() of foreign_text.h makes it;
/// empty: no message.
[[nodiscard]] std::string refusal_text(std::string_view body);

/// The text with the query of every URL cut off and shown as "?...": it may hold a signature.
[[nodiscard]] std::string without_queries(std::string_view text);

/// The text with every occurrence of `secret` replaced; unchanged if `secret` is empty.
[[nodiscard]] std::string without_secret(std::string text, std::string_view secret);

/// Collects the lines of an answer's head, then judges them.
class HttpAnswer {
 public:
  explicit HttpAnswer(const HttpRequest& request) : request_(request) {}

  /// Adds a line, with or without its line end. A status line ("HTTP/...") starts a new answer: headers of a redirect
  /// before it are dropped, except the Hub's linked_etag, linked_bytes and repo_commit. Lines after judge(), such as
  /// trailers after the body, are ignored.
  void add_line(std::string_view line);

  /// Set as soon as a redirect that must not be followed has been added: from https to http, where anyone on the way
  /// could change the data, or to another host if the request must stay home. nullopt: none.
  [[nodiscard]] const std::optional<HttpFailure>& refused_redirect() const { return refused_redirect_; }

  /// Judges status and headers, after all lines were added. nullopt: good, so the body has bytes of the file. Errors:
  /// as in client.h.
  [[nodiscard]] std::optional<HttpFailure> judge(long status);

  /// The response as last judged. After a good judgement, `file_bytes` is set for an answer to a range.
  [[nodiscard]] const HttpResponse& response() const { return response_; }
  /// After a good judgement of a request with a range: the number of body bytes that belong to it. 0 for an empty file.
  [[nodiscard]] uint64_t range_bytes() const { return content_range_ ? content_range_->range.size() : 0; }
  /// After a good judgement: the file is empty, although a range was requested.
  [[nodiscard]] bool empty_file() const { return empty_file_; }

  /// The message in a server's text: refusal_text without the request's secrets.
  [[nodiscard]] std::string words_in(std::string_view text) const;
  /// "NAME: reason", without a password in the name.
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
