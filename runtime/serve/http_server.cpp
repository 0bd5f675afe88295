#include "runtime/serve/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <list>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/serve/http_message.h"
#include "runtime/serve/listeners.h"

namespace dspack::runtime {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCode = boost::system::error_code;
using asio::ip::tcp;

constexpr char kName[] = "dspack";
constexpr size_t kWorkers = 2;  // threads that read requests: a prompt of a megabyte takes some time to encode
// A refused request is read on for so long, unused: a connection that is closed with bytes unread is reset, and the
// client would not see why.
constexpr std::chrono::seconds kDiscardTime{3};
constexpr size_t kDiscardBytes = 64U << 10U;  // at once
// A client that has ended its sending side may wait for its answer or be gone: TCP tells no difference, until something
// is sent, which one that is gone answers by a reset. Every answer begins with these bytes, so that one of them at a
// time can be sent ahead: after kProbeAfter, then after kProbeFactor times as long, and so on.
constexpr std::string_view kFirstBytes = "HTTP/1.";
constexpr std::chrono::milliseconds kProbeAfter{200};  // most answers that are short come sooner
constexpr int kProbeFactor = 4;

class Server;

/// One connection: reads a request, gives it to the handler, sends the answer, and so on. Everything runs on the
/// server's thread; the methods of HttpReply post there.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket)
      : server_(server), stream_(std::move(socket)), probe_(stream_.get_executor()) {}

  void read();
  void close();
  [[nodiscard]] bool is_waiting() const { return state_ == State::waiting; }
  /// Of the request's body, as long as it is arriving.
  [[nodiscard]] uint64_t arriving_bytes() const { return arrived_; }
  void refuse_body() {
    stream_.cancel();  // it is being read
    refuse(503, "requests of other clients need the memory");
  }

  void send(uint64_t request, unsigned status, const std::string& type, std::string body,
            const HttpReply::Headers& headers);
  void begin_stream(uint64_t request, const std::string& type);
  void write(uint64_t request, std::string data);
  void end(uint64_t request);
  void abandoned(uint64_t request);
  [[nodiscard]] asio::io_context& context();

  std::list<std::shared_ptr<Connection>>::iterator place;  // in the server's list

 private:
  enum class State { waiting, answering, streaming, closed };
  void on_header(ErrorCode error);
  void read_body();
  void on_body(ErrorCode error);
  void on_request(ErrorCode error);
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

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  State state_ = State::waiting;
  bool keeps_alive_ = false;
  bool is_chunked_ = false;
  bool wants_body_ = true;    // the request was no HEAD
  bool is_watching_ = false;  // for bytes, or the end of them
  bool is_watching_for_reset_ = false;
  bool refused_ = false;
  std::chrono::steady_clock::time_point refused_until_;
  uint64_t request_ = 0;  // its number; an answer to an earlier one is nobody's
  std::stop_source gone_;
  // What is to be sent, in order; the last one of an answer is marked.
  struct Piece {
    std::string bytes;
    bool is_last = false;
  };
  std::deque<Piece> unsent_;
  uint64_t unsent_bytes_ = 0;
  uint64_t arrived_ = 0;
  bool is_sending_ = false;
  asio::steady_timer probe_;
  size_t probed_ = 0;  // bytes of kFirstBytes that were sent ahead
};

/// Finishes what its owner forgot: a reply that nobody holds any more and that was not answered ends the connection.
class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<Connection> connection, uint64_t request, std::stop_token gone)
      : connection_(std::move(connection)), request_(request), gone_(std::move(gone)) {}
  ~Reply() override {
    post([request = request_](Connection& connection) { connection.abandoned(request); });
  }

  void send(unsigned status, std::string_view type, std::string body, Headers headers) override {
    post([request = request_, status, type = std::string(type), body = std::move(body), headers = std::move(headers)](
             Connection& connection) mutable { connection.send(request, status, type, std::move(body), headers); });
  }
  void begin_stream(std::string_view type) override {
    post([request = request_, type = std::string(type)](Connection& connection) mutable {
      connection.begin_stream(request, type);
    });
  }
  void write(std::string data) override {
    post([request = request_, data = std::move(data)](Connection& connection) mutable {
      connection.write(request, std::move(data));
    });
  }
  void end() override {
    post([request = request_](Connection& connection) { connection.end(request); });
  }
  [[nodiscard]] std::stop_token gone() const override { return gone_; }

 private:
  template <class Work>
  void post(Work work) {
    asio::post(connection_->context(),
               [connection = connection_, work = std::move(work)]() mutable { work(*connection); });
  }

  std::shared_ptr<Connection> connection_;
  uint64_t request_;
  std::stop_token gone_;
};

class Server final : public HttpServer {
 public:
  Server(const HttpLimits& limits, HttpReply::Headers headers, HttpHandler handler)
      : limits_(limits), headers_(std::move(headers)), handler_(std::move(handler)) {}

  ~Server() override {
    asio::post(context_, [this] {
      listeners_.close();
      for (auto all = connections_; const auto& connection : all)
        connection->close();
    });
    workers_.join();
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }

  Result<void> open(const std::vector<std::string>& addresses, uint16_t port) {
    TRY(listeners_.open(addresses, port));
    listeners_.start([this](tcp::socket socket) { accept(std::move(socket)); }, [this] { return close_silent(); });
    thread_ = std::thread([this] { context_.run(); });
    return {};
  }

  [[nodiscard]] uint16_t port() const override { return listeners_.port(); }
  [[nodiscard]] uint32_t connections() const override { return count_; }
  void drain() override {
    asio::post(context_, [this] {
      listeners_.close();
      for (auto all = connections_; const auto& connection : all)
        if (connection->is_waiting()) connection->close();
    });
  }

  [[nodiscard]] const HttpLimits& limits() const { return limits_; }
  [[nodiscard]] const HttpReply::Headers& headers() const { return headers_; }
  [[nodiscard]] const HttpHandler& handler() const { return handler_; }
  [[nodiscard]] asio::io_context& context() { return context_; }
  [[nodiscard]] asio::thread_pool& workers() { return workers_; }
  [[nodiscard]] bool is_draining() const { return !listeners_.is_open(); }

  void remove(const Connection& connection) {
    connections_.erase(connection.place);
    count_ = static_cast<uint32_t>(connections_.size());
  }
  /// So many bytes more have arrived.
  void count_body(uint64_t bytes) {
    body_bytes_ += bytes;
    if (body_bytes_ <= limits_.all_body_bytes) return;
    const auto longest = std::ranges::max_element(
        connections_, {}, [](const std::shared_ptr<Connection>& each) { return each->arriving_bytes(); });
    if ((*longest)->arriving_bytes() > 0) (*longest)->refuse_body();
  }
  void release_body(uint64_t bytes) { body_bytes_ -= bytes; }
  /// The connection has done something: others have been silent for longer.
  void touch(const Connection& connection) { connections_.splice(connections_.end(), connections_, connection.place); }

 private:
  void accept(tcp::socket socket) {
    if (connections_.size() >= limits_.connections && !close_silent()) return;  // all are being answered
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    connection->place = connections_.insert(connections_.end(), connection);
    count_ = static_cast<uint32_t>(connections_.size());
    connection->read();
  }

  /// Closes the connection without a request that has been silent for longest; false if all have one.
  bool close_silent() {
    const auto silent = std::ranges::find_if(connections_, [](const auto& each) { return each->is_waiting(); });
    if (silent == connections_.end()) return false;
    const std::shared_ptr<Connection> connection = *silent;
    connection->close();
    return true;
  }

  HttpLimits limits_;
  HttpReply::Headers headers_;
  HttpHandler handler_;
  asio::io_context context_{1};
  asio::thread_pool workers_{kWorkers};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  Listeners listeners_{context_};
  std::list<std::shared_ptr<Connection>> connections_;  // longest silent first
  std::atomic<uint32_t> count_ = 0;
  uint64_t body_bytes_ = 0;  // of requests that arrive or wait to be read
  std::thread thread_;
};

asio::io_context& Connection::context() {
  return server_.context();
}

void Connection::read() {
  state_ = State::waiting;
  parser_.emplace();
  parser_->header_limit(server_.limits().header_bytes);
  parser_->body_limit(server_.limits().body_bytes);
  stream_.expires_after(server_.limits().request_time);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode error, size_t) { self->on_header(error); });
}

void Connection::on_header(ErrorCode error) {
  if (state_ == State::closed) return;
  if (error == http::error::header_limit) return refuse(431, "the header of the request is too long");
  if (error == http::error::body_limit) return refuse(413, "the body of the request is too long");
  if (error == http::error::end_of_stream || error == beast::error::timeout ||
      (error && error.category() != http::make_error_code(http::error::bad_method).category())) {
    return close();
  }
  if (error) return refuse(400, "this is no HTTP request");
  // HTTP/1.0 knows no expectations (RFC 9110, 10.1.1).
  const auto [expectation, end] = parser_->get().equal_range(http::field::expect);
  const bool is_expected = expectation != end && parser_->get().version() >= 11;
  if (is_expected &&
      std::any_of(expectation, end, [](const auto& each) { return !beast::iequals(each.value(), "100-continue"); })) {
    return refuse(417, "of expectations only 100-continue can be met");
  }
  if (is_expected) {
    // Sent as it is: a client that asked for it waits for it.
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                      [self = shared_from_this()](ErrorCode failure, size_t) {
                        if (failure) self->close();
                      });
  }
  read_body();
}

void Connection::read_body() {
  if (parser_->is_done()) return on_request({});
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = shared_from_this()](ErrorCode error, size_t) { self->on_body(error); });
}

void Connection::on_body(ErrorCode error) {
  if (state_ != State::waiting) return;  // closed, or refused for the sake of others
  if (error) return on_request(error);
  const uint64_t before = std::exchange(arrived_, parser_->get().body().size());
  server_.count_body(arrived_ - before);
  if (state_ == State::waiting) read_body();
}

void Connection::on_request(ErrorCode error) {
  if (state_ == State::closed) return;
  if (error == http::error::body_limit) return refuse(413, "the body of the request is too long");
  if (error) return close();
  stream_.expires_never();
  server_.touch(*this);
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  keeps_alive_ = message.keep_alive() && !server_.is_draining();
  is_chunked_ = message.version() >= 11;
  wants_body_ = message.method() != http::verb::head;
  state_ = State::answering;
  gone_ = std::stop_source();
  ++request_;
  HttpRequest request = request_of(std::move(message));
  const uint64_t held = std::exchange(arrived_, 0);  // until the request has been read
  watch();
  auto reply = std::make_shared<Reply>(shared_from_this(), request_, gone_.get_token());
  asio::post(server_.workers(),
             [&server = server_, held, request = std::move(request), reply = std::move(reply)]() mutable {
               server.handler()(std::move(request), std::move(reply));
               asio::post(server.context(), [&server, held] { server.release_body(held); });
             });
}

/// Answers what is no good request, and closes.
void Connection::refuse(unsigned status, std::string_view reason) {
  keeps_alive_ = false;
  refused_ = true;
  wants_body_ = true;
  refused_until_ = std::chrono::steady_clock::now() + kDiscardTime;
  server_.release_body(std::exchange(arrived_, 0));
  state_ = State::answering;
  ++request_;
  send(request_, status, "text/plain", std::string(reason) + "\n", {});
}

// A client that resets its connection is gone. One that has ended its sending side becomes readable without a byte, and
// may be. One that sends its next request early is watched for resets alone.
void Connection::watch() {
  if (!is_watching_for_reset_) {
    is_watching_for_reset_ = true;
    stream_.socket().async_wait(tcp::socket::wait_error, [self = shared_from_this()](ErrorCode error) {
      self->is_watching_for_reset_ = false;
      if (!error) self->close();
    });
  }
  if (is_watching_ || buffer_.size() > 0) return;
  is_watching_ = true;
  stream_.socket().async_wait(tcp::socket::wait_read,
                              [self = shared_from_this()](ErrorCode error) { self->on_readable(error); });
}

void Connection::on_readable(ErrorCode error) {
  is_watching_ = false;
  if (error || state_ == State::closed || state_ == State::waiting) return;
  char byte = 0;
  ErrorCode failure;
  const size_t got = stream_.socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, failure);
  if (failure == asio::error::eof || (!failure && got == 0)) return probe_after(kProbeAfter);
  if (failure) close();
}

// An answer that has begun needs no probe: streams are never silent for long.
void Connection::probe_after(std::chrono::milliseconds time) {
  if (state_ != State::answering || probed_ == kFirstBytes.size()) return;
  probe_.expires_after(time);
  probe_.async_wait([self = shared_from_this(), request = request_, time](ErrorCode error) {
    if (error || !self->is_of(request) || self->state_ != State::answering) return;
    self->unsent_.push_back({.bytes = std::string(1, kFirstBytes[self->probed_++])});
    self->send_next();
    self->probe_after(kProbeFactor * time);
  });
}

/// `bytes`: from the status line on.
void Connection::begin_answer(std::string bytes, bool is_last) {
  probe_.cancel();
  bytes.erase(0, std::exchange(probed_, 0));
  state_ = State::streaming;
  unsent_.push_back({.bytes = std::move(bytes), .is_last = is_last});
  send_next();
}

void Connection::send(uint64_t request, unsigned status, const std::string& type, std::string body,
                      const HttpReply::Headers& headers) {
  if (!is_of(request) || state_ != State::answering) return;
  http::response<http::string_body> message(static_cast<http::status>(status), 11);
  message.set(http::field::server, kName);
  message.set(http::field::content_type, type);
  for (const auto* some : {&server_.headers(), &headers})
    for (const auto& [name, value] : *some)
      message.set(name, value);
  message.keep_alive(keeps_alive_);
  message.content_length(body.size());
  if (wants_body_) message.body() = std::move(body);
  std::ostringstream bytes;
  bytes << message;
  begin_answer(std::move(bytes).str(), true);
}

void Connection::begin_stream(uint64_t request, const std::string& type) {
  if (!is_of(request) || state_ != State::answering) return;
  http::response<http::empty_body> message(http::status::ok, is_chunked_ ? 11 : 10);
  message.set(http::field::server, kName);
  message.set(http::field::content_type, type);
  message.set(http::field::cache_control, "no-store");
  for (const auto& [name, value] : server_.headers())
    message.set(name, value);
  if (is_chunked_) message.chunked(true);
  keeps_alive_ = keeps_alive_ && is_chunked_;
  message.keep_alive(keeps_alive_);
  std::ostringstream bytes;
  bytes << message.base();
  begin_answer(std::move(bytes).str(), false);
}

void Connection::write(uint64_t request, std::string data) {
  if (!is_of(request) || state_ != State::streaming || data.empty()) return;
  if (unsent_bytes_ + data.size() > server_.limits().unsent_bytes) return close();
  unsent_.push_back({.bytes = is_chunked_ ? fmt::format("{:x}\r\n{}\r\n", data.size(), data) : std::move(data)});
  unsent_bytes_ += unsent_.back().bytes.size();
  send_next();
}

void Connection::end(uint64_t request) {
  if (!is_of(request) || state_ != State::streaming || (!unsent_.empty() && unsent_.back().is_last)) return;
  unsent_.push_back({.bytes = is_chunked_ ? "0\r\n\r\n" : "", .is_last = true});
  send_next();
}

void Connection::abandoned(uint64_t request) {
  if (is_of(request) && (unsent_.empty() || !unsent_.back().is_last)) close();
}

void Connection::send_next() {
  if (is_sending_ || unsent_.empty()) return;
  is_sending_ = true;
  stream_.expires_after(server_.limits().send_time);
  const Piece& piece = unsent_.front();
  asio::async_write(stream_, asio::buffer(piece.bytes),
                    [self = shared_from_this(), was_last = piece.is_last](ErrorCode error, size_t) {
                      self->on_sent(error, was_last);
                    });
}

void Connection::on_sent(ErrorCode error, bool was_last) {
  if (state_ == State::closed) return;
  is_sending_ = false;
  if (error) return close();
  stream_.expires_never();
  unsent_bytes_ -= std::min<uint64_t>(unsent_bytes_, unsent_.front().bytes.size());
  unsent_.pop_front();
  if (was_last) return next_request();
  send_next();
}

void Connection::next_request() {
  server_.touch(*this);
  if (refused_) return discard();
  if (!keeps_alive_) return close();
  unsent_.clear();
  unsent_bytes_ = 0;
  gone_ = std::stop_source();
  ++request_;
  read();
}

void Connection::discard() {
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.clear();
  stream_.expires_at(refused_until_);
  stream_.async_read_some(buffer_.prepare(kDiscardBytes), [self = shared_from_this()](ErrorCode error, size_t) {
    if (error) return self->close();
    self->discard();
  });
}

void Connection::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  server_.release_body(std::exchange(arrived_, 0));
  gone_.request_stop();
  probe_.cancel();
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
  server_.remove(*this);
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const std::vector<std::string>& addresses, uint16_t port,
                                                       const HttpLimits& limits, HttpReply::Headers headers,
                                                       HttpHandler handler) {
  auto server = std::make_unique<Server>(limits, std::move(headers), std::move(handler));
  TRY(server->open(addresses, port));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace dspack::runtime
