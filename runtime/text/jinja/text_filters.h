// Filters that make a text of a text.
// Threads: thread-safe (pure functions). Errors: budget; invalid (no text, or arguments that Jinja refuses).
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

[[nodiscard]] Result<Value> indent(const Value& value, const Arguments& args, Heap& heap);
/// Words begin after white space, '-' and opening brackets; other than str.title has it.
[[nodiscard]] Result<Value> title(const Value& value, Heap& heap);
/// Cut at the last space before `length`, unless `killwords`; a few characters more may stay.
[[nodiscard]] Result<Value> truncate(const Value& value, const Arguments& args, Heap& heap);
/// For HTML.
[[nodiscard]] Result<Value> escape(const Value& value, Heap& heap);
/// Runs of Python's \w.
[[nodiscard]] int64_t count_words(std::string_view text);

}  // namespace dspack::runtime::jinja
