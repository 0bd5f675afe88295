// Python's "%5.2f" % value: printf-style formatting.
// Threads: thread-safe (pure functions). Errors: invalid (as Python's TypeError and ValueError); budget.
#pragma once

#include <string_view>

#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

/// `argument`: a tuple of values, a dict for named formats such as "%(name)s", or one value.
[[nodiscard]] Result<Value> format_percent(std::string_view format, const Value& argument, Heap& heap);

}  // namespace dspack::runtime::jinja
