// tokenizer_config.json: the special tokens by role, and the chat template.
// Threads: thread-safe (a pure function). Lifetime: owns its strings. Errors: invalid, one line.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

struct TokenizerConfig {
  bool add_bos_token = false;  // for plain text; chat templates write the BOS themselves
  bool add_eos_token = false;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> chat_template;       // from a list of templates: the one named "default"
  std::optional<std::string> tool_chat_template;  // from a list: the one named "tool_use", for conversations with tools

  /// Absent and null fields keep the defaults above.
  [[nodiscard]] static Result<TokenizerConfig> from_json(std::string_view tokenizer_config_json);
};

}  // namespace dspack::runtime
