// Where a text is in another, in a time that their sizes alone bound: both may be a stranger's, and a plain search for
// "aaa...ab" among a's compares every letter of one with every letter of the other.
// Threads: thread-safe (pure functions). Errors: budget, cancelled; what is read is charged.
#pragma once

#include <cstddef>
#include <string_view>

#include "runtime/text/jinja/budget.h"

namespace dspack::runtime::jinja {

// Where `part` begins, first or last; npos if it is not there. An empty one is at the beginning, and at the end.
[[nodiscard]] Result<size_t> find_first(std::string_view text, std::string_view part, Budget& budget);
[[nodiscard]] Result<size_t> find_last(std::string_view text, std::string_view part, Budget& budget);

}  // namespace dspack::runtime::jinja
