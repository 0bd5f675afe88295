// Chat templates: a conversation as the one text that the model was trained on.
//
// A repository states its template as Jinja source. The sources that DeepSeek and Moonshot published are recognised by
// their canonical form (jinja_source.h) and rendered by equivalent code, oddities and failures included; that code also
// serves their names where there is no source. Every other source is run by the engine in jinja/.
// Threads: immutable, thread-safe. Errors: recognise: those of jinja::Program; named: not_found; render: invalid (a
// message for which the template fails), budget.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"
#include "runtime/text/jinja/program.h"

namespace dspack::runtime {

class ChatTemplate {
 public:
  [[nodiscard]] static Result<ChatTemplate> recognise(std::string_view jinja_source);
  /// By `name`, as "deepseek-v3".
  [[nodiscard]] static Result<ChatTemplate> named(std::string_view name);
  /// All names, with commas between, for messages.
  [[nodiscard]] static std::string names();

  [[nodiscard]] std::string_view name() const;
  /// Whether RenderOptions::thinking makes a difference.
  [[nodiscard]] bool has_thinking_switch() const;
  /// Whether RenderOptions::tools are printed.
  [[nodiscard]] bool prints_tools() const;
  /// The text includes the BOS where the template has one: encode it without another one.
  [[nodiscard]] Result<std::string> render(std::span<const ChatMessage> messages, const RenderOptions& options) const;

 private:
  struct Known;
  static const Known kKnown[];
  explicit ChatTemplate(const Known& known) : known_(&known) {}
  explicit ChatTemplate(jinja::Program program) : program_(std::move(program)) {}
  const Known* known_ = nullptr;  // if there is no program
  std::optional<jinja::Program> program_;
};

}  // namespace dspack::runtime
