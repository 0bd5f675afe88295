// The listening sockets of a server, one for each of its addresses, all on one port.
// Threads: single-thread, that of the context once it runs. Lifetime: borrows the context; keeps the callbacks of
// `start`, and what they borrow, until it is closed. Errors: io (an address cannot be bound), not_found (this machine
// lacks every address), both with the remedy; invalid (not an IP address).
#pragma once

#include <utility>  // must precede Boost 1.74, which lacks this include

#include <boost/asio.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

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

}  // namespace dspack::runtime
