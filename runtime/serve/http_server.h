// An HTTP/1.1 server for a few clients whose answers take long: one thread does all input and output, answers may come
// from any other thread, at once or as a stream. A client that leaves is noticed while its answer is made, and one that
// does not read is let go; one that has only ended its sending side (shutdown, `nc -N`) gets its answer.
// Boost.Beast rather than cpp-httplib, which keeps a thread for each connection: slow and silent clients would fill its
// pool.
// Threads: `answer` is called on threads of the server, several at a time; HttpReply is thread-safe. Lifetime: the
// server ends its connections and joins its threads. Errors: of listening: io (an address cannot be bound); of a
// request: told to its client, also what `answer` throws.
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
  uint32_t connections = 128;               // at once; beyond, the one that has been silent for longest is closed
  uint32_t header_bytes = 16U << 10U;       // of a request
  uint64_t body_bytes = 32ULL << 20U;       // of a request
  uint64_t small_body_bytes = 256U << 10U;  // of a request that never waits for longer ones to be answered
  uint64_t all_body_bytes = 64ULL << 20U;   // of all; beyond, the longest that is still arriving is refused
  std::chrono::milliseconds request_time{60'000};  // from a request's first byte, or the connection, to its last byte
  std::chrono::milliseconds send_time{60'000};     // in which a client must take what is sent to it
  uint64_t unsent_bytes = 4ULL << 20U;             // of a stream, kept for a client that reads slowly
};

struct HttpRequest {
  std::string method;
  std::string path;   // without the query
  std::string query;  // after the ?
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string client;                                        // the address that it came from, in digits

  /// The first header of this name (in lower case); empty if there is none.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

/// The answer to one request: `send` once, or `begin_stream`, `write` as often as wanted, and `end`.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  using Headers = std::vector<std::pair<std::string, std::string>>;
  virtual void send(unsigned status, std::string_view type, std::string body, Headers headers = {}) = 0;
  virtual void begin_stream(std::string_view type) = 0;
  virtual void write(std::string data) = 0;
  virtual void end() = 0;
  /// Is stopped when the client has left or was let go.
  [[nodiscard]] virtual std::stop_token gone() const = 0;
};

struct HttpHandlers {
  std::function<void(HttpRequest request, const std::shared_ptr<HttpReply>& reply)> answer;
  /// Whether `answer` takes next to no time for this request: then the thread of input and output calls it, and what
  /// keeps other threads busy does not delay it.
  std::function<bool(const HttpRequest& request)> is_brief;
};

class HttpServer {
 public:
  /// Begins to listen at all `addresses` (at least one, in digits) and one `port`; 0 chooses a free one. Of several,
  /// those that this machine lacks are left out: a name may stand for an IPv6 address where there is no IPv6.
  /// `headers`: of every answer.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> listen(const std::vector<std::string>& addresses,
                                                                  uint16_t port, const HttpLimits& limits,
                                                                  HttpReply::Headers headers, HttpHandlers handlers);
  virtual ~HttpServer() = default;
  [[nodiscard]] virtual uint16_t port() const = 0;
  /// Takes no new connections or requests; answers under way go on.
  virtual void drain() = 0;
  [[nodiscard]] virtual uint32_t connections() const = 0;
};

}  // namespace dspack::runtime
