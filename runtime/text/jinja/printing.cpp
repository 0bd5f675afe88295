#include "runtime/text/jinja/printing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/text/json.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {
namespace {

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  return python_float(number);
}

std::string repr_of_text(std::string_view text) {
  const char mark = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, mark);
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::min(utf8_length(text[i]), text.size() - i);
    const std::string_view unit = text.substr(i, length);
    const auto c = static_cast<unsigned char>(unit[0]);
    i += length;
    if (c == '\\' || c == static_cast<unsigned char>(mark)) {
      out += '\\';
      out += unit;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", c);
    } else if (unit == "\xC2\xA0" || unit == "\xC2\xAD" || (c == 0xC2 && static_cast<unsigned char>(unit[1]) < 0xA0)) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(unit[1]));
    } else {
      const uint32_t code = length == 3 ? decode_utf8_character(unit) : 0;
      const bool blank = code != 0 && (is_white_space(code) || (code >= 0x200B && code <= 0x200F) || code == 0xFEFF);
      out += blank ? fmt::format("\\u{:04x}", code) : std::string(unit);
    }
  }
  return out + mark;
}

struct Printer {
  Budget& budget;
  std::string out = {};

  Result<void> put(std::string_view text) {
    TRY(budget.produce(text.size() + 1));
    out += text;
    return {};
  }

  Result<void> repr(const Value& value) {
    if (value.is_undefined()) return put("Undefined");
    if (value.is_none()) return put("None");
    if (value.is_bool()) return put(value.truth() ? "True" : "False");
    if (value.is_integer()) return put(fmt::format("{}", value.integer()));
    if (value.digits() != nullptr) return put(*value.digits());
    if (value.is_float()) return put(float_text(value.real()));
    if (value.text() != nullptr) return put(repr_of_text(*value.text()));
    if (const List* list = value.list(); list != nullptr && !list->generator) {
      TRY(put(list->tuple ? "(" : "["));
      for (size_t i = 0; i < list->items.size(); ++i) {
        if (i > 0) TRY(put(", "));
        TRY(repr(list->items[i]));
      }
      if (list->tuple && list->items.size() == 1) TRY(put(","));
      return put(list->tuple ? ")" : "]");
    }
    if (const Dict* dict = value.dict()) {
      TRY(put("{"));
      bool first = true;
      for (const auto& [key, item] : dict->items()) {
        if (!first) TRY(put(", "));
        first = false;
        TRY(repr(key));
        TRY(put(": "));
        TRY(repr(item));
      }
      return put("}");
    }
    return Error{ErrorKind::unsupported, fmt::format("a {} cannot be printed", value.type())};
  }

  Result<void> json_text(std::string_view text, bool ascii) {
    std::string escaped = python_json(OrderedJson(std::string(text)), false);
    if (!ascii) return put(escaped);
    std::string plain;
    for (size_t i = 0; i < escaped.size();) {
      const size_t length = std::min(utf8_length(escaped[i]), escaped.size() - i);
      if (length == 1) {
        plain += escaped[i] == 0x7F ? "\\u007f" : std::string(1, escaped[i]);
      } else {
        const uint32_t code = decode_utf8_character(std::string_view(escaped).substr(i, length));
        plain += code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                : fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10U),
                                              0xDC00 + ((code - 0x10000) & 0x3FFU));
      }
      i += length;
    }
    return put(plain);
  }

  Result<void> line(const JsonStyle& style, size_t level) {
    if (!style.indent) return {};
    std::string text = "\n";
    for (size_t i = 0; i < level; ++i)
      text += *style.indent;
    return put(text);
  }

  Result<void> json_key(const Value& key, const JsonStyle& style) {
    if (key.text() != nullptr) return json_text(*key.text(), style.ascii);
    if (key.is_none()) return put("\"null\"");
    if (key.is_bool()) return put(key.truth() ? "\"true\"" : "\"false\"");
    if (key.is_integer()) return put(fmt::format("\"{}\"", key.integer()));
    if (key.digits() != nullptr) return put("\"" + *key.digits() + "\"");
    if (key.is_float()) return put("\"" + float_text(key.real()) + "\"");
    return invalid(fmt::format("keys must be str, int, float, bool or None, not {}", key.type()));
  }

  Result<void> json(const Value& value, const JsonStyle& style, size_t level) {
    if (value.is_none()) return put("null");
    if (value.is_bool()) return put(value.truth() ? "true" : "false");
    if (value.is_float()) {
      if (std::isfinite(value.real())) return put(float_text(value.real()));
      return put(std::isnan(value.real()) ? "NaN" : value.real() < 0 ? "-Infinity" : "Infinity");
    }
    if (value.is_number() || value.digits() != nullptr) return repr(value);
    if (value.text() != nullptr) return json_text(*value.text(), style.ascii);
    if (const List* list = value.list(); list != nullptr && !list->generator) {
      if (list->items.empty()) return put("[]");
      TRY(put("["));
      for (size_t i = 0; i < list->items.size(); ++i) {
        if (i > 0) TRY(put(style.comma));
        TRY(line(style, level + 1));
        TRY(json(list->items[i], style, level + 1));
      }
      TRY(line(style, level));
      return put("]");
    }
    if (const Dict* dict = value.dict()) {
      if (dict->items().empty()) return put("{}");
      std::vector<const std::pair<Value, Value>*> items;
      for (const auto& item : dict->items())
        items.push_back(&item);
      if (style.sort_keys) {
        for (const auto* item : items)
          if (item->first.text() == nullptr) return invalid("only texts as keys can be sorted");
        std::ranges::stable_sort(items,
                                 [](const auto* a, const auto* b) { return *a->first.text() < *b->first.text(); });
      }
      TRY(put("{"));
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) TRY(put(style.comma));
        TRY(line(style, level + 1));
        TRY(json_key(items[i]->first, style));
        TRY(put(style.colon));
        TRY(json(items[i]->second, style, level + 1));
      }
      TRY(line(style, level));
      return put("}");
    }
    return invalid(fmt::format("Object of type {} is not JSON serializable", value.type()));
  }
};

}  // namespace

Result<std::string> to_repr(const Value& value, Budget& budget) {
  Printer printer{budget};
  TRY(printer.repr(value));
  return std::move(printer.out);
}

Result<std::string> to_text(const Value& value, Budget& budget) {
  if (value.is_undefined()) return std::string();
  if (value.text() == nullptr) return to_repr(value, budget);
  TRY(budget.produce(value.text()->size()));
  return *value.text();
}

Result<std::string> to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Printer printer{budget};
  JsonStyle used = style;
  // With an indent, Python leaves no space after the comma.
  if (used.indent && used.comma == ", ") used.comma = ",";
  TRY(printer.json(value, used, 0));
  return std::move(printer.out);
}

}  // namespace dspack::runtime::jinja
