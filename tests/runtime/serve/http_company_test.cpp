// What one request does to others: handlers that throw, and handlers that take their time.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <new>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "runtime/serve/http_server.h"

namespace dspack::runtime::http_company_test {
namespace {

/// The answer to one request on a connection of its own, to the end of the connection.
std::string ask(uint16_t port, const std::string& method, const std::string& path, size_t body = 0) {
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const std::string request = method + " " + path +
                              " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body) +
                              "\r\n\r\n" + std::string(body, 'x');
  for (size_t sent = 0; sent < request.size();) {
    const auto count = ::send(client, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    REQUIRE(count > 0);
    sent += static_cast<size_t>(count);
  }
  std::string answer;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::recv(client, bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(count));
  ::close(client);
  return answer;
}

std::unique_ptr<HttpServer> server_of(HttpHandlers handlers) {
  auto server = HttpServer::listen({"127.0.0.1"}, 0, {.small_body_bytes = 1000}, {}, std::move(handlers));
  REQUIRE(server);
  return *std::move(server);
}

bool is_get(const HttpRequest& request) {
  return request.method == "GET";
}

TEST_CASE("HTTP server: what a handler throws is the end of its request alone, on every thread") {
  const auto server = server_of({.answer =
                                     [](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
                                       if (request.path == "/memory") throw std::bad_alloc();
                                       if (request.path == "/fault") throw std::runtime_error("a fault of this test");
                                       if (request.path == "/late") {
                                         reply->begin_stream("text/plain");
                                         reply->write("begun");
                                         throw std::bad_alloc();
                                       }
                                       reply->send(200, "text/plain", "well from " + request.client);
                                     },
                                 .is_brief = &is_get});
  for (const char* method : {"GET", "POST"}) {
    for (const size_t body : {0U, 2000U}) {
      CHECK(ask(server->port(), method, "/memory", body).starts_with("HTTP/1.1 503 "));
      CHECK(ask(server->port(), method, "/fault", body).starts_with("HTTP/1.1 500 "));
      const std::string late = ask(server->port(), method, "/late", body);
      CHECK((late.starts_with("HTTP/1.1 200 ") && !late.ends_with("0\r\n\r\n")));  // it does not look whole
      CHECK(ask(server->port(), method, "/", body).ends_with("well from 127.0.0.1"));
    }
  }
}

TEST_CASE("HTTP server: short requests do not wait for long ones, and brief ones for nobody") {
  std::counting_semaphore<8> may_end(0);
  std::counting_semaphore<8> has_begun(0);
  const auto server = server_of({.answer =
                                     [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
                                       if (request.path == "/slow") {
                                         has_begun.release();
                                         may_end.acquire();
                                       }
                                       reply->send(200, "text/plain", "done");
                                     },
                                 .is_brief = &is_get});
  std::vector<std::jthread> slow;
  const auto begin_slow = [&](size_t body) {
    slow.emplace_back([&, body] { CHECK(ask(server->port(), "POST", "/slow", body).ends_with("done")); });
  };
  begin_slow(2000);
  has_begun.acquire();
  begin_slow(2000);  // it waits for the other
  CHECK(ask(server->port(), "POST", "/", 10).ends_with("done"));
  begin_slow(10);
  begin_slow(10);
  has_begun.acquire();
  has_begun.acquire();
  CHECK(ask(server->port(), "GET", "/").ends_with("done"));  // all workers are busy
  may_end.release(4);
}

}  // namespace
}  // namespace dspack::runtime::http_company_test
