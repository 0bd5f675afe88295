#include "runtime/text/jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/percent_format.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/jinja/sorting.h"
#include "runtime/text/jinja/text_filters.h"
#include "runtime/text/jinja/value_tests.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {

namespace {

Result<Value> method_of_text(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(std::string text, to_text(value, heap.budget()));
  TRY_ASSIGN(const Value as_text, heap.text(std::move(text)));
  return call_method(as_text, name, args, heap);
}

Result<Value> select(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  if (!value.truth()) return heap.generator({});  // so does Jinja, whatever it is
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  if (by_attribute && args.positional.empty()) return invalid("missing parameter for attribute name");
  const size_t test_at = by_attribute ? 1 : 0;
  TRY_ASSIGN(const std::string test, args.text(test_at, "", ""));
  const Arguments rest = args.from(test_at + 1);
  TRY_ASSIGN(const Values items, iterate(value, heap));
  Values chosen;
  for (const Value& item : items) {
    Value tested = item;
    if (by_attribute) {
      TRY_ASSIGN(tested, attribute_path(item, args.positional.front(), heap));
    }
    bool holds = tested.truth();
    if (!test.empty()) {
      TRY_ASSIGN(holds, apply_test(test, tested, rest, heap));
    }
    if (holds == wanted) chosen.push_back(item);
  }
  return heap.generator(std::move(chosen));
}

Result<Value> map(const Value& value, const Arguments& args, Heap& heap) {
  if (!value.truth()) return heap.generator({});  // so does Jinja, whatever it is
  TRY_ASSIGN(const Values items, iterate(value, heap));
  const Value* attribute = args.positional.empty() ? args.get(9, "attribute") : nullptr;
  const Value* otherwise = args.get(9, "default");
  TRY_ASSIGN(const std::string filter, args.text(0, "", ""));
  if (attribute == nullptr && filter.empty()) return invalid("map requires a filter argument");
  const Arguments rest = args.from(1);
  Values mapped;
  for (const Value& item : items) {
    Value made;
    if (attribute != nullptr) {
      TRY_ASSIGN(made, attribute_path(item, *attribute, heap));
      if (made.is_undefined() && otherwise != nullptr) made = *otherwise;
    } else {
      TRY_ASSIGN(made, apply_filter(filter, item, rest, heap));
    }
    mapped.push_back(std::move(made));
  }
  return heap.generator(std::move(mapped));
}

Result<Value> join(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const Values items, iterate(value, heap));
  const Value* mark = args.get(0, "d");
  std::string between;
  if (mark != nullptr) {
    TRY_ASSIGN(between, to_text(*mark, heap.budget()));
  }
  const Value* attribute = args.get(1, "attribute");
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr) {
      TRY_ASSIGN(item, attribute_path(item, *attribute, heap));
    }
    TRY_ASSIGN(const std::string text, to_text(item, heap.budget()));
    TRY(heap.budget().produce(between.size()));
    if (i > 0) out += between;
    out += text;
  }
  return heap.text(std::move(out));
}

Result<Value> json(const Value& value, const Arguments& args, Heap& heap) {
  JsonStyle style;
  if (const Value* ascii = args.get(0, "ensure_ascii")) style.ascii = ascii->truth();
  if (const Value* indent = args.get(1, "indent"); indent != nullptr && !indent->is_none()) {
    constexpr int64_t kMostIndent = 64;
    if (indent->text() != nullptr) {
      style.indent = *indent->text();
    } else if (indent->is_integer() && indent->integer() <= kMostIndent) {
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(indent->integer(), 0)), ' ');
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
    style.comma = std::string(",");
  }
  style.sort_keys = args.truth(3, "sort_keys", false);
  TRY_ASSIGN(std::string text, to_json(value, style, heap.budget()));
  return heap.text(std::move(text));
}

constexpr double kFirstTooLong = 9223372036854775808.0;

Result<Value> number(std::string_view name, const Value& value, const Arguments& args) {
  const bool whole = name == "int";
  const Value* given = args.get(0, "default");
  const Value otherwise = given != nullptr ? *given : whole ? Value(int64_t{0}) : Value(0.0);
  if (value.is_undefined()) return invalid(value.why_undefined());
  if (value.is_number()) {
    if (!whole) return Value(value.real());
    if (!value.is_float()) return Value(value.integer());
    if (std::isnan(value.real())) return otherwise;
    if (std::abs(value.real()) >= kFirstTooLong) return too_long();
    return Value(static_cast<int64_t>(value.real()));
  }
  if (value.text() == nullptr) return otherwise;
  std::string_view text = *value.text();
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
  TRY_ASSIGN(const std::string by, args.text(1, "by", "key"));
  TRY_ASSIGN(const Value pairs, call_method(value, "items", {}, heap));
  const Value place(int64_t{by == "value" ? 1 : 0});
  TRY_ASSIGN(
      Values items,
      sorted(pairs.list()->items, &place,
             {.reverse = args.truth(2, "reverse", false), .by_case = args.truth(0, "case_sensitive", false)}, heap));
  return heap.list(std::move(items));
}

Result<Value> unique(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const Values items, iterate(value, heap));
  const Value* attribute = args.get(1, "attribute");
  Dict seen;
  Values kept;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr) {
      TRY_ASSIGN(key, attribute_path(item, *attribute, heap));
    }
    if (key.text() != nullptr && !args.truth(0, "case_sensitive", false)) {
      TRY_ASSIGN(key, call_method(key, "lower", {}, heap));
    }
    TRY(heap.budget().step(4));
    if (seen.find(key) != nullptr) continue;
    TRY(seen.set(key, Value(true)));
    kept.push_back(item);
  }
  return heap.generator(std::move(kept));
}

Result<Value> replace(const Value& value, const Arguments& args, Heap& heap) {
  Arguments as_texts = args;
  for (size_t i = 0; i < std::min<size_t>(as_texts.positional.size(), 2); ++i) {
    TRY_ASSIGN(std::string text, to_text(as_texts.positional[i], heap.budget()));
    TRY_ASSIGN(as_texts.positional[i], heap.text(std::move(text)));
  }
  return method_of_text("replace", value, as_texts, heap);
}

Result<Value> extreme(const Value& value, const Arguments& args, bool greatest, Heap& heap) {
  TRY_ASSIGN(Values items, iterate(value, heap));
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  TRY_ASSIGN(items, sorted(std::move(items), args.get(1, "attribute"),
                           {.reverse = greatest, .by_case = args.truth(0, "case_sensitive", false)}, heap));
  return items.front();
}

Result<Value> sum(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const Values items, iterate(value, heap));
  const Value* attribute = args.get(0, "attribute");
  const Value* start = args.get(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  for (const Value& item : items) {
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
      {"string",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(std::string text, to_text(value, heap.budget()));
         return heap.text(std::move(text));
       }},
      // Markup(value), which is str(value) where nothing is escaped.
      {"safe",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(std::string text, to_text(value, heap.budget()));
         return heap.text(std::move(text));
       }},
      {"escape", [](const Value& value, const Arguments&, Heap& heap) { return escape(value, heap); }},
      {"join", &join},
      {"tojson", &json},
      {"indent", &indent},
      {"map", &map},
      {"unique", &unique},
      {"dictsort", &dict_sorted},
      {"sum", &sum},
      {"int", [](const Value& value, const Arguments& args, Heap&) { return number("int", value, args); }},
      {"float", [](const Value& value, const Arguments& args, Heap&) { return number("float", value, args); }},
      {"select", [](const Value& v, const Arguments& a, Heap& h) { return select("select", v, a, h); }},
      {"reject", [](const Value& v, const Arguments& a, Heap& h) { return select("reject", v, a, h); }},
      {"selectattr", [](const Value& v, const Arguments& a, Heap& h) { return select("selectattr", v, a, h); }},
      {"rejectattr", [](const Value& v, const Arguments& a, Heap& h) { return select("rejectattr", v, a, h); }},
      {"min", [](const Value& v, const Arguments& a, Heap& h) { return extreme(v, a, false, h); }},
      {"max", [](const Value& v, const Arguments& a, Heap& h) { return extreme(v, a, true, h); }},
      {"list",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(Values items, iterate(value, heap));
         return heap.list(std::move(items));
       }},
      {"first",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const Values items, iterate(value, heap));
         return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
       }},
      {"last",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const Values items, iterate(value, heap));
         return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
       }},
      {"reverse",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         if (value.text() != nullptr) return slice(value, None{}, None{}, int64_t{-1}, heap);
         TRY_ASSIGN(Values items, iterate(value, heap));
         std::ranges::reverse(items);
         return heap.generator(std::move(items));
       }},
      {"sort",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(Values items, iterate(value, heap));
         TRY_ASSIGN(items, sorted(std::move(items), args.get(2, "attribute"),
                                  {.reverse = args.truth(0, "reverse", false),
                                   .by_case = args.truth(1, "case_sensitive", false),
                                   .in_lists = true},
                                  heap));
         return heap.list(std::move(items));
       }},
      {"items",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         if (value.is_undefined()) return heap.generator({});
         if (value.dict() == nullptr) return invalid("Can only get item pairs from a mapping.");
         TRY_ASSIGN(const Value pairs, call_method(value, "items", {}, heap));
         return heap.generator(pairs.list()->items);
       }},
      {"abs",
       [](const Value& value, const Arguments&, Heap&) -> Result<Value> {
         if (value.is_float()) return Value(std::abs(value.real()));
         if (!value.is_number() || value.integer() == INT64_MIN) return invalid("abs needs a number");
         return Value(std::abs(value.integer()));
       }},
      {"round",
       [](const Value& value, const Arguments& args, Heap&) -> Result<Value> {
         if (!value.is_number()) return invalid("round needs a number");
         TRY_ASSIGN(const int64_t digits, args.integer(0, "precision", 0));
         TRY_ASSIGN(const std::string method, args.text(1, "method", "common"));
         if (digits < 0 || digits > 15) return Error{ErrorKind::unsupported, "round: a precision of 0 to 15"};
         if (!value.is_float() && method == "common") return Value(value.integer());
         const double scale = std::pow(10.0, static_cast<double>(digits));
         if (method == "ceil") return Value(std::ceil(value.real() * scale) / scale);
         if (method == "floor") return Value(std::floor(value.real() * scale) / scale);
         return Value(std::strtod(fmt::format("{:.{}f}", value.real(), digits).c_str(), nullptr));
       }},
      {"wordcount",
       [](const Value& value, const Arguments&, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const std::string text, to_text(value, heap.budget()));
         return Value(count_words(text));
       }},
      {"format",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const std::string text, to_text(value, heap.budget()));
         if (args.named.empty()) {
           TRY_ASSIGN(const Value values, heap.list(args.positional, true));
           return format_percent(text, values, heap);
         }
         if (!args.positional.empty()) return invalid("can't handle positional and keyword arguments at the same time");
         Dict fields;
         for (const auto& [name, field] : args.named) {
           TRY_ASSIGN(Value key, heap.text(name));
           TRY(fields.set(std::move(key), field));
         }
         TRY_ASSIGN(const Value values, heap.dict(std::move(fields)));
         return format_percent(text, values, heap);
       }},
      {"attr",
       [](const Value& value, const Arguments& args, Heap& heap) -> Result<Value> {
         TRY_ASSIGN(const std::string name, args.text(0, "name", ""));
         if (value.dict() != nullptr || value.text() != nullptr || value.list() != nullptr) {
           return Value::undefined(fmt::format("'{} object' has no attribute '{}'", value.type(), name));
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

}  // namespace

bool is_filter(std::string_view name) {
  return filters().contains(full_name(name));
}

Result<Value> apply_filter(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step());
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
    int64_t place = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), place);
    if (read.ec == std::errc() && read.ptr == part.data() + part.size()) {
      TRY_ASSIGN(value, item_of(value, Value(place), heap));
    } else {
      TRY_ASSIGN(const Value key, heap.text(std::string(part)));
      TRY_ASSIGN(value, item_of(value, key, heap));
    }
  }
  return value;
}

}  // namespace dspack::runtime::jinja
