// The chat templates of DeepSeek-V3.1 and of V3.1-Terminus, which V3.2-Exp has too. An answer begins with <think> or
// </think>, as RenderOptions::thinking says; those of earlier turns count as given without reasoning.
//
// Their oddities: an answer's reasoning is left out up to the first </think> (elsewhere: the last), and kept after tool
// results; V3.1 asks for an answer after a user message alone; tools are not printed: they belong into a system
// message.
#include "runtime/text/chat_render.h"

namespace dspack::runtime {
namespace {

class V31Renderer {
 public:
  V31Renderer(Messages messages, const RenderOptions& options, bool terminus)
      : messages_(messages), options_(options), terminus_(terminus) {}

  Result<std::string> run() {
    TRY_ASSIGN(const std::string system_text, joined_system_texts(messages_));
    text_ = options_.bos_token + system_text;
    for (const ChatMessage& message : messages_)
      only_system_ = only_system_ || (terminus_ && message.role == Role::system);
    for (size_t i = 0; i < messages_.size(); ++i)
      TRY(append(i));
    if (options_.add_generation_prompt && asks_for_answer()) append_mark(options_.thinking);
    return std::move(text_);
  }

 private:
  [[nodiscard]] bool asks_for_answer() const {
    if (after_tool_) return false;
    return after_user_ || (terminus_ && (only_system_ || !any_prefix_));
  }

  void append_mark(bool thinking) { text_ += thinking ? "<｜Assistant｜><think>" : "<｜Assistant｜></think>"; }

  Result<void> append(size_t index) {
    const ChatMessage& message = messages_[index];
    if (message.role == Role::system) return {};
    if (message.role == Role::assistant) {
      TRY(message.tool_calls ? append_calls(index) : append_answer(index));
      after_user_ = after_tool_ = false;
    } else {
      TRY_ASSIGN(const std::string_view content, content_of(messages_, index));
      after_user_ = message.role == Role::user;
      after_tool_ = message.role == Role::tool;
      text_ += after_user_ ? "<｜User｜>" : "<｜tool▁output▁begin｜>";
      text_ += content;
      if (after_tool_) text_ += "<｜tool▁output▁end｜>";
    }
    only_system_ = false;
    return {};
  }

  Result<void> append_calls(size_t index) {
    if (after_user_ || only_system_) append_mark(false);
    bool first = true;
    for (const ToolCall& call : *messages_[index].tool_calls) {
      TRY_ASSIGN(const std::string_view arguments, arguments_of(call, index));
      if (first) text_ += messages_[index].content.value_or("") + "<｜tool▁calls▁begin｜>";
      first = false;
      text_ += "<｜tool▁call▁begin｜>" + call.name + "<｜tool▁sep｜>";
      text_ += arguments;
      text_ += "<｜tool▁call▁end｜>";
    }
    text_ += "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";
    return {};
  }

  Result<void> append_answer(size_t index) {
    const ChatMessage& message = messages_[index];
    if (after_user_) append_mark(message.prefix && options_.thinking);
    any_prefix_ = any_prefix_ || message.prefix;
    TRY_ASSIGN(std::string_view content, content_of(messages_, index));
    if (const size_t end = content.find(kEndOfReasoning); !after_tool_ && end != std::string_view::npos) {
      content.remove_prefix(end + kEndOfReasoning.size());
    }
    text_ += content;
    text_ += "<｜end▁of▁sentence｜>";
    return {};
  }

  Messages messages_;
  const RenderOptions& options_;
  bool terminus_;
  std::string text_;
  bool only_system_ = false;  // Terminus: there are system messages, and no other has come yet
  bool any_prefix_ = false;
  bool after_tool_ = false;
  bool after_user_ = false;
};

}  // namespace

Result<std::string> render_deepseek_v3_1(Messages messages, const RenderOptions& options, bool terminus) {
  return V31Renderer(messages, options, terminus).run();
}

}  // namespace dspack::runtime
