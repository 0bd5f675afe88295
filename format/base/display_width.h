// How many columns of a terminal a text takes: none for most combining marks, two for wide characters (East Asian Wide
// and Fullwidth, emoji), one for all others. Terminals differ in rare ones.
// Threads: thread-safe (pure functions). Errors: none; a byte that is no UTF-8 takes one column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dspack {

[[nodiscard]] size_t columns_of(uint32_t codepoint);
[[nodiscard]] size_t columns_of(std::string_view text);

/// So many bytes at the beginning of a text, whole characters, as take at most `columns`.
[[nodiscard]] size_t bytes_within(std::string_view text, size_t columns);

}  // namespace dspack
