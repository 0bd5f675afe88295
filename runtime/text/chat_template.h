// Chat templates: a conversation as the one text that the model was trained on.
//
// A repository states its template as Jinja source. Instead of running Jinja, the known sources are recognised, byte
// for byte, and rendered by code of the same meaning. An unknown source is reported, never guessed. Threads: immutable,
// thread-safe. Lifetime: owns nothing that can dangle. Errors: recognise: unsupported; render: invalid (a message for
// which Jinja would fail).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

enum class Role { system, user, assistant, tool };
/// Errors: invalid (templates would pass over such a message in silence).
[[nodiscard]] Result<Role> parse_role(std::string_view name);
[[nodiscard]] std::string_view to_string(Role role);

struct ToolCall {
  std::string type = "function";
  std::string name;
  std::string arguments;  // JSON as text
};

struct ChatMessage {
  Role role = Role::user;
  std::optional<std::string> content;  // nullopt is Jinja's none: an assistant that only calls tools
  std::vector<ToolCall> tool_calls;    // of an assistant; DeepSeek-V3's template passes over them if there is content
};

struct RenderOptions {
  std::string_view bos_token;         // from tokenizer_config.json; empty if there is none
  bool add_generation_prompt = true;  // end where the assistant's answer begins
};

class ChatTemplate {
 public:
  [[nodiscard]] static Result<ChatTemplate> recognise(std::string_view jinja_source);

  /// For people: "DeepSeek-V3".
  [[nodiscard]] std::string_view name() const;
  /// The text includes the BOS: encode it without another one.
  [[nodiscard]] Result<std::string> render(std::span<const ChatMessage> messages, const RenderOptions& options) const;

 private:
  enum class Kind { deepseek_v3 };
  explicit ChatTemplate(Kind kind) : kind_(kind) {}
  Kind kind_;
};

}  // namespace dspack::runtime
