// A text under construction, within a budget that is charged before it grows.
// Threads: single-thread. Lifetime: borrows the budget. Errors: budget, cancelled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/text/jinja/budget.h"

namespace dspack::runtime::jinja {

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

}  // namespace dspack::runtime::jinja
