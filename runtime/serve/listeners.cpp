#include "runtime/serve/listeners.h"

#include <fmt/format.h>

#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "format/base/foreign_text.h"
#include "runtime/serve/host_address.h"

namespace dspack::runtime {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using asio::ip::tcp;

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

}  // namespace dspack::runtime
