#include "runtime/text/jinja/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/jinja/text_search.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {
namespace {

constexpr std::array<std::string_view, 34> kTextMethods = {
    "strip",     "lstrip",       "rstrip",       "split",     "rsplit",  "splitlines", "startswith",
    "endswith",  "replace",      "upper",        "lower",     "title",   "capitalize", "swapcase",
    "find",      "rfind",        "index",        "count",     "join",    "isdigit",    "isdecimal",
    "isnumeric", "isalpha",      "isalnum",      "isascii",   "isspace", "isupper",    "islower",
    "istitle",   "removeprefix", "removesuffix", "partition", "zfill",   "format"};
constexpr std::array<std::string_view, 5> kDictMethods = {"items", "keys", "values", "get", "copy"};
constexpr std::array<std::string_view, 3> kListMethods = {"index", "count", "copy"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"cycle", "changed"};

Result<std::string_view> wanted_text(const Arguments& args, size_t place) {
  const Value* value = place < args.positional.size() ? &args.positional[place] : nullptr;
  if (value == nullptr || value->text() == nullptr) {
    return invalid(fmt::format("expected a str, not {}", value == nullptr ? "nothing" : value->type()));
  }
  return std::string_view(*value->text());
}

Result<std::string_view> strip(std::string_view text, const std::string* set, bool left, bool right, Budget& budget) {
  if (set == nullptr) {
    if (left) text.remove_prefix(leading_white_space(text));
    if (right) text.remove_suffix(trailing_white_space(text));
    return text;
  }
  const auto in_set = [&](std::string_view unit) -> Result<bool> {
    TRY_ASSIGN(const size_t found, find_first(*set, unit, budget));
    return found != std::string::npos;
  };
  while (left && !text.empty()) {
    TRY_ASSIGN(const bool goes, in_set(first_character(text)));
    if (!goes) break;
    text.remove_prefix(first_character(text).size());
  }
  while (right && !text.empty()) {
    TRY_ASSIGN(const bool goes, in_set(last_character(text)));
    if (!goes) break;
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

/// Collects the parts of a text as a list.
class Parts {
 public:
  explicit Parts(Heap& heap) : heap_(heap), parts_(heap.budget()) {}
  [[nodiscard]] Result<void> add(std::string_view part) {
    TRY_ASSIGN(Value text, heap_.text(part));
    return parts_.add(std::move(text));
  }
  [[nodiscard]] int64_t count() { return static_cast<int64_t>(parts_.items().size()); }
  void reverse() { std::ranges::reverse(parts_.items()); }
  [[nodiscard]] Result<Value> list() { return heap_.list(std::move(parts_)); }

 private:
  Heap& heap_;
  ListBuilder parts_;
};

/// Splits at white space, at most `most` times; the rest is the last word.
Result<Value> words(std::string_view text, int64_t most, bool from_right, Heap& heap) {
  Parts parts(heap);
  if (from_right) {
    while (text.remove_suffix(trailing_white_space(text)), !text.empty()) {
      if (most >= 0 && parts.count() == most) {
        TRY(parts.add(text));
        break;
      }
      size_t begin = text.size();
      while (begin > 0 && trailing_white_space(text.substr(0, begin)) == 0)
        begin -= last_character(text.substr(0, begin)).size();
      TRY(parts.add(text.substr(begin)));
      text = text.substr(0, begin);
    }
    parts.reverse();
    return parts.list();
  }
  while (text.remove_prefix(leading_white_space(text)), !text.empty()) {
    if (most >= 0 && parts.count() == most) {
      TRY(parts.add(text));
      break;
    }
    size_t end = 0;
    while (end < text.size() && leading_white_space(text.substr(end)) == 0)
      end += utf8_length(text[end]);
    TRY(parts.add(text.substr(0, end)));
    text.remove_prefix(std::min(end, text.size()));
  }
  return parts.list();
}

Result<Value> split(std::string_view text, const Arguments& args, bool from_right, Heap& heap) {
  TRY_ASSIGN(const int64_t most, args.integer(1, "maxsplit", -1));
  const Value* mark = args.get(0, "sep");
  if (mark == nullptr || mark->is_none()) return words(text, most, from_right, heap);
  if (mark->text() == nullptr) return invalid("must be str or None");
  const std::string& between = *mark->text();
  if (between.empty()) return invalid("empty separator");
  Parts parts(heap);
  while (most < 0 || parts.count() < most) {
    TRY_ASSIGN(const size_t at,
               from_right ? find_last(text, between, heap.budget()) : find_first(text, between, heap.budget()));
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view behind = text.substr(at + between.size());
    TRY(parts.add(from_right ? behind : before));
    text = from_right ? before : behind;
  }
  TRY(parts.add(text));
  if (from_right) parts.reverse();
  return parts.list();
}

Result<Value> split_lines(std::string_view text, bool keep, Heap& heap) {
  Parts lines(heap);
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\r\v\f\x1c\x1d\x1e"), text.size());
    const size_t mark = end == text.size() ? 0 : text.substr(end).starts_with("\r\n") ? 2 : 1;
    TRY(lines.add(text.substr(0, end + (keep ? mark : 0))));
    text.remove_prefix(end + mark);
  }
  return lines.list();
}

Result<Value> begins_or_ends(std::string_view text, const Arguments& args, bool begins, Budget& budget) {
  const Value none;
  const Value& what = args.positional.empty() ? none : args.positional.front();
  const Values one = {what};
  for (const Value& each : what.list() != nullptr && what.list()->tuple ? what.list()->items : one) {
    if (each.text() == nullptr) return invalid(fmt::format("expected a str or a tuple of str, not {}", each.type()));
    TRY(budget.read(std::min(text.size(), each.text()->size())));
    if (begins ? text.starts_with(*each.text()) : text.ends_with(*each.text())) return Value(true);
  }
  return Value(false);
}

Result<Value> replace(std::string_view text, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const std::string_view old, wanted_text(args, 0));
  TRY_ASSIGN(const std::string_view fresh, wanted_text(args, 1));
  const Value* count = args.get(2, "count");
  // Any negative count means all; from the lowest one there would be no way down.
  int64_t left = count != nullptr && count->is_integer() ? std::max<int64_t>(count->integer().value_or(-1), -1) : -1;
  TextBuilder out(heap.budget());
  for (; left != 0; --left) {
    if (old.empty()) {
      // Inserts between all characters, before the first and after the last.
      TRY(out.add(fresh));
      if (text.empty()) break;
      const std::string_view unit = first_character(text);
      TRY(out.add(unit));
      text.remove_prefix(unit.size());
      continue;
    }
    TRY_ASSIGN(const size_t found, find_first(text, old, heap.budget()));
    if (found == std::string_view::npos) break;
    TRY(out.add(text.substr(0, found)));
    TRY(out.add(fresh));
    text.remove_prefix(found + old.size());
  }
  TRY(out.add(text));
  return heap.text(std::move(out));
}

Result<int64_t> count_of(std::string_view text, std::string_view part, Budget& budget) {
  int64_t count = 0;
  for (;; ++count) {
    TRY_ASSIGN(const size_t found, find_first(text, part, budget));
    if (found == std::string_view::npos) return count;
    text.remove_prefix(found + part.size());
  }
}

Result<Value> join(std::string_view between, const Arguments& args, Heap& heap) {
  if (args.positional.size() != 1) return invalid("join() takes exactly one argument");
  TRY_ASSIGN(const SharedList list, iterate(args.positional.front(), heap));
  TextBuilder out(heap.budget());
  for (size_t i = 0; i < list->items.size(); ++i) {
    const Value& item = list->items[i];
    if (item.text() == nullptr) {
      return invalid(fmt::format("sequence item {}: expected str instance, {} found", i, item.type()));
    }
    if (i > 0) TRY(out.add(between));
    TRY(out.add(*item.text()));
  }
  return heap.text(std::move(out));
}

Result<Value> zero_filled(std::string_view text, int64_t width, Heap& heap) {
  const int64_t missing = width - std::min(width, count_characters(text));
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  TextBuilder out(heap.budget());
  TRY(out.add(text.substr(0, sign)));
  TRY(out.add(static_cast<uint64_t>(missing), '0'));
  TRY(out.add(text.substr(sign)));
  return heap.text(std::move(out));
}

/// The text before the first `part`, `part`, and the text after it.
Result<Value> partition(std::string_view text, std::string_view part, Heap& heap) {
  if (part.empty()) return invalid("empty separator");
  TRY_ASSIGN(const size_t at, find_first(text, part, heap.budget()));
  const bool is_there = at != std::string_view::npos;
  TRY_ASSIGN(Value before, heap.text(text.substr(0, at)));
  TRY_ASSIGN(Value found, heap.text(is_there ? part : ""));
  TRY_ASSIGN(Value behind, heap.text(is_there ? text.substr(at + part.size()) : ""));
  return heap.list({std::move(before), std::move(found), std::move(behind)}, true);
}

std::string cased(std::string_view text, std::string_view how) {
  if (how == "upper") return upper_case(text);
  if (how == "lower") return lower_case(text);
  if (how == "title") return title_case(text);
  return how == "capitalize" ? capitalized(text) : swapped_case(text);
}

Result<Value> in_case(std::string_view text, std::string_view how, Heap& heap) {
  TRY_ASSIGN(const Charge charge, heap.budget().hold(kMaxCaseGrowth * text.size()));
  return heap.text(cased(text, how));
}

template <typename Test>
bool all_are(std::string_view text, Test test) {
  if (text.empty()) return false;
  for (; !text.empty(); text.remove_prefix(first_character(text).size())) {
    if (!test(first_character(text))) return false;
  }
  return true;
}

/// The result of isalpha and similar methods; nullopt: another method.
std::optional<bool> answer(std::string_view text, std::string_view name) {
  const auto by_codepoint = [text](bool (*test)(uint32_t)) {
    return all_are(text, [test](std::string_view unit) {
      return first_utf8_unit(unit).kind == Utf8Unit::Kind::character && test(decode_utf8_character(unit));
    });
  };
  if (name == "isalpha") return all_are(text, &is_letter);
  if (name == "isalnum") return all_are(text, &is_letter_or_number);
  if (name == "isdecimal") return by_codepoint(&is_decimal);
  if (name == "isdigit") return by_codepoint(&is_digit);
  if (name == "isnumeric") return by_codepoint(&is_numeric);
  if (name == "isspace") return by_codepoint(&is_python_space);
  if (name == "isascii")
    return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  if (name == "isupper") return is_upper_case(text);
  if (name == "islower") return is_lower_case(text);
  if (name == "istitle") return is_title_case(text);
  return std::nullopt;
}

/// The argument for a field of str.format: by its number, by the next position if it is empty, or by a name.
Result<const Value*> field(std::string_view name, const Arguments& args, std::optional<size_t>& next, bool& numbered) {
  if (name.find_first_of(":!.[") != std::string_view::npos) {
    return Error{ErrorKind::unsupported, "str.format: a field with a specification, a conversion or an attribute"};
  }
  const bool counted = name.empty();
  if (!counted && !std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) {
    const auto found = std::ranges::find_if(args.named, [name](const auto& each) { return each.first == name; });
    if (found == args.named.end()) return invalid(fmt::format("str.format: no argument {}", quote(name)));
    return &found->second;
  }
  if (counted ? numbered : next.has_value()) return invalid("str.format: fields with and without numbers");
  numbered = !counted;
  size_t place = 0;
  if (counted) {
    place = next.value_or(0);
    next = place + 1;
  } else if (std::from_chars(name.data(), name.data() + name.size(), place).ec != std::errc()) {
    place = args.positional.size();
  }
  if (place >= args.positional.size()) return invalid("str.format: too few arguments");
  return &args.positional[place];
}

Result<Value> format_fields(std::string_view text, const Arguments& args, Heap& heap) {
  TextBuilder out(heap.budget());
  std::optional<size_t> next;  // position of the next unnumbered field, once there is one
  bool numbered = false;
  while (!text.empty()) {
    const size_t mark = std::min(text.find_first_of("{}"), text.size());
    TRY(out.add(text.substr(0, mark)));
    text.remove_prefix(mark);
    if (text.empty()) break;
    const char c = text.front();
    if (text.substr(1, 1) == text.substr(0, 1)) {
      TRY(out.add(text.substr(0, 1)));
      text.remove_prefix(2);
    } else if (c == '}') {
      return invalid("str.format: a '}' without its '{'");
    } else {
      const size_t end = text.find_first_of("{}", 1);
      if (end == std::string_view::npos || text[end] == '{') return invalid("str.format: a '{' without its '}'");
      TRY(heap.budget().step(1 + args.named.size()));
      TRY_ASSIGN(const Value* const value, field(text.substr(1, end - 1), args, next, numbered));
      TRY(print(*value, out));
      text.remove_prefix(end + 1);
    }
  }
  return heap.text(std::move(out));
}

/// Methods that search another text in this one.
Result<Value> search_method(std::string_view text, std::string_view name, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const std::string_view part, wanted_text(args, 0));
  if (name == "removeprefix") return heap.text(text.starts_with(part) ? text.substr(part.size()) : text);
  if (name == "removesuffix") return heap.text(text.substr(0, text.size() - (text.ends_with(part) ? part.size() : 0)));
  if (name == "partition") return partition(text, part, heap);
  if (args.positional.size() > 1) return Error{ErrorKind::unsupported, fmt::format("str.{} of a part", name)};
  if (name == "count") {
    if (part.empty()) return Value(count_characters(text) + 1);
    TRY_ASSIGN(const int64_t count, count_of(text, part, heap.budget()));
    return Value(count);
  }
  TRY_ASSIGN(const size_t at,
             name == "rfind" ? find_last(text, part, heap.budget()) : find_first(text, part, heap.budget()));
  if (at == std::string::npos && name == "index") return invalid("substring not found");
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(count_characters(text.substr(0, at)));
}

Result<Value> text_method(const std::string& text, std::string_view name, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step(1 + text.size() / 8));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* set = args.get(0, "chars");
    if (set != nullptr && !set->is_none() && set->text() == nullptr) return invalid("strip arg must be None or str");
    TRY_ASSIGN(const std::string_view rest,
               strip(text, set == nullptr ? nullptr : set->text(), name != "rstrip", name != "lstrip", heap.budget()));
    return heap.text(rest);
  }
  if (name == "split" || name == "rsplit") return split(text, args, name == "rsplit", heap);
  if (name == "splitlines") return split_lines(text, args.truth(0, "keepends", false), heap);
  if (name == "startswith" || name == "endswith") {
    return begins_or_ends(text, args, name == "startswith", heap.budget());
  }
  if (name == "replace") return replace(text, args, heap);
  if (name == "format") return format_fields(text, args, heap);
  static constexpr std::array<std::string_view, 5> kCases = {"upper", "lower", "title", "capitalize", "swapcase"};
  if (std::ranges::find(kCases, name) != kCases.end()) return in_case(text, name, heap);
  if (const auto holds = answer(text, name)) return Value(*holds);
  if (name == "join") return join(text, args, heap);
  if (name == "zfill") {
    TRY_ASSIGN(const int64_t width, args.integer(0, "width", 0));
    return zero_filled(text, width, heap);
  }
  return search_method(text, name, args, heap);
}

Result<Value> dict_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap) {
  const Dict& dict = *self.dict();
  if (name == "copy") return self;
  if (name == "get") {
    if (args.positional.empty()) return invalid("get expected at least 1 argument, got 0");
    TRY_ASSIGN(const Value* const found, dict.find(args.positional.front(), heap.budget()));
    if (found != nullptr) return *found;
    return args.positional.size() > 1 ? args.positional[1] : Value(None{});
  }
  ListBuilder all(heap.budget());
  TRY(all.reserve(dict.items().size()));
  for (const auto& [key, value] : dict.items()) {
    TRY(heap.budget().step());
    if (name == "items") {
      TRY_ASSIGN(Value pair, heap.list({key, value}, true));
      TRY(all.add(std::move(pair)));
    } else {
      TRY(all.add(name == "keys" ? key : value));
    }
  }
  return heap.list(std::move(all));
}

Result<Value> list_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap) {
  if (name == "copy") return self;
  if (args.positional.size() != 1) return Error{ErrorKind::unsupported, fmt::format("list.{} of a part", name)};
  const Values& items = self.list()->items;
  const auto same = [&](const Value& each) { return equal(each, args.positional.front(), heap.budget()); };
  if (name == "count") {
    TRY(heap.budget().step(1 + items.size()));
    return Value(static_cast<int64_t>(std::ranges::count_if(items, same)));
  }
  const auto found = std::ranges::find_if(items, same);
  TRY(heap.budget().step());  // once the budget has ended, nothing is equal
  if (found == items.end()) return invalid("the value is not in the list");
  return Value(static_cast<int64_t>(found - items.begin()));
}

Result<Value> loop_method(LoopState& loop, std::string_view name, const Arguments& args, Heap& heap) {
  if (name == "cycle") {
    if (args.positional.empty()) return invalid("no items for cycling given");
    return args.positional[loop.at % args.positional.size()];
  }
  TRY_ASSIGN(Value seen, heap.list(args.positional, true));
  if (seen.leads_to_state()) {
    return Error{ErrorKind::unsupported, "loop.changed cannot be given a namespace or a loop"};
  }
  const bool changed = loop.seen.is_undefined() || !equal(loop.seen, seen, heap.budget());
  loop.seen = std::move(seen);
  return Value(changed);
}

}  // namespace

bool is_method(const Value& self, std::string_view name) {
  if (self.text() != nullptr) return std::ranges::find(kTextMethods, name) != kTextMethods.end();
  if (self.dict() != nullptr) return std::ranges::find(kDictMethods, name) != kDictMethods.end();
  if (self.loop() != nullptr) return std::ranges::find(kLoopMethods, name) != kLoopMethods.end();
  return self.list() != nullptr && std::ranges::find(kListMethods, name) != kListMethods.end();
}

Result<Value> call_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step(1 + args.named.size()));
  if (self.text() != nullptr) return text_method(*self.text(), name, args, heap);
  if (self.dict() != nullptr) return dict_method(self, name, args, heap);
  if (self.loop() != nullptr) return loop_method(*self.loop(), name, args, heap);
  return list_method(self, name, args, heap);
}

}  // namespace dspack::runtime::jinja
