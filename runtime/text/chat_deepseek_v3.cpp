#include "runtime/text/chat_deepseek_v3.h"

#include <fmt/format.h>

namespace dspack::runtime {
namespace {

class Renderer {
 public:
  explicit Renderer(const RenderOptions& options) : options_(options) {}

  std::string run(std::span<const ChatMessage> messages) {
    text_ = options_.bos_token;
    append_system_prompt(messages);
    for (const ChatMessage& message : messages)
      append(message);
    if (after_tool_) text_ += "<｜tool▁outputs▁end｜>";
    if (options_.add_generation_prompt && !after_tool_) text_ += "<｜Assistant｜>";
    return std::move(text_);
  }

 private:
  void append_system_prompt(std::span<const ChatMessage> messages) {
    bool first = true;
    for (const ChatMessage& message : messages) {
      if (message.role != Role::system) continue;
      if (!first) text_ += "\n\n";
      text_ += *message.content;
      first = false;
    }
  }

  void append(const ChatMessage& message) {
    switch (message.role) {
      case Role::system: break;  // all of them stand at the front
      case Role::user:
        after_tool_ = false;
        text_ += "<｜User｜>" + *message.content;
        break;
      case Role::assistant:
        if (message.content) {
          append_answer(*message.content);
        } else {
          after_tool_ = false;
          for (const ToolCall& call : message.tool_calls)
            append_call(call);
        }
        break;
      case Role::tool: append_tool_output(*message.content); break;
    }
  }

  void append_answer(const std::string& content) {
    text_ += after_tool_ ? "<｜tool▁outputs▁end｜>" : "<｜Assistant｜>";
    text_ += content + "<｜end▁of▁sentence｜>";
    after_tool_ = false;
  }

  void append_call(const ToolCall& call) {
    text_ += any_call_ ? "\n" : "<｜Assistant｜><｜tool▁calls▁begin｜>";
    text_ += "<｜tool▁call▁begin｜>" + call.type + "<｜tool▁sep｜>" + call.name;
    text_ += "\n```json\n" + call.arguments + "\n```<｜tool▁call▁end｜>";
    if (any_call_) text_ += "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
    any_call_ = true;
  }

  void append_tool_output(const std::string& content) {
    after_tool_ = true;
    text_ += any_output_ ? "\n" : "<｜tool▁outputs▁begin｜>";
    text_ += "<｜tool▁output▁begin｜>" + content + "<｜tool▁output▁end｜>";
    any_output_ = true;
  }

  const RenderOptions& options_;
  std::string text_;
  bool any_call_ = false;    // the template's is_first, which it never resets
  bool any_output_ = false;  // its is_output_first, the same
  bool after_tool_ = false;  // its is_tool
};

}  // namespace

Result<std::string> render_deepseek_v3(std::span<const ChatMessage> messages, const RenderOptions& options) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].content || messages[i].role == Role::assistant) continue;
    return Error{ErrorKind::invalid, fmt::format("message {} ({}) has no content", i, to_string(messages[i].role))};
  }
  return Renderer(options).run(messages);
}

}  // namespace dspack::runtime
