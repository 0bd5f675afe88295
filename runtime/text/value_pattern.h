// The regular expressions of JSON Schema against strings' values. Those that a grammar can be held to (json_pattern.h)
// mean here what they mean there; those with look-around, back references, \b and anchors within are PCRE2's, as far as
// its syntax and ECMA-262's are the same.
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

  static constexpr uint32_t kMostSteps = 100'000;  // some 2 ms

  /// Whether the pattern is found in a string of valid UTF-8, within `most_steps` of PCRE2.
  [[nodiscard]] Result<bool> is_in(std::string_view value, uint32_t most_steps = kMostSteps) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, Free>;
  ValuePattern(Code code, bool is_of_text) : code_(std::move(code)), is_of_text_(is_of_text) {}
  /// `options`: of PCRE2, beside those that ECMA-262 asks for.
  [[nodiscard]] static Result<Code> compiled(std::string_view expression, uint32_t options);
  Code code_;
  bool is_of_text_;  // of the value's JSON text, and of all of it
};

}  // namespace dspack::runtime
