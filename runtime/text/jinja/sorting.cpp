#include "runtime/text/jinja/sorting.h"

#include <algorithm>

#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"

namespace dspack::runtime::jinja {

Result<ListBuilder> sorted(const Values& items, const Value* attribute, const Order& order, Heap& heap) {
  using Keyed = std::pair<Value, const Value*>;
  // Sorting temporarily doubles the memory.
  TRY_ASSIGN(const Charge charge, heap.budget().hold(2 * sizeof(Keyed) * items.size()));
  TRY(heap.budget().step(items.size() * 20));
  std::vector<Keyed> keyed;
  keyed.reserve(items.size());
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr) {
      TRY_ASSIGN(key, attribute_path(item, *attribute, heap));
    }
    if (key.text() != nullptr && !order.by_case) {
      TRY_ASSIGN(key, call_method(key, "lower", {}, heap));
    }
    if (order.in_lists) {
      TRY_ASSIGN(key, heap.list({key}));
    }
    keyed.emplace_back(std::move(key), &item);
  }
  for (size_t i = 1; i < keyed.size(); ++i) {
    const auto compared = compare(keyed[i].first, keyed[i - 1].first, "<", heap.budget());
    if (!compared) return compared.error();
  }
  // All neighbours can be compared, but other pairs may still have no order: these count as equal.
  const auto less = [&heap](const auto& a, const auto& b) {
    const auto compared = compare(a.first, b.first, "<", heap.budget());
    return compared && *compared < 0;
  };
  if (order.reverse) std::ranges::reverse(keyed);
  std::ranges::stable_sort(keyed, less);
  if (order.reverse) std::ranges::reverse(keyed);
  ListBuilder in_order(heap.budget());
  TRY(in_order.reserve(items.size()));
  for (const auto& [key, item] : keyed)
    TRY(in_order.add(*item));
  return in_order;
}

}  // namespace dspack::runtime::jinja
