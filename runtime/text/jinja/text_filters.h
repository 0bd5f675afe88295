// Filters from text to text.
// Threads: thread-safe (pure functions). Errors: budget; invalid (no text, or arguments that Jinja refuses).
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

[[nodiscard]] Result<Value> indent(const Value& value, const Arguments& args, Heap& heap);
/// Words begin after white space, '-' and opening brackets, unlike str.title.
[[nodiscard]] Result<Value> title(const Value& value, Heap& heap);
/// Cuts at the last space before `length`, unless `killwords`; a text only slightly longer is kept.
[[nodiscard]] Result<Value> truncate(const Value& value, const Arguments& args, Heap& heap);
/// Escapes HTML.
[[nodiscard]] Result<Value> escape(const Value& value, Heap& heap);
/// Counts runs of Python's \w.
[[nodiscard]] int64_t count_words(std::string_view text);

}  // namespace dspack::runtime::jinja
