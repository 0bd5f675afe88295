#include "runtime/text/json_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace dspack::runtime {
namespace {

Error wrong(const char* name, std::string_view expected) {
  return invalid(fmt::format("\"{}\" is not {}", name, expected));
}

template <typename Json>
Error wrong_type(const char* name, std::string_view expected, const Json& value) {
  return wrong(name, fmt::format("{} but {}", expected, value.is_binary() ? "number" : value.type_name()));
}

Error missing(const char* name) {
  return invalid(fmt::format("\"{}\" is missing", name));
}

}  // namespace

template <typename Json>
const Json* FieldsOf<Json>::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

template <typename Json>
Result<std::optional<double>> FieldsOf<Json>::number(const char* name, double least, double most) const {
  const Json* field = find(name);
  if (field == nullptr) return std::optional<double>();
  if (!field->is_number()) return wrong_type(name, "a number", *field);
  const auto value = field->template get<double>();
  if (!(value >= least && value <= most)) return wrong(name, fmt::format("from {} to {}", least, most));
  return std::optional(value);
}

template <typename Json>
Result<std::optional<uint64_t>> FieldsOf<Json>::whole(const char* name, uint64_t least, uint64_t most) const {
  const Json* field = find(name);
  if (field == nullptr) return std::optional<uint64_t>();
  const auto value = field->is_number_unsigned() ? std::optional(field->template get<uint64_t>()) : std::nullopt;
  if (!value || *value < least || *value > most) {
    return wrong(name, fmt::format("a whole number from {} to {}", least, most));
  }
  return value;
}

template <typename Json>
Result<std::optional<uint64_t>> FieldsOf<Json>::limit(const char* name, uint64_t least, uint64_t most) const {
  const Json* field = find(name);
  if (field != nullptr && is_minus_one(*field)) return std::optional(kUnlimited);
  auto read = whole(name, least, most);
  if (!read) return invalid(read.error().message + ", or -1");
  return read;
}

template <typename Json>
Result<std::optional<bool>> FieldsOf<Json>::flag(const char* name) const {
  const Json* field = find(name);
  if (field == nullptr) return std::optional<bool>();
  if (!field->is_boolean()) return wrong_type(name, "true or false", *field);
  return std::optional(field->template get<bool>());
}

template <typename Json>
Result<bool> FieldsOf<Json>::flag(const char* name, bool otherwise) const {
  TRY_ASSIGN(const std::optional<bool> value, flag(name));
  return value.value_or(otherwise);
}

template <typename Json>
Result<std::optional<std::string>> FieldsOf<Json>::text(const char* name) const {
  const Json* field = find(name);
  if (field == nullptr) return std::optional<std::string>();
  if (!field->is_string()) return wrong_type(name, "a string", *field);
  return std::optional(field->template get<std::string>());
}

template <typename Json>
Result<const Json*> FieldsOf<Json>::array(const char* name) const {
  const Json* field = find(name);
  if (field != nullptr && !field->is_array()) return wrong_type(name, "an array", *field);
  return field;
}

template <typename Json>
Result<std::string> FieldsOf<Json>::required_text(const char* name) const {
  TRY_ASSIGN(std::optional<std::string> value, text(name));
  if (!value) return missing(name);
  return *std::move(value);
}

template <typename Json>
Result<const Json*> FieldsOf<Json>::required_object(const char* name) const {
  const Json* field = find(name);
  if (field == nullptr) return missing(name);
  if (!field->is_object()) return wrong_type(name, "an object", *field);
  return field;
}

template class FieldsOf<OrderedJson>;
template class FieldsOf<nlohmann::json>;

}  // namespace dspack::runtime
