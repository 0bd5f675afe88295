// Creates values within a budget, which is charged before allocation; values return their charge when destroyed.
// Threads: single-thread. Lifetime: borrows the budget, which outlives the values. Errors: budget (too large, or nested
// too deeply), cancelled.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/text/jinja/dict.h"
#include "runtime/text/jinja/list_builder.h"
#include "runtime/text/jinja/text_builder.h"
#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

class Heap {
 public:
  explicit Heap(Budget& budget) : budget_(&budget) {}
  [[nodiscard]] Result<Value> text(std::string_view text);
  [[nodiscard]] Result<Value> text(TextBuilder text);
  [[nodiscard]] Result<Value> list(ListBuilder items, bool tuple = false);
  [[nodiscard]] Result<Value> list(const Values& items, bool tuple = false);
  [[nodiscard]] Result<Value> generator(ListBuilder items);
  [[nodiscard]] Result<Value> dict(Dict dict);
  [[nodiscard]] Result<Value> undefined(std::string_view message);
  /// `callable`: without its charge, which is added here.
  [[nodiscard]] Result<Value> callable(Callable callable);
  [[nodiscard]] Result<Value> from_json(const nlohmann::ordered_json& json);
  [[nodiscard]] Budget& budget() { return *budget_; }

  static constexpr uint32_t kMaxDepth = 150;  // nesting of lists and dicts
  static constexpr uint64_t kTextBytes = 80;  // bytes of a text besides its characters

 private:
  [[nodiscard]] Result<std::shared_ptr<const std::string>> boxed(std::string_view text);
  [[nodiscard]] Result<Value> make_list(ListBuilder items, bool tuple, bool generator);
  Budget* budget_;
};

/// Approximate bytes that from_json allocates for a value.
[[nodiscard]] uint64_t bytes_as_value(const nlohmann::ordered_json& json);

}  // namespace dspack::runtime::jinja
