#include "runtime/text/chat_deepseek.h"

namespace dspack::runtime {

// DeepSeek-V2's chat template (chat and Coder, full and Lite). System texts stay where they are; messages of tools and
// tool calls are passed over in silence; the end of sentence is the one that tokenizer_config.json names.

Result<std::string> render_deepseek_v2(Messages messages, const RenderOptions& options) {
  std::string text = options.bos_token;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::tool) continue;
    TRY_ASSIGN(const std::string_view content, content_of(messages, i));
    if (messages[i].role == Role::user) text += "User: ";
    if (messages[i].role == Role::assistant) text += "Assistant: ";
    text += content;
    text += messages[i].role == Role::assistant ? std::string_view(options.eos_token) : std::string_view("\n\n");
  }
  if (options.add_generation_prompt) text += "Assistant:";
  return text;
}

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

// DeepSeek-R1's chat templates since February 2025. The later one asks for an answer with an open <think>; both leave
// out the reasoning of earlier answers.
//
// Their oddities: only the first call of a conversation has the assistant's mark and content in front, only the first
// tool result opens the outputs, and results follow each other without a line feed; an answer after tool results keeps
// its reasoning; a list of calls that is empty is closed nevertheless.

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

// The chat templates of DeepSeek-V3-0324 and R1-0528: the assistant's mark follows every user message, so that nothing
// is left to ask for where a user spoke last.
//
// Their oddities: an answer that does not follow a user message has no mark; R1-0528 leaves out the reasoning of every
// earlier answer and fails for one without content, even if it calls tools.

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

// The chat templates of DeepSeek-V3.1 and of V3.1-Terminus, which V3.2-Exp has too. An answer begins with <think> or
// </think>, as RenderOptions::thinking says; those of earlier turns count as given without reasoning.
//
// Their oddities: an answer's reasoning is left out up to the first </think> (elsewhere: the last), and kept after tool
// results; V3.1 asks for an answer after a user message alone; tools are not printed: they belong into a system
// message.

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
