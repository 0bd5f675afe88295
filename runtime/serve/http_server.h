// An HTTP/1.1 server for a few clients whose answers take long: one thread does all I/O; answers may come from any
// other thread, at once or as a stream. The server notices a client that leaves during its answer, and drops one that
// does not read; one that has only ended its sending side (shutdown, `nc -N`) gets its answer.
// Boost.Beast rather than cpp-httplib, which keeps a thread for each connection: slow and silent clients would fill its
// pool.
// Threads: `answer` is called concurrently on the server's threads; HttpReply is thread-safe. Lifetime: the destructor
// closes the connections and joins the threads. Errors: listening: io (an address cannot be bound); a request: sent to
// its client, including exceptions of `answer`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

struct HttpLimits {
  uint32_t connections = 128;               // beyond, the connection that has been silent for longest is closed
  uint32_t header_bytes = 16U << 10U;       // per request
  uint64_t body_bytes = 32ULL << 20U;       // per request
  uint64_t small_body_bytes = 256U << 10U;  // requests up to this size never wait for longer ones
  uint64_t all_body_bytes = 64ULL << 20U;   // sum over requests; beyond, the longest that is still arriving is refused
  std::chrono::milliseconds request_time{60'000};  // from accept, or the previous answer's end, to the last byte
  std::chrono::milliseconds send_time{60'000};     // for the client to take each piece that is sent
  uint64_t unsent_bytes = 4ULL << 20U;  // buffered per stream for a slow reader; beyond, the connection is closed
};

struct HttpRequest {
  std::string method;
  std::string path;   // without the query
  std::string query;  // after the ?
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string client;                                        // IP address of the sender, in digits

  /// The first header of this name (in lower case); empty if there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

/// The answer to one request: `send` once, or `begin_stream`, any number of `write`, and `end`.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  using Headers = std::vector<std::pair<std::string, std::string>>;
  virtual void send(unsigned status, std::string_view type, std::string body, Headers headers = {}) = 0;
  virtual void begin_stream(std::string_view type) = 0;
  virtual void write(std::string data) = 0;
  virtual void end() = 0;
  /// Stopped when the client has left or was dropped.
  [[nodiscard]] virtual std::stop_token gone() const = 0;
};

struct HttpHandlers {
  std::function<void(HttpRequest request, const std::shared_ptr<HttpReply>& reply)> answer;
  /// Whether `answer` takes almost no time for this request: then the I/O thread calls it, so it never waits for busy
  /// worker threads.
  std::function<bool(const HttpRequest& request)> is_brief;
};

class HttpServer {
 public:
  /// Begins to listen on all `addresses` (at least one, in digits) and one `port`; 0 chooses a free one. Addresses that
  /// this machine lacks are skipped if another one works: a name may resolve to an IPv6 address without IPv6 here.
  /// `headers`: added to every answer.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> listen(const std::vector<std::string>& addresses,
                                                                  uint16_t port, const HttpLimits& limits,
                                                                  HttpReply::Headers headers, HttpHandlers handlers);
  virtual ~HttpServer() = default;
  [[nodiscard]] virtual uint16_t port() const = 0;
  /// Takes no new connections or requests; current answers are finished.
  virtual void drain() = 0;
  [[nodiscard]] virtual uint32_t connections() const = 0;
};

}  // namespace dspack::runtime
