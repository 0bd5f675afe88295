// A conversation in the form of chat templates, and its form in JSON.
// Threads: plain values, pure functions. Errors: invalid.
#pragma once

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

/// JSON whose objects keep the order of their keys: templates print them.
using OrderedJson = nlohmann::ordered_json;

/// A developer is OpenAI's newer name for the system; DeepSeek-V3.2's encoding has it as a separate role, which asks
/// questions and brings tools. latest_reminder is DeepSeek-V4's: facts that hold when the next question is asked.
enum class Role { system, developer, user, assistant, tool, latest_reminder };
/// Errors: invalid (templates would silently ignore such a message).
[[nodiscard]] Result<Role> parse_role(std::string_view name);
[[nodiscard]] std::string_view to_string(Role role);

struct ToolCall {
  std::string type = "function";
  std::string name;
  OrderedJson arguments;               // a string (JSON as text), or the object itself; templates tell them apart
  std::optional<std::string> id = {};  // Kimi-K2's templates print it
};

/// Represents a call of an OpenAI tool of type "custom", whose input is one text, so that templates can write it: as a
/// function call with the one argument "input".
[[nodiscard]] ToolCall custom_call(std::string name, std::string_view input, std::optional<std::string> id);

struct ChatMessage {
  Role role = Role::user;
  std::optional<std::string> content = {};               // nullopt is Jinja's none
  std::optional<std::vector<ToolCall>> tool_calls = {};  // for an assistant; an empty list is not the same as none
  std::optional<std::string> tool_call_id = {};          // for a tool's message: the call that it answers
  std::optional<std::string> name = {};                  // Kimi-K2's templates print it instead of the role
  bool prefix = false;      // for the last message: it begins the answer, which the model continues (DeepSeek-V3.1)
  OrderedJson others = {};  // the message's other fields, such as "reasoning_content"; null: none
  std::vector<size_t> seams = {};  // offsets in `content` of the line feeds between its parts

  /// Appends a part to the content.
  void add_part(std::string_view text);
};

struct RenderOptions {
  std::string bos_token = {};           // from tokenizer_config.json; empty if there is none
  std::string eos_token = {};           // from tokenizer_config.json; empty if there is none
  bool add_generation_prompt = true;    // end where the assistant's answer begins
  bool continue_final_message = false;  // end within the last message, after its content; without a generation prompt
  OrderedJson tools = {};               // a list in OpenAI's form, or null; DeepSeek's templates do not print it
  OrderedJson arguments = {};           // other arguments of the template, by name; an object or null
  std::tm now = {};                     // for templates that print the date
  std::stop_token stop = {};            // cancels the rendering
  /// If set, the text is guarded (guarded_text.h): all text of the conversation passes through this.
  std::function<std::string(std::string_view)> guard = {};
};

/// Limit per conversation. Published templates read at most eight.
inline constexpr size_t kMaxTemplateArguments = 256;

struct Conversation {
  std::vector<ChatMessage> messages;
  OrderedJson tools = {};      // null: none
  OrderedJson arguments = {};  // the template's arguments, an object; null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer continues the last message, an assistant's
};

/// A conversation from JSON, in the form of OpenAI's chat API: {"messages": [...], "tools": [...]}, or only the list of
/// messages. As on other servers, "chat_template_kwargs" has the template's arguments.
///
/// A message: "role", "content" (a string, or null; absent is null), and optionally "tool_calls" (a list of {"id",
/// "type", "function": {"name", "arguments"}}; null is absent), "tool_call_id", "name", "prefix". Other fields are kept
/// unchanged for templates that use them. Arguments are a string or an object (some templates take only one of these);
/// null is a call without arguments. Errors: invalid, naming message and field.
[[nodiscard]] Result<Conversation> parse_conversation(std::string_view json_text);
/// The same for JSON that parse_ordered_json has read.
[[nodiscard]] Result<Conversation> read_conversation(const OrderedJson& root);

/// An object in JSON, for RenderOptions::arguments. Errors: invalid.
[[nodiscard]] Result<OrderedJson> parse_template_arguments(std::string_view json_text);

/// A call's arguments as an object, parsed if they are JSON text. Errors: invalid, naming the call.
[[nodiscard]] Result<OrderedJson> arguments_as_object(const ToolCall& call);

}  // namespace dspack::runtime
