// The HTTP server's bounds on what clients may take of it, with short times; what answers look like is tested end to
// end.
#include "runtime/serve/http_server.h"

#include <utility>  // in front of Boost 1.74, one of whose headers lacks it

#include <doctest/doctest.h>

#include <atomic>
#include <boost/asio.hpp>
#include <future>
#include <iterator>
#include <thread>

namespace dspack::http_server_test {
namespace {

using namespace dspack::runtime;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLong = 1h;  // a time that no test waits for

std::unique_ptr<HttpServer> serve(const HttpLimits& limits, decltype(HttpHandlers::answer) answer) {
  auto server = HttpServer::listen({"127.0.0.1"}, 0, limits, {},
                                   {.answer = std::move(answer), .is_brief = [](const HttpRequest&) { return false; }});
  REQUIRE_MESSAGE(server, (server ? "" : server.error().message));
  return *std::move(server);
}

std::unique_ptr<HttpServer> serve_hello(const HttpLimits& limits) {
  return serve(limits, [](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
    reply->send(200, "text/plain", "hello");
  });
}

struct Told {
  std::string bytes;
  bool is_closed = false;  // by the server, within some seconds
};

/// What comes once these bytes were sent, until the connection is closed.
Told ask(const HttpServer& server, std::string_view bytes) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(20s);
  stream.connect("127.0.0.1", std::to_string(server.port()));
  REQUIRE(stream);
  stream << bytes << std::flush;
  Told told;
  told.bytes.assign(std::istreambuf_iterator<char>(stream), {});
  told.is_closed =
      stream.error() != boost::asio::error::operation_aborted && stream.error() != boost::asio::error::timed_out;
  return told;
}

TEST_CASE("http: a request that its handler forgets ends its connection") {
  const auto server = serve({}, [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {});
  const Told told = ask(*server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(told.is_closed);
  CHECK(told.bytes.empty());
  for (int looks = 0; looks < 5000 && server->connections() > 0; ++looks)
    std::this_thread::sleep_for(1ms);
  CHECK(server->connections() == 0);
}

TEST_CASE("http: a stream that its handler forgets ends its connection") {
  const auto server = serve({}, [](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
    reply->begin_stream("text/plain");
    reply->write("begun");
  });
  const Told told = ask(*server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(told.is_closed);
  CHECK_FALSE(told.bytes.ends_with("0\r\n\r\n"));
}

TEST_CASE("http: requests arrive within their time, or their connection ends") {
  const auto server = serve_hello({.request_time = 50ms, .send_time = kLong});
  for (const char* begun :
       {"", "GET", "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"}) {
    CAPTURE(begun);
    const auto start = Clock::now();
    const Told told = ask(*server, begun);
    CHECK(told.is_closed);
    CHECK(Clock::now() - start >= 50ms);
    CHECK(told.bytes.find(" 200 ") == std::string::npos);
  }
  // A connection that is kept after an answer has as long for its next request.
  const Told told = ask(*server, "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /");
  CHECK(told.is_closed);
  CHECK(told.bytes.ends_with("hello"));
}

/// How much of an endless stream a client's server takes until it lets a client go that reads nothing; SIZE_MAX: it
/// does not, of 64 MB.
size_t written_to_silence(const HttpLimits& limits) {
  std::promise<size_t> written;
  const auto server = serve(limits, [&](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
    reply->begin_stream("text/plain");
    constexpr size_t kPiece = 64U << 10U;
    size_t bytes = 0;
    const auto give_up = Clock::now() + 20s;
    while (!reply->gone().stop_requested() && Clock::now() < give_up) {
      if (bytes < (64U << 20U)) {
        reply->write(std::string(kPiece, 'x'));
        bytes += kPiece;
      }
      std::this_thread::sleep_for(1ms);
    }
    written.set_value(reply->gone().stop_requested() ? bytes : SIZE_MAX);
  });
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket socket(context);
  socket.open(boost::asio::ip::tcp::v4());
  socket.set_option(boost::asio::socket_base::receive_buffer_size(4096));
  socket.connect({boost::asio::ip::make_address("127.0.0.1"), server->port()});
  boost::asio::write(socket, boost::asio::buffer(std::string_view("GET / HTTP/1.1\r\nHost: a\r\n\r\n")));
  return written.get_future().get();
}

TEST_CASE("http: what a client leaves unread is bounded") {
  const size_t written = written_to_silence({.send_time = kLong, .unsent_bytes = 256U << 10U});
  CHECK(written < (32U << 20U));  // with what the system keeps
}

TEST_CASE("http: a client takes what is sent to it within its time, or is let go") {
  CHECK(written_to_silence({.send_time = 100ms, .unsent_bytes = 1ULL << 40U}) != SIZE_MAX);
}

TEST_CASE("http: a request whose end is in doubt is refused, and its connection ends") {
  const auto server = serve_hello({});
  const std::string body = "\r\n\r\n5\r\nabcde\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
  for (const auto& [fields, status] : {std::pair{"Transfer-Encoding: gzip, chunked", "501"},
                                       {"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "501"},
                                       {"Transfer-Encoding: chunked, gzip", "501"},
                                       {"Transfer-Encoding: identity", "501"},
                                       {"Transfer-Encoding:", "501"},
                                       {"Transfer-Encoding: chunked\r\nContent-Length: 5", "400"},
                                       {"Transfer-Encoding: chunked\r\nHost: b", "400"},
                                       {"Transfer-Encoding: chunked\r\nOrigin: http://a\r\nOrigin: http://b", "400"}}) {
    CAPTURE(fields);
    const Told told = ask(*server, std::string("POST / HTTP/1.1\r\nHost: a\r\n") + fields + body);
    CHECK(told.is_closed);
    CHECK_MESSAGE(told.bytes.starts_with(std::string("HTTP/1.1 ") + status), told.bytes);
    CHECK(told.bytes.find("hello") == std::string::npos);
  }
  CHECK(ask(*server, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked" + body).bytes.starts_with("HTTP/1.1 400"));
  CHECK(ask(*server, "GET / HTTP/1.1\r\n\r\n").bytes.starts_with("HTTP/1.1 400"));
  const Told well = ask(*server, "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: Chunked" + body);
  CHECK(well.bytes.find("hello") != well.bytes.rfind("hello"));  // both
}

}  // namespace
}  // namespace dspack::http_server_test
