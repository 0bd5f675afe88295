// One connection of an HTTP server: reads a request, dispatches it, sends the answer, and repeats.
// Threads: single-thread, that of its owner's context; the HttpReply that it hands out is thread-safe, and posts there.
// Lifetime: borrows its owner, which keeps it until `leave`. Errors: each ends only this connection, including out of
// memory, and is sent to the client if possible.
#pragma once

#include <utility>  // must precede Boost 1.74, which lacks this include

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/serve/http_server.h"

namespace dspack::runtime {

class HttpConnection;

/// A connection's view of its server; called only on the thread of the context.
class HttpConnectionOwner {
 public:
  virtual ~HttpConnectionOwner() = default;
  [[nodiscard]] virtual boost::asio::io_context& context() = 0;
  [[nodiscard]] virtual const HttpLimits& limits() const = 0;
  /// Headers of every answer.
  [[nodiscard]] virtual const HttpReply::Headers& headers() const = 0;
  /// Whether connections close after the current answer.
  [[nodiscard]] virtual bool is_draining() const = 0;
  /// Takes a whole request. `body_bytes` stay counted until the request has been handled.
  virtual void dispatch(HttpRequest request, std::shared_ptr<HttpReply> reply, uint64_t body_bytes) = 0;
  /// Counts `bytes` more of an arriving body; beyond the limit, the longest body that is still arriving is refused.
  virtual void count_body(uint64_t bytes) = 0;
  virtual void release_body(uint64_t bytes) = 0;
  /// Marks the connection as the most recently active.
  virtual void touch(const HttpConnection& connection) = 0;
  virtual void leave(const HttpConnection& connection) = 0;
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpConnectionOwner& owner, boost::asio::ip::tcp::socket socket)
      : owner_(owner), stream_(std::move(socket)), probe_(stream_.get_executor()) {}

  void read();
  void close();
  [[nodiscard]] bool is_waiting() const { return state_ == State::waiting; }
  /// Bytes of the request's body so far, while it is arriving.
  [[nodiscard]] uint64_t arriving_bytes() const { return arrived_; }
  void refuse_body();

  std::list<std::shared_ptr<HttpConnection>>::iterator place;  // in the owner's list

 private:
  using ErrorCode = boost::system::error_code;
  enum class State { waiting, answering, streaming, closed };
  class Reply;

  void send(uint64_t request, unsigned status, const std::string& type, std::string body,
            const HttpReply::Headers& headers);
  void begin_stream(uint64_t request, const std::string& type);
  void write(uint64_t request, std::string data);
  void end(uint64_t request);
  void abandoned(uint64_t request);

  template <class Work>
  void attempt(Work&& work) noexcept;
  template <class Work>
  [[nodiscard]] auto attempting(Work work);
  void give_up(unsigned status, std::string_view reason);
  void read_more();
  void on_bytes(ErrorCode error, size_t bytes);
  void parse();
  void on_header();
  void on_request();
  void on_parse_error(ErrorCode error);
  void refuse(unsigned status, std::string_view reason);
  void watch();
  void on_readable(ErrorCode error);
  void probe_after(std::chrono::milliseconds time);
  void begin_answer(std::string bytes, bool is_last);
  void send_next();
  void on_sent(ErrorCode error, bool was_last);
  void next_request();
  void discard();
  [[nodiscard]] bool is_of(uint64_t request) const { return state_ != State::closed && request == request_; }

  HttpConnectionOwner& owner_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  State state_ = State::waiting;
  bool keeps_alive_ = false;
  bool is_chunked_ = false;
  bool wants_body_ = true;    // false for HEAD
  bool is_watching_ = false;  // for bytes or EOF
  bool is_watching_for_reset_ = false;
  bool refused_ = false;
  std::chrono::steady_clock::time_point refused_until_;
  uint64_t request_ = 0;  // number of the current request; answers to earlier ones are dropped
  std::stop_source gone_;
  // Output queue; the last piece of an answer is marked.
  struct QueuedBytes {
    std::string bytes;
    bool is_last = false;
  };
  std::deque<QueuedBytes> unsent_;
  uint64_t unsent_bytes_ = 0;
  uint64_t arrived_ = 0;
  bool is_sending_ = false;
  boost::asio::steady_timer probe_;
  size_t probed_ = 0;  // bytes of kFirstBytes already sent as probes
};

}  // namespace dspack::runtime
