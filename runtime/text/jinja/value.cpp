#include "runtime/text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>
#include <limits>

namespace dspack::runtime::jinja {
namespace {

/// Whether a < b, for whole numbers of which at least one is long.
bool is_less(const Value& a, const Value& b) {
  const auto digits_of = [](const Value& value) {
    return value.digits() != nullptr ? *value.digits() : fmt::format("{}", value.integer().value_or(0));
  };
  const std::string left = digits_of(a);
  const std::string right = digits_of(b);
  const bool below_zero = left.starts_with('-');
  if (below_zero != right.starts_with('-')) return below_zero;
  const bool is_smaller = left.size() != right.size() ? left.size() < right.size() : left < right;
  return below_zero ? left != right && !is_smaller : is_smaller;
}

/// Whether both are whole numbers and at least one is long.
bool are_long(const Value& a, const Value& b) {
  const auto is_whole = [](const Value& value) { return value.digits() != nullptr || value.is_integer(); };
  return (a.digits() != nullptr && is_whole(b)) || (b.digits() != nullptr && is_whole(a));
}

template <class T>
const T* shared(const std::shared_ptr<T>* pointer) {
  return pointer == nullptr ? nullptr : pointer->get();
}

// An item, with growth of the list, and a node of places_.
constexpr uint64_t kEntryBytes = 4 * sizeof(Value) + 48 + sizeof(Value) + sizeof(size_t);

// Kinds of keys, in sort order.
enum class KeyKind { none, whole, real, digits, text, tuple, no_key };

/// A float without a fraction counts as a whole number.
std::optional<int64_t> whole_key(const Value& key) {
  constexpr double kMaxExact = 9e18;
  if (!key.is_float()) return key.integer();
  const double number = *key.real();
  if (number != std::floor(number) || std::abs(number) > kMaxExact) return std::nullopt;
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

const std::string* Value::text() const {
  return shared(std::get_if<std::shared_ptr<const std::string>>(&data_));
}
const std::string* Value::digits() const {
  const auto* number = std::get_if<LongInteger>(&data_);
  return number == nullptr ? nullptr : number->digits.get();
}
const List* Value::list() const {
  return shared(std::get_if<std::shared_ptr<const List>>(&data_));
}
const Dict* Value::dict() const {
  return shared(std::get_if<std::shared_ptr<const Dict>>(&data_));
}
const Callable* Value::callable() const {
  return shared(std::get_if<std::shared_ptr<const Callable>>(&data_));
}
Namespace* Value::space() const {
  const auto* pointer = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}
LoopState* Value::loop() const {
  const auto* pointer = std::get_if<std::shared_ptr<LoopState>>(&data_);
  return pointer == nullptr ? nullptr : pointer->get();
}
SharedList Value::shared_list() const {
  const auto* pointer = std::get_if<SharedList>(&data_);
  return pointer == nullptr ? nullptr : *pointer;
}

std::optional<int64_t> Value::integer() const {
  if (const auto* truth = std::get_if<bool>(&data_)) return *truth ? 1 : 0;
  const auto* number = std::get_if<int64_t>(&data_);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

std::optional<double> Value::real() const {
  if (const auto* number = std::get_if<double>(&data_)) return *number;
  const auto whole = integer();
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto number = real()) return *number != 0.0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return list()->generator || !list()->items.empty();
  if (dict() != nullptr) return !dict()->items().empty();
  return true;
}

std::string_view Value::type() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_integer() || digits() != nullptr) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (list() != nullptr) return list()->generator ? "generator" : list()->tuple ? "tuple" : "list";
  if (dict() != nullptr) return "dict";
  if (loop() != nullptr) return "LoopContext";
  return space() != nullptr ? "Namespace" : "function";
}

std::string Value::why_undefined() const {
  const auto* undefined = std::get_if<Undefined>(&data_);
  return undefined != nullptr && undefined->message ? *undefined->message : "a value is undefined";
}

uint32_t Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (callable() != nullptr) return callable()->self.depth() + 1;
  return dict() != nullptr ? dict()->depth() : 0;
}

bool Value::leads_to_state() const {
  if (list() != nullptr) return list()->holds_state;
  if (callable() != nullptr) return callable()->self.leads_to_state();
  return space() != nullptr || loop() != nullptr;
}

Result<void> Namespace::set(std::string_view name, Value value, Budget& budget) {
  if (value.leads_to_state()) return Error{ErrorKind::unsupported, "a namespace cannot hold another, nor a loop"};
  TRY(budget.read(name.size()));
  if (const auto found = fields.find(name); found != fields.end()) {
    found->second = std::move(value);
    return {};
  }
  TRY_ASSIGN(Charge more, budget.hold(kNameBytes + name.size()));
  charge.add(std::move(more));
  fields.emplace(name, std::move(value));
  return {};
}

std::optional<Value> LoopState::field(std::string_view name) const {
  const auto count = static_cast<int64_t>(items->items.size());
  const auto turn = static_cast<int64_t>(at);
  if (name == "index") return Value(turn + 1);
  if (name == "index0") return Value(turn);
  if (name == "revindex") return Value(count - turn);
  if (name == "revindex0") return Value(count - turn - 1);
  if (name == "first") return Value(turn == 0);
  if (name == "last") return Value(turn + 1 == count);
  if (name == "length") return Value(count);
  // Recursive loops are not supported, so the depth is constant.
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return at > 0 ? items->items[at - 1] : Value();
  if (name == "nextitem") return turn + 1 < count ? items->items[at + 1] : Value();
  return std::nullopt;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  if (!budget.spend(1)) return false;
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? *a.real() == *b.real() : a.integer() == b.integer();
  }
  if (a.digits() != nullptr && b.digits() != nullptr) {
    return budget.spend(a.digits()->size() / 16) && *a.digits() == *b.digits();
  }
  if (a.digits() != nullptr || b.digits() != nullptr) return false;
  const auto same = [&budget](const Value& left, const Value& right) { return equal(left, right, budget); };
  if (a.text() != nullptr && b.text() != nullptr) {
    return a.text()->size() == b.text()->size() && budget.spend(a.text()->size() / 16) && *a.text() == *b.text();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    return a.list() == b.list() ||
           (a.list()->tuple == b.list()->tuple && std::ranges::equal(a.list()->items, b.list()->items, same));
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items().size() != b.dict()->items().size()) return false;
    return a.dict() == b.dict() || std::ranges::all_of(a.dict()->items(), [&](const auto& item) {
             const auto other = b.dict()->find(item.first, budget);
             return other && *other != nullptr && same(item.second, **other);
           });
  }
  if (a.callable() != nullptr || a.space() != nullptr || a.loop() != nullptr) {
    return a.callable() == b.callable() && a.space() == b.space() && a.loop() == b.loop();
  }
  return a.type() == b.type() && (a.is_none() || a.is_undefined());
}

Result<int> compare(const Value& a, const Value& b, std::string_view sign, Budget& budget) {
  TRY(budget.step());
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return *a.integer() < *b.integer() ? -1 : *a.integer() > *b.integer() ? 1 : 0;
    return *a.real() < *b.real() ? -1 : *a.real() > *b.real() ? 1 : 0;
  }
  if (are_long(a, b)) {
    for (const Value* each : {&a, &b})
      if (each->digits() != nullptr) TRY(budget.step(each->digits()->size() / 16));
    return is_less(a, b) ? -1 : is_less(b, a) ? 1 : 0;
  }
  // UTF-8 sorts in the order of code points.
  if (a.text() != nullptr && b.text() != nullptr) TRY(budget.step(a.text()->size() / 16));
  if (a.text() != nullptr && b.text() != nullptr) return std::clamp(a.text()->compare(*b.text()), -1, 1);
  if (a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple) {
    const Values& left = a.list()->items;
    const Values& right = b.list()->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i], budget)) return compare(left[i], right[i], sign, budget);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  for (const Value* each : {&a, &b}) {
    if (each->is_undefined()) return invalid(each->why_undefined());
  }
  return invalid(fmt::format("'{}' not supported between instances of '{}' and '{}'", sign, a.type(), b.type()));
}

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

const Value* Arguments::get(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

Result<void> Arguments::add(Value value, Budget& budget) {
  TRY_ASSIGN(Charge more, budget.hold(2 * sizeof(Value)));  // including growth of the list
  charge.add(std::move(more));
  positional.push_back(std::move(value));
  return {};
}

Result<void> Arguments::add(std::string_view name, Value value, Budget& budget) {
  TRY(budget.read(name.size()));
  TRY_ASSIGN(Charge more, budget.hold(name.size() + 2 * sizeof(named.front())));
  charge.add(std::move(more));
  named.emplace_back(name, std::move(value));
  return {};
}

Result<std::string_view> Arguments::text(size_t place, std::string_view name, std::string_view otherwise) const {
  const Value* value = get(place, name);
  if (value == nullptr) return otherwise;
  if (value->text() == nullptr) return invalid(fmt::format("{} is not a str but {}", name, value->type()));
  return std::string_view(*value->text());
}

Result<int64_t> Arguments::integer(size_t place, std::string_view name, int64_t otherwise) const {
  const Value* value = get(place, name);
  if (value == nullptr) return otherwise;
  const auto number = value->integer();
  if (!number) return invalid(fmt::format("{} is not an int", name));
  return *number;
}

bool Arguments::truth(size_t place, std::string_view name, bool otherwise) const {
  const Value* value = get(place, name);
  return value == nullptr ? otherwise : value->truth();
}

Result<Arguments> Arguments::from(size_t place, Budget& budget) const {
  Arguments rest;
  for (size_t i = place; i < positional.size(); ++i)
    TRY(rest.add(positional[i], budget));
  for (const auto& [name, value] : named)
    TRY(rest.add(name, value, budget));
  return rest;
}

}  // namespace dspack::runtime::jinja
