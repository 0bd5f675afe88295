// Searches a text in linear time: both texts may be untrusted, and a naive search for "aaa...ab" among a's compares
// every letter of one with every letter of the other.
// Threads: thread-safe (pure functions). Errors: budget, cancelled; bytes read are charged.
#pragma once

#include <cstddef>
#include <string_view>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

// The first or last offset of `part`; npos: none. An empty part is at the beginning, or at the end.
[[nodiscard]] Result<size_t> find_first(std::string_view text, std::string_view part, Budget& budget);
[[nodiscard]] Result<size_t> find_last(std::string_view text, std::string_view part, Budget& budget);

}  // namespace dspack::runtime::jinja
