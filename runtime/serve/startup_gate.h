// What a server answers while its model is loaded: that it is loading, how far, and when to ask again; afterwards the
// Api answers. So a port in use is known before minutes of loading, and who watches over the server sees it come.
// Threads: thread-safe. Lifetime: borrows the Api from `open` on, until the server has ended. Errors: told to the
// client.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>

#include "format/progress.h"
#include "runtime/serve/http_server.h"

namespace dspack::runtime {

class Api;

class StartupGate {
 public:
  /// By the Api, once there is one.
  void handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  /// From now on requests are for the Api.
  void open(Api& api) { api_ = &api; }

  /// Counts what is fetched and loaded, and passes events on to `shown`. It does not outlive this.
  [[nodiscard]] std::shared_ptr<format::Progress> watch(std::shared_ptr<format::Progress> shown);

 private:
  class Watch;
  std::atomic<Api*> api_ = nullptr;
  // Of the step under way: first what is fetched over a network, then what is loaded, then experts.
  std::atomic<uint64_t> done_bytes_ = 0;
  std::atomic<uint64_t> total_bytes_ = 0;  // 0: not known
};

}  // namespace dspack::runtime
