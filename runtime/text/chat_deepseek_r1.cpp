// DeepSeek-R1's chat templates since February 2025. The later one asks for an answer with an open <think>; both leave
// out the reasoning of earlier answers.
//
// Their oddities: only the first call of a conversation has the assistant's mark and content in front, only the first
// tool result opens the outputs, and results follow each other without a line feed; an answer after tool results keeps
// its reasoning; a list of calls that is empty is closed nevertheless.
#include "runtime/text/chat_render.h"

namespace dspack::runtime {
namespace {

class R1Renderer {
 public:
  explicit R1Renderer(Messages messages) : messages_(messages) {}

  Result<std::string> run(const RenderOptions& options, std::string_view question) {
    TRY_ASSIGN(const std::string system_text, joined_system_texts(messages_));
    text_ = options.bos_token + system_text;
    for (size_t i = 0; i < messages_.size(); ++i)
      TRY(append(i));
    if (after_tool_) text_ += "<｜tool▁outputs▁end｜>";
    if (options.add_generation_prompt && !after_tool_) text_ += question;
    return std::move(text_);
  }

 private:
  Result<void> append(size_t index) {
    const ChatMessage& message = messages_[index];
    if (message.role == Role::system) return {};
    if (message.role == Role::assistant && message.tool_calls) return append_calls(index);
    TRY_ASSIGN(const std::string_view content, content_of(messages_, index));
    if (message.role == Role::user) {
      after_tool_ = false;
      text_ += "<｜User｜>";
      text_ += content;
    } else if (message.role == Role::tool) {
      if (!any_output_) text_ += "<｜tool▁outputs▁begin｜>";
      text_ += "<｜tool▁output▁begin｜>";
      text_ += content;
      text_ += "<｜tool▁output▁end｜>";
      any_output_ = after_tool_ = true;
    } else {
      text_ += after_tool_ ? "<｜tool▁outputs▁end｜>" : "<｜Assistant｜>";
      text_ += after_tool_ ? content : without_reasoning(content);
      text_ += "<｜end▁of▁sentence｜>";
      after_tool_ = false;
    }
    return {};
  }

  Result<void> append_calls(size_t index) {
    after_tool_ = false;
    for (const ToolCall& call : *messages_[index].tool_calls) {
      TRY_ASSIGN(const std::string body, typed_call(call, index));
      if (any_call_) {
        text_ += "\n";
      } else {
        text_ += "<｜Assistant｜>" + messages_[index].content.value_or("") + "<｜tool▁calls▁begin｜>";
      }
      text_ += "<｜tool▁call▁begin｜>" + body;
      any_call_ = true;
    }
    text_ += "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
    return {};
  }

  Messages messages_;
  std::string text_;
  bool any_call_ = false;    // the template's is_first, which it never resets
  bool any_output_ = false;  // its is_output_first, the same
  bool after_tool_ = false;  // its is_tool
};

}  // namespace

Result<std::string> render_deepseek_r1(Messages messages, const RenderOptions& options, std::string_view question) {
  return R1Renderer(messages).run(options, question);
}

}  // namespace dspack::runtime
