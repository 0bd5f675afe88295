// DeepSeek-V3's chat template (tokenizer_config.json of deepseek-ai/DeepSeek-V3), rendered as Jinja renders it.
//
// Its oddities are kept, because the model was trained on its output:
// - the closing <｜tool▁calls▁end｜> and end of sentence follow the second call of a conversation and every later one:
//   a single call is never closed, three calls are closed twice;
// - only the first call of a conversation has <｜Assistant｜> in front, only the first tool result opens the outputs;
// - a user message after tool results leaves the outputs open;
// - end of sentence is literal, whatever the repository calls its EOS.
// Threads: thread-safe (a pure function). Errors: invalid (a message without content, other than an assistant's).
#pragma once

#include <span>
#include <string>

#include "runtime/text/chat_template.h"

namespace dspack::runtime {

[[nodiscard]] Result<std::string> render_deepseek_v3(std::span<const ChatMessage> messages,
                                                     const RenderOptions& options);

}  // namespace dspack::runtime
