#include "runtime/serve/host_address.h"

#include <doctest/doctest.h>

namespace dspack::runtime::host_address_test {
namespace {

/// Whether a request with this Host field is for this machine.
bool is_here(std::string_view field) {
  const auto host = host_of(field);
  return host && means_this_machine(*host);
}

TEST_CASE("hosts: what names this machine, with a port or without") {
  for (const char* field : {"localhost", "localhost:8080", "LOCALHOST", "LocalHost:1", "localhost:", "127.0.0.1",
                            "127.0.0.1:80", "127.255.255.254", "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]"}) {
    CAPTURE(field);
    CHECK(is_here(field));
  }
}

TEST_CASE("hosts: what only looks like one is none") {
  for (const char* field : {"", ":", ":8080", "[::1]evil", "[::1]evil:80", "[::1]:80:evil", "[::1]:80evil", "[::1", "[",
                            "[]", "localhost:80:evil", "localhost:evil", "localhost:80evil", "localhost:-1",
                            "localhost: 80", "127.0.0.1:80:evil", "127.0.0.1:80@evil"}) {
    CAPTURE(field);
    CHECK_FALSE(is_here(field));
  }
  CHECK(host_of("[::1]evil") == std::nullopt);
  CHECK(host_of("localhost:80:evil") == std::nullopt);
  CHECK(host_of("example.org:443") == "example.org");
  CHECK(host_of("[::2]:443") == "[::2]");
}

TEST_CASE("hosts: other machines are not this one") {
  for (const char* field : {"evil.example", "localhost.evil.example", "xlocalhost", "localhost.", "128.0.0.1", "[::2]",
                            "127.0.0.1.evil.example", "[127.0.0.1]", "[localhost]", "[::1%lo]", "::1", "0.0.0.0",
                            "2130706433", "0x7f000001", "127.1"}) {
    CAPTURE(field);
    CHECK_FALSE(is_here(field));
  }
}

TEST_CASE("hosts: letters have no case") {
  CHECK(is_same_host("MyBox.Local", "mybox.local"));
  CHECK_FALSE(is_same_host("mybox", "mybox.local"));
  CHECK_FALSE(is_same_host("a[b", "a{b"));
}

}  // namespace
}  // namespace dspack::runtime::host_address_test
