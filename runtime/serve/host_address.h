// Where a server listens: a host's addresses, which of them are this machine alone, and how URLs write them.
// Threads: thread-safe. Errors: not_found (a name that stands for no address), invalid (no host).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

/// The IP addresses of a host, in digits: an address is its own, with or without the brackets of URLs; localhost has
/// both loopback addresses, whatever this machine's files say (RFC 6761, 6.3); other names are looked up.
[[nodiscard]] Result<std::vector<std::string>> resolve_host(const std::string& host);

/// Whether it is an address of 127.0.0.0/8 or ::1, in digits.
[[nodiscard]] bool is_loopback(std::string_view address);

/// The host that a Host field names, without its port: "localhost:8080", "[::1]". nullopt: it is none, as "[::1]evil"
/// and "localhost:80:evil" are (RFC 9110, 7.2).
[[nodiscard]] std::optional<std::string_view> host_of(std::string_view field);

/// Whether two hosts are the same: letters of names have no case.
[[nodiscard]] bool is_same_host(std::string_view a, std::string_view b);

/// Whether a client that names this host means the machine it runs on: localhost, or a loopback address, with or
/// without the brackets of URLs.
[[nodiscard]] bool means_this_machine(std::string_view host);

/// "example.org:8080", "[::1]:8080": as URLs have it.
[[nodiscard]] std::string host_and_port(std::string_view host, uint16_t port);

}  // namespace dspack::runtime
