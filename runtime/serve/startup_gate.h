// What a server does while its model is loaded: it tells who asks for its health how far that is; other requests wait
// for the Api. So a port in use is known before minutes of loading, and who watches over the server sees it come.
// Threads: thread-safe. Lifetime: borrows the Api from `open` on, until the server has ended. Errors: told to the
// client.
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
  /// `most_bytes`: of all bodies that wait.
  explicit StartupGate(uint64_t most_bytes) : most_bytes_(most_bytes) {}
  /// By the Api, once there is one.
  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  /// Whether `handle` takes next to no time for it: the server's health and counts, its settings and pages.
  [[nodiscard]] static bool is_brief(const HttpRequest& request);
  /// From now on requests are for the Api, and first those that have waited.
  void open(Api& api);
  /// No model comes: those that have waited are told so, while the server is still there.
  void close();

  /// Counts what is fetched and loaded, and passes events on to `shown`. It does not outlive this.
  [[nodiscard]] std::shared_ptr<format::Progress> watch(std::shared_ptr<format::Progress> shown);

 private:
  class Watch;
  using Request = std::pair<HttpRequest, std::shared_ptr<HttpReply>>;

  std::atomic<Api*> api_ = nullptr;
  std::mutex mutex_;
  uint64_t most_bytes_;
  std::vector<Request> waiting_;
  uint64_t waiting_bytes_ = 0;  // of their bodies
  bool is_closed_ = false;
  // Of the step under way: first what is fetched over a network, then what is loaded, then experts.
  std::atomic<uint64_t> done_bytes_ = 0;
  std::atomic<uint64_t> total_bytes_ = 0;  // 0: not known
};

}  // namespace dspack::runtime
