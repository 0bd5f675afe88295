// The chat templates of DeepSeek's releases: each function renders as the published Jinja source does, and fails where
// it fails. chat_deepseek.cpp documents the oddities of each template.
// Threads: thread-safe (pure functions). Errors: invalid, naming the message by its index from 0.
#pragma once

#include "runtime/text/chat_render.h"

namespace dspack::runtime {

[[nodiscard]] Result<std::string> render_deepseek_v2(Messages messages, const RenderOptions& options);

struct V3Style {
  bool last_system_only = false;        // V2.5: the last system text, not all of them
  std::string_view system_litter = {};  // V2.5: printed in front of everything, once for each system message
  bool strips_reasoning = false;        // R1 of January 2025
};
[[nodiscard]] Result<std::string> render_deepseek_v3(Messages messages, const RenderOptions& options,
                                                     const V3Style& style);

/// `question`: the text that asks for an answer.
[[nodiscard]] Result<std::string> render_deepseek_r1(Messages messages, const RenderOptions& options,
                                                     std::string_view question);

[[nodiscard]] Result<std::string> render_deepseek_v3_0324(Messages messages, const RenderOptions& options,
                                                          bool strips_reasoning);

[[nodiscard]] Result<std::string> render_deepseek_v3_1(Messages messages, const RenderOptions& options, bool terminus);

}  // namespace dspack::runtime
