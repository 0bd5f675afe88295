#include "format/http/client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "format/base/check.h"
#include "format/base/result.h"
#include "format/base/size.h"
#include "format/http/answer.h"

namespace dspack::format {
namespace {

constexpr long kConnectSeconds = 15;
constexpr long kIdleConnections = 2;                 // per handle: one to the Hub, one to where it redirects
constexpr long kReceiveBytes = 512L * 1024;          // curl's own buffer; larger pieces mean fewer calls of the sink
constexpr long kSendBytes = 512L * 1024;             // the same for sending
constexpr uint64_t kMaxAnswerHeaderBytes = 1 << 22;  // ten redirects with the most that libcurl takes
constexpr size_t kErrorBodyBytes = 4096;             // kept of a refusal's body, for the message
constexpr uint64_t kReadErrorBytes = 1 << 16;  // read of a refusal's body at most; a longer one costs the connection

using CurlErrorText = std::array<char, CURL_ERROR_SIZE>;

void initialise_curl() {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (once == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
  DSPACK_CHECK(once == CURLE_OK, "libcurl cannot be initialised");
}

/// Why a transfer failed, for a message, and whether another attempt may succeed.
struct CurlVerdict {
  std::string reason;
  bool may_pass = false;
  bool no_such_host = false;
};

CurlVerdict verdict_of(CURLcode code, const CurlErrorText& error_text) {
  const std::string detail = error_text[0] != '\0' ? error_text.data() : curl_easy_strerror(code);
  const bool resolve = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY;
  const bool connect = resolve || code == CURLE_COULDNT_CONNECT;
  const bool final = code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
                     code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_PEER_FAILED_VERIFICATION ||
                     code == CURLE_SSL_CACERT_BADFILE || code == CURLE_OUT_OF_MEMORY;
  return {connect ? "cannot reach the server (" + detail + "); check the address and the connection"
                  : "transfer failed (" + detail + ")",
          !final, resolve};
}

}  // namespace

/// State of one request while curl runs it: sends the body, has the head of the answer judged, and passes the answer's
/// bytes on.
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
  ~Transfer() { curl_slist_free_all(headers_); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  HttpOutcome run(CURL* curl) {
    curl_ = curl;
    set_up_connection();
    set_up_request();
    set_up_answer();
    const CURLcode code = curl_easy_perform(curl_);
    auto failure = judge(code);
    if (options_.counters) count(*options_.counters);
    if (!failure) return response();
    curl_off_t seconds = 0;  // curl also parses the form with a date
    const bool known = curl_easy_getinfo(curl_, CURLINFO_RETRY_AFTER, &seconds) == CURLE_OK && seconds > 0;
    if (known && failure->may_pass && !failure->wait_seconds) failure->wait_seconds = static_cast<double>(seconds);
    return std::move(*failure);
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    if (curl_easy_setopt(curl_, option, value) == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
  }

  void set_up_connection() {
    curl_easy_reset(curl_);  // keeps connections, DNS and TLS sessions
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    const unsigned silence = request_.silence_seconds != 0 ? request_.silence_seconds : options_.stall_seconds;
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(silence));
    set(CURLOPT_MAXCONNECTS, kIdleConnections);
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_2TLS));
    if (!options_.certificate_file.empty()) set(CURLOPT_CAINFO, options_.certificate_file.c_str());
    set(CURLOPT_USERAGENT, "dspack");
    set(CURLOPT_ERRORBUFFER, error_text_.data());
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
    set(CURLOPT_XFERINFODATA, this);
    if (request_.only_once) set(CURLOPT_FRESH_CONNECT, 1L);
  }

  void set_up_request() {
    set(CURLOPT_URL, request_.url.c_str());
    if (!request_.bearer_token.empty()) {
      set(CURLOPT_UNRESTRICTED_AUTH, 0L);  // not sent to another scheme, host or port after a redirect
      set(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      set(CURLOPT_XOAUTH2_BEARER, request_.bearer_token.c_str());
    }
    if (request_.range) {
      const std::string range = fmt::format("{}-{}", request_.range->begin, request_.range->end - 1);
      set(CURLOPT_RANGE, range.c_str());
    }
    if (request_.slice) {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.slice->range.size()));
      set(CURLOPT_UPLOAD_BUFFERSIZE, kSendBytes);
      set(CURLOPT_READFUNCTION, &Transfer::on_read);
      set(CURLOPT_READDATA, this);
      set(CURLOPT_SEEKFUNCTION, &Transfer::on_seek);
      set(CURLOPT_SEEKDATA, this);
    } else if (request_.is_head()) {
      set(CURLOPT_NOBODY, 1L);
    } else if (request_.method != "GET") {
      set(CURLOPT_POST, 1L);
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
      set(CURLOPT_POSTFIELDS, request_.body.c_str());
      add_header("Expect:");  // no wait for "100 Continue": the body is small, or its sender is known
    }
    if (request_.method != "GET" && !request_.is_head()) set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    for (const std::string& line : request_.headers)
      add_header(line.c_str());
    set(CURLOPT_HTTPHEADER, headers_);
  }

  void set_up_answer() {
    const bool follows = !request_.is_head() && !request_.any_status;
    set(CURLOPT_FOLLOWLOCATION, follows ? 1L : 0L);
    set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    set(CURLOPT_MAXREDIRS, 10L);
    if (follows) set(CURLOPT_BUFFERSIZE, kReceiveBytes);
    set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    set(CURLOPT_WRITEDATA, this);
  }

  void add_header(const char* line) { headers_ = allocated(curl_slist_append(headers_, line)); }

  static size_t on_header(char* data, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    const bool wanted = transfer->guard([&] { return transfer->header_line({data, size * count}); });
    return wanted ? size * count : 0;
  }
  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    const bool wanted = transfer->guard([&] { return transfer->body_bytes({data, size * count}); });
    return wanted ? size * count : 0;
  }
  static size_t on_read(char* into, size_t size, size_t count, void* self) {
    auto* const transfer = static_cast<Transfer*>(self);
    size_t sent = 0;
    const bool sends = transfer->guard([&] { return transfer->read_slice({into, size * count}, sent); });
    return sends ? sent : CURL_READFUNC_ABORT;
  }
  static int on_seek(void* self, curl_off_t offset, int origin) {
    if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Transfer*>(self)->sent_ = static_cast<uint64_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->stop_.stop_requested() ? 1 : 0;
  }

  /// Calls `work` within a libcurl callback, which no exception may leave. false: `work` returned false, or memory ran
  /// out.
  template <class Work>
  bool guard(const Work& work) {
    bool wanted = false;
    const Result<void> done = guarded([&]() -> Result<void> {
      wanted = work();
      return {};
    });
    if (!done) error_ = done.error();
    return done.has_value() && wanted;
  }

  /// Records the error that ends the transfer.
  bool give_up(Error error) {
    error_ = std::move(error);
    return false;
  }

  /// libcurl limits the header lines of each head, but not those after a chunked body (RFC 9112 section 7.1.2).
  bool header_line(std::string_view line) {
    header_bytes_ += line.size();
    if (header_bytes_ > kMaxAnswerHeaderBytes)
      return give_up(
          answer_
              .fail(ErrorKind::network, fmt::format("more than {} of header lines", size_words(kMaxAnswerHeaderBytes)))
              .error);
    answer_.add_line(line);
    return !answer_.refused_redirect();
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
      // An error page is read to its end, so that the connection can be reused.
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
      if (!options_.rate_limit->pass(bytes.size(), stop_)) return give_up(stopped());
      pace_.paused(AnswerPace::Clock::now() - before);
    }
    const Result<void> passed = sink_ ? sink_(std::as_bytes(std::span(bytes))) : keep(bytes);
    return passed.has_value() || give_up(passed.error());
  }

  Result<void> keep(std::string_view bytes) {
    if (body_.size() + bytes.size() > request_.answer_limit_bytes) {
      return answer_
          .fail(ErrorKind::budget,
                fmt::format("more than the {} that such a file may have", size_words(request_.answer_limit_bytes)))
          .error;
    }
    body_.append(bytes);
    return {};
  }

  bool read_slice(std::span<char> into, size_t& sent) {
    const FileSlice& slice = *request_.slice;
    const auto piece = into.first(std::min<uint64_t>(into.size(), slice.range.size() - sent_));
    if (options_.rate_limit && !piece.empty() && !options_.rate_limit->pass(piece.size(), stop_))
      return give_up(stopped());
    if (const auto got = slice.file->read(slice.range.begin + sent_, std::as_writable_bytes(piece)); !got)
      return give_up(got.error());
    sent_ += piece.size();
    if (slice.on_sent) slice.on_sent(sent_);
    sent = piece.size();
    return true;
  }

  /// Judges the whole exchange after curl has finished.
  std::optional<HttpFailure> judge(CURLcode code) {
    if (error_) return HttpFailure{*error_};
    if (code == CURLE_ABORTED_BY_CALLBACK) return HttpFailure{stopped()};
    if (answer_.refused_redirect()) return answer_.refused_redirect();
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    // A server that refuses may close the connection while the request is still being sent: its answer counts. A
    // refusal that arrives too slowly counts as well, since its status is known.
    const bool is_refusal = request_.any_status && status >= 400 && (code == CURLE_SEND_ERROR || is_too_slow_);
    if (is_too_slow_ && !is_refusal) {
      const double seconds = pace_.seconds(AnswerPace::Clock::now());
      return answer_.fail(ErrorKind::network,
                          fmt::format("its answer comes too slowly ({} in {:.0f} s); try again later",
                                      size_words(pace_.bytes()), seconds),
                          true);
    }
    if (code == CURLE_OK || is_refusal) judge_head();
    if (refusal_) {
      if (refusal_->words.empty() && refusal_->status >= 400) refusal_->words = answer_.words_in(error_body_);
      if (!refusal_->words.empty()) refusal_->error.message += fmt::format(" ({})", refusal_->words);
      return refusal_;
    }
    if (request_.range && received_ > answer_.range_bytes())
      return answer_.fail(ErrorKind::corrupt, "the server sent more than its range");
    if (code != CURLE_OK && !is_refusal) {
      const CurlVerdict verdict = verdict_of(code, error_text_);
      HttpFailure failure = answer_.fail(ErrorKind::network, verdict.reason, verdict.may_pass);
      failure.no_such_host = verdict.no_such_host;
      return failure;
    }
    if (request_.range && received_ != answer_.range_bytes())
      return answer_.fail(ErrorKind::network, "the connection ended before the whole range had come", true);
    return std::nullopt;
  }

  HttpResponse response() {
    HttpResponse response = answer_.response();
    if (response.words.empty() && response.status >= 400) response.words = answer_.words_in(body_);
    response.body = std::move(body_);
    const char* url = nullptr;
    if (curl_easy_getinfo(curl_, CURLINFO_EFFECTIVE_URL, &url) == CURLE_OK && url != nullptr)
      response.effective_url = url;
    return response;
  }

  void count(TransferCounters& counters) {
    ++counters.requests;
    counters.bytes += received_;
    long redirects = 0;
    curl_easy_getinfo(curl_, CURLINFO_REDIRECT_COUNT, &redirects);
    if (redirects > 0) ++counters.resolutions;
  }

  const HttpRequest& request_;
  const HttpClientOptions& options_;
  const ByteSink& sink_;
  const std::stop_token& stop_;
  const HeadSink& on_head_;
  CURL* curl_ = nullptr;
  curl_slist* headers_ = nullptr;
  HttpAnswer answer_;
  AnswerPace pace_;
  bool is_too_slow_ = false;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  uint64_t header_bytes_ = 0;  // over all redirects, trailers included
  bool answer_judged_ = false;
  std::optional<HttpFailure> refusal_;
  std::optional<Error> error_;  // the error that ended the transfer
  std::string body_;            // a good answer's, if there is no sink
  std::string error_body_;      // the beginning of a refusal's body
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
  return allocated(curl_easy_init());
}

void HttpClient::give_handle(void* handle) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

HttpOutcome HttpClient::send(const HttpRequest& request, const ByteSink& sink, const std::stop_token& stop,
                             const HeadSink& on_head) {
  const auto give = [this](void* handle) { give_handle(handle); };
  const std::unique_ptr<void, decltype(give)> handle(take_handle(), give);
  return Transfer(request, options_, sink, stop, on_head).run(handle.get());
}

}  // namespace dspack::format
