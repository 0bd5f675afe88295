// Serves requests while the model is loading: /health reports the progress, other requests wait for the Api. So a port
// in use is detected before minutes of loading, and a supervisor can follow it.
// Threads: thread-safe. Lifetime: borrows the Api from `open` until the server has ended. Errors: sent to the client.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "format/progress.h"
#include "runtime/serve/http_server.h"

namespace dspack::runtime {

class Api;

class StartupGate {
 public:
  /// `most_bytes`: limit of all bodies that wait.
  explicit StartupGate(uint64_t most_bytes) : most_bytes_(most_bytes) {}
  /// Passes the request to the Api once it is open.
  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  /// Whether `handle` takes almost no time for it: the server's health and counts, its settings and pages.
  [[nodiscard]] static bool is_brief(const HttpRequest& request);
  /// Passes requests to the Api from now on, including those that have waited.
  void open(Api& api);
  /// Refuses the waiting requests since no model comes; call while the server still exists.
  void close();

  /// Counts what is fetched and loaded, and passes events on to `shown`. Must not outlive this.
  [[nodiscard]] std::shared_ptr<format::Progress> watch(std::shared_ptr<format::Progress> shown);

 private:
  class Watch;
  using Request = std::pair<HttpRequest, std::shared_ptr<HttpReply>>;

  std::atomic<Api*> api_ = nullptr;
  std::mutex mutex_;
  uint64_t most_bytes_;
  std::vector<Request> waiting_;
  uint64_t waiting_bytes_ = 0;  // sum of their bodies
  bool is_closed_ = false;
  // Progress of the current step: fetching over a network, then loading, then experts.
  std::atomic<uint64_t> done_bytes_ = 0;
  std::atomic<uint64_t> total_bytes_ = 0;  // 0: unknown
};

}  // namespace dspack::runtime
