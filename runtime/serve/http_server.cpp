#include "runtime/serve/http_server.h"

#include <fmt/format.h>

#include <utility>  // must precede Boost 1.74, which lacks this include

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <list>
#include <new>
#include <optional>
#include <thread>

#include "format/base/foreign_text.h"
#include "runtime/serve/host_address.h"
#include "runtime/serve/http_connection.h"

namespace dspack::runtime {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using asio::ip::tcp;

/// The listening sockets of a server, one for each of its addresses, all on one port.
/// Threads: single-thread, that of the context once it runs. Lifetime: borrows the context; keeps the callbacks of
/// `start`, and what they borrow, until it is closed. Errors: io (an address cannot be bound), not_found (this machine
/// lacks every address), both with the remedy; invalid (not an IP address).
class Listeners {
 public:
  explicit Listeners(boost::asio::io_context& context) : context_(context) {}

  /// Listens on all `addresses` (at least one, in digits); port 0 chooses a free one. Addresses that this machine lacks
  /// are skipped if another one works.
  [[nodiscard]] Result<void> open(const std::vector<std::string>& addresses, uint16_t port);
  [[nodiscard]] uint16_t port() const { return port_; }

  /// Accepts connections from now on. If accept fails, as without a free file descriptor, `make_room` closes a
  /// connection; it returns false if there is none to close.
  void start(std::function<void(boost::asio::ip::tcp::socket)> on_connection, std::function<bool()> make_room);
  void close();
  [[nodiscard]] bool is_open() const { return acceptors_.front().is_open(); }

 private:
  using Acceptor = boost::asio::ip::tcp::acceptor;
  [[nodiscard]] Result<void> open_one(const std::string& text);
  void accept(Acceptor& acceptor);

  boost::asio::io_context& context_;
  std::list<Acceptor> acceptors_;
  uint16_t port_ = 0;
  std::function<void(boost::asio::ip::tcp::socket)> on_connection_;
  std::function<bool()> make_room_;
};

Result<void> Listeners::open(const std::vector<std::string>& addresses, uint16_t port) {
  port_ = port;
  std::optional<Error> absent;
  for (const std::string& address : addresses) {
    const auto opened = open_one(address);
    if (opened) continue;
    if (opened.error().kind != ErrorKind::not_found) return opened.error();
    absent = opened.error();
  }
  if (acceptors_.empty()) return absent.value_or(invalid("there is no address to listen at"));
  return {};
}

/// Errors: io; not_found if this machine lacks the address.
Result<void> Listeners::open_one(const std::string& text) {
  ErrorCode error;
  const auto address = asio::ip::make_address(text, error);
  if (error) return invalid(fmt::format("{} is no IP address", quote(text)));
  const tcp::endpoint endpoint(address, port_);
  Acceptor acceptor(context_);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) {
    port_ = acceptor.local_endpoint(error).port();  // the others use the port that the first one chose
    acceptors_.push_back(std::move(acceptor));
    return {};
  }
  const bool is_absent =
      error == asio::error::address_family_not_supported || error == boost::system::errc::address_not_available;
  std::string remedy;
  if (is_absent) remedy = "; --host 127.0.0.1 is this machine alone, 0.0.0.0 every network of it";
  if (error == asio::error::address_in_use) remedy = "; --port N is another one, --port 0 any that is free";
  if (error == asio::error::access_denied) remedy = "; ports from 1024 need no rights";
  return Error{is_absent ? ErrorKind::not_found : ErrorKind::io,
               fmt::format("cannot listen at {}: {}{}", host_and_port(text, port_), error.message(), remedy)};
}

void Listeners::start(std::function<void(tcp::socket)> on_connection, std::function<bool()> make_room) {
  on_connection_ = std::move(on_connection);
  make_room_ = std::move(make_room);
  for (Acceptor& acceptor : acceptors_)
    accept(acceptor);
}

void Listeners::accept(Acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](ErrorCode error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) {
      try {
        on_connection_(std::move(socket));
      } catch (const std::bad_alloc&) {
        // This client is dropped; the next one may be served.
      }
    } else if (!make_room_()) {
      const auto pause = std::make_shared<asio::steady_timer>(context_, std::chrono::milliseconds(100));
      pause->async_wait([this, &acceptor, pause](ErrorCode) { accept(acceptor); });
      return;
    }
    accept(acceptor);
  });
}

void Listeners::close() {
  ErrorCode ignored;
  for (Acceptor& acceptor : acceptors_)
    acceptor.close(ignored);
}

// Worker threads: encoding a prompt of a megabyte takes a while. Long requests have one thread of their own, and short
// ones never wait for them.
constexpr size_t kSmallWorkers = 2;
constexpr size_t kLargeWorkers = 1;

class Server final : public HttpServer, private HttpConnectionOwner {
 public:
  Server(const HttpLimits& limits, HttpReply::Headers headers, HttpHandlers handlers)
      : limits_(limits), headers_(std::move(headers)), handlers_(std::move(handlers)) {}

  ~Server() override {
    asio::post(context_, [this] {
      listeners_.close();
      for (auto all = connections_; const auto& connection : all)
        connection->close();
    });
    small_.join();
    large_.join();
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }

  Result<void> open(const std::vector<std::string>& addresses, uint16_t port) {
    TRY(listeners_.open(addresses, port));
    listeners_.start([this](tcp::socket socket) { accept(std::move(socket)); }, [this] { return close_silent(); });
    thread_ = std::thread([this] { run(); });
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

 private:
  using Connections = std::list<std::shared_ptr<HttpConnection>>;

  /// Counts bytes of a body during its lifetime.
  class Held {
   public:
    Held(std::atomic<uint64_t>& all, uint64_t bytes) : all_(&all), bytes_(bytes) {}
    Held(Held&& other) noexcept : all_(other.all_), bytes_(std::exchange(other.bytes_, 0)) {}
    Held& operator=(Held&&) = delete;
    ~Held() { *all_ -= bytes_; }

   private:
    std::atomic<uint64_t>* all_;
    uint64_t bytes_;
  };

  [[nodiscard]] asio::io_context& context() override { return context_; }
  [[nodiscard]] const HttpLimits& limits() const override { return limits_; }
  [[nodiscard]] const HttpReply::Headers& headers() const override { return headers_; }
  [[nodiscard]] bool is_draining() const override { return !listeners_.is_open(); }

  void dispatch(HttpRequest request, std::shared_ptr<HttpReply> reply, uint64_t body_bytes) override {
    Held held(body_bytes_, body_bytes);
    if (handlers_.is_brief(request)) return answer(std::move(request), reply);
    asio::thread_pool& lane = request.body.size() <= limits_.small_body_bytes ? small_ : large_;
    asio::post(lane, [this, held = std::move(held), request = std::move(request), reply = std::move(reply)]() mutable {
      if (!reply->gone().stop_requested()) answer(std::move(request), reply);
    });
  }
  void count_body(uint64_t bytes) override {
    body_bytes_ += bytes;
    if (body_bytes_ <= limits_.all_body_bytes) return;
    const auto longest = std::ranges::max_element(
        connections_, {}, [](const std::shared_ptr<HttpConnection>& each) { return each->arriving_bytes(); });
    if ((*longest)->arriving_bytes() > 0) (*longest)->refuse_body();
  }
  void release_body(uint64_t bytes) override { body_bytes_ -= bytes; }
  void touch(const HttpConnection& connection) override {
    connections_.splice(connections_.end(), connections_, connection.place);
  }
  void leave(const HttpConnection& connection) override {
    connections_.erase(connection.place);
    count_ = static_cast<uint32_t>(connections_.size());
  }

  void run() {
    for (;;) {
      try {
        context_.run();
        return;
      } catch (const std::bad_alloc&) {
        // Thrown outside any connection: a new connection is dropped. The others continue.
      }
    }
  }

  /// An exception of `answer` ends only this request.
  void answer(HttpRequest request, const std::shared_ptr<HttpReply>& reply) const {
    try {
      return handlers_.answer(std::move(request), reply);
    } catch (const std::bad_alloc&) {
      fail(*reply, 503, "there is not enough memory for this request now\n");
    } catch (const std::exception&) {
      fail(*reply, 500, "the request has failed\n");
    }
  }
  static void fail(HttpReply& reply, unsigned status, const char* reason) {
    try {
      reply.send(status, "text/plain", reason, {});
    } catch (const std::bad_alloc&) {
      // Dropping the reply closes the connection.
    }
  }

  void accept(tcp::socket socket) {
    if (connections_.size() >= limits_.connections && !close_silent()) return;  // every connection has a request
    auto connection = std::make_shared<HttpConnection>(static_cast<HttpConnectionOwner&>(*this), std::move(socket));
    connection->place = connections_.insert(connections_.end(), connection);
    count_ = static_cast<uint32_t>(connections_.size());
    connection->read();
  }

  /// Closes the connection without a request that has been silent for longest; false if there is none.
  bool close_silent() {
    const auto silent = std::ranges::find_if(connections_, [](const auto& each) { return each->is_waiting(); });
    if (silent == connections_.end()) return false;
    const std::shared_ptr<HttpConnection> connection = *silent;
    connection->close();
    return true;
  }

  HttpLimits limits_;
  HttpReply::Headers headers_;
  HttpHandlers handlers_;
  asio::io_context context_{1};
  asio::thread_pool small_{kSmallWorkers};
  asio::thread_pool large_{kLargeWorkers};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  Listeners listeners_{context_};
  Connections connections_;  // longest silent first
  std::atomic<uint32_t> count_ = 0;
  std::atomic<uint64_t> body_bytes_ = 0;  // sum over requests that are arriving, queued or being handled
  std::thread thread_;
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, [](const auto& each) { return std::string_view(each.first); });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const std::vector<std::string>& addresses, uint16_t port,
                                                       const HttpLimits& limits, HttpReply::Headers headers,
                                                       HttpHandlers handlers) {
  auto server = std::make_unique<Server>(limits, std::move(headers), std::move(handlers));
  TRY(server->open(addresses, port));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace dspack::runtime
