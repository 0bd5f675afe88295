#include "runtime/text/jinja/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"
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

Result<std::string> wanted_text(const Arguments& args, size_t place) {
  const Value* value = place < args.positional.size() ? &args.positional[place] : nullptr;
  if (value == nullptr || value->text() == nullptr) {
    return invalid(fmt::format("expected a str, not {}", value == nullptr ? "nothing" : value->type()));
  }
  return *value->text();
}

std::string strip(std::string_view text, const std::string* set, bool left, bool right) {
  if (set == nullptr) {
    if (left) text.remove_prefix(leading_white_space(text));
    if (right) text.remove_suffix(trailing_white_space(text));
    return std::string(text);
  }
  const auto in_set = [set](std::string_view unit) { return set->find(unit) != std::string::npos; };
  while (left && !text.empty() && in_set(first_character(text)))
    text.remove_prefix(first_character(text).size());
  while (right && !text.empty() && in_set(last_character(text)))
    text.remove_suffix(last_character(text).size());
  return std::string(text);
}

Result<Value> texts(const std::vector<std::string>& parts, Heap& heap, bool tuple = false) {
  Values items;
  for (const std::string& part : parts) {
    TRY_ASSIGN(Value text, heap.text(part));
    items.push_back(std::move(text));
  }
  return heap.list(std::move(items), tuple);
}

/// Words with white space between; `most` splits, the rest is the last word.
std::vector<std::string> words(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string> parts;
  if (from_right) {
    while (text.remove_suffix(trailing_white_space(text)), !text.empty()) {
      if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
        parts.emplace_back(text);
        break;
      }
      size_t begin = text.size();
      while (begin > 0 && trailing_white_space(text.substr(0, begin)) == 0)
        begin -= last_character(text.substr(0, begin)).size();
      parts.emplace_back(text.substr(begin));
      text = text.substr(0, begin);
    }
    std::ranges::reverse(parts);
    return parts;
  }
  while (text.remove_prefix(leading_white_space(text)), !text.empty()) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.emplace_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size() && leading_white_space(text.substr(end)) == 0)
      end += utf8_length(text[end]);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

Result<Value> split(std::string_view text, const Arguments& args, bool from_right, Heap& heap) {
  TRY_ASSIGN(const int64_t most, args.integer(1, "maxsplit", -1));
  const Value* mark = args.get(0, "sep");
  if (mark == nullptr || mark->is_none()) return texts(words(text, most, from_right), heap);
  if (mark->text() == nullptr) return invalid("must be str or None");
  const std::string& between = *mark->text();
  if (between.empty()) return invalid("empty separator");
  std::vector<std::string> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(between) : text.find(between);
    if (at == std::string_view::npos) break;
    TRY(heap.budget().step(8));
    parts.emplace_back(from_right ? text.substr(at + between.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + between.size());
  }
  parts.emplace_back(text);
  if (from_right) std::ranges::reverse(parts);
  return texts(parts, heap);
}

Result<Value> split_lines(std::string_view text, bool keep, Heap& heap) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\r\v\f\x1c\x1d\x1e"), text.size());
    const size_t mark = end == text.size() ? 0 : text.substr(end).starts_with("\r\n") ? 2 : 1;
    lines.emplace_back(text.substr(0, end + (keep ? mark : 0)));
    text.remove_prefix(end + mark);
  }
  return texts(lines, heap);
}

Result<Value> begins_or_ends(std::string_view text, const Arguments& args, bool begins) {
  const Value none;
  const Value& what = args.positional.empty() ? none : args.positional.front();
  const Values one = {what};
  for (const Value& each : what.list() != nullptr && what.list()->tuple ? what.list()->items : one) {
    if (each.text() == nullptr) return invalid(fmt::format("expected a str or a tuple of str, not {}", each.type()));
    if (begins ? text.starts_with(*each.text()) : text.ends_with(*each.text())) return Value(true);
  }
  return Value(false);
}

Result<Value> replace(std::string_view text, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const std::string old, wanted_text(args, 0));
  TRY_ASSIGN(const std::string fresh, wanted_text(args, 1));
  const Value* count = args.get(2, "count");
  int64_t left = count != nullptr && count->is_integer() ? count->integer() : -1;
  std::string out;
  for (size_t at = 0; left != 0; --left) {
    const size_t found = old.empty() ? at : text.find(old, 0);
    if (found == std::string_view::npos) break;
    if (old.empty()) {
      // Between all characters, before the first and after the last.
      TRY(heap.budget().produce(fresh.size() + 4));
      out += fresh;
      if (text.empty()) break;
      const size_t length = std::min(utf8_length(text.front()), text.size());
      out += text.substr(0, length);
      text.remove_prefix(length);
      continue;
    }
    TRY(heap.budget().produce(found + fresh.size() + 16));
    out += text.substr(0, found);
    out += fresh;
    text.remove_prefix(found + old.size());
  }
  out += text;
  return heap.text(std::move(out));
}

std::string cased(std::string_view text, std::string_view how) {
  if (how == "upper") return upper_case(text);
  if (how == "lower") return lower_case(text);
  if (how == "title") return title_case(text);
  return how == "capitalize" ? capitalized(text) : swapped_case(text);
}

template <typename Test>
bool all_are(std::string_view text, Test test) {
  if (text.empty()) return false;
  for (; !text.empty(); text.remove_prefix(first_character(text).size())) {
    if (!test(first_character(text))) return false;
  }
  return true;
}

/// What isalpha and its like say; nothing for other methods.
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

/// The value that a field of str.format names: by its place, by the next place if it says none, or by a name.
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
  std::string out;
  std::optional<size_t> next;  // place of the next field without a number, once there is one
  bool numbered = false;
  for (size_t i = 0; i < text.size(); ++i) {
    TRY(heap.budget().produce(1));
    const char c = text[i];
    if ((c == '{' || c == '}') && text.substr(i + 1, 1) == text.substr(i, 1)) {
      out += c;
      ++i;
    } else if (c == '{') {
      const size_t end = text.find_first_of("{}", i + 1);
      if (end == std::string_view::npos || text[end] == '{') return invalid("str.format: a '{' without its '}'");
      TRY_ASSIGN(const Value* const value, field(text.substr(i + 1, end - i - 1), args, next, numbered));
      TRY_ASSIGN(const std::string shown, to_text(*value, heap.budget()));
      out += shown;
      i = end;
    } else if (c == '}') {
      return invalid("str.format: a '}' without its '{'");
    } else {
      out += c;
    }
  }
  return heap.text(std::move(out));
}

Result<Value> text_method(const std::string& text, std::string_view name, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step(1 + text.size() / 8));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* set = args.get(0, "chars");
    if (set != nullptr && !set->is_none() && set->text() == nullptr) return invalid("strip arg must be None or str");
    if (set != nullptr && set->text() != nullptr) TRY(heap.budget().step(text.size() * set->text()->size() / 16));
    return heap.text(strip(text, set == nullptr ? nullptr : set->text(), name != "rstrip", name != "lstrip"));
  }
  if (name == "split" || name == "rsplit") return split(text, args, name == "rsplit", heap);
  if (name == "splitlines") return split_lines(text, args.truth(0, "keepends", false), heap);
  if (name == "startswith" || name == "endswith") return begins_or_ends(text, args, name == "startswith");
  if (name == "replace") return replace(text, args, heap);
  if (name == "format") return format_fields(text, args, heap);
  static constexpr std::array<std::string_view, 5> kCases = {"upper", "lower", "title", "capitalize", "swapcase"};
  if (std::ranges::find(kCases, name) != kCases.end()) return heap.text(cased(text, name));
  if (const auto holds = answer(text, name)) return Value(*holds);
  if (name == "join") {
    if (args.positional.size() != 1) return invalid("join() takes exactly one argument");
    TRY_ASSIGN(const Values items, iterate(args.positional.front(), heap));
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].text() == nullptr) {
        return invalid(fmt::format("sequence item {}: expected str instance, {} found", i, items[i].type()));
      }
      TRY(heap.budget().produce(text.size() + items[i].text()->size()));
      if (i > 0) out += text;
      out += *items[i].text();
    }
    return heap.text(std::move(out));
  }
  if (name == "zfill") {
    TRY_ASSIGN(const int64_t width, args.integer(0, "width", 0));
    const bool sign = text.starts_with('-') || text.starts_with('+');
    const auto size = count_characters(text);
    if (width <= size) return heap.text(text);
    TRY(heap.budget().produce(static_cast<uint64_t>(width)));
    return heap.text(text.substr(0, sign ? 1 : 0) + std::string(static_cast<size_t>(width - size), '0') +
                     text.substr(sign ? 1 : 0));
  }
  TRY_ASSIGN(const std::string part, wanted_text(args, 0));
  if (name == "removeprefix") return heap.text(text.starts_with(part) ? text.substr(part.size()) : text);
  if (name == "removesuffix") {
    return heap.text(text.ends_with(part) ? text.substr(0, text.size() - part.size()) : text);
  }
  if (name == "partition") {
    if (part.empty()) return invalid("empty separator");
    const size_t at = text.find(part);
    if (at == std::string::npos) return texts({text, "", ""}, heap, true);
    return texts({text.substr(0, at), part, text.substr(at + part.size())}, heap, true);
  }
  if (args.positional.size() > 1) return Error{ErrorKind::unsupported, fmt::format("str.{} of a part", name)};
  if (name == "count") {
    if (part.empty()) return Value(count_characters(text) + 1);
    int64_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
      ++count;
    return Value(count);
  }
  const size_t at = name == "rfind" ? text.rfind(part) : text.find(part);
  if (at == std::string::npos && name == "index") return invalid("substring not found");
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(count_characters(std::string_view(text).substr(0, at)));
}

Result<Value> dict_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap) {
  const Dict& dict = *self.dict();
  if (name == "copy") return self;
  if (name == "get") {
    if (args.positional.empty()) return invalid("get expected at least 1 argument, got 0");
    if (const Value* found = dict.find(args.positional.front())) return *found;
    return args.positional.size() > 1 ? args.positional[1] : Value(None{});
  }
  Values all;
  for (const auto& [key, value] : dict.items()) {
    if (name == "items") {
      TRY_ASSIGN(Value pair, heap.list({key, value}, true));
      all.push_back(std::move(pair));
    } else {
      all.push_back(name == "keys" ? key : value);
    }
  }
  return heap.list(std::move(all));
}

}  // namespace

bool is_method(const Value& self, std::string_view name) {
  if (self.text() != nullptr) return std::ranges::find(kTextMethods, name) != kTextMethods.end();
  if (self.dict() != nullptr) return std::ranges::find(kDictMethods, name) != kDictMethods.end();
  return self.list() != nullptr && std::ranges::find(kListMethods, name) != kListMethods.end();
}

Result<Value> call_method(const Value& self, std::string_view name, const Arguments& args, Heap& heap) {
  if (self.text() != nullptr) return text_method(*self.text(), name, args, heap);
  if (self.dict() != nullptr) return dict_method(self, name, args, heap);
  if (name == "copy") return self;
  if (args.positional.size() != 1) return Error{ErrorKind::unsupported, fmt::format("list.{} of a part", name)};
  const Values& items = self.list()->items;
  TRY(heap.budget().step(1 + items.size()));
  const auto same = [&](const Value& each) { return equal(each, args.positional.front(), heap.budget()); };
  if (name == "count") return Value(static_cast<int64_t>(std::ranges::count_if(items, same)));
  const auto found = std::ranges::find_if(items, same);
  if (found == items.end()) return invalid("the value is not in the list");
  return Value(static_cast<int64_t>(found - items.begin()));
}

}  // namespace dspack::runtime::jinja
