// Splits a template's source into tokens, removing white space as Jinja with trim_blocks and lstrip_blocks.
// Threads: thread-safe (a pure function). Lifetime: owns its texts. Errors: invalid, naming the line; budget (a source
// above kMaxTemplateBytes).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime::jinja {

struct Token {
  enum class Kind {
    data,            // text outside of tags
    variable_begin,  // {{
    variable_end,
    block_begin,  // {%
    block_end,
    name,
    string,  // value with escapes resolved
    integer,
    real,
    sign,  // an operator or a bracket
    end
  };
  Kind kind = Kind::end;
  std::string text;
  uint32_t line = 1;
};

using TokenKind = Token::Kind;

inline constexpr size_t kMaxTemplateBytes = 1U << 20U;  // the largest published have 30 kB

[[nodiscard]] Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace dspack::runtime::jinja
