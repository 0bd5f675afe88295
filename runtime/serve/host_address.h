// Addresses of hosts: resolution, loopback checks, and how URLs write them.
// Threads: thread-safe. Errors: not_found (a name without an address), invalid (an empty host).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

/// The IP addresses of a host, in digits. An address, with or without URL brackets, resolves to itself; localhost to
/// both loopback addresses, regardless of the hosts file (RFC 6761, 6.3); other names are looked up.
[[nodiscard]] Result<std::vector<std::string>> resolve_host(const std::string& host);

/// Whether it is an address of 127.0.0.0/8 or ::1, in digits.
[[nodiscard]] bool is_loopback(std::string_view address);

/// The host in a Host field, without its port: "localhost:8080", "[::1]". nullopt: malformed, as "[::1]evil" and
/// "localhost:80:evil" (RFC 9110, 7.2).
[[nodiscard]] std::optional<std::string_view> host_of(std::string_view field);

/// Whether two hosts are equal, ignoring ASCII case.
[[nodiscard]] bool is_same_host(std::string_view a, std::string_view b);

/// Whether a client that names this host means its own machine: localhost, or a loopback address, IPv6 in URL brackets.
[[nodiscard]] bool means_this_machine(std::string_view host);

/// "example.org:8080", "[::1]:8080": as in URLs.
[[nodiscard]] std::string host_and_port(std::string_view host, uint16_t port);

/// The client that an address counts as: an IPv6 address counts as its /64 network, in which a machine may use any
/// address.
[[nodiscard]] std::string client_of(const std::string& address);

}  // namespace dspack::runtime
