#include "runtime/text/jinja/dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <limits>

namespace dspack::runtime::jinja {
namespace {

// An item, with growth of the list, and a node of places_.
constexpr uint64_t kEntryBytes = 4 * sizeof(Value) + 48 + sizeof(Value) + sizeof(size_t);

// Kinds of keys, in sort order.
enum class KeyKind { none, whole, real, digits, text, tuple, no_key };

/// A float without a fraction counts as a whole number.
std::optional<int64_t> whole_key(const Value& key) {
  constexpr double kMostExact = 9e18;
  if (!key.is_float()) return key.integer();
  const double number = *key.real();
  if (number != std::floor(number) || std::abs(number) > kMostExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

/// Equal for equal numbers, and for all NaNs.
uint64_t real_key(double number) {
  return std::bit_cast<uint64_t>(std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number);
}

KeyKind kind_of(const Value& key) {
  if (key.text() != nullptr) return KeyKind::text;
  if (key.is_none()) return KeyKind::none;
  if (whole_key(key)) return KeyKind::whole;
  if (key.is_float()) return KeyKind::real;
  if (key.digits() != nullptr) return KeyKind::digits;
  return key.list() != nullptr && key.list()->tuple ? KeyKind::tuple : KeyKind::no_key;
}

std::strong_ordering order(const Value& a, const Value& b) {
  const KeyKind kind = kind_of(a);
  if (const auto kinds = kind <=> kind_of(b); kinds != 0) return kinds;
  switch (kind) {
    case KeyKind::whole: return *whole_key(a) <=> *whole_key(b);
    case KeyKind::real: return real_key(*a.real()) <=> real_key(*b.real());
    case KeyKind::digits: return *a.digits() <=> *b.digits();
    case KeyKind::text: return *a.text() <=> *b.text();
    case KeyKind::tuple: {
      const Values& left = a.list()->items;
      const Values& right = b.list()->items;
      return std::lexicographical_compare_three_way(left.begin(), left.end(), right.begin(), right.end(), order);
    }
    case KeyKind::none:
    case KeyKind::no_key: break;
  }
  return std::strong_ordering::equal;
}

uint64_t text_bytes(const Value& key) {
  if (key.text() != nullptr) return key.text()->size();
  return key.digits() != nullptr ? key.digits()->size() : 0;
}

Result<void> check_key(const Value& key) {
  if (kind_of(key) == KeyKind::no_key) return invalid(fmt::format("unhashable type: '{}'", key.type()));
  if (key.list() == nullptr) return {};
  for (const Value& item : key.list()->items) {
    if (item.list() != nullptr) return invalid("a key that holds another tuple is not supported");
    TRY(check_key(item));
  }
  return {};
}

/// Charges the most that a search among `count` keys reads.
Result<void> charge_search(const Value& key, size_t count, Budget& budget) {
  uint64_t bytes = text_bytes(key);
  if (key.list() != nullptr) {
    TRY(budget.step(1 + key.list()->items.size()));
    for (const Value& item : key.list()->items)
      bytes += 16 + text_bytes(item);
  }
  return budget.step(1 + bytes / 16 * static_cast<uint64_t>(std::bit_width(count)));
}

}  // namespace

bool Dict::KeyOrder::operator()(const Value& a, const Value& b) const {
  return order(a, b) < 0;
}

Result<void> Dict::set(Value key, Value value, Budget& budget) {
  TRY(charge_search(key, places_.size(), budget));
  TRY(check_key(key));
  depth_ = std::max({depth_, 1 + value.depth(), 1 + key.depth()});
  holds_state_ = holds_state_ || value.leads_to_state();
  if (const auto place = places_.find(key); place != places_.end()) {
    items_[place->second].second = std::move(value);
    return {};
  }
  TRY_ASSIGN(Charge charge, budget.hold(kEntryBytes));
  charge_.add(std::move(charge));
  places_.emplace(key, items_.size());
  items_.emplace_back(std::move(key), std::move(value));
  return {};
}

Result<const Value*> Dict::find(const Value& key, Budget& budget) const {
  TRY(charge_search(key, places_.size(), budget));
  const auto place = check_key(key) ? places_.find(key) : places_.end();
  return place == places_.end() ? nullptr : &items_[place->second].second;
}

Result<Dict> Dict::copy(Budget& budget) const {
  Dict made;
  TRY_ASSIGN(made.charge_, budget.hold(items_.size() * kEntryBytes));
  TRY(budget.step(items_.size()));
  made.items_ = items_;
  made.places_ = places_;
  made.depth_ = depth_;
  made.holds_state_ = holds_state_;
  return made;
}

}  // namespace dspack::runtime::jinja
