// The chat templates of Kimi-K2's releases, which differ in small things.
// Threads: thread-safe (a pure function). Errors: none that a ChatMessage can cause.
#pragma once

#include "runtime/text/chat_render.h"

namespace dspack::runtime {

struct KimiStyle {
  std::string_view tools_heading = {};   // between the declaration's head and the tools
  bool compact_tools = false;            // no spaces in their JSON
  std::string_view default_system = {};  // where the conversation begins without a system message
  bool names = true;                     // a message's name stands for its role
  bool numbers_calls = false;            // their ids are their numbers within the message, whatever ids they have
  bool quotes_text_arguments = false;    // arguments that are text come as a JSON string
  std::string_view before_result = {};   // between the line of a tool's result and its content
  bool none_is_text = false;             // a result without content reads None
  bool leaves_last_open = false;         // no end after the last message where no answer is asked for
};
[[nodiscard]] Result<std::string> render_kimi_k2(Messages messages, const RenderOptions& options,
                                                 const KimiStyle& style);

}  // namespace dspack::runtime
