// Chat templates: a conversation as the one text that the model was trained on.
//
// A repository states its template as Jinja source. Instead of running Jinja, the sources that DeepSeek and Moonshot
// published are recognised and rendered by equivalent code, oddities and failures included, because the models were
// trained on their output. What is compared is the source's canonical form (jinja_source.h), so another way of writing
// the same program is recognised too. An unknown source is reported, never guessed. Threads: immutable, thread-safe.
// Lifetime: refers to static data. Errors: recognise: unsupported; named: not_found; render: invalid (a message for
// which Jinja would fail).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"

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
  const Known* known_;
};

}  // namespace dspack::runtime
