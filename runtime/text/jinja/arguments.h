// The arguments of one call, by position and by name.
// Threads: plain values. Errors: invalid (an argument of another type), budget.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

struct Arguments {
  Values positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
  Charge charge = {};  // for both lists
  [[nodiscard]] Result<void> add(Value value, Budget& budget);
  [[nodiscard]] Result<void> add(std::string_view name, Value value, Budget& budget);
  [[nodiscard]] size_t count() const { return positional.size() + named.size(); }
  /// By position or by name; nullptr: not given.
  [[nodiscard]] const Value* get(size_t place, std::string_view name) const;
  /// The argument as a text, integer or bool; `otherwise` if it is not given.
  [[nodiscard]] Result<std::string_view> text(size_t place, std::string_view name, std::string_view otherwise) const;
  [[nodiscard]] Result<int64_t> integer(size_t place, std::string_view name, int64_t otherwise) const;
  [[nodiscard]] bool truth(size_t place, std::string_view name, bool otherwise) const;
  /// Without the positional arguments before `place`.
  [[nodiscard]] Result<Arguments> from(size_t place, Budget& budget) const;
};

}  // namespace dspack::runtime::jinja
