#include "runtime/text/jinja/heap.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/json.h"

namespace dspack::runtime::jinja {
namespace {

// Bytes of a list or a dict besides its content.
constexpr uint64_t kBoxBytes = 128;
// Bytes of an object's member besides key and value.
constexpr uint64_t kMemberBytes = 192;

/// A text with its charge; values point to the text.
struct Text {
  Charge charge;
  std::string text;
};

std::shared_ptr<const std::string> shared(Text text) {
  const auto made = std::make_shared<const Text>(std::move(text));
  return {made, &made->text};
}

}  // namespace

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

Result<std::shared_ptr<const std::string>> Heap::boxed(std::string_view text) {
  TRY(budget_->read(text.size()));
  TRY_ASSIGN(Charge charge, budget_->hold(kTextBytes + text.size()));
  return shared({.charge = std::move(charge), .text = std::string(text)});
}

Result<Value> Heap::text(std::string_view text) {
  TRY_ASSIGN(auto made, boxed(text));
  return Value(std::move(made));
}

Result<Value> Heap::text(TextBuilder text) {
  TRY_ASSIGN(Charge box, budget_->hold(kTextBytes));
  auto [made, charge] = text.take();
  box.add(std::move(charge));
  return Value(shared({.charge = std::move(box), .text = std::move(made)}));
}

Result<Value> Heap::make_list(ListBuilder items, bool tuple, bool generator) {
  uint32_t depth = 0;
  bool holds_state = false;
  TRY(budget_->step(1 + items.items().size() / 4));
  for (const Value& item : items.items()) {
    holds_state = holds_state || item.leads_to_state();
    depth = std::max(depth, item.depth());
  }
  if (depth >= kMaxDepth) return Error{ErrorKind::budget, "lists and dicts are nested too deeply"};
  TRY_ASSIGN(Charge charge, budget_->hold(kBoxBytes));
  charge.add(std::move(items.charge()));
  return Value(std::make_shared<const List>(List{.charge = std::move(charge),
                                                 .items = std::move(items.items()),
                                                 .tuple = tuple,
                                                 .generator = generator,
                                                 .holds_state = holds_state,
                                                 .depth = depth + 1}));
}

Result<Value> Heap::list(ListBuilder items, bool tuple) {
  return make_list(std::move(items), tuple, false);
}

Result<Value> Heap::list(const Values& items, bool tuple) {
  ListBuilder copy(*budget_);
  TRY(copy.add(items));
  return make_list(std::move(copy), tuple, false);
}

Result<Value> Heap::generator(ListBuilder items) {
  return make_list(std::move(items), false, true);
}

Result<Value> Heap::dict(Dict dict) {
  if (dict.holds_state()) return Error{ErrorKind::unsupported, "a dict cannot hold a namespace or a loop"};
  if (dict.depth() > kMaxDepth) return Error{ErrorKind::budget, "lists and dicts are nested too deeply"};
  TRY_ASSIGN(Charge charge, budget_->hold(kBoxBytes));
  dict.add(std::move(charge));
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Result<Value> Heap::undefined(std::string_view message) {
  TRY_ASSIGN(auto made, boxed(message));
  return Value(Undefined{std::move(made)});
}

Result<Value> Heap::callable(Callable callable) {
  TRY_ASSIGN(callable.charge, budget_->hold(sizeof(Callable) + kTextBytes + callable.name.size()));
  return Value(std::make_shared<const Callable>(std::move(callable)));
}

Result<Value> Heap::from_json(const nlohmann::ordered_json& json) {
  TRY(budget_->step());
  if (json.is_boolean()) return Value(json.get<bool>());
  const bool is_long = json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (is_long || json.is_binary()) {
    const std::string digits = is_long ? fmt::format("{}", json.get<uint64_t>()) : std::string();
    TRY_ASSIGN(auto made, boxed(is_long ? digits : long_number(json)));
    return Value(LongInteger{std::move(made)});
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_string()) return text(json.get_ref<const std::string&>());
  TRY(budget_->enter());
  Result<Value> made = Value(None{});
  if (json.is_array()) {
    ListBuilder items(*budget_);
    TRY(items.reserve(json.size()));
    for (const auto& item : json) {
      TRY_ASSIGN(Value value, from_json(item));
      TRY(items.add(std::move(value)));
    }
    made = list(std::move(items));
  } else if (json.is_object()) {
    Dict fields;
    for (const auto& [key, item] : json.items()) {
      TRY_ASSIGN(Value name, text(key));
      TRY_ASSIGN(Value value, from_json(item));
      TRY(fields.set(std::move(name), std::move(value), *budget_));
    }
    made = dict(std::move(fields));
  }
  budget_->leave();
  return made;
}

uint64_t bytes_as_value(const nlohmann::ordered_json& json) {
  if (json.is_string()) return Heap::kTextBytes + json.get_ref<const std::string&>().size();
  if (!json.is_structured()) return 0;
  uint64_t bytes = kBoxBytes;
  if (json.is_array()) {
    for (const auto& item : json)
      bytes += sizeof(Value) + bytes_as_value(item);
    return bytes;
  }
  for (const auto& [key, item] : json.items())
    bytes += kMemberBytes + Heap::kTextBytes + key.size() + bytes_as_value(item);
  return bytes;
}

}  // namespace dspack::runtime::jinja
