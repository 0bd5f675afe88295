// DSPACK_CHECK: asserts against programming errors. Never used to check input: input errors are Results.
// Threads: thread-safe. Errors: prints the condition, the place and the text, then aborts.
#pragma once

#include <string_view>

namespace dspack::detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string_view text);
}  // namespace dspack::detail

/// Always on. `text` is evaluated only on failure.
#define DSPACK_CHECK(condition, text)                                         \
  do {                                                                        \
    if (!(condition)) [[unlikely]] {                                          \
      ::dspack::detail::check_failed(#condition, __FILE__, __LINE__, (text)); \
    }                                                                         \
  } while (false)
