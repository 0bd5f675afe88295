// Reads checked fields of a JSON object and keeps the first error, so that a long list of fields needs one check. It
// remembers which keys were read, so that others can be refused.
// Threads: single-thread. Lifetime: borrows the object. Errors: invalid, naming file, key, value and what was expected.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/json.h"

namespace dspack::format {

class ConfigFields {
 public:
  /// `object` must be a JSON object. `place` is the file, or the file and the key that leads here.
  ConfigFields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  /// A whole number in [low, high]. If absent or null: the fallback, or an error if there is none.
  uint32_t integer(std::string_view key, uint32_t low, uint32_t high, std::optional<uint32_t> fallback = std::nullopt);
  /// A finite number in [low, high].
  double number(std::string_view key, double low, double high, std::optional<double> fallback = std::nullopt);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// nullptr when absent or null; an error when it is not an object.
  const Json* object(std::string_view key);
  /// Whether the key exists and its value is null.
  [[nodiscard]] bool is_null(std::string_view key) const;
  /// nullptr when absent or null.
  [[nodiscard]] const Json* find(std::string_view key);

  /// Keys with a value other than null that were not read and are not in `without_effect`.
  [[nodiscard]] std::vector<std::string> others(std::span<const std::string_view> without_effect) const;
  /// Fails (unsupported) if others() finds a key: it might change the result.
  void refuse_others(std::span<const std::string_view> without_effect);

  /// `PLACE: "key" is VALUE`, or `PLACE: "key" is missing`.
  [[nodiscard]] std::string described(std::string_view key) const;
  /// Keeps the first error: `"key" is VALUE; reason`.
  void fail(ErrorKind kind, std::string_view key, std::string_view reason);
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  const Json& object_;
  std::string place_;
  std::optional<Error> error_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace dspack::format
