#include "runtime/text/call_arguments.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace dspack::runtime {
namespace {

/// Kinds of JSON values, each a bit.
using Kinds = unsigned;
constexpr Kinds kString = 1, kInteger = 2, kFraction = 4, kBoolean = 8, kNull = 16, kObject = 32, kArray = 64;
constexpr Kinds kAll = 127;

Kinds kind_of_name(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, Kinds>, 7> kNames = {{{"string", kString},
                                                                         {"integer", kInteger},
                                                                         {"number", kInteger | kFraction},
                                                                         {"boolean", kBoolean},
                                                                         {"null", kNull},
                                                                         {"object", kObject},
                                                                         {"array", kArray}}};
  const auto found = std::ranges::find(kNames, type, &std::pair<std::string_view, Kinds>::first);
  return found == kNames.end() ? kAll : found->second;
}

/// The kind of a text that is JSON without leading white space.
Kinds kind_of_text(std::string_view json_text) {
  switch (json_text.front()) {
    case '"': return kString;
    case '{': return kObject;
    case '[': return kArray;
    case 't':
    case 'f': return kBoolean;
    case 'n': return kNull;
    default: return json_text.find_first_of(".eE") == std::string_view::npos ? kInteger : kFraction;
  }
}

/// The kinds of values that a schema allows, from its outermost keywords.
class SchemaKinds {
 public:
  explicit SchemaKinds(const OrderedJson& root) : root_(root) {}

  Kinds of(const OrderedJson& schema) {
    // Schemas are untrusted: references may be circular, and alternatives numerous.
    if (!schema.is_object() || ++visited_ > kMaxVisited || depth_ >= kMaxDepth) return kAll;
    ++depth_;
    Kinds kinds = kAll;
    if (const auto type = schema.find("type"); type != schema.end()) kinds &= of_type(*type);
    if (const auto value = schema.find("const"); value != schema.end()) kinds &= of_value(*value);
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array() && !values->empty()) {
      Kinds any = 0;
      for (const OrderedJson& value : *values)
        any |= of_value(value);
      kinds &= any;
    }
    if (const OrderedJson* target = target_of(schema)) kinds &= of(*target);
    for (const char* keyword : {"anyOf", "oneOf"})
      kinds &= of_alternatives(schema, keyword);
    if (const auto all = schema.find("allOf"); all != schema.end() && all->is_array()) {
      for (const OrderedJson& each : *all)
        kinds &= of(each);
    }
    --depth_;
    return kinds;
  }

  /// The string as it is, or trimmed if only the trimmed one is listed.
  std::string_view listed_string(std::string_view text) const {
    const bool is_trimmed =
        std::ranges::find(listed_, text) == listed_.end() && std::ranges::find(listed_, trimmed(text)) != listed_.end();
    return is_trimmed ? trimmed(text) : text;
  }

 private:
  static constexpr unsigned kMaxVisited = 256;
  static constexpr unsigned kMaxDepth = 32;

  static Kinds of_type(const OrderedJson& type) {
    if (type.is_string()) return kind_of_name(type.get_ref<const std::string&>());
    Kinds kinds = 0;
    if (type.is_array()) {
      for (const OrderedJson& each : type)
        kinds |= each.is_string() ? kind_of_name(each.get_ref<const std::string&>()) : kAll;
    }
    return kinds == 0 ? kAll : kinds;
  }

  Kinds of_value(const OrderedJson& value) {
    if (value.is_string()) listed_.push_back(value.get_ref<const std::string&>());
    if (value.is_string()) return kString;
    if (value.is_object()) return kObject;
    if (value.is_array()) return kArray;
    if (value.is_boolean()) return kBoolean;
    return value.is_null() ? kNull : kInteger | kFraction;
  }

  Kinds of_alternatives(const OrderedJson& schema, const char* keyword) {
    const auto found = schema.find(keyword);
    if (found == schema.end() || !found->is_array() || found->empty()) return kAll;
    Kinds kinds = 0;
    for (const OrderedJson& each : *found)
      kinds |= of(each);
    return kinds;
  }

  /// The target of a reference within the schema.
  const OrderedJson* target_of(const OrderedJson& schema) const {
    const auto reference = schema.find("$ref");
    if (reference == schema.end() || !reference->is_string()) return nullptr;
    const auto& path = reference->get_ref<const std::string&>();
    if (!path.starts_with("#")) return nullptr;
    try {
      const OrderedJson::json_pointer pointer(path.substr(1));
      return root_.contains(pointer) ? &root_[pointer] : nullptr;
    } catch (const OrderedJson::exception&) {
      return nullptr;  // not a JSON pointer
    }
  }

  const OrderedJson& root_;
  std::vector<std::string_view> listed_;
  unsigned visited_ = 0;
  unsigned depth_ = 0;
};

/// The end of the JSON string that begins at `at`.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

/// The end of the value that begins at `at`, which is not white space.
size_t end_of_value(std::string_view text, size_t at) {
  size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      if (depth == 0) return at;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') {
      if (depth == 0) return at;  // the end of the enclosing value
      if (--depth == 0) return at + 1;
    }
    if (c == ',' && depth == 0) return at;
    ++at;
  }
  return at;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kReplySpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kReplySpace) - first + 1);
}

bool is_json_object(std::string_view text) {
  return trimmed(text).starts_with('{') && OrderedJson::accept(text);
}

std::string json_string(std::string_view text) {
  return OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string argument_value(std::string_view text, const OrderedJson& parameters, std::string_view name) {
  SchemaKinds schema(parameters);
  Kinds allowed = kAll;
  if (parameters.is_object()) {
    const auto properties = parameters.find("properties");
    if (properties != parameters.end() && properties->is_object()) {
      const auto property = properties->find(std::string(name));
      if (property != properties->end()) allowed = schema.of(*property);
    }
  }
  if (!OrderedJson::accept(text)) return json_string(schema.listed_string(text));
  const std::string_view json_text = trimmed(text);
  const Kinds kind = kind_of_text(json_text);
  // Templates write strings without quotes, so quotes in the text belong to the string.
  const bool is_string = kind == kString || ((allowed & kString) != 0 && (allowed & kind) == 0);
  return is_string ? json_string(schema.listed_string(text)) : std::string(json_text);
}

std::optional<WrittenCall> read_written_call(std::string_view json_text) {
  if (!is_json_object(json_text)) return std::nullopt;
  std::optional<std::string> name;
  std::optional<std::string> arguments;
  const auto skip_space = [&](size_t at) {
    return std::min(json_text.find_first_not_of(kReplySpace, at), json_text.size());
  };
  const auto as_string = [](std::string_view text) { return OrderedJson::parse(text).get<std::string>(); };
  for (size_t at = skip_space(json_text.find('{') + 1); at < json_text.size() && json_text[at] == '"';) {
    const size_t key_end = end_of_string(json_text, at);
    const std::string key = as_string(json_text.substr(at, key_end - at));
    const size_t begin = skip_space(json_text.find(':', key_end) + 1);
    const size_t end = end_of_value(json_text, begin);
    const std::string_view value = trimmed(json_text.substr(begin, end - begin));
    const bool is_text = value.starts_with('"');
    if (key == "name" && is_text) name = as_string(value);
    if (key == "arguments") arguments = is_text ? as_string(value) : std::string(value);
    at = skip_space(end);
    if (at < json_text.size() && json_text[at] == ',') at = skip_space(at + 1);
  }
  if (!name || !arguments) return std::nullopt;
  return WrittenCall{.name = *std::move(name), .arguments = *std::move(arguments)};
}

}  // namespace dspack::runtime
