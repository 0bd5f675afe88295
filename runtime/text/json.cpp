#include "runtime/text/json.h"

#include <fmt/format.h>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "format/json.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

/// Builds the value from the parser's events, for text that format::parse_json has accepted. (The library's own builder
/// rounds long whole numbers, and searches an object's keys for each new one, which takes quadratic time.)
class OrderedBuilder final : public nlohmann::json_sax<OrderedJson> {
 public:
  bool null() override { return place(OrderedJson()); }
  bool boolean(bool value) override { return place(OrderedJson(value)); }
  bool number_integer(number_integer_t value) override { return place(OrderedJson(value)); }
  bool number_unsigned(number_unsigned_t value) override { return place(OrderedJson(value)); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return place(OrderedJson(value));
    return place(OrderedJson::binary({text.begin(), text.end()}));
  }
  bool string(string_t& value) override { return place(OrderedJson(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return false; }  // only in binary encodings
  bool start_object(size_t /*elements*/) override { return open(OrderedJson::object()); }
  bool start_array(size_t /*elements*/) override { return open(OrderedJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/, const OrderedJson::exception&) override {
    return false;
  }

  [[nodiscard]] OrderedJson take() { return std::move(root_); }

 private:
  bool place(OrderedJson value) {
    last_ = nullptr;
    if (open_.empty()) {
      root_ = std::move(value);
      last_ = &root_;
    } else if (auto* array = open_.back()->get_ptr<OrderedJson::array_t*>()) {
      last_ = &array->emplace_back(std::move(value));
    } else {
      add_member(*open_.back(), std::move(key_), std::move(value));
      last_ = &open_.back()->get_ref<OrderedJson::object_t&>().back().second;
    }
    return true;
  }
  bool open(OrderedJson container) {
    place(std::move(container));
    // Every open container is the last element of its parent, which therefore does not grow and move it.
    open_.push_back(last_);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  OrderedJson root_;
  OrderedJson* last_ = nullptr;     // the value placed last
  std::vector<OrderedJson*> open_;  // open objects and arrays, outermost first
  std::string key_;                 // key of the next value in an object
};

}  // namespace

Result<OrderedJson> parse_ordered_json(std::string_view text, const format::DocumentBounds& bounds) {
  TRY(format::parse_json(text, bounds));
  OrderedBuilder builder;
  if (!OrderedJson::sax_parse(text.begin(), text.end(), &builder)) return invalid("no JSON");
  return builder.take();
}

void add_member(OrderedJson& object, std::string name, OrderedJson value) {
  object.get_ref<OrderedJson::object_t&>().emplace_back(std::move(name), std::move(value));
}

std::string_view long_number(const OrderedJson& value) {
  if (!value.is_binary()) return {};
  const OrderedJson::binary_t& digits = value.get_binary();
  return {reinterpret_cast<const char*>(digits.data()), digits.size()};
}

Result<json> parse_json(std::string_view text, std::string_view name, const format::DocumentBounds& bounds) {
  auto value = format::parse_json_file(text, bounds);
  if (!value) return value.error().in(name);
  if (!value->is_object()) return Error{ErrorKind::invalid, fmt::format("{}: not a JSON object", name)};
  return value;
}

namespace {

void append_json(const OrderedJson& value, std::string& text) {
  const auto plain = [](const OrderedJson& leaf) {
    return leaf.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  if (!value.is_structured()) {
    const std::string_view digits = long_number(value);
    text += digits.empty() ? plain(value) : digits;
    return;
  }
  text += value.is_object() ? '{' : '[';
  bool is_first = true;
  for (const auto& [key, each] : value.items()) {
    if (!std::exchange(is_first, false)) text += ',';
    if (value.is_object()) text += plain(OrderedJson(key)) + ':';
    append_json(each, text);
  }
  text += value.is_object() ? '}' : ']';
}

void append_string(std::string& out, std::string_view text) {
  constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  out += '"';
  for (const char c : text) {
    if (const size_t at = kEscaped.find(c); at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

struct Writer {
  std::string_view comma;
  std::string_view colon;
  std::string out = {};

  void append(const OrderedJson& value) {
    switch (value.type()) {
      case OrderedJson::value_t::object: append_object(value); break;
      case OrderedJson::value_t::array: append_array(value); break;
      case OrderedJson::value_t::string: append_string(out, value.get_ref<const std::string&>()); break;
      case OrderedJson::value_t::boolean: out += value.get<bool>() ? "true" : "false"; break;
      case OrderedJson::value_t::number_float: out += python_float(value.get<double>()); break;
      case OrderedJson::value_t::number_integer:
      case OrderedJson::value_t::number_unsigned: out += value.dump(); break;
      case OrderedJson::value_t::binary: out += long_number(value); break;
      default: out += "null";
    }
  }

  void append_object(const OrderedJson& object) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : object.items()) {
      if (!first) out += comma;
      first = false;
      append_string(out, key);
      out += colon;
      append(value);
    }
    out += '}';
  }

  void append_array(const OrderedJson& array) {
    out += '[';
    bool first = true;
    for (const OrderedJson& value : array) {
      if (!first) out += comma;
      first = false;
      append(value);
    }
    out += ']';
  }
};

}  // namespace

std::string json_text(const OrderedJson& value) {
  std::string text;
  append_json(value, text);
  return text;
}

std::string python_float(double value) {
  std::array<char, 40> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));  // "-1.25e+07"
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed_end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed).ptr;
  const std::string fixed(buffer.data(), fixed_end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string python_json(const OrderedJson& value, bool compact) {
  Writer writer{.comma = compact ? "," : ", ", .colon = compact ? ":" : ": "};
  writer.append(value);
  return std::move(writer.out);
}

}  // namespace dspack::runtime
