// Width of text in terminal columns: 0 for most combining marks, 2 for wide characters (East Asian Wide and Fullwidth,
// emoji), 1 for all others. Terminals differ for a few rare characters.
// Threads: thread-safe (pure functions). Errors: none; a byte that is not valid UTF-8 takes one column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dspack {

[[nodiscard]] size_t columns_of(uint32_t codepoint);
[[nodiscard]] size_t columns_of(std::string_view text);

/// Length in bytes of the longest prefix of whole characters that fits into `columns`.
[[nodiscard]] size_t bytes_within(std::string_view text, size_t columns);

}  // namespace dspack
