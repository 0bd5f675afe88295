// Methods of texts, lists and dicts, none of which changes its object, and of a loop's state.
// Threads: thread-safe (pure functions of their arguments). Errors: invalid (what Jinja or Python refuses), unsupported
// (a method that does not exist here), budget.
#pragma once

#include <string_view>

#include "runtime/text/jinja/heap.h"
#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

[[nodiscard]] bool is_method(const Value& self, std::string_view name);
[[nodiscard]] Result<Value> call_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap);

}  // namespace dspack::runtime::jinja
