// Creates values within a budget, which is charged before allocation; values return their charge when destroyed.
// Threads: single-thread. Lifetime: borrows the budget, which outlives the values. Errors: budget (too large, or nested
// too deeply), cancelled.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

/// A list under construction, within a budget that is charged before it grows. Borrows the budget.
class ListBuilder {
 public:
  explicit ListBuilder(Budget& budget) : budget_(&budget) {}

  [[nodiscard]] Result<void> add(Value item) {
    if (items_.size() == items_.capacity()) TRY(reserve(std::max<uint64_t>(4, 2 * items_.capacity())));
    items_.push_back(std::move(item));
    return {};
  }
  [[nodiscard]] Result<void> add(const Values& items) {
    TRY(budget_->step(items.size()));
    if (items.size() > items_.capacity() - items_.size()) {
      TRY(reserve(std::max<uint64_t>(items_.size() + items.size(), 2 * items_.capacity())));
    }
    items_.insert(items_.end(), items.begin(), items.end());
    return {};
  }
  /// Reserves room for `count` items in total.
  [[nodiscard]] Result<void> reserve(uint64_t count) {
    if (count <= items_.capacity()) return {};
    if (count > budget_->max_bytes()) return Error{ErrorKind::budget, "the template takes too much memory"};
    // Both charges are held while the items move to the new memory.
    TRY_ASSIGN(Charge charge, budget_->hold(count * sizeof(Value)));
    items_.reserve(count);
    charge_ = std::move(charge);
    return {};
  }

  [[nodiscard]] Values& items() { return items_; }
  [[nodiscard]] Charge& charge() { return charge_; }

 private:
  Budget* budget_;
  Charge charge_;
  Values items_;
};

/// A text under construction, likewise.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(&budget) {}

  [[nodiscard]] Result<void> add(std::string_view text);
  [[nodiscard]] Result<void> add(uint64_t count, char c);
  /// Reserves room for `bytes` in total.
  [[nodiscard]] Result<void> reserve(uint64_t bytes);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] Budget& budget() { return *budget_; }
  /// Moves out the text and its charge.
  [[nodiscard]] std::pair<std::string, Charge> take();

 private:
  Budget* budget_;
  Charge charge_;
  std::string text_;
};

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
