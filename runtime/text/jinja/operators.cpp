#include "runtime/text/jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/text/codepoint_set.h"
#include "runtime/text/jinja/percent_format.h"
#include "runtime/text/jinja/text_search.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {

Error too_long() {
  return {ErrorKind::unsupported, "an integer needs more than 64 bits"};
}

namespace {

Error no_operation(std::string_view sign, const Value& a, const Value& b) {
  for (const Value* each : {&a, &b}) {
    if (each->is_undefined()) return invalid(each->why_undefined());
  }
  return invalid(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", sign, a.type(), b.type()));
}

Result<Value> whole_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 1 || exponent == 0) return Value(int64_t{1});
  if (base == 0) return Value(int64_t{0});
  if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result)) return too_long();
  return Value(result);
}

Result<Value> whole(std::string_view sign, int64_t a, int64_t b) {
  int64_t result = 0;
  if (sign == "+" && !__builtin_add_overflow(a, b, &result)) return Value(result);
  if (sign == "-" && !__builtin_sub_overflow(a, b, &result)) return Value(result);
  if (sign == "*" && !__builtin_mul_overflow(a, b, &result)) return Value(result);
  if (sign == "**" && b >= 0) return whole_power(a, b);
  if (sign == "//" || sign == "%") {
    if (b == 0) return invalid("integer division or modulo by zero");
    if (b == -1) {
      if (sign == "%") return Value(int64_t{0});
      if (a == INT64_MIN) return too_long();
      return Value(-a);
    }
    const int64_t remainder = a % b;
    const bool down = remainder != 0 && (remainder < 0) != (b < 0);
    return Value(sign == "%" ? remainder + (down ? b : 0) : a / b - (down ? 1 : 0));
  }
  return too_long();
}

Result<Value> real(std::string_view sign, double a, double b) {
  if (sign == "+") return Value(a + b);
  if (sign == "-") return Value(a - b);
  if (sign == "*") return Value(a * b);
  if (sign == "**") {
    if (a == 0 && b < 0) return invalid("0.0 cannot be raised to a negative power");
    const double power = std::pow(a, b);
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) return invalid("a power is out of range");
    return Value(power);
  }
  if (b == 0) return invalid("division by zero");
  if (sign == "/") return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (remainder == 0) remainder = std::copysign(0.0, b);
  if (sign == "%") return Value(remainder);
  if (a - remainder == 0) return Value(std::copysign(0.0, a / b));
  return Value(std::floor((a - remainder) / b + 0.5));
}

Result<Value> repeat(const Value& what, int64_t count, Heap& heap) {
  auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const uint64_t each = what.text() != nullptr ? what.text()->size() : what.list()->items.size();
  if (each == 0) times = 0;
  uint64_t size = 0;
  if (__builtin_mul_overflow(times, each, &size)) size = UINT64_MAX / 2;
  if (const std::string* text = what.text()) {
    TextBuilder out(heap.budget());
    TRY(out.reserve(size));
    if (times > 0) TRY(out.add(*text));
    // Doubles the text each time; its memory is already reserved.
    while (out.text().size() < size)
      TRY(out.add(std::string_view(out.text()).substr(0, size - out.text().size())));
    return heap.text(std::move(out));
  }
  ListBuilder out(heap.budget());
  TRY(out.reserve(size));
  for (uint64_t i = 0; i < times; ++i)
    TRY(out.add(what.list()->items));
  return heap.list(std::move(out), what.list()->tuple);
}

}  // namespace

Result<Value> binary(std::string_view sign, const Value& a, const Value& b, Heap& heap) {
  if (a.is_number() && b.is_number()) {
    const auto left = a.integer();
    const auto right = b.integer();
    const bool whole_result = left && right && sign != "/" && !(sign == "**" && *right < 0);
    return whole_result ? whole(sign, *left, *right) : real(sign, *a.real(), *b.real());
  }
  if (sign == "+" && a.text() != nullptr && b.text() != nullptr) {
    TextBuilder out(heap.budget());
    TRY(out.reserve(a.text()->size() + b.text()->size()));
    TRY(out.add(*a.text()));
    TRY(out.add(*b.text()));
    return heap.text(std::move(out));
  }
  if (sign == "+" && a.text() != nullptr && !b.is_undefined()) {
    return invalid(fmt::format("can only concatenate str (not \"{}\") to str", b.type()));
  }
  if (sign == "+" && a.list() != nullptr && b.list() != nullptr && a.list()->tuple == b.list()->tuple) {
    ListBuilder out(heap.budget());
    TRY(out.reserve(a.list()->items.size() + b.list()->items.size()));
    TRY(out.add(a.list()->items));
    TRY(out.add(b.list()->items));
    return heap.list(std::move(out), a.list()->tuple);
  }
  const auto repeatable = [](const Value& value) { return value.text() != nullptr || value.list() != nullptr; };
  if (sign == "*" && repeatable(a) && b.integer()) return repeat(a, *b.integer(), heap);
  if (sign == "*" && repeatable(b) && a.integer()) return repeat(b, *a.integer(), heap);
  if (sign == "%" && a.text() != nullptr) return format_percent(*a.text(), b, heap);
  if (a.digits() != nullptr || b.digits() != nullptr) {
    return Error{ErrorKind::unsupported, fmt::format("{} of a whole number beyond 63 bits", sign)};
  }
  return no_operation(sign, a, b);
}

Result<bool> compare_by(std::string_view sign, const Value& a, const Value& b, Heap& heap) {
  TRY(heap.budget().step());
  if (sign == "==") return equal(a, b, heap.budget());
  if (sign == "!=") return !equal(a, b, heap.budget());
  if (sign == "in") return contains(b, a, heap);
  if (sign == "not in") {
    TRY_ASSIGN(const bool found, contains(b, a, heap));
    return !found;
  }
  if (a.is_number() && b.is_number() && (std::isnan(*a.real()) || std::isnan(*b.real()))) return false;
  TRY_ASSIGN(const int order, compare(a, b, sign, heap.budget()));
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  return sign == ">" ? order > 0 : order >= 0;
}

Result<bool> contains(const Value& container, const Value& item, Heap& heap) {
  if (container.text() != nullptr) {
    if (item.is_undefined()) return invalid(item.why_undefined());
    if (item.text() == nullptr) {
      return invalid(fmt::format("'in <string>' requires string as left operand, not {}", item.type()));
    }
    TRY_ASSIGN(const size_t found, find_first(*container.text(), *item.text(), heap.budget()));
    return found != std::string::npos;
  }
  if (const List* list = container.list()) {
    TRY(heap.budget().step(1 + list->items.size()));
    return std::ranges::any_of(list->items, [&](const Value& each) { return equal(each, item, heap.budget()); });
  }
  if (const Dict* dict = container.dict()) {
    if (item.list() != nullptr && !item.list()->tuple) return invalid("unhashable type: 'list'");
    if (item.dict() != nullptr) return invalid("unhashable type: 'dict'");
    TRY_ASSIGN(const Value* const found, dict->find(item, heap.budget()));
    return found != nullptr;
  }
  if (container.is_undefined()) return false;
  return invalid(fmt::format("argument of type '{}' is not iterable", container.type()));
}

namespace {

bool has_property(std::string_view character, const CodepointSet& set) {
  return first_utf8_unit(character).kind == Utf8Unit::Kind::character && set.contains(decode_utf8_character(character));
}

}  // namespace

bool is_letter(std::string_view character) {
  static const CodepointSet kSet = unicode_property("L").value_or(CodepointSet());
  return has_property(character, kSet);
}

bool is_letter_or_number(std::string_view character) {
  return is_letter(character) ||
         (first_utf8_unit(character).kind == Utf8Unit::Kind::character && is_numeric(decode_utf8_character(character)));
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, utf8_length(text.front()));
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); text.remove_prefix(first_character(text).size()))
    ++count;
  return count;
}

namespace {

/// Offset of a character in bytes. `count`: characters in the text.
size_t offset_of(std::string_view text, int64_t place, int64_t count) {
  if (static_cast<size_t>(count) == text.size()) return static_cast<size_t>(place);  // one byte each
  size_t offset = 0;
  for (int64_t i = 0; i < place; ++i)
    offset += first_character(text.substr(offset)).size();
  return offset;
}

}  // namespace

Result<SharedList> iterate(const Value& value, Heap& heap) {
  if (value.list() != nullptr) return value.shared_list();
  TRY_ASSIGN(const int64_t count, length_of(value, heap));
  ListBuilder items(heap.budget());
  TRY(items.reserve(static_cast<uint64_t>(count)));
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->items())
      TRY(items.add(key));
  } else if (const std::string* text = value.text()) {
    for (std::string_view rest = *text; !rest.empty(); rest.remove_prefix(first_character(rest).size())) {
      TRY_ASSIGN(Value character, heap.text(first_character(rest)));
      TRY(items.add(std::move(character)));
    }
  }
  TRY_ASSIGN(const Value made, heap.list(std::move(items)));
  return made.shared_list();
}

Result<int64_t> length_of(const Value& value, Heap& heap) {
  if (value.list() != nullptr) return static_cast<int64_t>(value.list()->items.size());
  if (value.dict() != nullptr) return static_cast<int64_t>(value.dict()->items().size());
  if (value.is_undefined()) return 0;
  if (value.text() == nullptr) return invalid(fmt::format("object of type '{}' has no len()", value.type()));
  TRY(heap.budget().step(1 + value.text()->size() / 16));
  return count_characters(*value.text());
}

Result<Value> item_of(const Value& object, const Value& key, Heap& heap) {
  if (object.is_undefined()) return invalid(object.why_undefined());
  TRY(heap.budget().step());
  if (const Dict* dict = object.dict()) {
    TRY_ASSIGN(const Value* const found, dict->find(key, heap.budget()));
    if (found != nullptr) return *found;
  } else if (((object.list() != nullptr && !object.list()->generator) || object.text() != nullptr) && key.integer()) {
    TRY_ASSIGN(const int64_t count, length_of(object, heap));
    const int64_t at = *key.integer() < 0 ? *key.integer() + count : *key.integer();
    if (at >= 0 && at < count) {
      if (object.list() != nullptr) return object.list()->items[static_cast<size_t>(at)];
      return heap.text(first_character(std::string_view(*object.text()).substr(offset_of(*object.text(), at, count))));
    }
  } else if (object.space() != nullptr && key.text() != nullptr) {
    TRY(heap.budget().read(key.text()->size()));
    const auto found = object.space()->fields.find(*key.text());
    if (found != object.space()->fields.end()) return found->second;
  } else if (object.loop() != nullptr && key.text() != nullptr) {
    if (auto found = object.loop()->field(*key.text())) return *std::move(found);
  }
  if (key.text() == nullptr) return heap.undefined(fmt::format("{} object has no such element", object.type()));
  return heap.undefined(
      fmt::format("'{} object' has no attribute '{}'", object.type(), shortened(*key.text(), kPieceBytes)));
}

namespace {

/// Every stride-th character from `from` up or down to `to`, exclusively. `count`: characters in the text.
Result<Value> slice_of_text(std::string_view text, int64_t from, int64_t to, int64_t stride, int64_t count,
                            Heap& heap) {
  TextBuilder out(heap.budget());
  if (stride < 0 ? from <= to : from >= to) return heap.text(std::move(out));
  size_t at = offset_of(text, from, count);
  if (stride == 1) return heap.text(text.substr(at, offset_of(text, to, count) - at));
  for (int64_t place = from; stride < 0 ? place > to : place < to;) {
    TRY(out.add(first_character(text.substr(at))));
    int64_t next = 0;
    if (__builtin_add_overflow(place, stride, &next) || (stride < 0 ? next <= to : next >= to)) break;
    for (; place < next; ++place)
      at += first_character(text.substr(at)).size();
    for (; place > next; --place)
      at -= last_character(text.substr(0, at)).size();
  }
  return heap.text(std::move(out));
}

}  // namespace

Result<Value> slice(const Value& object, const Value& start, const Value& end, const Value& step, Heap& heap) {
  if (object.is_undefined()) return invalid(object.why_undefined());
  if ((object.list() == nullptr || object.list()->generator) && object.text() == nullptr) {
    return invalid(fmt::format("'{}' object has no slices", object.type()));
  }
  TRY_ASSIGN(const int64_t count, length_of(object, heap));
  for (const Value* part : {&start, &end, &step}) {
    if (!part->is_none() && !part->integer()) return invalid("slice indices must be integers");
  }
  const int64_t stride = step.integer().value_or(1);
  if (stride == 0) return invalid("slice step cannot be zero");
  const auto bound = [&](const Value& part, int64_t otherwise) {
    const auto given = part.integer();
    if (!given) return otherwise;
    const int64_t at = *given < 0 ? *given + count : *given;
    return std::clamp<int64_t>(at, stride < 0 ? -1 : 0, stride < 0 ? count - 1 : count);
  };
  const int64_t from = bound(start, stride < 0 ? count - 1 : 0);
  const int64_t to = bound(end, stride < 0 ? -1 : count);
  if (object.text() != nullptr) return slice_of_text(*object.text(), from, to, stride, count, heap);
  ListBuilder items(heap.budget());
  for (int64_t at = from; stride < 0 ? at > to : at < to;) {
    TRY(heap.budget().step());
    TRY(items.add(object.list()->items[static_cast<size_t>(at)]));
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  return heap.list(std::move(items), object.list()->tuple);
}

}  // namespace dspack::runtime::jinja
