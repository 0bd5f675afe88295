// Facts of a server about itself: health, model, settings, counts, the description of its API, and the page at `/`.
// Threads: thread-safe. Lifetime: borrows scheduler, requests' memory and options. Errors: none.
#pragma once

#include <string>
#include <string_view>

#include "runtime/budget/request_memory.h"
#include "runtime/generate/scheduler.h"
#include "runtime/serve/api_options.h"
#include "runtime/serve/http_server.h"

namespace dspack::runtime {

// The files of runtime/serve/page/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kWebPageFrame;
extern const std::string_view kWebPageStyle;
extern const std::string_view kWebPageScript;

class ServerFacts {
 public:
  ServerFacts(const Scheduler& scheduler, const RequestMemory& memory, const ApiOptions& options)
      : scheduler_(scheduler), memory_(memory), options_(options) {}

  /// Answers a GET or HEAD. False: there is nothing under this path.
  [[nodiscard]] bool send(const HttpRequest& request, HttpReply& reply) const;

 private:
  /// The page at `/`: chat, with the machine's activity beside it. One document that loads nothing else; its data comes
  /// from the API, with the key that its user types.
  struct WebPage {
    std::string html;
    std::string policy;  // its Content-Security-Policy
  };
  static WebPage make_web_page();
  [[nodiscard]] bool is_this_model(std::string_view path) const;
  [[nodiscard]] OrderedJson model() const;
  [[nodiscard]] OrderedJson settings() const;
  void send_health(HttpReply& reply) const;

  const Scheduler& scheduler_;
  const RequestMemory& memory_;
  const ApiOptions& options_;
  const WebPage page_ = make_web_page();
};

}  // namespace dspack::runtime
