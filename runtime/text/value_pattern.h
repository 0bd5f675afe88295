// Matches regular expressions of JSON Schema against strings' values. Patterns that a grammar can enforce
// (json_pattern.h) mean the same here; those with look-around, back references, \b and inner anchors are run by PCRE2,
// as far as its syntax agrees with ECMA-262's.
// Threads: immutable. Errors: unsupported (a construct that the two read differently), invalid (syntax); matching:
// budget (a pattern that takes too many steps on this text).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "format/base/result.h"

struct pcre2_real_code_8;

namespace dspack::runtime {

class ValuePattern {
 public:
  [[nodiscard]] static Result<ValuePattern> compile(std::string_view pattern);

  static constexpr uint32_t kMaxSteps = 100'000;  // about 2 ms

  /// Whether the pattern is found in a string of valid UTF-8, within `most_steps` of PCRE2.
  [[nodiscard]] Result<bool> is_in(std::string_view value, uint32_t most_steps = kMaxSteps) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, Free>;
  ValuePattern(Code code, bool is_of_text) : code_(std::move(code)), is_of_text_(is_of_text) {}
  /// `options`: PCRE2's, besides those for ECMA-262.
  [[nodiscard]] static Result<Code> compiled(std::string_view expression, uint32_t options);
  Code code_;
  bool is_of_text_;  // matches the value's whole JSON text, not the value
};

}  // namespace dspack::runtime
