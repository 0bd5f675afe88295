// A list under construction, within a budget that is charged before it grows.
// Threads: single-thread. Lifetime: borrows the budget. Errors: budget, cancelled.
#pragma once

#include <algorithm>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

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

}  // namespace dspack::runtime::jinja
