// What the environment offers to templates: filters, tests, and the methods of texts, lists and dicts.
// Threads: single-thread (an environment belongs to one run). Errors: invalid (what Jinja or Python refuses),
// unsupported (what is not here), budget.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

struct Arguments {
  Values positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
  /// By place or by name; null if it is not given.
  [[nodiscard]] const Value* get(size_t place, std::string_view name) const;
  [[nodiscard]] Result<std::string> text(size_t place, std::string_view name, std::string_view otherwise) const;
  [[nodiscard]] Result<int64_t> integer(size_t place, std::string_view name, int64_t otherwise) const;
  [[nodiscard]] bool truth(size_t place, std::string_view name, bool otherwise) const;
  /// Without the first `count`.
  [[nodiscard]] Arguments behind(size_t count) const;
};

[[nodiscard]] bool is_filter(std::string_view name);
[[nodiscard]] bool is_test(std::string_view name);
[[nodiscard]] bool is_method(const Value& self, std::string_view name);

[[nodiscard]] Result<Value> apply_filter(std::string_view name, const Value& value, const Arguments& args, Heap& heap);
[[nodiscard]] Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& args, Heap& heap);
[[nodiscard]] Result<Value> call_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap);
/// object.a.0.b
[[nodiscard]] Result<Value> attribute_path(const Value& object, const Value& path, Heap& heap);

}  // namespace dspack::runtime::jinja
