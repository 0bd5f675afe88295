#include "format/base/check.h"

#include <cstdio>
#include <cstdlib>

#include "format/base/foreign_text.h"

namespace dspack::detail {

void check_failed(const char* condition, const char* file, int line, std::string_view text) {
  // The text of an error that was not expected may quote what comes from outside.
  std::fprintf(stderr, "internal error: %s (%s) at %s:%d\n", message_line(text).c_str(), condition, file, line);
  std::abort();
}

}  // namespace dspack::detail
