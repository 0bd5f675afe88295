// Chat templates: turn a conversation into the one text that the model was trained on. A template is a program in the
// language Jinja: a repository's own, or one that dsrun includes (builtin_templates.h).
// Threads: immutable, thread-safe. Errors: compile: those of jinja::Program; named: not_found; render: invalid (a
// message for which the template fails), unsupported (a last message that cannot be continued), budget, cancelled.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/builtin_templates.h"
#include "runtime/text/chat_message.h"
#include "runtime/text/jinja/program.h"

namespace dspack::runtime {

class ChatTemplate {
 public:
  [[nodiscard]] static Result<ChatTemplate> compile(std::string_view jinja_source);
  /// A template that dsrun includes, by its name, such as "deepseek-v3".
  [[nodiscard]] static Result<ChatTemplate> named(std::string_view name);

  /// Whether it reads an argument that switches reasoning at the start of an answer.
  [[nodiscard]] bool has_thinking_switch() const;
  /// Whether RenderOptions::tools are printed.
  [[nodiscard]] bool prints_tools() const;
  [[nodiscard]] const TemplateTraits& traits() const { return traits_; }
  /// The names in RenderOptions::arguments that it reads.
  [[nodiscard]] std::vector<std::string> arguments() const;
  /// The text includes the BOS if the template writes one: encode it without adding another. `cost` is written even if
  /// the template fails.
  [[nodiscard]] Result<std::string> render(std::span<const ChatMessage> messages, const RenderOptions& options,
                                           jinja::Cost* cost = nullptr) const;

 private:
  ChatTemplate(jinja::Program program, TemplateTraits traits) : program_(std::move(program)), traits_(traits) {}
  [[nodiscard]] static Result<ChatTemplate> compile(std::string_view jinja_source, TemplateTraits traits);
  jinja::Program program_;
  TemplateTraits traits_;
};

/// The arguments that switch reasoning at the start of an answer: each template reads one of these names, with its own
/// default.
[[nodiscard]] OrderedJson thinking_arguments(bool thinking);
/// Whether the name is set by the conversation, as "messages", so that it cannot be an argument.
[[nodiscard]] bool is_given_to_templates(std::string_view name);

}  // namespace dspack::runtime
