#include "format/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dspack::format {

namespace {

// Cuts long values (a pasted list, for example), so that the message stays one line.
std::string shown(const Json& value) {
  constexpr size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// As in JSON, without the quotes: a key cannot break the line or control a terminal.
std::string shown_key(const std::string& key) {
  const std::string text = shown(Json(key));
  return text.size() < 2 ? text : text.substr(1, text.size() - 2);
}

}  // namespace

const Json* ConfigFields::find(std::string_view key) {
  asked_.emplace(key);
  const auto found = object_.find(std::string(key));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::is_null(std::string_view key) const {
  const auto found = object_.find(std::string(key));
  return found != object_.end() && found->is_null();
}

std::vector<std::string> ConfigFields::others(std::span<const std::string_view> without_effect) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    const bool is_known = asked_.contains(key) || std::ranges::find(without_effect, key) != without_effect.end();
    if (!is_known && !value.is_null()) keys.push_back(key);
  }
  return keys;
}

void ConfigFields::refuse_others(std::span<const std::string_view> without_effect) {
  const std::vector<std::string> keys = others(without_effect);
  if (error_ || keys.empty()) return;
  error_ =
      Error{ErrorKind::unsupported,
            described(keys.front()) +
                "; this program does not know the key, and it might change the result (if it does not, take it out)"};
}

std::string ConfigFields::described(std::string_view key) const {
  const auto found = object_.find(std::string(key));
  return fmt::format("{}: \"{}\" is {}", place_, shown_key(std::string(key)),
                     found == object_.end() ? "missing" : shown(*found));
}

void ConfigFields::fail(ErrorKind kind, std::string_view key, std::string_view reason) {
  if (error_) return;
  (void)find(key);  // marks the key as read
  error_ = Error{kind, fmt::format("{}; {}", described(key), reason)};
}

uint32_t ConfigFields::integer(std::string_view key, uint32_t low, uint32_t high, std::optional<uint32_t> fallback) {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number_integer()) {
    const bool fits = value->is_number_unsigned() || value->get<int64_t>() >= 0;
    const uint64_t number = fits ? value->get<uint64_t>() : 0;
    if (fits && number >= low && number <= high) return static_cast<uint32_t>(number);
  }
  if (value != nullptr && value->is_number_float()) {  // some programs write whole numbers as 64.0
    const double number = value->get<double>();
    if (number >= low && number <= high && number == std::floor(number)) return static_cast<uint32_t>(number);
  }
  fail(ErrorKind::invalid, key, fmt::format("expected a whole number from {} to {}", low, high));
  return low;
}

double ConfigFields::number(std::string_view key, double low, double high, std::optional<double> fallback) {
  const Json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number()) {
    const double number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  fail(ErrorKind::invalid, key, fmt::format("expected a number from {} to {}", low, high));
  return low;
}

bool ConfigFields::flag(std::string_view key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(ErrorKind::invalid, key, "expected true or false");
  return fallback;
}

std::string ConfigFields::text(std::string_view key, std::string_view fallback) {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  fail(ErrorKind::invalid, key, "expected a text");
  return std::string(fallback);
}

const Json* ConfigFields::object(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || value->is_object()) return value;
  fail(ErrorKind::invalid, key, "expected an object");
  return nullptr;
}

}  // namespace dspack::format
