// A dict of a template. It keeps insertion order; keys are texts, numbers, none, or tuples of these, and 1, 1.0 and
// true are the same key.
// Threads: single-thread. Errors: invalid (a key that Python cannot hash), budget.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

class Dict {
 public:
  Dict() = default;
  Dict(Dict&&) noexcept = default;
  Dict& operator=(Dict&&) noexcept = default;

  /// Adds a key, or replaces its value.
  [[nodiscard]] Result<void> set(Value key, Value value, Budget& budget);
  /// nullptr: not in the dict, or not a valid key.
  [[nodiscard]] Result<const Value*> find(const Value& key, Budget& budget) const;
  [[nodiscard]] Result<Dict> copy(Budget& budget) const;
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  [[nodiscard]] uint32_t depth() const { return depth_; }
  void add(Charge charge) { charge_.add(std::move(charge)); }
  /// Value::leads_to_state of any value.
  [[nodiscard]] bool holds_state() const { return holds_state_; }

 private:
  // Ordered, not hashed: keys are untrusted and could be chosen to collide.
  struct KeyOrder {
    bool operator()(const Value& a, const Value& b) const;
  };

  Charge charge_;
  std::vector<std::pair<Value, Value>> items_;
  std::map<Value, size_t, KeyOrder> places_;
  uint32_t depth_ = 1;
  bool holds_state_ = false;
};

}  // namespace dspack::runtime::jinja
