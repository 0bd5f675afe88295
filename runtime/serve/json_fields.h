// Typed access to the fields of a request's JSON, checked when read. Null counts as absent.
// Threads: plain values. Lifetime: borrows the object. Errors: invalid, naming the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

class JsonFields {
 public:
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  explicit JsonFields(const OrderedJson& object) : object_(object) {}

  /// nullptr: absent.
  [[nodiscard]] const OrderedJson* find(const char* name) const;
  [[nodiscard]] Result<std::optional<double>> number(const char* name, double least, double most) const;
  [[nodiscard]] Result<std::optional<uint64_t>> whole(const char* name, uint64_t least, uint64_t most) const;
  /// The same, but -1, which other servers read as none or all, gives kUnlimited.
  [[nodiscard]] Result<std::optional<uint64_t>> limit(const char* name, uint64_t least, uint64_t most) const;
  [[nodiscard]] Result<std::optional<bool>> flag(const char* name) const;
  [[nodiscard]] Result<std::optional<std::string>> text(const char* name) const;

 private:
  const OrderedJson& object_;
};

/// Whether the value is the integer -1; unsigned numbers beyond 63 bits do not wrap to it.
[[nodiscard]] bool is_minus_one(const OrderedJson& value);
/// JSON on one line; invalid UTF-8 becomes U+FFFD, long integers (runtime/text/json.h) keep all digits.
[[nodiscard]] std::string json_text(const OrderedJson& value);

}  // namespace dspack::runtime
