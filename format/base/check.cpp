#include "format/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace dspack::detail {

void check_failed(const char* condition, const char* file, int line, std::string_view text) {
  std::fprintf(stderr, "internal error: %.*s (%s) at %s:%d\n", static_cast<int>(text.size()), text.data(), condition,
               file, line);
  std::abort();
}

}  // namespace dspack::detail
