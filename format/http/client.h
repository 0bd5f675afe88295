// HTTP over libcurl: each call makes one request; connections are reused between calls; HTTP/2 if a server offers it
// over TLS. Threads: thread-safe. Errors: network (cannot connect, lost, refused), not_found (404), unsupported (a
// whole file in answer to a range), corrupt (a wrong range, length or version), budget (longer than allowed),
// cancelled, and those of the sink or of the file that is sent.
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

/// Settings for all requests of a client.
struct HttpClientOptions {
  std::string certificate_file;                  // trusted authorities; empty: the system's
  std::shared_ptr<RateLimit> rate_limit;         // limits received and sent bytes; nullptr: no limit
  std::shared_ptr<TransferCounters> counters{};  // nullptr: not counted
  unsigned stall_seconds = 30;                   // a connection without a byte for this long counts as lost
};

/// Called when the head of a good answer is complete, before any bytes of its body; not called without a body.
using HeadSink = std::function<void(const HttpResponse&)>;

using HttpOutcome = std::variant<HttpResponse, HttpFailure>;

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Makes one attempt. The bytes of a good answer go to the sink, or without one into HttpResponse::body. For a range
  /// they are exactly those requested, unless the file ends before.
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
