// Python's "%5.2f" % value: texts from formats in the manner of printf.
// Threads: thread-safe (pure functions). Errors: invalid (as Python's TypeError and ValueError); budget.
#pragma once

#include <string_view>

#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

/// `argument`: a tuple of values, a dict for formats with names as "%(name)s", or one value.
[[nodiscard]] Result<Value> format_percent(std::string_view format, const Value& argument, Heap& heap);

}  // namespace dspack::runtime::jinja
