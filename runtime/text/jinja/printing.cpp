#include "runtime/text/jinja/printing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/text/jinja/operators.h"
#include "runtime/text/json.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {
namespace {

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  return python_float(number);
}

/// Python's repr() of a character in a text between `mark`s; empty: unchanged.
std::string repr_escape(std::string_view unit, std::string_view mark) {
  const auto c = static_cast<unsigned char>(unit[0]);
  if (unit == "\\" || unit == mark) return fmt::format("\\{}", unit);
  if (c == '\n' || c == '\r' || c == '\t') return c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
  if (c < 0x20 || c == 0x7F) return fmt::format("\\x{:02x}", c);
  if (unit.size() == 2) {
    const uint32_t code = decode_utf8_character(unit);
    return code < 0xA1 || code == 0xAD ? fmt::format("\\x{:02x}", code) : "";
  }
  const uint32_t code = unit.size() == 3 ? decode_utf8_character(unit) : 0;
  const bool blank = code != 0 && (is_white_space(code) || (code >= 0x200B && code <= 0x200F) || code == 0xFEFF);
  return blank ? fmt::format("\\u{:04x}", code) : "";
}

/// json.dumps's form of a character in a text; empty: unchanged.
std::string json_escape(std::string_view unit, bool ascii) {
  constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  const auto c = static_cast<unsigned char>(unit[0]);
  if (unit.size() == 1) {
    if (const size_t at = kEscaped.find(unit[0]); at != std::string_view::npos) return {'\\', kLetters[at]};
    return c < 0x20 || (ascii && c == 0x7F) ? fmt::format("\\u{:04x}", c) : "";
  }
  if (!ascii) return "";
  const uint32_t code = decode_utf8_character(unit);
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10U), 0xDC00 + ((code - 0x10000) & 0x3FFU));
}

class Printer {
 public:
  explicit Printer(TextBuilder& out) : out_(out) {}

  Result<void> repr(const Value& value) {
    TRY(out_.budget().step());
    if (value.is_undefined()) return out_.add("Undefined");
    if (value.is_none()) return out_.add("None");
    if (value.is_bool()) return out_.add(value.truth() ? "True" : "False");
    if (value.is_integer()) return out_.add(fmt::format("{}", *value.integer()));
    if (value.digits() != nullptr) return out_.add(*value.digits());
    if (value.is_float()) return out_.add(float_text(*value.real()));
    if (value.text() != nullptr) return repr_of_text(*value.text());
    if (const List* list = value.list(); list != nullptr && !list->generator) {
      TRY(out_.add(list->tuple ? "(" : "["));
      for (size_t i = 0; i < list->items.size(); ++i) {
        if (i > 0) TRY(out_.add(", "));
        TRY(repr(list->items[i]));
      }
      if (list->tuple && list->items.size() == 1) TRY(out_.add(","));
      return out_.add(list->tuple ? ")" : "]");
    }
    if (const Dict* dict = value.dict()) {
      TRY(out_.add("{"));
      bool first = true;
      for (const auto& [key, item] : dict->items()) {
        if (!first) TRY(out_.add(", "));
        first = false;
        TRY(repr(key));
        TRY(out_.add(": "));
        TRY(repr(item));
      }
      return out_.add("}");
    }
    return Error{ErrorKind::unsupported, fmt::format("a {} cannot be printed", value.type())};
  }

  Result<void> json(const Value& value, const JsonStyle& style, size_t level) {
    TRY(out_.budget().step());
    if (value.is_none()) return out_.add("null");
    if (value.is_bool()) return out_.add(value.truth() ? "true" : "false");
    if (value.is_float()) {
      if (std::isfinite(*value.real())) return out_.add(float_text(*value.real()));
      return out_.add(std::isnan(*value.real()) ? "NaN" : *value.real() < 0 ? "-Infinity" : "Infinity");
    }
    if (value.is_number() || value.digits() != nullptr) return repr(value);
    if (value.text() != nullptr) return json_text(*value.text(), style.ascii);
    if (const List* list = value.list(); list != nullptr && !list->generator) {
      if (list->items.empty()) return out_.add("[]");
      TRY(out_.add("["));
      for (size_t i = 0; i < list->items.size(); ++i) {
        if (i > 0) TRY(out_.add(style.comma));
        TRY(line(style, level + 1));
        TRY(json(list->items[i], style, level + 1));
      }
      TRY(line(style, level));
      return out_.add("]");
    }
    if (const Dict* dict = value.dict()) {
      if (dict->items().empty()) return out_.add("{}");
      // Sorting temporarily doubles the memory.
      TRY_ASSIGN(const Charge charge, out_.budget().hold(2 * sizeof(void*) * dict->items().size()));
      std::vector<const std::pair<Value, Value>*> items;
      items.reserve(dict->items().size());
      for (const auto& item : dict->items())
        items.push_back(&item);
      if (style.sort_keys) {
        for (const auto* item : items)
          if (item->first.text() == nullptr) return invalid("only texts as keys can be sorted");
        // Once the budget ends all keys compare equal, and the next step fails.
        std::ranges::stable_sort(items, [this](const auto* a, const auto* b) {
          const size_t read = std::min(a->first.text()->size(), b->first.text()->size());
          return out_.budget().spend(1 + read / 16) && *a->first.text() < *b->first.text();
        });
      }
      TRY(out_.add("{"));
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) TRY(out_.add(style.comma));
        TRY(line(style, level + 1));
        TRY(json_key(items[i]->first, style));
        TRY(out_.add(style.colon));
        TRY(json(items[i]->second, style, level + 1));
      }
      TRY(line(style, level));
      return out_.add("}");
    }
    return invalid(fmt::format("Object of type {} is not JSON serializable", value.type()));
  }

 private:
  Result<void> repr_of_text(std::string_view text) {
    TRY(out_.budget().read(text.size()));
    const bool has_apostrophe = text.find('\'') != std::string_view::npos;
    const std::string_view mark = has_apostrophe && text.find('"') == std::string_view::npos ? "\"" : "'";
    return escaped(text, mark, [mark](std::string_view unit) { return repr_escape(unit, mark); });
  }

  Result<void> json_text(std::string_view text, bool ascii) {
    return escaped(text, "\"", [ascii](std::string_view unit) { return json_escape(unit, ascii); });
  }

  /// Writes a text between marks, each character unchanged or as `escape` returns it.
  template <class Escape>
  Result<void> escaped(std::string_view text, std::string_view mark, Escape escape) {
    TRY(out_.add(mark));
    size_t plain = 0;  // bytes written so far
    for (size_t i = 0; i < text.size();) {
      const std::string_view unit = first_character(text.substr(i));
      i += unit.size();
      const std::string escape_of_unit = escape(unit);
      if (escape_of_unit.empty()) continue;
      TRY(out_.add(text.substr(plain, i - unit.size() - plain)));
      TRY(out_.add(escape_of_unit));
      plain = i;
    }
    TRY(out_.add(text.substr(plain)));
    return out_.add(mark);
  }

  Result<void> line(const JsonStyle& style, size_t level) {
    if (!style.indent) return {};
    TRY(out_.add("\n"));
    for (size_t i = 0; i < level; ++i)
      TRY(out_.add(*style.indent));
    return {};
  }

  Result<void> quoted(std::string_view text) {
    TRY(out_.add("\""));
    TRY(out_.add(text));
    return out_.add("\"");
  }

  Result<void> json_key(const Value& key, const JsonStyle& style) {
    if (key.text() != nullptr) return json_text(*key.text(), style.ascii);
    if (key.is_none()) return out_.add("\"null\"");
    if (key.is_bool()) return out_.add(key.truth() ? "\"true\"" : "\"false\"");
    if (key.is_integer()) return out_.add(fmt::format("\"{}\"", *key.integer()));
    if (key.digits() != nullptr) return quoted(*key.digits());
    if (key.is_float()) return quoted(float_text(*key.real()));
    return invalid(fmt::format("keys must be str, int, float, bool or None, not {}", key.type()));
  }

  TextBuilder& out_;
};

}  // namespace

Result<void> print_repr(const Value& value, TextBuilder& into) {
  return Printer(into).repr(value);
}

Result<void> print(const Value& value, TextBuilder& into) {
  if (value.is_undefined()) return {};
  if (value.text() == nullptr) return print_repr(value, into);
  return into.add(*value.text());
}

Result<Value> as_text(const Value& value, Heap& heap) {
  if (value.text() != nullptr) return value;
  TextBuilder text(heap.budget());
  TRY(print(value, text));
  return heap.text(std::move(text));
}

Result<void> print_json(const Value& value, const JsonStyle& style, TextBuilder& into) {
  JsonStyle used = style;
  // With an indent, Python writes no space after the comma.
  if (used.indent && used.comma == ", ") used.comma = ",";
  return Printer(into).json(value, used, 0);
}

}  // namespace dspack::runtime::jinja
