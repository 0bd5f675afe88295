#include "runtime/text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/text/json.h"

namespace dspack::runtime::jinja {
namespace {

constexpr uint64_t kBoxBytes = 48;

/// Equal keys of a dict have equal identities: 1, 1.0 and true are the same key.
Result<std::string> identity(const Value& key) {
  if (const std::string* text = key.text()) return "s" + *text;
  if (key.is_float()) {
    const double number = key.real();
    if (number != std::floor(number) || std::abs(number) > 9e18) return fmt::format("f{}", number);
    return fmt::format("i{}", static_cast<int64_t>(number));
  }
  if (key.is_number()) return fmt::format("i{}", key.integer());
  if (const std::string* digits = key.digits()) return "i" + *digits;
  if (key.is_none()) return std::string("n");
  if (const List* list = key.list(); list != nullptr && list->tuple) {
    std::string all = "t";
    for (const Value& item : list->items) {
      if (item.list() != nullptr) return invalid("a key that holds another tuple is not supported");
      TRY_ASSIGN(const std::string part, identity(item));
      all += fmt::format("{}:{}", part.size(), part);
    }
    return all;
  }
  return invalid(fmt::format("unhashable type: '{}'", key.type()));
}

/// Of whole numbers, one of them long: whether a is less.
bool is_less(const Value& a, const Value& b) {
  const auto digits_of = [](const Value& value) {
    return value.digits() != nullptr ? *value.digits() : fmt::format("{}", value.integer());
  };
  const std::string left = digits_of(a);
  const std::string right = digits_of(b);
  const bool below_zero = left.starts_with('-');
  if (below_zero != right.starts_with('-')) return below_zero;
  const bool is_smaller = left.size() != right.size() ? left.size() < right.size() : left < right;
  return below_zero ? left != right && !is_smaller : is_smaller;
}

/// Whether both are whole numbers and one of them is long.
bool are_long(const Value& a, const Value& b) {
  const auto is_whole = [](const Value& value) { return value.digits() != nullptr || value.is_integer(); };
  return (a.digits() != nullptr && is_whole(b)) || (b.digits() != nullptr && is_whole(a));
}

template <class T>
const T* shared(const std::shared_ptr<T>* pointer) {
  return pointer == nullptr ? nullptr : pointer->get();
}

}  // namespace

Value Value::undefined(std::string message) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(message))};
  return value;
}

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

int64_t Value::integer() const {
  if (const auto* truth = std::get_if<bool>(&data_)) return *truth ? 1 : 0;
  return std::get<int64_t>(data_);
}

double Value::real() const {
  if (const auto* number = std::get_if<double>(&data_)) return *number;
  return static_cast<double>(integer());
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return real() != 0.0;
  if (is_number()) return integer() != 0;
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

bool Value::leads_to_space() const {
  if (list() != nullptr) return list()->holds_space;
  return space() != nullptr || (callable() != nullptr && callable()->self.space() != nullptr);
}

Result<void> Dict::set(Value key, Value value) {
  TRY_ASSIGN(std::string name, identity(key));
  depth_ = std::max({depth_, 1 + value.depth(), 1 + key.depth()});
  const auto [place, is_new] = places_.emplace(std::move(name), items_.size());
  if (is_new) {
    items_.emplace_back(std::move(key), std::move(value));
  } else {
    items_[place->second].second = std::move(value);
  }
  return {};
}

const Value* Dict::find(const Value& key) const {
  const auto name = identity(key);
  const auto place = name ? places_.find(*name) : places_.end();
  return place == places_.end() ? nullptr : &items_[place->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto place = places_.find("s" + std::string(key));
  return place == places_.end() ? nullptr : &items_[place->second].second;
}

Result<Value> Heap::text(std::string text) {
  TRY(budget_->produce(kBoxBytes + text.size()));
  return Value(std::make_shared<const std::string>(std::move(text)));
}

Result<Value> Heap::list(Values items, bool tuple) {
  TRY(budget_->produce(kBoxBytes + items.size() * sizeof(Value)));
  uint32_t depth = 0;
  bool holds_space = false;
  for (const Value& item : items) {
    holds_space = holds_space || item.leads_to_space();
    depth = std::max(depth, item.depth());
  }
  if (depth >= kMaxDepth) return Error{ErrorKind::budget, "lists and dicts are nested too deeply"};
  return Value(std::make_shared<const List>(
      List{.items = std::move(items), .tuple = tuple, .holds_space = holds_space, .depth = depth + 1}));
}

Result<Value> Heap::generator(Values items) {
  TRY_ASSIGN(const Value made, list(std::move(items)));
  List copy = *made.list();
  copy.generator = true;
  return Value(std::make_shared<const List>(std::move(copy)));
}

Result<Value> Heap::dict(Dict dict) {
  constexpr uint64_t kEntryBytes = 160;  // key, value, and the place of the key
  uint64_t bytes = kBoxBytes;
  for (const auto& [key, value] : dict.items()) {
    if (value.leads_to_space()) return Error{ErrorKind::unsupported, "a dict cannot hold a namespace"};
    bytes += kEntryBytes + (key.text() != nullptr ? key.text()->size() : 0);
  }
  TRY(budget_->produce(bytes));
  if (dict.depth() > kMaxDepth) return Error{ErrorKind::budget, "lists and dicts are nested too deeply"};
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Result<Value> Heap::from_json(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return Value(json.get<bool>());
  const bool is_long = json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (is_long || json.is_binary()) {
    std::string digits = is_long ? fmt::format("{}", json.get<uint64_t>()) : std::string(long_number(json));
    TRY(budget_->produce(kBoxBytes + digits.size()));
    return Value(LongInteger{std::make_shared<const std::string>(std::move(digits))});
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_string()) return text(json.get<std::string>());
  TRY(budget_->enter());
  Result<Value> made = Value(None{});
  if (json.is_array()) {
    Values items;
    for (const auto& item : json) {
      TRY_ASSIGN(Value value, from_json(item));
      items.push_back(std::move(value));
    }
    made = list(std::move(items));
  } else if (json.is_object()) {
    Dict fields;
    for (const auto& [key, item] : json.items()) {
      TRY_ASSIGN(Value name, text(key));
      TRY_ASSIGN(Value value, from_json(item));
      TRY(fields.set(std::move(name), std::move(value)));
    }
    made = dict(std::move(fields));
  }
  budget_->leave();
  return made;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  if (!budget.spend(1)) return false;
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? a.real() == b.real() : a.integer() == b.integer();
  }
  if (a.digits() != nullptr && b.digits() != nullptr) {
    return budget.spend(a.digits()->size() / 16) && *a.digits() == *b.digits();
  }
  if (a.digits() != nullptr || b.digits() != nullptr) return false;
  const auto same = [&budget](const Value& left, const Value& right) { return equal(left, right, budget); };
  if (a.text() != nullptr && b.text() != nullptr) return budget.spend(a.text()->size() / 16) && *a.text() == *b.text();
  if (a.list() != nullptr && b.list() != nullptr) {
    return a.list() == b.list() ||
           (a.list()->tuple == b.list()->tuple && std::ranges::equal(a.list()->items, b.list()->items, same));
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items().size() != b.dict()->items().size()) return false;
    return std::ranges::all_of(a.dict()->items(), [&](const auto& item) {
      const Value* other = b.dict()->find(item.first);
      return other != nullptr && same(item.second, *other);
    });
  }
  if (a.callable() != nullptr || a.space() != nullptr) return a.callable() == b.callable() && a.space() == b.space();
  return a.type() == b.type() && (a.is_none() || a.is_undefined());
}

Result<int> compare(const Value& a, const Value& b, std::string_view sign, Budget& budget) {
  TRY(budget.step());
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
    return a.real() < b.real() ? -1 : a.real() > b.real() ? 1 : 0;
  }
  if (are_long(a, b)) {
    for (const Value* each : {&a, &b})
      if (each->digits() != nullptr) TRY(budget.step(each->digits()->size() / 16));
    return is_less(a, b) ? -1 : is_less(b, a) ? 1 : 0;
  }
  // UTF-8 has the order of code points.
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

}  // namespace dspack::runtime::jinja
