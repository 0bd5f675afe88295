#include "runtime/text/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;  // tokenizer.json of the family nests 6 deep

/// The deepest nesting that the brackets outside of strings open.
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Error wrong_type(const char* key, std::string_view expected, const json& value) {
  return {ErrorKind::invalid, fmt::format("\"{}\" is not {} but {}", key, expected, value.type_name())};
}

}  // namespace

Result<json> parse_json(std::string_view text, std::string_view name) {
  if (nesting_depth(text) > kMaxDepth) {
    return Error{ErrorKind::invalid, fmt::format("{}: nested more than {} deep", name, kMaxDepth)};
  }
  try {
    json value = json::parse(text);
    if (!value.is_object()) return Error{ErrorKind::invalid, fmt::format("{}: not a JSON object", name)};
    return value;
  } catch (const json::parse_error& error) {
    return Error{ErrorKind::invalid, fmt::format("{}: not valid JSON at byte {}", name, error.byte)};
  } catch (const json::exception& error) {  // a number out of range
    return Error{ErrorKind::invalid, fmt::format("{}: not valid JSON (error {})", name, error.id)};
  }
}

const json* find_field(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<const json*> object_field(const json& object, const char* key) {
  const json* value = find_field(object, key);
  if (value == nullptr) return Error{ErrorKind::invalid, fmt::format("\"{}\" is missing", key)};
  if (!value->is_object()) return wrong_type(key, "an object", *value);
  return value;
}

Result<const json*> array_field(const json& object, const char* key) {
  const json* value = find_field(object, key);
  if (value != nullptr && !value->is_array()) return wrong_type(key, "an array", *value);
  return value;
}

Result<std::optional<std::string>> string_field(const json& object, const char* key) {
  const json* value = find_field(object, key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return wrong_type(key, "a string", *value);
  return std::optional<std::string>(value->get_ref<const std::string&>());
}

Result<std::string> required_string(const json& object, const char* key) {
  TRY_ASSIGN(std::optional<std::string> value, string_field(object, key));
  if (!value) return Error{ErrorKind::invalid, fmt::format("\"{}\" is missing", key)};
  return *std::move(value);
}

Result<bool> bool_field(const json& object, const char* key, bool otherwise) {
  const json* value = find_field(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return wrong_type(key, "true or false", *value);
  return value->get<bool>();
}

std::string quote(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  std::string shown;
  for (const char c : text.substr(0, kMaxBytes))
    shown.push_back(c >= 0 && (c < ' ' || c == 0x7F) ? '?' : c);
  return fmt::format("\"{}{}\"", to_valid_utf8(shown), text.size() > kMaxBytes ? "..." : "");
}

}  // namespace dspack::runtime
