// Kimi-K2's chat templates, which differ in small things (KimiStyle). No BOS; every message ends with <|im_end|>. They
// fail for nothing that a ChatMessage can hold.
#include "runtime/text/chat_kimi.h"

#include <fmt/format.h>

#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

std::string_view kimi_mark(Role role) {
  if (role == Role::user) return "<|im_user|>";
  return role == Role::assistant ? "<|im_assistant|>" : "<|im_system|>";
}

class KimiRenderer {
 public:
  KimiRenderer(const RenderOptions& options, const KimiStyle& style) : options_(options), style_(style) {}

  std::string run(Messages messages) {
    if (!options_.tools.empty()) {
      text_ += fmt::format("<|im_system|>tool_declare<|im_middle|>{}{}<|im_end|>", style_.tools_heading,
                           python_json(options_.tools, style_.compact_tools));
    }
    if (!messages.empty() && messages[0].role != Role::system) text_ += style_.default_system;
    for (size_t i = 0; i < messages.size(); ++i) {
      append(messages[i]);
      if (style_.leaves_last_open && i + 1 == messages.size() && !options_.add_generation_prompt) continue;
      text_ += "<|im_end|>";
    }
    if (options_.add_generation_prompt) text_ += "<|im_assistant|>assistant<|im_middle|>";
    return std::move(text_);
  }

 private:
  void append(const ChatMessage& message) {
    const bool named = style_.names && message.name && !message.name->empty();
    text_ += kimi_mark(message.role);
    text_ += named ? std::string_view(*message.name) : to_string(message.role);
    text_ += "<|im_middle|>";
    if (message.role == Role::tool) {
      text_ += "## Return of " + message.tool_call_id.value_or("");
      text_ += style_.before_result;
      text_ += message.content.value_or(style_.none_is_text ? "None" : "");
      return;
    }
    text_ += message.content.value_or("");
    if (message.role == Role::assistant && message.tool_calls && !message.tool_calls->empty()) {
      append_calls(*message.tool_calls);
    }
  }

  void append_calls(const std::vector<ToolCall>& calls) {
    text_ += "<|tool_calls_section_begin|>";
    for (size_t i = 0; i < calls.size(); ++i) {
      const OrderedJson& arguments = calls[i].arguments;
      const bool as_text = arguments.is_string() && !style_.quotes_text_arguments;
      text_ += fmt::format("<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>", id_of(calls[i], i),
                           as_text ? arguments.get<std::string>() : python_json(arguments, false));
    }
    text_ += "<|tool_calls_section_end|>";
  }

  [[nodiscard]] std::string id_of(const ToolCall& call, size_t place) const {
    return style_.numbers_calls ? fmt::format("functions.{}:{}", call.name, place) : call.id.value_or("");
  }

  const RenderOptions& options_;
  const KimiStyle& style_;
  std::string text_;
};

}  // namespace

Result<std::string> render_kimi_k2(Messages messages, const RenderOptions& options, const KimiStyle& style) {
  return KimiRenderer(options, style).run(messages);
}

}  // namespace dspack::runtime
