// Fields of a request's JSON, each checked where it is read. Null counts as absent, as clients mean it.
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

  /// Null if it is absent.
  [[nodiscard]] const OrderedJson* find(const char* name) const;
  [[nodiscard]] Result<std::optional<double>> number(const char* name, double least, double most) const;
  [[nodiscard]] Result<std::optional<uint64_t>> whole(const char* name, uint64_t least, uint64_t most) const;
  /// The same, and -1, which other servers read as none, or all: kUnlimited.
  [[nodiscard]] Result<std::optional<uint64_t>> limit(const char* name, uint64_t least, uint64_t most) const;
  [[nodiscard]] Result<std::optional<bool>> flag(const char* name) const;
  [[nodiscard]] Result<std::optional<std::string>> text(const char* name) const;

 private:
  const OrderedJson& object_;
};

/// -1, as it stands; no number beyond 63 bits counts as it.
[[nodiscard]] bool is_minus_one(const OrderedJson& value);
/// In one line; broken UTF-8 as U+FFFD, long whole numbers (runtime/text/json.h) with all their digits.
[[nodiscard]] std::string json_text(const OrderedJson& value);

}  // namespace dspack::runtime
