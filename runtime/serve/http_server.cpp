#include "runtime/serve/http_server.h"

#include <utility>  // must precede Boost 1.74, which lacks this include

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <list>
#include <new>
#include <thread>

#include "runtime/serve/http_connection.h"
#include "runtime/serve/listeners.h"

namespace dspack::runtime {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

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

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const std::vector<std::string>& addresses, uint16_t port,
                                                       const HttpLimits& limits, HttpReply::Headers headers,
                                                       HttpHandlers handlers) {
  auto server = std::make_unique<Server>(limits, std::move(headers), std::move(handlers));
  TRY(server->open(addresses, port));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace dspack::runtime
