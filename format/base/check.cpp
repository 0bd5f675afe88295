#include "format/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace dspack::detail {
namespace {

// Longest text that is printed of a failed check, which may quote input. This file depends on no other (the CUDA
// library has a copy of it), so it escapes the text in a simpler way than foreign_text.h.
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
