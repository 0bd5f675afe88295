// Filters: value | name(arguments); and tests: value is name(arguments).
// Threads: thread-safe (pure functions of their arguments). Errors: invalid (what Jinja or Python refuses), unsupported
// (a filter or test that does not exist here), budget.
#pragma once

#include <string_view>

#include "runtime/text/jinja/heap.h"
#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

[[nodiscard]] bool is_filter(std::string_view name);
[[nodiscard]] Result<Value> apply_filter(std::string_view name, const Value& value, const Arguments& args, Heap& heap);
/// The value at object.a.0.b.
[[nodiscard]] Result<Value> attribute_path(const Value& object, const Value& path, Heap& heap);

[[nodiscard]] bool is_test(std::string_view name);
[[nodiscard]] Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& args, Heap& heap);

}  // namespace dspack::runtime::jinja
