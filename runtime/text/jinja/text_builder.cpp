#include "runtime/text/jinja/text_builder.h"

#include <algorithm>

namespace dspack::runtime::jinja {

Result<void> TextBuilder::reserve(uint64_t bytes) {
  if (bytes <= text_.capacity()) return {};
  if (bytes > budget_->max_bytes()) return Error{ErrorKind::budget, "the template takes too much memory"};
  constexpr uint64_t kAllocatorBytes = 32;
  // Both charges are held while the bytes move to the new memory.
  TRY_ASSIGN(Charge charge, budget_->hold(bytes + kAllocatorBytes));
  text_.reserve(bytes);
  charge_ = std::move(charge);
  return {};
}

Result<void> TextBuilder::add(std::string_view text) {
  TRY(budget_->read(text.size()));
  if (text.size() > text_.capacity() - text_.size()) {
    TRY(reserve(std::max<uint64_t>(text_.size() + text.size(), 2 * text_.capacity())));
  }
  text_ += text;
  return {};
}

Result<void> TextBuilder::add(uint64_t count, char c) {
  TRY(budget_->read(count));
  if (count > text_.capacity() - text_.size()) {
    if (count > budget_->max_bytes()) return Error{ErrorKind::budget, "the template takes too much memory"};
    TRY(reserve(std::max<uint64_t>(text_.size() + count, 2 * text_.capacity())));
  }
  text_.append(count, c);
  return {};
}

std::pair<std::string, Charge> TextBuilder::take() {
  return {std::exchange(text_, {}), std::move(charge_)};
}

}  // namespace dspack::runtime::jinja
