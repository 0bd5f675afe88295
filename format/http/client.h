// HTTP over libcurl: one request at a time per call, connections re-used between calls, HTTP/2 where a server offers it
// over TLS. Threads: thread-safe. Errors: network (cannot connect, lost, refused), not_found (404), unsupported (a
// whole file in answer to a range), corrupt (a wrong range, length or version), budget (longer than it may be),
// cancelled, and whatever the sink or the file that is sent returns.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "format/http/pace.h"
#include "format/http/request.h"
#include "format/source/repository.h"

namespace dspack::format {

/// What holds for every request of a client.
struct HttpClientOptions {
  std::string certificate_file;                  // of authorities to trust; empty: the system's
  std::shared_ptr<RateLimit> rate_limit;         // of what comes and what is sent; nullptr: none
  std::shared_ptr<TransferCounters> counters{};  // nullptr: not counted
  unsigned stall_seconds = 30;                   // no byte for so long: the connection counts as lost
};

/// Called when the head of a good answer is there, before any of its bytes; not for an answer without a body.
using HeadSink = std::function<void(const HttpResponse&)>;

using HttpOutcome = std::variant<HttpResponse, HttpFailure>;

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One attempt. The bytes of a good answer go to the sink, or without one into HttpResponse::body; of an answer to a
  /// range exactly those asked for, unless the end of the file cuts it.
  [[nodiscard]] HttpOutcome send(const HttpRequest& request, const ByteSink& sink, const std::stop_token& stop,
                                 const HeadSink& on_head = {});

 private:
  class Transfer;
  void* take_handle();
  void give_handle(void* handle);

  HttpClientOptions options_;
  std::mutex mutex_;
  std::vector<void*> idle_;  // guarded by mutex_; CURL easy handles, each with its live connections
};

}  // namespace dspack::format
