// A text in the making, within a budget: it asks before it grows.
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
  /// Room for so many bytes in all.
  [[nodiscard]] Result<void> reserve(uint64_t bytes);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] Budget& budget() { return *budget_; }
  /// The text and what is charged for it, of which nothing stays here.
  [[nodiscard]] std::pair<std::string, Charge> take();

 private:
  Budget* budget_;
  Charge charge_;
  std::string text_;
};

}  // namespace dspack::runtime::jinja
