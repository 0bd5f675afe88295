#include "runtime/serve/host_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "format/base/foreign_text.h"

namespace dspack::runtime {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

std::string_view without_brackets(std::string_view host) {
  if (host.size() > 2 && host.starts_with('[') && host.ends_with(']')) return host.substr(1, host.size() - 2);
  return host;
}

bool is_localhost(std::string_view host) {
  return is_same_host(host, "localhost");
}

bool is_port(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::optional<std::string_view> host_of(std::string_view field) {
  const size_t bracket = field.find(']');
  const bool is_v6 = field.starts_with('[');
  if (is_v6 && bracket == std::string_view::npos) return std::nullopt;
  const size_t end = is_v6 ? bracket + 1 : std::min(field.find(':'), field.size());
  const std::string_view host = field.substr(0, end);
  const std::string_view port = field.substr(end);
  if (host.empty() || (!port.empty() && (port.front() != ':' || !is_port(port.substr(1))))) return std::nullopt;
  return host;
}

bool is_same_host(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

Result<std::vector<std::string>> resolve_host(const std::string& host) {
  const std::string name(without_brackets(host));
  if (name.empty()) return invalid("it is empty; 127.0.0.1 is this machine alone, 0.0.0.0 every network of it");
  if (is_localhost(name)) return std::vector<std::string>{"127.0.0.1", "::1"};
  ErrorCode error;
  const auto address = asio::ip::make_address(name, error);
  if (!error) return std::vector<std::string>{address.to_string()};
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  std::vector<std::string> addresses;
  for (const auto& entry : resolver.resolve(name, "", error)) {
    std::string text = entry.endpoint().address().to_string();
    if (std::ranges::find(addresses, text) == addresses.end()) addresses.push_back(std::move(text));
  }
  if (addresses.empty()) {
    return Error{ErrorKind::not_found,
                 fmt::format("{} is no IP address and no name of one{}; 127.0.0.1 is this machine alone, 0.0.0.0 every "
                             "network of it",
                             quote(host), error ? fmt::format(" ({})", error.message()) : "")};
  }
  return addresses;
}

bool is_loopback(std::string_view address) {
  ErrorCode error;
  const auto parsed = asio::ip::make_address(std::string(address), error);
  return !error && parsed.is_loopback();
}

bool means_this_machine(std::string_view host) {
  // Brackets belong only to IPv6. No client would write a zone ("::1%eth0") to reach this machine.
  const std::string_view address = without_brackets(host);
  if (address.find('%') != std::string_view::npos) return false;
  const bool is_v6 = address.find(':') != std::string_view::npos;
  return is_localhost(host) || (is_v6 == (address.size() < host.size()) && is_loopback(address));
}

std::string host_and_port(std::string_view host, uint16_t port) {
  host = without_brackets(host);
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string client_of(const std::string& address) {
  ErrorCode error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error || parsed.is_v4()) return address;
  const auto v6 = parsed.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  auto bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), static_cast<unsigned char>(0));
  return asio::ip::address_v6(bytes).to_string() + "/64";
}

}  // namespace dspack::runtime
