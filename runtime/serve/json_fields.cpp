#include "runtime/serve/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "runtime/text/json.h"

namespace dspack::runtime {
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

Error wrong(const char* name, std::string_view expected) {
  return invalid(fmt::format("\"{}\" is not {}", name, expected));
}

}  // namespace

const OrderedJson* JsonFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

Result<std::optional<double>> JsonFields::number(const char* name, double least, double most) const {
  const OrderedJson* field = find(name);
  if (field == nullptr) return std::optional<double>();
  if (!field->is_number()) return wrong(name, "a number");
  const auto value = field->get<double>();
  if (!(value >= least && value <= most)) return wrong(name, fmt::format("from {} to {}", least, most));
  return std::optional(value);
}

Result<std::optional<uint64_t>> JsonFields::whole(const char* name, uint64_t least, uint64_t most) const {
  const OrderedJson* field = find(name);
  if (field == nullptr) return std::optional<uint64_t>();
  if (!field->is_number_unsigned() || field->get<uint64_t>() < least || field->get<uint64_t>() > most) {
    return wrong(name, fmt::format("a whole number from {} to {}", least, most));
  }
  return std::optional(field->get<uint64_t>());
}

Result<std::optional<uint64_t>> JsonFields::limit(const char* name, uint64_t least, uint64_t most) const {
  const OrderedJson* field = find(name);
  if (field != nullptr && is_minus_one(*field)) return std::optional(kUnlimited);
  auto read = whole(name, least, most);
  if (!read) return invalid(read.error().message + ", or -1");
  return read;
}

Result<std::optional<bool>> JsonFields::flag(const char* name) const {
  const OrderedJson* field = find(name);
  if (field == nullptr) return std::optional<bool>();
  if (!field->is_boolean()) return wrong(name, "true or false");
  return std::optional(field->get<bool>());
}

Result<std::optional<std::string>> JsonFields::text(const char* name) const {
  const OrderedJson* field = find(name);
  if (field == nullptr) return std::optional<std::string>();
  if (!field->is_string()) return wrong(name, "a string");
  return std::optional(field->get<std::string>());
}

bool is_minus_one(const OrderedJson& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() == -1;
}

std::string json_text(const OrderedJson& value) {
  std::string text;
  append_json(value, text);
  return text;
}

}  // namespace dspack::runtime
