#include "format/source/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>

#include <fmt/format.h>

#include "format/source/http_headers.h"

namespace dspack::format {
namespace {

constexpr long kConnectSeconds = 15;
constexpr long kStallSeconds = 30;           // no byte for so long: the connection counts as lost
constexpr long kReceiveBytes = 512L * 1024;  // curl's own buffer; larger pieces mean fewer calls of the sink
constexpr size_t kErrorBodyBytes = 300;      // of a refusal, for the message

void initialise_curl() {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  DSPACK_CHECK(once == CURLE_OK, "libcurl cannot be initialised");
}

bool iequals(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

}  // namespace

/// State of one request while curl runs it: collects headers, judges them, and passes the body on.
class HttpClient::Transfer {
 public:
  Transfer(const HttpRequest& request, const ByteSink& sink, const std::stop_token& stop)
      : request_(request), sink_(sink), stop_(stop) {}

  std::variant<HttpResponse, HttpFailure> run(CURL* curl) {
    configure(curl);
    const CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response_.status);
    if (auto failure = judge(code)) return std::move(*failure);
    return response_;
  }

 private:
  void configure(CURL* curl) {
    curl_easy_reset(curl);  // keeps connections, DNS and TLS sessions
    curl_easy_setopt(curl, CURLOPT_URL, request_.url.c_str());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kReceiveBytes);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "dspack");
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error_text_.data());
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    if (request_.range) {
      const std::string range = fmt::format("{}-{}", request_.range->begin, request_.range->end - 1);
      curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
    }
    if (!request_.bearer_token.empty()) {
      curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, request_.bearer_token.c_str());
    }
    curl_ = curl;
  }

  static size_t on_header(char* data, size_t size, size_t count, void* self) {
    static_cast<Transfer*>(self)->header_line(std::string_view(data, size * count));
    return size * count;
  }
  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    return static_cast<Transfer*>(self)->body_bytes({data, size * count}) ? size * count : 0;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->stop_.stop_requested() ? 1 : 0;
  }

  void header_line(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // a new answer: what a redirect said before does not count
      response_ = {};
      content_range_.reset();
      retry_after_.reset();
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trim_header(line.substr(colon + 1));
    if (iequals(name, "etag")) response_.version = strip_etag(value);
    if (iequals(name, "last-modified") && response_.version.empty()) response_.version = value;
    if (iequals(name, "content-range")) content_range_ = parse_content_range(value);
    if (iequals(name, "content-length")) response_.file_bytes = parse_decimal(value);
    if (iequals(name, "retry-after")) retry_after_ = parse_decimal(value);
  }

  bool body_bytes(std::string_view bytes) {
    if (!answer_judged_) {
      curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &response_.status);
      refusal_ = judge_answer();
      answer_judged_ = true;
    }
    if (refusal_) {
      error_body_.append(bytes.substr(0, kErrorBodyBytes - std::min(kErrorBodyBytes, error_body_.size())));
      return response_.status >= 400;  // an error page is read to its end, so that the connection can be re-used
    }
    if (empty_file_) return true;
    received_ += bytes.size();
    if (request_.range && received_ > expected_bytes()) return false;
    if (auto passed = sink_(std::as_bytes(std::span(bytes.data(), bytes.size()))); !passed.has_value()) {
      sink_error_ = passed.error();
      return false;
    }
    return true;
  }

  [[nodiscard]] uint64_t expected_bytes() const { return content_range_ ? content_range_->range.size() : 0; }

  HttpFailure fail(ErrorKind kind, std::string reason, bool may_pass = false) {
    return {Error{kind, fmt::format("{}: {}", without_password(request_.url), reason)}, may_pass, {}};
  }

  /// Judges status and headers, before any of the body is used.
  std::optional<HttpFailure> judge_answer() {
    const long status = response_.status;
    if (status == 404 || status == 410) return fail(ErrorKind::not_found, fmt::format("not found (HTTP {})", status));
    if (status == 401 || status == 403) {
      return fail(
          ErrorKind::network,
          fmt::format("access denied (HTTP {}): private or gated? Set HF_TOKEN to a token that may read it", status));
    }
    if (status == 408 || status == 429 || status >= 500) {
      HttpFailure failure = fail(ErrorKind::network, fmt::format("the server answered HTTP {}", status), true);
      if (retry_after_) failure.wait_seconds = static_cast<double>(*retry_after_);
      return failure;
    }
    if (request_.range && request_.range->begin == 0 &&
        (status == 416 || (status == 200 && response_.file_bytes == 0))) {
      empty_file_ = true;  // no range fits a file without bytes
      response_.file_bytes = 0;
      return judge_version();
    }
    if (status == 416)
      return fail(ErrorKind::corrupt, "the server has no such range: the file is shorter than it should be");
    if (request_.range && status == 200) {
      return fail(ErrorKind::unsupported,
                  "the server ignores byte ranges (it answered 200 with the whole file); use one that supports Range");
    }
    if (status != (request_.range ? 206 : 200)) {
      return fail(ErrorKind::network, fmt::format("unexpected answer HTTP {}", status));
    }
    if (request_.range) return judge_range();
    return judge_version();
  }

  std::optional<HttpFailure> judge_range() {
    if (!content_range_) return fail(ErrorKind::corrupt, "the server's answer has no valid Content-Range");
    const ByteRange got = content_range_->range;
    const uint64_t end = std::min(request_.range->end, content_range_->total);
    if (got.begin != request_.range->begin || got.end != end) {
      return fail(ErrorKind::corrupt, fmt::format("asked for bytes {}-{}, the server sent {}-{}", request_.range->begin,
                                                  request_.range->end - 1, got.begin, got.end - 1));
    }
    response_.file_bytes = content_range_->total;
    return judge_version();
  }

  std::optional<HttpFailure> judge_version() {
    if (!request_.expected_version.empty() && response_.version != request_.expected_version) {
      return fail(ErrorKind::corrupt,
                  fmt::format("the file changed on the server while it was read (its version {} became {})",
                              request_.expected_version, response_.version));
    }
    return std::nullopt;
  }

  /// Judges the whole request after curl has finished.
  std::optional<HttpFailure> judge(CURLcode code) {
    if (sink_error_) return HttpFailure{*sink_error_, false, {}};
    if (code == CURLE_ABORTED_BY_CALLBACK)
      return HttpFailure{Error{ErrorKind::cancelled, "stopped on request"}, false, {}};
    if (!answer_judged_ && code == CURLE_OK) refusal_ = judge_answer();
    if (refusal_) {
      if (!error_body_.empty() && response_.status >= 400 && error_body_.front() != '<') {
        refusal_->error.message += fmt::format(" ({})", trim_header(error_body_));
      }
      return refusal_;
    }
    if (request_.range && received_ > expected_bytes())
      return fail(ErrorKind::corrupt, "the server sent more than its range");
    if (code != CURLE_OK) {
      const std::string detail = error_text_[0] != '\0' ? error_text_.data() : curl_easy_strerror(code);
      const bool resolve = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY;
      const bool connect = resolve || code == CURLE_COULDNT_CONNECT;
      const bool final = resolve || code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
                         code == CURLE_PEER_FAILED_VERIFICATION;
      return fail(ErrorKind::network,
                  connect ? fmt::format("cannot reach the server ({}); check the address and the connection", detail)
                          : fmt::format("transfer failed ({})", detail),
                  !final);
    }
    if (request_.range && received_ != expected_bytes()) {
      return fail(ErrorKind::network, "the connection ended before the whole range had come", true);
    }
    return std::nullopt;
  }

  const HttpRequest& request_;
  const ByteSink& sink_;
  const std::stop_token& stop_;
  CURL* curl_ = nullptr;
  HttpResponse response_;
  std::optional<ContentRange> content_range_;
  std::optional<uint64_t> retry_after_;
  uint64_t received_ = 0;
  bool answer_judged_ = false;
  bool empty_file_ = false;
  std::optional<HttpFailure> refusal_;
  std::optional<Error> sink_error_;
  std::string error_body_;
  std::array<char, CURL_ERROR_SIZE> error_text_{};
};

HttpClient::HttpClient() {
  initialise_curl();
}

HttpClient::~HttpClient() {
  for (void* handle : idle_)
    curl_easy_cleanup(handle);
}

void* HttpClient::take_handle() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      void* handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
  }
  void* handle = curl_easy_init();
  DSPACK_CHECK(handle != nullptr, "libcurl has no memory for a handle");
  return handle;
}

void HttpClient::give_handle(void* handle) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

std::variant<HttpResponse, HttpFailure> HttpClient::get(const HttpRequest& request, const ByteSink& sink,
                                                        const std::stop_token& stop) {
  void* handle = take_handle();
  auto outcome = Transfer(request, sink, stop).run(handle);
  give_handle(handle);
  return outcome;
}

double backoff_seconds(unsigned attempt, double random) {
  const double base = std::min(8.0, 0.25 * static_cast<double>(1U << std::min(attempt, 5U)));
  return base * (1.0 + 0.25 * random);
}

bool wait_for(double seconds, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
  return !stop.stop_requested();
}

}  // namespace dspack::format
