// HttpClient::exchange: the transport of http_exchange.h.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "format/base/guarded.h"
#include "format/source/answer_pace.h"
#include "format/source/curl_settings.h"

namespace dspack::format {
namespace {

constexpr long kSendBytes = 512L * 1024;  // curl's own buffer for what is sent; one a transfer
constexpr uint64_t kMostHeadBytes = 1 << 20;

}  // namespace

/// State of one exchange while curl runs it.
class HttpClient::Exchange {
 public:
  Exchange(const HttpCall& call, const HttpClientOptions& options, const std::stop_token& stop)
      : call_(call), options_(options), stop_(stop), pace_(options.stall_seconds) {}
  ~Exchange() { curl_slist_free_all(headers_); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  std::variant<HttpReply, HttpFailure> run(CURL* curl) {
    configure(curl);
    const CURLcode code = curl_easy_perform(curl);
    if (options_.counters) {
      ++options_.counters->requests;
      options_.counters->bytes += reply_.body.size();
    }
    if (error_) return HttpFailure{*error_};
    if (code == CURLE_ABORTED_BY_CALLBACK) return HttpFailure{Error{ErrorKind::cancelled, "stopped on request"}};
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply_.status);
    // A server that refuses may close the connection while the body is still on its way: its word counts.
    const bool refused_early = code == CURLE_SEND_ERROR && reply_.status >= 400;
    // Of a refusal enough has come to know that it is one.
    if (code == CURLE_OK || refused_early || (is_too_slow_ && reply_.status >= 400)) return std::move(reply_);
    if (is_too_slow_) {
      const double seconds = pace_.seconds(AnswerPace::Clock::now());
      return HttpFailure{
          Error{ErrorKind::network, fmt::format("{}: {}", call_.name, fmt::format(kTooSlowly, pace_.bytes(), seconds))},
          true};
    }
    const CurlVerdict verdict = verdict_of(code, error_text_);
    HttpFailure failure{Error{ErrorKind::network, fmt::format("{}: {}", call_.name, verdict.reason)}, verdict.may_pass};
    failure.no_such_host = verdict.no_such_host;
    return failure;
  }

 private:
  void configure(CURL* curl) {
    set_common(curl, options_, error_text_);
    curl_easy_setopt(curl, CURLOPT_URL, call_.url.c_str());
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, call_.silence_seconds);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Exchange::on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Exchange::on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Exchange::on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    if (call_.only_once) curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
    set_bearer(curl, call_.bearer_token);
    if (call_.slice) {
      send_slice(curl);
    } else if (call_.method != "GET") {
      curl_easy_setopt(curl, CURLOPT_POST, 1L);
      curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call_.body.size()));
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call_.body.c_str());
      add_header("Expect:");  // no question before the body: it is small, or its sender is known
    }
    if (call_.method != "GET") curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call_.method.c_str());
    for (const std::string& line : call_.headers)
      add_header(line.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_);
  }

  void send_slice(CURL* curl) {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(call_.slice->range.size()));
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kSendBytes);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, &Exchange::on_read);
    curl_easy_setopt(curl, CURLOPT_READDATA, this);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, &Exchange::on_seek);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, this);
  }

  void add_header(const char* line) {
    curl_slist* longer = curl_slist_append(headers_, line);
    DSPACK_CHECK(longer != nullptr, "libcurl has no memory for a header");
    headers_ = longer;
  }

  static size_t on_header(char* data, size_t size, size_t count, void* self) {
    auto* const exchange = static_cast<Exchange*>(self);
    const bool kept = exchange->unless_full([&]() -> Result<void> {
      exchange->head_bytes_ += size * count;
      if (exchange->head_bytes_ > kMostHeadBytes) {
        return Error{ErrorKind::network,
                     fmt::format("{}: more than {} bytes of header lines", exchange->call_.name, kMostHeadBytes)};
      }
      add_reply_line(exchange->reply_, std::string_view(data, size * count));
      return {};
    });
    return kept ? size * count : 0;
  }
  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    auto* const exchange = static_cast<Exchange*>(self);
    const bool kept = exchange->unless_full([&] { return exchange->keep({data, size * count}); });
    return kept && !exchange->is_too_slow_ ? size * count : 0;
  }
  static size_t on_read(char* into, size_t size, size_t count, void* self) {
    return static_cast<Exchange*>(self)->read({into, size * count});
  }
  static int on_seek(void* self, curl_off_t offset, int origin) {
    if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Exchange*>(self)->sent_ = static_cast<uint64_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Exchange*>(self)->stop_.stop_requested() ? 1 : 0;
  }

  /// Whether `work` succeeds, which runs between libcurl's own functions: no exception may pass them.
  template <class Work>
  bool unless_full(Work&& work) {
    const Result<void> done = guarded(work);
    if (!done) error_ = done.error();
    return done.has_value();
  }

  Result<void> keep(std::string_view bytes) {
    is_too_slow_ = !pace_.keeps_up(bytes.size(), AnswerPace::Clock::now());
    if (is_too_slow_) return {};
    if (reply_.body.size() + bytes.size() > call_.answer_limit_bytes) {
      return Error{ErrorKind::budget, fmt::format("{}: the answer is longer than the {} bytes that it may have",
                                                  call_.name, call_.answer_limit_bytes)};
    }
    reply_.body.append(bytes);
    return {};
  }

  size_t read(std::span<char> into) {
    const FileSlice& slice = *call_.slice;
    const auto piece = into.first(std::min<uint64_t>(into.size(), slice.range.size() - sent_));
    if (options_.rate_limit && !piece.empty() && !options_.rate_limit->pass(piece.size(), stop_)) {
      error_ = Error{ErrorKind::cancelled, "stopped on request"};
      return CURL_READFUNC_ABORT;
    }
    if (const auto got = slice.file->read(slice.range.begin + sent_, std::as_writable_bytes(piece)); !got) {
      error_ = got.error();
      return CURL_READFUNC_ABORT;
    }
    sent_ += piece.size();
    if (slice.on_sent) slice.on_sent(sent_);
    return piece.size();
  }

  const HttpCall& call_;
  const HttpClientOptions& options_;
  const std::stop_token& stop_;
  HttpReply reply_;
  AnswerPace pace_;
  bool is_too_slow_ = false;
  uint64_t sent_ = 0;
  uint64_t head_bytes_ = 0;  // trailers included, which libcurl does not bound
  std::optional<Error> error_;
  curl_slist* headers_ = nullptr;
  CurlErrorText error_text_{};
};

std::variant<HttpReply, HttpFailure> HttpClient::exchange(const HttpCall& call, const std::stop_token& stop) {
  void* handle = take_handle();
  auto outcome = Exchange(call, options_, stop).run(handle);
  give_handle(handle);
  return outcome;
}

}  // namespace dspack::format
