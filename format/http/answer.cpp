#include "format/http/answer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/size.h"
#include "format/json.h"

namespace dspack::format {
namespace {

std::string json_text(std::string_view body) {
  const auto json = parse_json(body, kRefusalDocument);
  if (!json || !json->is_object()) return {};
  for (const char* key : {"error", "message"}) {
    if (const auto text = json_string(*json, key)) return *text;
  }
  std::string texts;
  const auto errors = json->find("errors");
  if (errors == json->end() || !errors->is_array()) return {};
  for (const Json& error : *errors) {
    const auto text = json_string(error.is_object() ? error : Json::object(), "message");
    if (text) texts.append(texts.empty() ? "" : "; ").append(*text);
  }
  return texts;
}

/// The text after <NAME>, up to the next tag.
std::string_view element(std::string_view xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = xml.substr(begin + open.size());
  return rest.substr(0, rest.find('<'));
}

/// The message of S3 and compatible storages: <Error><Code>AccessDenied</Code><Message>Request has expired</Message>...
/// Other elements may hold parts of the signed request.
std::string xml_text(std::string_view body) {
  const std::string_view code = element(body, "Code");
  const std::string_view message = element(body, "Message");
  if (code.empty() || message.empty()) return std::string(code.empty() ? message : code);
  return fmt::format("{}: {}", code, message);
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
    if (blank && (line.empty() || line.back() == ' ')) continue;
    line += blank ? ' ' : c;
  }
  return std::string(trim_header(line));
}

}  // namespace

std::string refusal_text(std::string_view body) {
  std::string text = one_line(body);
  if (text.starts_with('{')) text = one_line(json_text(body));
  if (text.starts_with('<')) text = one_line(xml_text(body));
  return brief(without_passwords(without_queries(text)));
}

std::string without_queries(std::string_view text) {
  constexpr std::string_view kEnds = " \t\r\n\"'<>()";
  std::string shown;
  while (!text.empty()) {
    const size_t scheme = text.find("://");
    if (scheme == std::string_view::npos) break;
    const size_t end = std::min(text.find_first_of(kEnds, scheme), text.size());
    const size_t query = std::min(text.substr(0, end).find_first_of("?#", scheme), end);
    shown += text.substr(0, query);
    if (query < end) shown += "?...";
    text.remove_prefix(end);
  }
  return shown.append(text);
}

std::string without_secret(std::string text, std::string_view secret) {
  if (secret.empty()) return text;
  constexpr std::string_view kShown = "(token)";
  for (size_t at = 0; (at = text.find(secret, at)) != std::string::npos; at += kShown.size())
    text.replace(at, secret.size(), kShown);
  return text;
}

void HttpAnswer::begin_answer(std::string_view status_line) {
  HttpResponse before = std::exchange(response_, {});
  const bool leads_on =
      !before.location.empty() && (!before.location.starts_with('/') || before.location.starts_with("//"));
  if (leads_on) is_elsewhere_ = !same_host_url(request_.url, before.location);
  response_.linked_etag = std::move(before.linked_etag);
  response_.linked_bytes = before.linked_bytes;
  response_.repo_commit = std::move(before.repo_commit);
  content_range_.reset();
  unsatisfied_size_.reset();
  retry_after_.reset();
  rate_limit_reset_.reset();
  content_md5_.reset();
  is_encoded_ = false;
  is_redirect_ = status_in(status_line) / 100 == 3;
}

void HttpAnswer::judge_redirect() {
  if (!is_redirect_ || request_.is_head() || request_.any_status) return;
  const auto refuse = [this](std::string_view why) {
    refused_redirect_ =
        fail(ErrorKind::network, fmt::format("redirects to {}, {}", refusal_text(response_.location), why));
  };
  if (is_https(request_.url) && is_http(response_.location))
    refuse("an address without https, where anybody on the way could change the data; not followed");
  else if (request_.stays_home && leads_elsewhere(request_.url, response_.location))
    refuse("another host, which is not trusted with this; not followed. If you mean that server, give its address");
}

void HttpAnswer::add_line(std::string_view line) {
  if (judged_) return;
  if (line.starts_with("HTTP/")) return begin_answer(line);
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trim_header(line.substr(colon + 1));
  if (equal_ignoring_case(name, "etag")) {
    response_.etag = value;
    response_.version = strip_etag(value);
  }
  if (equal_ignoring_case(name, "last-modified") && response_.version.empty()) response_.version = value;
  if (equal_ignoring_case(name, "content-range")) {
    content_range_ = parse_content_range(value);
    unsatisfied_size_ = parse_unsatisfied_range(value);
  }
  if (equal_ignoring_case(name, "content-length")) response_.file_bytes = parse_decimal(value);
  if (equal_ignoring_case(name, "content-encoding")) is_encoded_ = !equal_ignoring_case(value, "identity");
  if (equal_ignoring_case(name, "content-md5"))
    content_md5_ = content_digest(name, value);
  else
    keep_better(response_.declared, content_digest(name, value));
  if (equal_ignoring_case(name, "x-linked-etag")) response_.linked_etag = strip_etag(value);
  if (equal_ignoring_case(name, "x-linked-size")) response_.linked_bytes = parse_decimal(value);
  if (equal_ignoring_case(name, "x-repo-commit")) response_.repo_commit = value;
  if (equal_ignoring_case(name, "location")) {
    response_.location = value;
    judge_redirect();
  }
  if (equal_ignoring_case(name, "link") && response_.next_page.empty()) response_.next_page = parse_next_link(value);
  if (equal_ignoring_case(name, "retry-after")) retry_after_ = parse_decimal(value);
  if (equal_ignoring_case(name, "ratelimit")) rate_limit_reset_ = parse_rate_limit(value);
  if (equal_ignoring_case(name, "x-error-code")) response_.error_code = value;
  if (equal_ignoring_case(name, "x-error-message")) response_.words = words_in(value);
}

std::string HttpAnswer::words_in(std::string_view text) const {
  return refusal_text(without_secret(without_secret(std::string(text), request_.bearer_token), request_.hidden));
}

HttpFailure HttpAnswer::fail(ErrorKind kind, std::string_view reason, bool may_pass) const {
  return {Error{kind,
                fmt::format("{}: {}", without_password(request_.name.empty() ? request_.url : request_.name), reason)},
          may_pass,
          {}};
}

HttpFailure HttpAnswer::fail_wrong(ErrorKind kind, std::string_view reason) const {
  HttpFailure failure = fail(kind, reason);
  failure.wrong_answer = true;
  return failure;
}

std::optional<HttpFailure> HttpAnswer::judge(long status) {
  judged_ = true;
  response_.status = status;
  std::optional<HttpFailure> failure = judge_status();
  if (!failure) failure = judge_origin();
  if (!failure) judge_declared();
  if (!failure) return std::nullopt;
  failure->status = status;
  failure->error_code = response_.error_code;
  failure->repo_commit = response_.repo_commit;
  failure->words = response_.words;
  return failure;
}

/// Content-MD5 covers the body (RFC 1864), but some servers send the whole file's with a part: only used for whole
/// files.
void HttpAnswer::judge_declared() {
  if (content_range_) {
    const bool is_whole = content_range_->range.size() == content_range_->total;
    response_.has_part_md5 = content_md5_ && !is_whole;
    if (!is_whole) content_md5_.reset();
  }
  keep_better(response_.declared, content_md5_);
  if (is_encoded_) response_.declared.reset();
}

/// Refused by the storage, not by the server that redirects there: the link may have expired.
bool HttpAnswer::is_link_refused() const {
  if (!request_.is_link && !is_elsewhere_) return false;
  const long status = response_.status;
  if (status == 400 || status == 401 || status == 403) return true;
  // A plain server may redirect to a file that does not exist; the Hub redirects only to existing ones.
  const bool is_known = request_.is_link || !request_.expected_commit.empty();
  return is_known && (status == 404 || status == 410);
}

/// A temporary refusal: another attempt may succeed.
HttpFailure HttpAnswer::fail_busy() const {
  const bool too_many = response_.status == kTooManyRequests;
  HttpFailure failure =
      fail(ErrorKind::network,
           fmt::format("the server answered HTTP {}{}", response_.status, too_many ? ", too many requests" : ""), true);
  if (retry_after_) failure.wait_seconds = static_cast<double>(*retry_after_);
  // The limit is reset when these seconds are over, not before.
  if (too_many && rate_limit_reset_) failure.wait_seconds = static_cast<double>(*rate_limit_reset_) + 1;
  return failure;
}

std::optional<HttpFailure> HttpAnswer::judge_status() {
  const long status = response_.status;
  if (status == 408 || status == kTooManyRequests || status >= 500) return fail_busy();
  if (request_.any_status) return std::nullopt;
  if (is_link_refused()) {
    HttpFailure failure = fail(ErrorKind::network, fmt::format("the link to its bytes is refused (HTTP {})", status));
    failure.link_expired = true;
    return failure;
  }
  if (status == 404 || status == 410) return fail(ErrorKind::not_found, fmt::format("not found (HTTP {})", status));
  if (status == 401 || status == 403) {
    return fail(ErrorKind::network, fmt::format("access denied (HTTP {})", status));
  }
  if (request_.is_head() && status >= 200 && status < 400) return std::nullopt;
  if (says_empty()) {
    empty_file_ = true;
    response_.file_bytes = 0;
    content_range_.reset();
    return judge_version();
  }
  if (status == 416 && request_.range && request_.range->begin < unsatisfied_size_.value_or(0)) {
    return fail_wrong(ErrorKind::corrupt,
                      fmt::format("the server refuses bytes {}-{} of a file that it says has {}", request_.range->begin,
                                  request_.range->end - 1, *unsatisfied_size_));
  }
  if (status == 416)
    return fail(ErrorKind::corrupt, "the server has no such range: the file is shorter than it should be");
  if (request_.range && status == 200) {
    return fail_wrong(
        ErrorKind::unsupported,
        "the server ignores byte ranges (it answered 200 with the whole file); use one that supports Range");
  }
  if (status != (request_.range ? 206 : 200)) {
    return fail(ErrorKind::network, fmt::format("unexpected answer HTTP {}", status));
  }
  if (request_.range) return judge_range();
  return judge_version();
}

/// No range fits an empty file: a server refuses it, or sends an empty body.
bool HttpAnswer::says_empty() const {
  if (!request_.range || request_.range->begin != 0) return false;
  if (response_.status == 416) return !content_range_ && unsatisfied_size_.value_or(0) == 0;
  return response_.status == 200 && response_.file_bytes == 0;
}

std::optional<HttpFailure> HttpAnswer::judge_range() {
  if (!content_range_) return fail_wrong(ErrorKind::corrupt, "the server's answer has no valid Content-Range");
  const ByteRange got = content_range_->range;
  const uint64_t end = std::min(request_.range->end, content_range_->total);
  if (got.begin != request_.range->begin || got.end != end) {
    return fail_wrong(ErrorKind::corrupt,
                      fmt::format("asked for bytes {}-{}, the server sent {}-{}", request_.range->begin,
                                  request_.range->end - 1, got.begin, got.end - 1));
  }
  // Fewer bytes mean a connection that ended early: those received are valid.
  const std::optional<uint64_t> body = std::exchange(response_.file_bytes, content_range_->total);
  if (body.value_or(0) > got.size()) {
    return fail_wrong(ErrorKind::corrupt, fmt::format("asked for bytes {}-{}, the server sent {} bytes for them",
                                                      request_.range->begin, request_.range->end - 1, *body));
  }
  const uint64_t expected = request_.expected_bytes.value_or(content_range_->total);
  if (expected != content_range_->total) {
    return fail(ErrorKind::corrupt, fmt::format("has {} bytes on the server, {} are expected: it was replaced",
                                                content_range_->total, expected));
  }
  return judge_version();
}

std::optional<HttpFailure> HttpAnswer::judge_version() const {
  if (!request_.expected_version.empty() && response_.version != request_.expected_version) {
    return fail(ErrorKind::corrupt, fmt::format("the file changed on the server while it was read (its version {} "
                                                "became {})",
                                                request_.expected_version, response_.version));
  }
  return std::nullopt;
}

std::optional<HttpFailure> HttpAnswer::judge_origin() const {
  const auto differs = [](const std::string& wanted, const std::string& got) {
    return !wanted.empty() && !got.empty() && wanted != got;
  };
  if (differs(request_.expected_commit, response_.repo_commit)) {
    return fail(ErrorKind::corrupt, fmt::format("the server answers for commit {} where {} was asked for; a cache or "
                                                "proxy in between mixes them up",
                                                response_.repo_commit, request_.expected_commit));
  }
  if (differs(request_.expected_linked_etag, response_.linked_etag)) {
    return fail(ErrorKind::corrupt, fmt::format("is another file now: its digest was {} and is {}",
                                                request_.expected_linked_etag, response_.linked_etag));
  }
  return std::nullopt;
}

}  // namespace dspack::format
