// The chat templates of DeepSeek-V2.5, V3 (December 2024) and R1 (January 2025).
//
// Their oddities:
// - the closing <｜tool▁calls▁end｜> and end of sentence follow the second call of a conversation and every later one:
//   a single call is never closed, three calls are closed twice;
// - only the first call of a conversation has <｜Assistant｜> in front, only the first tool result opens the outputs;
// - a user message after tool results leaves the outputs open;
// - tool calls beside content are passed over;
// - end of sentence is literal, whatever the repository calls its EOS;
// - V2.5 prints eight spaces for each system message, in front of the BOS.
#include "runtime/text/chat_render.h"

namespace dspack::runtime {
namespace {

class V3Renderer {
 public:
  V3Renderer(Messages messages, const V3Style& style) : messages_(messages), style_(style) {}

  Result<std::string> run(const RenderOptions& options) {
    TRY_ASSIGN(const std::string system_text, system_prompt());
    text_ += options.bos_token + system_text;
    for (size_t i = 0; i < messages_.size(); ++i)
      TRY(append(i));
    if (after_tool_) text_ += "<｜tool▁outputs▁end｜>";
    if (options.add_generation_prompt && !after_tool_) text_ += "<｜Assistant｜>";
    return std::move(text_);
  }

 private:
  Result<std::string> system_prompt() {
    if (!style_.last_system_only) return joined_system_texts(messages_);
    std::string last;
    for (const ChatMessage& message : messages_) {
      if (message.role != Role::system) continue;
      text_ += style_.system_litter;
      last = message.content.value_or("None");  // what Jinja prints for none
    }
    return last;
  }

  Result<void> append(size_t index) {
    const ChatMessage& message = messages_[index];
    if (message.role == Role::system) return {};  // they stand at the front
    if (message.role == Role::assistant && !message.content) return append_calls(index);
    TRY_ASSIGN(const std::string_view content, content_of(messages_, index));
    if (message.role == Role::user) {
      after_tool_ = false;
      text_ += "<｜User｜>";
      text_ += content;
    } else if (message.role == Role::tool) {
      append_tool_output(content);
    } else {
      append_answer(content);
    }
    return {};
  }

  void append_answer(std::string_view content) {
    text_ += after_tool_ ? "<｜tool▁outputs▁end｜>" : "<｜Assistant｜>";
    text_ += style_.strips_reasoning && !after_tool_ ? without_reasoning(content) : content;
    text_ += "<｜end▁of▁sentence｜>";
    after_tool_ = false;
  }

  Result<void> append_calls(size_t index) {
    after_tool_ = false;
    if (!messages_[index].tool_calls) return {};
    for (const ToolCall& call : *messages_[index].tool_calls) {
      TRY_ASSIGN(const std::string body, typed_call(call, index));
      text_ += any_call_ ? "\n" : "<｜Assistant｜><｜tool▁calls▁begin｜>";
      text_ += "<｜tool▁call▁begin｜>" + body;
      if (any_call_) text_ += "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
      any_call_ = true;
    }
    return {};
  }

  void append_tool_output(std::string_view content) {
    after_tool_ = true;
    text_ += any_output_ ? "\n" : "<｜tool▁outputs▁begin｜>";
    text_ += "<｜tool▁output▁begin｜>";
    text_ += content;
    text_ += "<｜tool▁output▁end｜>";
    any_output_ = true;
  }

  Messages messages_;
  const V3Style& style_;
  std::string text_;
  bool any_call_ = false;    // the template's is_first, which it never resets
  bool any_output_ = false;  // its is_output_first, the same
  bool after_tool_ = false;  // its is_tool
};

}  // namespace

Result<std::string> render_deepseek_v3(Messages messages, const RenderOptions& options, const V3Style& style) {
  return V3Renderer(messages, style).run(options);
}

}  // namespace dspack::runtime
