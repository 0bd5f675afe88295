// Values in order, as the filters sort, dictsort, min and max need them.
// Threads: single-thread. Errors: invalid (values without an order), budget.
#pragma once

#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

struct Order {
  bool reverse = false;
  bool by_case = false;
  // `sort` compares lists of attributes, as Jinja does: elements that equal each other need no order.
  bool in_lists = false;
};

/// The items, by an attribute if there is one. Of those that are equal the first stays first.
[[nodiscard]] Result<ListBuilder> sorted(const Values& items, const Value* attribute, const Order& order, Heap& heap);

}  // namespace dspack::runtime::jinja
