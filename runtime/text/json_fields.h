// Typed access to the fields of a JSON object from outside, checked when read: a request, or a tokenizer's file. Null
// counts as absent; a value that is no object has no fields. (format/config_fields.h keeps the first error of a long
// list and refuses keys that nobody reads; format/json.h takes null for a value.)
// Threads: plain values. Lifetime: borrows the object. Errors: invalid, naming the field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// `Json`: nlohmann::json, or OrderedJson of requests.
template <typename Json>
class FieldsOf {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  explicit FieldsOf(const Json& object) : object_(object) {}

  /// nullptr: absent.
  [[nodiscard]] const Json* find(const char* name) const;
  [[nodiscard]] Result<std::optional<double>> number(const char* name, double least, double most) const;
  [[nodiscard]] Result<std::optional<uint64_t>> whole(const char* name, uint64_t least, uint64_t most) const;
  /// The same, but -1, which other servers read as none or all, gives kUnlimited.
  [[nodiscard]] Result<std::optional<uint64_t>> limit(const char* name, uint64_t least, uint64_t most) const;
  [[nodiscard]] Result<std::optional<bool>> flag(const char* name) const;
  [[nodiscard]] Result<bool> flag(const char* name, bool otherwise) const;
  [[nodiscard]] Result<std::optional<std::string>> text(const char* name) const;
  /// nullptr: absent.
  [[nodiscard]] Result<const Json*> array(const char* name) const;

  // Absent is an error.
  [[nodiscard]] Result<std::string> required_text(const char* name) const;
  [[nodiscard]] Result<const Json*> required_object(const char* name) const;

 private:
  const Json& object_;
};

extern template class FieldsOf<OrderedJson>;
extern template class FieldsOf<nlohmann::json>;
using JsonFields = FieldsOf<OrderedJson>;

/// Whether the value is the integer -1; unsigned numbers beyond 63 bits do not wrap to it.
template <typename Json>
[[nodiscard]] bool is_minus_one(const Json& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.template get<int64_t>() == -1;
}

}  // namespace dspack::runtime
