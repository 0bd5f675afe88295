// HTTP over libcurl: GET with byte ranges, and requests with a body: one at a time per call, connections re-used
// between calls, HTTP/2 where a server offers it over TLS. Threads: thread-safe. Errors: network (cannot connect, lost,
// refused), not_found (404), unsupported (a whole file in answer to a range), corrupt (a wrong range or length),
// cancelled, and whatever the sink returns.
#pragma once

#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "format/source/http_answer.h"
#include "format/source/http_exchange.h"
#include "format/source/rate_limit.h"
#include "format/source/repository.h"

namespace dspack::format {

/// What holds for every request of a client.
struct HttpClientOptions {
  std::string certificate_file;                  // of authorities to trust; empty: the system's
  std::shared_ptr<RateLimit> rate_limit;         // nullptr: none
  std::shared_ptr<TransferCounters> counters{};  // nullptr: not counted
  unsigned stall_seconds = 30;                   // no byte for so long: the connection counts as lost
};

/// Called when the head of a good answer is there, before the sink sees a byte; not for an answer without a body.
using HeadSink = std::function<void(const HttpResponse&)>;

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One GET (HEAD where the request says so: then the sink sees nothing). The sink sees body bytes only of a good
  /// answer: 206 with exactly the range asked for (the end may be cut by the end of the file), or 200 where no range
  /// was asked for.
  [[nodiscard]] std::variant<HttpResponse, HttpFailure> get(const HttpRequest& request, const ByteSink& sink,
                                                            const std::stop_token& stop, const HeadSink& on_head = {});

  /// One request with its whole answer, whatever the status. A failure is one of the transport: whether the request was
  /// carried out is then not known.
  [[nodiscard]] std::variant<HttpReply, HttpFailure> exchange(const HttpCall& call, const std::stop_token& stop);

 private:
  class Transfer;
  class Exchange;
  void* take_handle();
  void give_handle(void* handle);

  HttpClientOptions options_;
  std::mutex mutex_;
  std::vector<void*> idle_;  // guarded by mutex_; CURL easy handles, each with its live connections
};

}  // namespace dspack::format
