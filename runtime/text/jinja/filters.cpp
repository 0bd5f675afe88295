#include "runtime/text/jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/percent_format.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {
namespace {

// Filters from text to text.

Result<Value> indent(const Value& value, const Arguments& args, Heap& heap) {
  if (value.text() == nullptr) return invalid(fmt::format("indent: not a str but {}", value.type()));
  const std::string& text = *value.text();
  const Value* width = args.get(0, "width");
  const std::string* mark = width == nullptr ? nullptr : width->text();
  uint64_t spaces = 0;
  if (mark == nullptr) {
    constexpr int64_t kMaxIndent = 1000;
    TRY_ASSIGN(const int64_t count, args.integer(0, "width", 4));
    spaces = static_cast<uint64_t>(std::clamp<int64_t>(count, 0, kMaxIndent));
  }
  const bool first = args.truth(1, "first", false);
  const bool blank = args.truth(2, "blank", false);
  TextBuilder out(heap.budget());
  std::string_view rest = text;
  for (bool is_first = true;; is_first = false) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (is_first ? first : (blank || !line.empty())) TRY(mark != nullptr ? out.add(*mark) : out.add(spaces, ' '));
    TRY(out.add(line));
    if (end == std::string_view::npos) break;
    TRY(out.add("\n"));
    rest.remove_prefix(end + 1);
  }
  return heap.text(std::move(out));
}

/// Words begin after white space, '-' and opening brackets, unlike str.title.
Result<Value> title(const Value& value, Heap& heap) {
  const auto is_between = [](std::string_view unit) {
    return std::string_view("-({[<").find(unit) != std::string_view::npos ||
           is_python_space(decode_utf8_character(unit));
  };
  TRY_ASSIGN(const Value text, as_text(value, heap));
  TRY(heap.budget().step(1 + text.text()->size() / 8));
  TextBuilder out(heap.budget());
  for (std::string_view rest = *text.text(); !rest.empty();) {
    const std::string_view first = first_character(rest);
    size_t end = first.size();
    if (is_between(first)) {
      TRY(out.add(first));
      rest.remove_prefix(end);
      continue;
    }
    while (end < rest.size() && !is_between(first_character(rest.substr(end))))
      end += first_character(rest.substr(end)).size();
    TRY(out.add(upper_case(first)));
    TRY_ASSIGN(const Charge charge, heap.budget().hold(kMaxCaseGrowth * end));
    TRY(out.add(lower_case(rest.substr(first.size(), end - first.size()))));
    rest.remove_prefix(end);
  }
  return heap.text(std::move(out));
}

/// Cuts at the last space before `length`, unless `killwords`; a text only slightly longer is kept.
Result<Value> truncate(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const int64_t length, args.integer(0, "length", 255));
  const bool cuts_words = args.truth(1, "killwords", false);
  TRY_ASSIGN(const std::string_view end, args.text(2, "end", "..."));
  TRY(heap.budget().read(end.size()));
  const Value* given = args.get(3, "leeway");
  constexpr int64_t kLeeway = 5;
  int64_t leeway = kLeeway;
  if (given != nullptr && !given->is_none()) {
    TRY_ASSIGN(leeway, args.integer(3, "leeway", kLeeway));
  }
  const int64_t end_length = count_characters(end);
  if (length < end_length) return invalid(fmt::format("expected length >= {}, got {}", end_length, length));
  if (leeway < 0) return invalid(fmt::format("expected leeway >= 0, got {}", leeway));
  TRY_ASSIGN(const int64_t size, length_of(value, heap));
  if (size <= length || size - length <= leeway) return value;
  if (value.text() == nullptr) return invalid(fmt::format("truncate: not a str but {}", value.type()));
  size_t bytes = 0;
  for (int64_t i = 0; i < length - end_length; ++i)
    bytes += utf8_length((*value.text())[bytes]);
  std::string_view kept = std::string_view(*value.text()).substr(0, bytes);
  if (!cuts_words) kept = kept.substr(0, kept.rfind(' '));
  TextBuilder out(heap.budget());
  TRY(out.add(kept));
  TRY(out.add(end));
  return heap.text(std::move(out));
}

/// Escapes HTML.
Result<Value> escape(const Value& value, Heap& heap) {
  constexpr std::string_view kEscaped = "&<>\"'";
  constexpr std::array<std::string_view, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  TRY_ASSIGN(const Value text, as_text(value, heap));
  TextBuilder out(heap.budget());
  for (std::string_view rest = *text.text(); !rest.empty();) {
    const size_t plain = std::min(rest.find_first_of(kEscaped), rest.size());
    TRY(out.add(rest.substr(0, plain)));
    if (plain == rest.size()) break;
    TRY(out.add(kEscapes[kEscaped.find(rest[plain])]));
    rest.remove_prefix(plain + 1);
  }
  return heap.text(std::move(out));
}

/// Counts runs of Python's \w.
int64_t count_words(std::string_view text) {
  int64_t count = 0;
  bool inside = false;
  for (; !text.empty(); text.remove_prefix(first_character(text).size())) {
    const std::string_view unit = first_character(text);
    const bool of_word = unit == "_" || is_letter_or_number(unit);
    count += of_word && !inside ? 1 : 0;
    inside = of_word;
  }
  return count;
}

/// How values are sorted, for the filters sort, dictsort, min and max.
struct Order {
  bool reverse = false;
  bool by_case = false;
  // `sort` compares lists of attributes, as in Jinja: equal elements need no order.
  bool in_lists = false;
};

/// The items in order, by an attribute if it is given. Stable.
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

Result<Value> method_of_text(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const Value text, as_text(value, heap));
  return call_method(text, name, args, heap);
}

Result<Value> select(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  if (!value.truth()) return heap.generator(ListBuilder(heap.budget()));  // as in Jinja, for any type
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  if (by_attribute && args.positional.empty()) return invalid("missing parameter for attribute name");
  const size_t test_at = by_attribute ? 1 : 0;
  TRY_ASSIGN(const std::string_view test, args.text(test_at, "", ""));
  TRY_ASSIGN(const Arguments rest, args.from(test_at + 1, heap.budget()));
  TRY_ASSIGN(const SharedList list, iterate(value, heap));
  ListBuilder chosen(heap.budget());
  for (const Value& item : list->items) {
    Value tested = item;
    if (by_attribute) {
      TRY_ASSIGN(tested, attribute_path(item, args.positional.front(), heap));
    }
    bool holds = tested.truth();
    if (!test.empty()) {
      TRY_ASSIGN(holds, apply_test(test, tested, rest, heap));
    }
    TRY(heap.budget().step());
    if (holds == wanted) TRY(chosen.add(item));
  }
  return heap.generator(std::move(chosen));
}

Result<Value> map(const Value& value, const Arguments& args, Heap& heap) {
  if (!value.truth()) return heap.generator(ListBuilder(heap.budget()));  // as in Jinja, for any type
  TRY_ASSIGN(const SharedList list, iterate(value, heap));
  const Value* attribute = args.positional.empty() ? args.get(9, "attribute") : nullptr;
  const Value* otherwise = args.get(9, "default");
  TRY_ASSIGN(const std::string_view filter, args.text(0, "", ""));
  if (attribute == nullptr && filter.empty()) return invalid("map requires a filter argument");
  TRY_ASSIGN(const Arguments rest, args.from(1, heap.budget()));
  ListBuilder mapped(heap.budget());
  for (const Value& item : list->items) {
    Value made;
    if (attribute != nullptr) {
      TRY_ASSIGN(made, attribute_path(item, *attribute, heap));
      if (made.is_undefined() && otherwise != nullptr) made = *otherwise;
    } else {
      TRY_ASSIGN(made, apply_filter(filter, item, rest, heap));
    }
    TRY(mapped.add(std::move(made)));
  }
  return heap.generator(std::move(mapped));
}

Result<Value> join(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const SharedList list, iterate(value, heap));
  const Value* mark = args.get(0, "d");
  TRY_ASSIGN(const Value between, mark == nullptr ? heap.text("") : as_text(*mark, heap));
  const Value* attribute = args.get(1, "attribute");
  TextBuilder out(heap.budget());
  for (size_t i = 0; i < list->items.size(); ++i) {
    Value item = list->items[i];
    if (attribute != nullptr) {
      TRY_ASSIGN(item, attribute_path(item, *attribute, heap));
    }
    if (i > 0) TRY(print(between, out));
    TRY(print(item, out));
  }
  return heap.text(std::move(out));
}

Result<Value> json(const Value& value, const Arguments& args, Heap& heap) {
  JsonStyle style;
  if (const Value* ascii = args.get(0, "ensure_ascii")) style.ascii = ascii->truth();
  if (const Value* indent = args.get(1, "indent"); indent != nullptr && !indent->is_none()) {
    constexpr std::string_view kMaxIndent = "                                                                ";
    const auto columns = indent->is_integer() ? indent->integer() : std::nullopt;
    if (indent->text() != nullptr) {
      style.indent = *indent->text();
    } else if (columns && *columns <= static_cast<int64_t>(kMaxIndent.size())) {
      style.indent = kMaxIndent.substr(0, static_cast<size_t>(std::max<int64_t>(*columns, 0)));
    } else {
      return invalid("tojson: indent is neither a text nor a small integer");
    }
  }
  if (const Value* marks = args.get(2, "separators"); marks != nullptr && !marks->is_none()) {
    const List* list = marks->list();
    if (list == nullptr || list->items.size() != 2 || !list->items[0].is_text() || !list->items[1].is_text()) {
      return invalid("tojson: separators are not two texts");
    }
    style.comma = *list->items[0].text();
    style.colon = *list->items[1].text();
  } else if (style.indent) {
    style.comma = ",";
  }
  style.sort_keys = args.truth(3, "sort_keys", false);
  TextBuilder out(heap.budget());
  TRY(print_json(value, style, out));
  return heap.text(std::move(out));
}

constexpr double kFirstTooLong = 9223372036854775808.0;

Result<Value> number(std::string_view name, const Value& value, const Arguments& args, Budget& budget) {
  const bool whole = name == "int";
  const Value* given = args.get(0, "default");
  const Value otherwise = given != nullptr ? *given : whole ? Value(int64_t{0}) : Value(0.0);
  if (value.is_undefined()) return invalid(value.why_undefined());
  if (const auto given_number = value.real()) {
    if (!whole) return Value(*given_number);
    if (const auto number = value.integer()) return Value(*number);
    if (std::isnan(*given_number)) return otherwise;
    if (std::abs(*given_number) >= kFirstTooLong) return too_long();
    return Value(static_cast<int64_t>(*given_number));
  }
  if (value.text() == nullptr) return otherwise;
  std::string_view text = *value.text();
  TRY(budget.step(1 + text.size() / 8));
  text.remove_prefix(leading_white_space(text));
  text.remove_suffix(trailing_white_space(text));
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t integer = 0;
  double real = 0;
  const char* end = text.data() + text.size();
  if (whole) {
    if (const auto read = std::from_chars(text.data(), end, integer); read.ec == std::errc() && read.ptr == end) {
      return Value(integer);
    }
  }
  if (const auto read = std::from_chars(text.data(), end, real); read.ec != std::errc() || read.ptr != end) {
    return otherwise;
  }
  if (!whole) return Value(real);
  if (!std::isfinite(real)) return otherwise;
  if (std::abs(real) >= kFirstTooLong) return too_long();
  return Value(static_cast<int64_t>(real));
}

Result<Value> dict_sorted(const Value& value, const Arguments& args, Heap& heap) {
  if (value.dict() == nullptr) return invalid("dictsort needs a dict");
  TRY_ASSIGN(const std::string_view by, args.text(1, "by", "key"));
  TRY_ASSIGN(const Value pairs, call_method(value, "items", {}, heap));
  const Value place(int64_t{by == "value" ? 1 : 0});
  TRY_ASSIGN(const SharedList items, iterate(pairs, heap));
  TRY_ASSIGN(
      ListBuilder in_order,
      sorted(items->items, &place,
             {.reverse = args.truth(2, "reverse", false), .by_case = args.truth(0, "case_sensitive", false)}, heap));
  return heap.list(std::move(in_order));
}

Result<Value> unique(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const SharedList list, iterate(value, heap));
  const Value* attribute = args.get(1, "attribute");
  Dict seen;
  ListBuilder kept(heap.budget());
  for (const Value& item : list->items) {
    Value key = item;
    if (attribute != nullptr) {
      TRY_ASSIGN(key, attribute_path(item, *attribute, heap));
    }
    if (key.text() != nullptr && !args.truth(0, "case_sensitive", false)) {
      TRY_ASSIGN(key, call_method(key, "lower", {}, heap));
    }
    const size_t before = seen.items().size();
    TRY(seen.set(key, Value(true), heap.budget()));
    if (seen.items().size() > before) TRY(kept.add(item));
  }
  return heap.generator(std::move(kept));
}

Result<Value> replace(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(Arguments as_texts, args.from(0, heap.budget()));
  for (size_t i = 0; i < std::min<size_t>(as_texts.positional.size(), 2); ++i) {
    TRY_ASSIGN(as_texts.positional[i], as_text(args.positional[i], heap));
  }
  return method_of_text("replace", value, as_texts, heap);
}

Result<Value> extreme(const Value& value, const Arguments& args, bool greatest, Heap& heap) {
  TRY_ASSIGN(const SharedList list, iterate(value, heap));
  if (list->items.empty()) return heap.undefined("No aggregated item, sequence was empty.");
  TRY_ASSIGN(ListBuilder in_order,
             sorted(list->items, args.get(1, "attribute"),
                    {.reverse = greatest, .by_case = args.truth(0, "case_sensitive", false)}, heap));
  return in_order.items().front();
}

Result<Value> sum(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const SharedList list, iterate(value, heap));
  const Value* attribute = args.get(0, "attribute");
  const Value* start = args.get(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  for (const Value& item : list->items) {
    TRY(heap.budget().step());
    Value part = item;
    if (attribute != nullptr) {
      TRY_ASSIGN(part, attribute_path(item, *attribute, heap));
    }
    TRY_ASSIGN(total, binary("+", total, part, heap));
  }
  return total;
}

using Filter = Result<Value> (*)(const Value&, const Arguments&, Heap&);

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> kFilters = {
      {"default",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         if (!value.is_undefined() && !(args.truth(1, "boolean", false) && !value.truth())) return value;
         const Value* given = args.get(0, "default_value");
         return given != nullptr ? *given : heap.text("");
       }},
      {"length",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         if (const List* list = value.list(); list != nullptr && list->generator) {
           return invalid("object of type 'generator' has no len()");
         }
         TRY_ASSIGN(const int64_t count, length_of(value, heap));
         return Value(count);
       }},
      {"trim", [](const Value& v, const Arguments& a, Heap& h) { return method_of_text("strip", v, a, h); }},
      {"upper", [](const Value& v, const Arguments& a, Heap& h) { return method_of_text("upper", v, a, h); }},
      {"lower", [](const Value& v, const Arguments& a, Heap& h) { return method_of_text("lower", v, a, h); }},
      {"title", [](const Value& v, const Arguments&, Heap& h) { return title(v, h); }},
      {"truncate", &truncate},
      {"capitalize", [](const Value& v, const Arguments& a, Heap& h) { return method_of_text("capitalize", v, a, h); }},
      {"replace", &replace},
      {"string", [](const Value& value, const Arguments&, Heap& heap) { return as_text(value, heap); }},
      // Markup(value), which is str(value) since nothing is escaped.
      {"safe", [](const Value& value, const Arguments&, Heap& heap) { return as_text(value, heap); }},
      {"escape", [](const Value& value, const Arguments&, Heap& heap) { return escape(value, heap); }},
      {"join", &join},
      {"tojson", &json},
      {"indent", &indent},
      {"map", &map},
      {"unique", &unique},
      {"dictsort", &dict_sorted},
      {"sum", &sum},
      {"int", [](const Value& v, const Arguments& a, Heap& h) { return number("int", v, a, h.budget()); }},
      {"float", [](const Value& v, const Arguments& a, Heap& h) { return number("float", v, a, h.budget()); }},
      {"select", [](const Value& v, const Arguments& a, Heap& h) { return select("select", v, a, h); }},
      {"reject", [](const Value& v, const Arguments& a, Heap& h) { return select("reject", v, a, h); }},
      {"selectattr", [](const Value& v, const Arguments& a, Heap& h) { return select("selectattr", v, a, h); }},
      {"rejectattr", [](const Value& v, const Arguments& a, Heap& h) { return select("rejectattr", v, a, h); }},
      {"min", [](const Value& v, const Arguments& a, Heap& h) { return extreme(v, a, false, h); }},
      {"max", [](const Value& v, const Arguments& a, Heap& h) { return extreme(v, a, true, h); }},
      {"list",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const SharedList items, iterate(value, heap));
         return heap.list(items->items);
       }},
      {"first",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const SharedList list, iterate(value, heap));
         if (list->items.empty()) return heap.undefined("No first item, sequence was empty.");
         return list->items.front();
       }},
      {"last",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const SharedList list, iterate(value, heap));
         if (list->items.empty()) return heap.undefined("No last item, sequence was empty.");
         return list->items.back();
       }},
      {"reverse",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         if (value.text() != nullptr) return slice(value, None{}, None{}, int64_t{-1}, heap);
         TRY_ASSIGN(const SharedList list, iterate(value, heap));
         ListBuilder reversed(heap.budget());
         TRY(reversed.add(list->items));
         std::ranges::reverse(reversed.items());
         return heap.generator(std::move(reversed));
       }},
      {"sort",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const SharedList list, iterate(value, heap));
         TRY_ASSIGN(ListBuilder in_order, sorted(list->items, args.get(2, "attribute"),
                                                 {.reverse = args.truth(0, "reverse", false),
                                                  .by_case = args.truth(1, "case_sensitive", false),
                                                  .in_lists = true},
                                                 heap));
         return heap.list(std::move(in_order));
       }},
      {"items",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         ListBuilder pairs(heap.budget());
         if (value.is_undefined()) return heap.generator(std::move(pairs));
         if (value.dict() == nullptr) return invalid("Can only get item pairs from a mapping.");
         TRY_ASSIGN(const Value items, call_method(value, "items", {}, heap));
         TRY_ASSIGN(const SharedList list, iterate(items, heap));
         TRY(pairs.add(list->items));
         return heap.generator(std::move(pairs));
       }},
      {"abs",
       [](const Value& value, const Arguments&, Heap&) -> Result<Value> {
         const auto whole = value.integer();
         if (whole && *whole != INT64_MIN) return Value(std::abs(*whole));
         if (!value.is_float()) return invalid("abs needs a number");
         return Value(std::abs(*value.real()));
       }},
      {"round",
       [](const Value& value, const Arguments& args, Heap&) -> Result<Value> {
         const auto number = value.real();
         if (!number) return invalid("round needs a number");
         TRY_ASSIGN(const int64_t digits, args.integer(0, "precision", 0));
         TRY_ASSIGN(const std::string_view method, args.text(1, "method", "common"));
         if (digits < 0 || digits > 15) return Error{ErrorKind::unsupported, "round: a precision of 0 to 15"};
         if (const auto whole = value.integer(); whole && method == "common") return Value(*whole);
         const double scale = std::pow(10.0, static_cast<double>(digits));
         if (method == "ceil") return Value(std::ceil(*number * scale) / scale);
         if (method == "floor") return Value(std::floor(*number * scale) / scale);
         return Value(std::strtod(fmt::format("{:.{}f}", *number, digits).c_str(), nullptr));
       }},
      {"wordcount",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const Value text, as_text(value, heap));
         TRY(heap.budget().step(1 + text.text()->size() / 4));
         return Value(count_words(*text.text()));
       }},
      {"format",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const Value text, as_text(value, heap));
         if (args.named.empty()) {
           TRY_ASSIGN(const Value values, heap.list(args.positional, true));
           return format_percent(*text.text(), values, heap);
         }
         if (!args.positional.empty()) return invalid("can't handle positional and keyword arguments at the same time");
         Dict fields;
         for (const auto& [name, field] : args.named) {
           TRY_ASSIGN(Value key, heap.text(name));
           TRY(fields.set(std::move(key), field, heap.budget()));
         }
         TRY_ASSIGN(const Value values, heap.dict(std::move(fields)));
         return format_percent(*text.text(), values, heap);
       }},
      {"attr",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const std::string_view name, args.text(0, "name", ""));
         if (value.dict() != nullptr || value.text() != nullptr || value.list() != nullptr) {
           return heap.undefined(
               fmt::format("'{} object' has no attribute '{}'", value.type(), shortened(name, kPieceBytes)));
         }
         TRY_ASSIGN(const Value key, heap.text(name));
         return item_of(value, key, heap);
       }},
  };
  return kFilters;
}

std::string_view full_name(std::string_view name) {
  if (name == "d") return "default";
  if (name == "count") return "length";
  return name == "e" ? "escape" : name;
}

constexpr std::array<std::string_view, 39> kTests = {
    "defined",     "undefined", "none",     "string",   "number", "integer",  "float",  "boolean",
    "mapping",     "iterable",  "sequence", "callable", "true",   "false",    "odd",    "even",
    "divisibleby", "equalto",   "eq",       "ne",       "lt",     "lessthan", "le",     "gt",
    "greaterthan", "ge",        "in",       "sameas",   "lower",  "upper",    "filter", "test",
    "==",          "!=",        "<",        "<=",       ">",      ">=",       "escaped"};

std::string_view sign_of(std::string_view name) {
  if (name == "eq" || name == "equalto" || name == "==") return "==";
  if (name == "ne" || name == "!=") return "!=";
  if (name == "lt" || name == "lessthan" || name == "<") return "<";
  if (name == "le" || name == "<=") return "<=";
  if (name == "gt" || name == "greaterthan" || name == ">") return ">";
  if (name == "ge" || name == ">=") return ">=";
  return name == "in" ? "in" : "";
}

}  // namespace

bool is_filter(std::string_view name) {
  return filters().contains(full_name(name));
}

Result<Value> apply_filter(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step(1 + args.named.size()));
  const auto found = filters().find(full_name(name));
  if (found == filters().end()) return Error{ErrorKind::unsupported, fmt::format("there is no filter {}", quote(name))};
  return found->second(value, args, heap);
}

Result<Value> attribute_path(const Value& object, const Value& path, Heap& heap) {
  if (path.text() == nullptr) return item_of(object, path, heap);
  Value value = object;
  std::string_view rest = *path.text();
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    TRY(heap.budget().read(part.size()));
    int64_t place = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), place);
    if (read.ec == std::errc() && read.ptr == part.data() + part.size()) {
      TRY_ASSIGN(value, item_of(value, Value(place), heap));
    } else {
      TRY_ASSIGN(const Value key, heap.text(part));
      TRY_ASSIGN(value, item_of(value, key, heap));
    }
  }
  return value;
}

bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name) != kTests.end();
}

Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step());
  if (!is_test(name)) return Error{ErrorKind::unsupported, fmt::format("there is no test {}", quote(name))};
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_text();
  if (name == "number") return value.is_number() || value.digits() != nullptr;
  if (name == "integer") return value.is_integer() || value.digits() != nullptr;
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.truth();
  if (name == "false") return value.is_bool() && !value.truth();
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "callable") return value.callable() != nullptr || value.is_undefined();  // as in Python
  if (name == "escaped") return false;
  if (name == "sequence" && value.list() != nullptr && value.list()->generator) return false;
  if (name == "iterable" || name == "sequence") {
    return value.is_text() || value.list() != nullptr || value.dict() != nullptr || value.is_undefined();
  }
  if (name == "lower" || name == "upper") {
    TRY_ASSIGN(const Value text, as_text(value, heap));
    TRY_ASSIGN(const Value holds, call_method(text, name == "lower" ? "islower" : "isupper", {}, heap));
    return holds.truth();
  }
  if (name == "filter" || name == "test") {
    return value.is_text() && (name == "filter" ? is_filter(*value.text()) : is_test(*value.text()));
  }
  if (name == "odd" || name == "even") {
    TRY_ASSIGN(const Value rest, binary("%", value, Value(int64_t{2}), heap));
    return rest.real() == (name == "odd" ? 1.0 : 0.0);
  }
  if (args.positional.size() != 1) return invalid(fmt::format("the test {} needs one argument", name));
  const Value& other = args.positional.front();
  if (name == "divisibleby") {
    TRY_ASSIGN(const Value rest, binary("%", value, other, heap));
    return rest.real() == 0.0;
  }
  // Equal texts and numbers count as identical, as in most cases in Python.
  if (name == "sameas") return value.type() == other.type() && equal(value, other, heap.budget());
  return compare_by(sign_of(name), value, other, heap);
}

}  // namespace dspack::runtime::jinja
