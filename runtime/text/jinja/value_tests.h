// Tests: value is name(arguments).
// Threads: thread-safe (pure functions of their arguments). Errors: invalid (what Jinja or Python refuses), unsupported
// (a test that does not exist here), budget.
#pragma once

#include <string_view>

#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

[[nodiscard]] bool is_test(std::string_view name);
[[nodiscard]] Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& args, Heap& heap);

}  // namespace dspack::runtime::jinja
