// The chat templates of DeepSeek-V3-0324 and R1-0528: the assistant's mark follows every user message, so that nothing
// is left to ask for where a user spoke last.
//
// Their oddities: an answer that does not follow a user message has no mark; R1-0528 leaves out the reasoning of every
// earlier answer and fails for one without content, even if it calls tools.
#include "runtime/text/chat_render.h"

namespace dspack::runtime {
namespace {

class V30324Renderer {
 public:
  V30324Renderer(Messages messages, bool strips_reasoning) : messages_(messages), strips_reasoning_(strips_reasoning) {}

  Result<std::string> run(const RenderOptions& options) {
    TRY_ASSIGN(const std::string system_text, joined_system_texts(messages_));
    text_ = options.bos_token + system_text;
    for (size_t i = 0; i < messages_.size(); ++i)
      TRY(append(i));
    if (after_tool_) text_ += "<｜tool▁outputs▁end｜>";
    if (options.add_generation_prompt && !after_user_ && !after_tool_) text_ += "<｜Assistant｜>";
    return std::move(text_);
  }

 private:
  Result<void> append(size_t index) {
    const ChatMessage& message = messages_[index];
    if (message.role == Role::system) return {};
    if (message.role == Role::assistant) return append_answer(index);
    TRY_ASSIGN(const std::string_view content, content_of(messages_, index));
    after_user_ = message.role == Role::user;
    after_tool_ = message.role == Role::tool;
    if (after_user_) {
      text_ += "<｜User｜>";
      text_ += content;
      text_ += "<｜Assistant｜>";
    } else {
      text_ += any_output_ ? "\n" : "<｜tool▁outputs▁begin｜>";
      text_ += "<｜tool▁output▁begin｜>";
      text_ += content;
      text_ += "<｜tool▁output▁end｜>";
      any_output_ = true;
    }
    return {};
  }

  Result<void> append_answer(size_t index) {
    const ChatMessage& message = messages_[index];
    after_user_ = false;
    if (after_tool_) text_ += "<｜tool▁outputs▁end｜>";
    after_tool_ = false;
    std::string_view content;
    if (message.content || strips_reasoning_ || !message.tool_calls) {
      TRY_ASSIGN(content, content_of(messages_, index));
    }
    if (strips_reasoning_) content = without_reasoning(content);
    if (!message.tool_calls) {
      text_ += content;
      text_ += "<｜end▁of▁sentence｜>";
      return {};
    }
    any_output_ = false;
    for (size_t i = 0; i < message.tool_calls->size(); ++i) {
      TRY_ASSIGN(const std::string body, typed_call((*message.tool_calls)[i], index));
      if (i == 0) text_ += content;
      text_ += i == 0 ? "<｜tool▁calls▁begin｜>" : "\n";
      text_ += "<｜tool▁call▁begin｜>" + body;
    }
    text_ += "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
    return {};
  }

  Messages messages_;
  bool strips_reasoning_;
  std::string text_;
  bool any_output_ = false;  // since the last calls
  bool after_tool_ = false;
  bool after_user_ = false;
};

}  // namespace

Result<std::string> render_deepseek_v3_0324(Messages messages, const RenderOptions& options, bool strips_reasoning) {
  return V30324Renderer(messages, strips_reasoning).run(options);
}

}  // namespace dspack::runtime
