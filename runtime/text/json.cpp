#include "runtime/text/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "format/document_bounds.h"
#include "format/json.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

Error wrong_type(const char* key, std::string_view expected, const json& value) {
  return {ErrorKind::invalid, fmt::format("\"{}\" is not {} but {}", key, expected, value.type_name())};
}

}  // namespace

Result<json> parse_json(std::string_view text, std::string_view name, const format::DocumentBounds& bounds) {
  auto value = format::parse_json(text, bounds);
  if (!value) return value.error().in(name);
  if (!value->is_object()) return Error{ErrorKind::invalid, fmt::format("{}: not a JSON object", name)};
  return value;
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

}  // namespace dspack::runtime
