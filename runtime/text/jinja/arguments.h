// The arguments of one call, by place and by name.
// Threads: plain values. Errors: invalid (an argument of another type).
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
  /// By place or by name; null if it is not given.
  [[nodiscard]] const Value* get(size_t place, std::string_view name) const;
  [[nodiscard]] Result<std::string> text(size_t place, std::string_view name, std::string_view otherwise) const;
  [[nodiscard]] Result<int64_t> integer(size_t place, std::string_view name, int64_t otherwise) const;
  [[nodiscard]] bool truth(size_t place, std::string_view name, bool otherwise) const;
  /// Without those before `place`.
  [[nodiscard]] Arguments from(size_t place) const;
};

}  // namespace dspack::runtime::jinja
