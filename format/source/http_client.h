// HTTP GET with byte ranges over libcurl: one request at a time per call, connections re-used between calls.
// Threads: thread-safe. Errors: network (cannot connect, lost, refused), not_found (404), unsupported (a whole file in
// answer to a range), corrupt (a wrong range or length), cancelled, and whatever the sink returns.
#pragma once

#include <mutex>
#include <stop_token>
#include <variant>
#include <vector>

#include "format/source/http_answer.h"
#include "format/source/repository.h"

namespace dspack::format {

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One GET (HEAD where the request says so: then the sink sees nothing). The sink sees body bytes only of a good
  /// answer: 206 with exactly the range asked for (the end may be cut by the end of the file), or 200 where no range
  /// was asked for.
  [[nodiscard]] std::variant<HttpResponse, HttpFailure> get(const HttpRequest& request, const ByteSink& sink,
                                                            const std::stop_token& stop);

 private:
  class Transfer;
  void* take_handle();
  void give_handle(void* handle);

  std::mutex mutex_;
  std::vector<void*> idle_;  // guarded by mutex_; CURL easy handles, each with its live connections
};

/// Seconds to wait before attempt `attempt` (1 is the first repetition): 0.5 s doubling to 8 s, plus up to a quarter of
/// jitter from `random` in [0, 1), so that many clients do not return in step.
[[nodiscard]] double backoff_seconds(unsigned attempt, double random);

/// Waits, or returns early with false when a stop is requested.
[[nodiscard]] bool wait_for(double seconds, const std::stop_token& stop);

}  // namespace dspack::format
