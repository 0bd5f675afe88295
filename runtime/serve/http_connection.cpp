#include "runtime/serve/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <thread>

namespace dspack::runtime {
namespace {

/// A request in Boost.Beast's form, in the handlers' form.
HttpRequest request_of(boost::beast::http::request<boost::beast::http::string_body> message) {
  HttpRequest request{
      .method = std::string(message.method_string()), .path = {}, .query = {}, .body = {}, .headers = {}, .client = {}};
  const std::string_view target(message.target().data(), message.target().size());
  request.path = std::string(target.substr(0, target.find('?')));
  if (request.path.size() < target.size()) request.query = std::string(target.substr(request.path.size() + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr char kName[] = "dspack";
constexpr size_t kReadBytes = 64U << 10U;  // per read
// A refused request is read and discarded for this long: closing a connection with unread bytes resets it, and the
// client would not see the reason.
constexpr std::chrono::seconds kDiscardTime{3};
// A client that has ended its sending side may wait for its answer or be gone. TCP cannot tell until something is sent,
// which a client that is gone answers with a reset. Every answer begins with these bytes, so they serve as probes, sent
// one at a time: after kProbeAfter, then after kProbeFactor times as long, and so on.
constexpr std::string_view kFirstBytes = "HTTP/1.";
constexpr std::chrono::milliseconds kProbeAfter{200};  // most short answers come sooner
constexpr int kProbeFactor = 4;
constexpr std::chrono::milliseconds kMemoryPause{10};  // before retrying a small allocation

}  // namespace

/// Closes the connection if the last reference goes away unanswered.
class HttpConnection::Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<HttpConnection> connection, uint64_t request, std::stop_token gone)
      : connection_(std::move(connection)), request_(request), gone_(std::move(gone)) {}
  ~Reply() override {
    // Retries until memory is available: otherwise the client would wait forever, and its connection would never be
    // freed.
    for (;;) {
      try {
        post([request = request_](HttpConnection& connection) { connection.abandoned(request); });
        return;
      } catch (const std::bad_alloc&) {
        std::this_thread::sleep_for(kMemoryPause);
      }
    }
  }

  void send(unsigned status, std::string_view type, std::string body, Headers headers) override {
    post([request = request_, status, type = std::string(type), body = std::move(body), headers = std::move(headers)](
             HttpConnection& connection) mutable { connection.send(request, status, type, std::move(body), headers); });
  }
  void begin_stream(std::string_view type) override {
    post([request = request_, type = std::string(type)](HttpConnection& connection) {
      connection.begin_stream(request, type);
    });
  }
  void write(std::string data) override {
    post([request = request_, data = std::move(data)](HttpConnection& connection) mutable {
      connection.write(request, std::move(data));
    });
  }
  void end() override {
    post([request = request_](HttpConnection& connection) { connection.end(request); });
  }
  [[nodiscard]] std::stop_token gone() const override { return gone_; }

 private:
  template <class Work>
  void post(Work work) {
    asio::post(connection_->owner_.context(), [connection = connection_, work = std::move(work)]() mutable {
      connection->attempt([&] { work(*connection); });
    });
  }

  std::shared_ptr<HttpConnection> connection_;
  uint64_t request_;
  std::stop_token gone_;
};

/// An exception in one connection ends only that connection.
template <class Work>
void HttpConnection::attempt(Work&& work) noexcept {
  try {
    work();
  } catch (const std::bad_alloc&) {
    give_up(503, "there is not enough memory for this request now");
  } catch (const std::exception&) {
    give_up(500, "the request has failed");
  }
}

/// Wraps `work(connection, ...)` for a later call: attempted, and the connection stays alive until then.
template <class Work>
auto HttpConnection::attempting(Work work) {
  return [self = shared_from_this(), work = std::move(work)](auto... result) mutable {
    self->attempt([&] { work(*self, result...); });
  };
}

void HttpConnection::give_up(unsigned status, std::string_view reason) {
  try {
    if (state_ == State::waiting) return refuse(status, reason);
    keeps_alive_ = false;
    if (state_ == State::answering) return send(request_, status, "text/plain", std::string(reason) + "\n", {});
  } catch (const std::bad_alloc&) {
    // not even an error can be sent
  }
  close();
}

void HttpConnection::refuse_body() {
  stream_.cancel();  // pending reads
  attempt([this] { refuse(503, "requests of other clients need the memory"); });
}

void HttpConnection::read() {
  attempt([this] {
    state_ = State::waiting;
    parser_.emplace();
    parser_->header_limit(owner_.limits().header_bytes);
    parser_->body_limit(owner_.limits().body_bytes);
    stream_.expires_after(owner_.limits().request_time);
    parse();
  });
}

/// Parses the bytes that have arrived.
void HttpConnection::parse() {
  while (!parser_->is_done()) {
    if (buffer_.size() == 0) return read_more();
    const bool had_header = parser_->is_header_done();
    ErrorCode error;
    buffer_.consume(parser_->put(buffer_.data(), error));
    if (error == http::error::need_more) return read_more();
    if (error) return on_parse_error(error);
    if (!had_header && parser_->is_header_done()) on_header();
    if (state_ != State::waiting) return;
    const uint64_t before = std::exchange(arrived_, parser_->get().body().size());
    owner_.count_body(arrived_ - before);
    if (state_ != State::waiting) return;  // refused to free memory for others
  }
  on_request();
}

void HttpConnection::read_more() {
  // Unparsed bytes are the beginning of a header, which has its own limit, or of a chunk's first line.
  if (buffer_.size() > std::max<size_t>(kReadBytes, owner_.limits().header_bytes)) {
    return refuse(400, "a line of the request is too long");
  }
  stream_.async_read_some(buffer_.prepare(kReadBytes), attempting([](HttpConnection& self, ErrorCode error,
                                                                     size_t bytes) { self.on_bytes(error, bytes); }));
}

void HttpConnection::on_bytes(ErrorCode error, size_t bytes) {
  if (state_ != State::waiting) return;  // closed, or refused to free memory for others
  const bool is_partial = error == asio::error::eof && parser_->got_some() && !parser_->is_header_done();
  if (is_partial) return refuse(400, "this is no HTTP request");
  if (error) return close();
  buffer_.commit(bytes);
  parse();
}

void HttpConnection::on_parse_error(ErrorCode error) {
  if (error == http::error::header_limit) return refuse(431, "the header of the request is too long");
  if (error == http::error::body_limit) return refuse(413, "the body of the request is too long");
  refuse(400, "this is no HTTP request");
}

void HttpConnection::on_header() {
  parser_->eager(true);  // parse whole buffers from now on
  const auto& header = parser_->get();
  // The request's length and host must be unambiguous: if a proxy in front has read them differently, the rest would be
  // taken as another client's request (RFC 9112, 3.2, 6.1 and 6.3).
  const auto codings = header.count(http::field::transfer_encoding);
  if (codings > 0 && header.version() < 11) return refuse(400, "HTTP/1.0 knows no Transfer-Encoding");
  if (codings > 1 || (codings == 1 && !beast::iequals(header[http::field::transfer_encoding], "chunked"))) {
    return refuse(501, "of transfer codings only chunked can be read");
  }
  if (header.version() >= 11 && header.count(http::field::host) != 1)
    return refuse(400, "the request has not one Host");
  if (header.count(http::field::origin) > 1) return refuse(400, "the request has more than one Origin");
  // HTTP/1.0 has no expectations (RFC 9110, 10.1.1).
  const auto [expectation, end] = header.equal_range(http::field::expect);
  const bool is_expected = expectation != end && header.version() >= 11;
  if (!is_expected) return;
  if (std::any_of(expectation, end, [](const auto& each) { return !beast::iequals(each.value(), "100-continue"); })) {
    return refuse(417, "of expectations only 100-continue can be met");
  }
  // Sent at once: a client that expects it waits for it.
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                    attempting([](HttpConnection& self, ErrorCode error, size_t /*bytes*/) {
                      if (error) self.close();
                    }));
}

void HttpConnection::on_request() {
  stream_.expires_never();
  owner_.touch(*this);
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  keeps_alive_ = message.keep_alive() && !owner_.is_draining();
  is_chunked_ = message.version() >= 11;
  wants_body_ = message.method() != http::verb::head;
  state_ = State::answering;
  gone_ = std::stop_source();
  ++request_;
  HttpRequest request = request_of(std::move(message));
  ErrorCode error;
  if (const auto from = stream_.socket().remote_endpoint(error); !error) request.client = from.address().to_string();
  watch();
  auto reply = std::make_shared<Reply>(shared_from_this(), request_, gone_.get_token());
  owner_.dispatch(std::move(request), std::move(reply), std::exchange(arrived_, 0));
}

/// Answers a bad request, and closes.
void HttpConnection::refuse(unsigned status, std::string_view reason) {
  keeps_alive_ = false;
  refused_ = true;
  wants_body_ = true;
  refused_until_ = std::chrono::steady_clock::now() + kDiscardTime;
  owner_.release_body(std::exchange(arrived_, 0));
  parser_.reset();
  state_ = State::answering;
  ++request_;
  send(request_, status, "text/plain", std::string(reason) + "\n", {});
}

// A reset means that the client is gone. EOF makes the socket readable with zero bytes; the client may be gone. If a
// pipelined request has arrived, only resets are watched for.
void HttpConnection::watch() {
  if (!is_watching_for_reset_) {
    is_watching_for_reset_ = true;
    stream_.socket().async_wait(tcp::socket::wait_error, attempting([](HttpConnection& self, ErrorCode error) {
                                  self.is_watching_for_reset_ = false;
                                  if (!error) self.close();
                                }));
  }
  if (is_watching_ || buffer_.size() > 0) return;
  is_watching_ = true;
  stream_.socket().async_wait(tcp::socket::wait_read,
                              attempting([](HttpConnection& self, ErrorCode error) { self.on_readable(error); }));
}

void HttpConnection::on_readable(ErrorCode error) {
  is_watching_ = false;
  if (error || state_ == State::closed || state_ == State::waiting) return;
  char byte = 0;
  ErrorCode failure;
  const size_t got = stream_.socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, failure);
  if (failure == asio::error::eof || (!failure && got == 0)) return probe_after(kProbeAfter);
  if (failure) close();
}

// Only before the answer begins: streams are never silent for long.
void HttpConnection::probe_after(std::chrono::milliseconds time) {
  if (state_ != State::answering || probed_ == kFirstBytes.size()) return;
  probe_.expires_after(time);
  probe_.async_wait(attempting([request = request_, time](HttpConnection& self, ErrorCode error) {
    if (error || !self.is_of(request) || self.state_ != State::answering) return;
    self.unsent_.push_back({.bytes = std::string(1, kFirstBytes[self.probed_])});
    ++self.probed_;
    self.send_next();
    self.probe_after(kProbeFactor * time);
  }));
}

/// `bytes`: starts with the status line.
void HttpConnection::begin_answer(std::string bytes, bool is_last) {
  probe_.cancel();
  bytes.erase(0, std::exchange(probed_, 0));
  state_ = State::streaming;
  unsent_.push_back({.bytes = std::move(bytes), .is_last = is_last});
  send_next();
}

void HttpConnection::send(uint64_t request, unsigned status, const std::string& type, std::string body,
                          const HttpReply::Headers& headers) {
  if (!is_of(request) || state_ != State::answering) return;
  http::response<http::empty_body> message(static_cast<http::status>(status), 11);
  message.set(http::field::server, kName);
  message.set(http::field::content_type, type);
  for (const auto* some : {&owner_.headers(), &headers})
    for (const auto& [name, value] : *some)
      message.set(name, value);
  message.keep_alive(keeps_alive_);
  message.content_length(body.size());
  std::ostringstream bytes;
  bytes << message.base();
  const bool has_body = wants_body_ && !body.empty();
  begin_answer(std::move(bytes).str(), !has_body);
  if (has_body) unsent_.push_back({.bytes = std::move(body), .is_last = true});
}

void HttpConnection::begin_stream(uint64_t request, const std::string& type) {
  if (!is_of(request) || state_ != State::answering) return;
  http::response<http::empty_body> message(http::status::ok, is_chunked_ ? 11 : 10);
  message.set(http::field::server, kName);
  message.set(http::field::content_type, type);
  message.set(http::field::cache_control, "no-store");
  for (const auto& [name, value] : owner_.headers())
    message.set(name, value);
  if (is_chunked_) message.chunked(true);
  keeps_alive_ = keeps_alive_ && is_chunked_;
  message.keep_alive(keeps_alive_);
  std::ostringstream bytes;
  bytes << message.base();
  begin_answer(std::move(bytes).str(), false);
}

void HttpConnection::write(uint64_t request, std::string data) {
  if (!is_of(request) || state_ != State::streaming || data.empty()) return;
  if (unsent_bytes_ + data.size() > owner_.limits().unsent_bytes) return close();
  unsent_.push_back({.bytes = is_chunked_ ? fmt::format("{:x}\r\n{}\r\n", data.size(), data) : std::move(data)});
  unsent_bytes_ += unsent_.back().bytes.size();
  send_next();
}

void HttpConnection::end(uint64_t request) {
  if (!is_of(request) || state_ != State::streaming || (!unsent_.empty() && unsent_.back().is_last)) return;
  unsent_.push_back({.bytes = is_chunked_ ? "0\r\n\r\n" : "", .is_last = true});
  send_next();
}

void HttpConnection::abandoned(uint64_t request) {
  if (is_of(request) && (unsent_.empty() || !unsent_.back().is_last)) close();
}

void HttpConnection::send_next() {
  if (is_sending_ || unsent_.empty()) return;
  is_sending_ = true;
  stream_.expires_after(owner_.limits().send_time);
  const QueuedBytes& piece = unsent_.front();
  asio::async_write(stream_, asio::buffer(piece.bytes),
                    attempting([was_last = piece.is_last](HttpConnection& self, ErrorCode error, size_t /*bytes*/) {
                      self.on_sent(error, was_last);
                    }));
}

void HttpConnection::on_sent(ErrorCode error, bool was_last) {
  if (state_ == State::closed) return;
  is_sending_ = false;
  if (error) return close();
  stream_.expires_never();
  unsent_bytes_ -= std::min<uint64_t>(unsent_bytes_, unsent_.front().bytes.size());
  unsent_.pop_front();
  if (was_last) return next_request();
  send_next();
}

void HttpConnection::next_request() {
  owner_.touch(*this);
  if (refused_) return discard();
  if (!keeps_alive_) return close();
  unsent_.clear();
  unsent_bytes_ = 0;
  gone_ = std::stop_source();
  ++request_;
  read();
}

void HttpConnection::discard() {
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  buffer_.clear();
  stream_.expires_at(refused_until_);
  stream_.async_read_some(buffer_.prepare(kReadBytes),
                          attempting([](HttpConnection& self, ErrorCode error, size_t /*bytes*/) {
                            error ? self.close() : self.discard();
                          }));
}

void HttpConnection::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  owner_.release_body(std::exchange(arrived_, 0));
  gone_.request_stop();
  probe_.cancel();
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
  owner_.leave(*this);
}

}  // namespace dspack::runtime
