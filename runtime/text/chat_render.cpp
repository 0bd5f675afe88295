#include "runtime/text/chat_render.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/text/json.h"

namespace dspack::runtime {

Result<std::string_view> content_of(Messages messages, size_t index) {
  const ChatMessage& message = messages[index];
  if (message.content) return std::string_view(*message.content);
  return Error{ErrorKind::invalid, fmt::format("message {} ({}) has no content", index, to_string(message.role))};
}

Result<std::string> joined_system_texts(Messages messages) {
  std::string text;
  bool first = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != Role::system) continue;
    TRY_ASSIGN(const std::string_view content, content_of(messages, i));
    if (!first) text += "\n\n";
    text += content;
    first = false;
  }
  return text;
}

std::string_view without_reasoning(std::string_view content) {
  const size_t last = content.rfind(kEndOfReasoning);
  return last == std::string_view::npos ? content : content.substr(last + kEndOfReasoning.size());
}

Result<std::string_view> arguments_of(const ToolCall& call, size_t index) {
  if (call.arguments.is_string()) return std::string_view(call.arguments.get_ref<const std::string&>());
  return Error{ErrorKind::invalid,
               fmt::format("message {}: the arguments of the call of {} are not a string; this chat "
                           "template wants JSON as text",
                           index, quote(call.name))};
}

Result<std::string> typed_call(const ToolCall& call, size_t index) {
  TRY_ASSIGN(const std::string_view arguments, arguments_of(call, index));
  return fmt::format("{}<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>", call.type, call.name, arguments);
}

}  // namespace dspack::runtime
