#include "format/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace dspack::detail {
namespace {

// Of the error that nobody expected, which may quote text from outside. This file stands alone (the CUDA library has a
// copy of it), so what foreign_text.h does is done in short here.
constexpr size_t kShownBytes = 200;

char shown(char c) {
  return c >= ' ' && c <= '~' ? c : '?';
}

}  // namespace

void check_failed(const char* condition, const char* file, int line, std::string_view text) {
  std::fputs("internal error: ", stderr);
  for (const char c : text.substr(0, kShownBytes))
    std::fputc(shown(c), stderr);
  std::fprintf(stderr, " (%s) at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace dspack::detail
