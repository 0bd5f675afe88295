// Python's operators, subscripts and iteration on values.
// Threads: thread-safe (pure functions of their arguments). Errors: invalid (what Python refuses), budget.
#pragma once

#include <string_view>

#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

/// The error for results that Python can compute and 64 bits cannot hold.
[[nodiscard]] Error too_long();
/// + - * / // % **
[[nodiscard]] Result<Value> binary(std::string_view sign, const Value& a, const Value& b, Heap& heap);
/// == != < <= > >= in, not in
[[nodiscard]] Result<bool> compare_by(std::string_view sign, const Value& a, const Value& b, Heap& heap);
[[nodiscard]] Result<bool> contains(const Value& container, const Value& item, Heap& heap);
/// The items that `for` iterates over: items (the same list), keys, characters; none if undefined.
[[nodiscard]] Result<SharedList> iterate(const Value& value, Heap& heap);
[[nodiscard]] Result<int64_t> length_of(const Value& value, Heap& heap);
/// object[key], or undefined if there is none.
[[nodiscard]] Result<Value> item_of(const Value& object, const Value& key, Heap& heap);
[[nodiscard]] Result<Value> slice(const Value& object, const Value& start, const Value& end, const Value& step,
                                  Heap& heap);
/// Python's isalpha and isalnum for one character.
[[nodiscard]] bool is_letter(std::string_view character);
[[nodiscard]] bool is_letter_or_number(std::string_view character);
/// `text`: not empty.
[[nodiscard]] std::string_view first_character(std::string_view text);
[[nodiscard]] int64_t count_characters(std::string_view text);

}  // namespace dspack::runtime::jinja
