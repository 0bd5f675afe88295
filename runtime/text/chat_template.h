// Chat templates: a conversation as the one text that the model was trained on. A template is a program in the language
// Jinja: a repository's own, or one that dsrun brings along (builtin_templates.h).
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
  /// By the name of one that dsrun brings along, as "deepseek-v3".
  [[nodiscard]] static Result<ChatTemplate> named(std::string_view name);

  /// Whether it reads one of the names that say whether an answer begins with reasoning.
  [[nodiscard]] bool has_thinking_switch() const;
  /// Whether RenderOptions::tools are printed.
  [[nodiscard]] bool prints_tools() const;
  [[nodiscard]] const TemplateTraits& traits() const { return traits_; }
  /// The names of RenderOptions::arguments that it reads.
  [[nodiscard]] std::vector<std::string> arguments() const;
  /// The text includes the BOS where the template has one: encode it without another one. The cost is written even if
  /// the template fails.
  [[nodiscard]] Result<std::string> render(std::span<const ChatMessage> messages, const RenderOptions& options,
                                           jinja::Cost* cost = nullptr) const;

 private:
  ChatTemplate(jinja::Program program, TemplateTraits traits) : program_(std::move(program)), traits_(traits) {}
  [[nodiscard]] static Result<ChatTemplate> compile(std::string_view jinja_source, TemplateTraits traits);
  jinja::Program program_;
  TemplateTraits traits_;
};

/// What tells a template whether an answer begins with reasoning: each reads one of these names, with a default of its
/// own.
[[nodiscard]] OrderedJson thinking_arguments(bool thinking);
/// Whether the conversation gives a template this, so that no argument can: "messages".
[[nodiscard]] bool is_given_to_templates(std::string_view name);

}  // namespace dspack::runtime
