// Sorts values, for the filters sort, dictsort, min and max.
// Threads: single-thread. Errors: invalid (values without an order), budget.
#pragma once

#include "runtime/text/jinja/heap.h"

namespace dspack::runtime::jinja {

struct Order {
  bool reverse = false;
  bool by_case = false;
  // `sort` compares lists of attributes, as in Jinja: equal elements need no order.
  bool in_lists = false;
};

/// The items in order, by an attribute if it is given. Stable.
[[nodiscard]] Result<ListBuilder> sorted(const Values& items, const Value* attribute, const Order& order, Heap& heap);

}  // namespace dspack::runtime::jinja
