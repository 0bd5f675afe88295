#include "format/source/http_client.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "format/base/guarded.h"
#include "format/source/answer_pace.h"
#include "format/source/curl_settings.h"
#include "format/source/refusal_text.h"

namespace dspack::format {
namespace {

constexpr long kReceiveBytes = 512L * 1024;     // curl's own buffer; larger pieces mean fewer calls of the sink
constexpr uint64_t kMostHeaderBytes = 1 << 22;  // ten redirects with the most that libcurl takes
constexpr size_t kErrorBodyBytes = 4096;        // of a refusal, for the message
constexpr uint64_t kReadErrorBytes = 1 << 16;   // of it at most; a longer one costs the connection

void initialise_curl() {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  DSPACK_CHECK(once == CURLE_OK, "libcurl cannot be initialised");
}

}  // namespace

/// State of one request while curl runs it: has the head of the answer judged and passes the body on.
class HttpClient::Transfer {
 public:
  Transfer(const HttpRequest& request, const HttpClientOptions& options, const ByteSink& sink,
           const std::stop_token& stop, const HeadSink& on_head)
      : request_(request),
        options_(options),
        sink_(sink),
        stop_(stop),
        on_head_(on_head),
        answer_(request),
        pace_(options.stall_seconds) {}

  std::variant<HttpResponse, HttpFailure> run(CURL* curl) {
    configure(curl);
    const CURLcode code = curl_easy_perform(curl);
    auto failure = judge(code);
    if (options_.counters) count(*options_.counters);
    if (!failure) return response();
    curl_off_t seconds = 0;  // curl reads the form with a date too
    const bool known = curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &seconds) == CURLE_OK && seconds > 0;
    if (known && failure->may_pass && !failure->wait_seconds) failure->wait_seconds = static_cast<double>(seconds);
    return std::move(*failure);
  }

 private:
  void configure(CURL* curl) {
    set_common(curl, options_, error_text_);
    curl_easy_setopt(curl, CURLOPT_URL, request_.url.c_str());
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_seconds));
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kReceiveBytes);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    if (request_.range) {
      const std::string range = fmt::format("{}-{}", request_.range->begin, request_.range->end - 1);
      curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
    }
    if (request_.head_only) {
      curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
      curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    }
    set_bearer(curl, request_.bearer_token);
    curl_ = curl;
  }

  static size_t on_header(char* data, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    if (!transfer->takes_header(size * count)) return 0;
    const bool kept = transfer->kept([&] { transfer->answer_.add_line(std::string_view(data, size * count)); });
    return kept && !transfer->answer_.refused_redirect() ? size * count : 0;
  }
  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    bool wanted = false;
    const bool kept = transfer->kept([&] { wanted = transfer->body_bytes({data, size * count}); });
    return kept && wanted ? size * count : 0;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->stop_.stop_requested() ? 1 : 0;
  }

  /// libcurl bounds the lines of each head, and not those after a chunked body (RFC 9112 section 7.1.2).
  bool takes_header(size_t bytes) {
    header_bytes_ += bytes;
    if (header_bytes_ <= kMostHeaderBytes) return true;
    sink_error_ =
        Error{ErrorKind::network, fmt::format("{}: more than {} bytes of header lines",
                                              request_.name.empty() ? request_.url : request_.name, kMostHeaderBytes)};
    return false;
  }

  /// Calls `work` between libcurl's own functions, which no exception may pass; false: memory ran out.
  bool kept(const std::function<void()>& work) {
    const auto done = guarded([&]() -> Result<void> {
      work();
      return {};
    });
    if (!done) sink_error_ = done.error();
    return done.has_value();
  }

  HttpResponse response() {
    HttpResponse response = answer_.response();
    const char* url = nullptr;
    if (curl_easy_getinfo(curl_, CURLINFO_EFFECTIVE_URL, &url) == CURLE_OK && url != nullptr) {
      response.effective_url = url;
    }
    return response;
  }

  void count(TransferCounters& counters) {
    ++counters.requests;
    counters.bytes += received_;
    long redirects = 0;
    curl_easy_getinfo(curl_, CURLINFO_REDIRECT_COUNT, &redirects);
    if (redirects > 0) ++counters.resolutions;
  }

  /// Judges status and headers, once, before any of the body is used.
  void judge_head() {
    if (answer_judged_) return;
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    refusal_ = answer_.judge(status);
    answer_judged_ = true;
  }

  bool body_bytes(std::string_view bytes) {
    judge_head();
    const bool keeps_up = (request_.is_payload && !refusal_) || pace_.keeps_up(bytes.size(), AnswerPace::Clock::now());
    if (refusal_) {
      error_body_.append(bytes.substr(0, kErrorBodyBytes - std::min(kErrorBodyBytes, error_body_.size())));
      // An error page is read to its end, so that the connection can be re-used.
      return answer_.response().status >= 400 && keeps_up && pace_.bytes() <= kReadErrorBytes;
    }
    if (!keeps_up) {
      is_too_slow_ = true;
      return false;
    }
    if (answer_.empty_file()) return true;
    if (received_ == 0 && on_head_) on_head_(response());
    received_ += bytes.size();
    if (request_.range && received_ > answer_.range_bytes()) return false;
    if (options_.rate_limit) {
      const auto before = AnswerPace::Clock::now();
      if (!options_.rate_limit->pass(bytes.size(), stop_)) {
        sink_error_ = Error{ErrorKind::cancelled, "stopped on request"};
        return false;
      }
      pace_.paused(AnswerPace::Clock::now() - before);
    }
    if (auto passed = sink_(std::as_bytes(std::span(bytes.data(), bytes.size()))); !passed.has_value()) {
      sink_error_ = passed.error();
      return false;
    }
    return true;
  }

  /// Judges the whole request after curl has finished.
  std::optional<HttpFailure> judge(CURLcode code) {
    if (sink_error_) return HttpFailure{*sink_error_, false, {}};
    if (code == CURLE_ABORTED_BY_CALLBACK)
      return HttpFailure{Error{ErrorKind::cancelled, "stopped on request"}, false, {}};
    if (answer_.refused_redirect()) return answer_.refused_redirect();
    if (is_too_slow_) {
      return answer_.fail(ErrorKind::network,
                          fmt::format(kTooSlowly, pace_.bytes(), pace_.seconds(AnswerPace::Clock::now())), true);
    }
    if (code == CURLE_OK) judge_head();
    if (refusal_) {
      if (refusal_->words.empty() && refusal_->status >= 400) refusal_->words = refusal_text(error_body_);
      refusal_->words = without_secret(std::move(refusal_->words), request_.bearer_token);
      if (!refusal_->words.empty()) refusal_->error.message += fmt::format(" ({})", refusal_->words);
      return refusal_;
    }
    if (request_.range && received_ > answer_.range_bytes())
      return answer_.fail(ErrorKind::corrupt, "the server sent more than its range");
    if (code != CURLE_OK) {
      const CurlVerdict verdict = verdict_of(code, error_text_);
      HttpFailure failure = answer_.fail(ErrorKind::network, verdict.reason, verdict.may_pass);
      failure.no_such_host = verdict.no_such_host;
      return failure;
    }
    if (request_.range && received_ != answer_.range_bytes()) {
      return answer_.fail(ErrorKind::network, "the connection ended before the whole range had come", true);
    }
    return std::nullopt;
  }

  const HttpRequest& request_;
  const HttpClientOptions& options_;
  const ByteSink& sink_;
  const std::stop_token& stop_;
  const HeadSink& on_head_;
  CURL* curl_ = nullptr;
  HttpAnswer answer_;
  AnswerPace pace_;
  bool is_too_slow_ = false;
  uint64_t received_ = 0;
  uint64_t header_bytes_ = 0;  // of all redirects, trailers included
  bool answer_judged_ = false;
  std::optional<HttpFailure> refusal_;
  std::optional<Error> sink_error_;
  std::string error_body_;
  CurlErrorText error_text_{};
};

HttpClient::HttpClient(HttpClientOptions options) : options_(std::move(options)) {
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
                                                        const std::stop_token& stop, const HeadSink& on_head) {
  void* handle = take_handle();
  auto outcome = Transfer(request, options_, sink, stop, on_head).run(handle);
  give_handle(handle);
  return outcome;
}

}  // namespace dspack::format
