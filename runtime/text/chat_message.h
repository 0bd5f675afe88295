// A conversation, as chat templates see it, and its form in JSON.
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

/// A developer is OpenAI's newer name for the system; DeepSeek-V3.2's encoding has it as a role of its own, which asks
/// questions and brings tools. latest_reminder is DeepSeek-V4's: what is so as the next question is asked.
enum class Role { system, developer, user, assistant, tool, latest_reminder };
/// Errors: invalid (templates would pass over such a message in silence).
[[nodiscard]] Result<Role> parse_role(std::string_view name);
[[nodiscard]] std::string_view to_string(Role role);

struct ToolCall {
  std::string type = "function";
  std::string name;
  OrderedJson arguments;               // a string (JSON as text), or the object itself; templates tell them apart
  std::optional<std::string> id = {};  // Kimi-K2's templates print it
};

/// A call of one of OpenAI's tools of type "custom", whose input is one text, as templates can write it: the call of a
/// function with the one argument "input".
[[nodiscard]] ToolCall custom_call(std::string name, std::string_view input, std::optional<std::string> id);

struct ChatMessage {
  Role role = Role::user;
  std::optional<std::string> content = {};               // nullopt is Jinja's none
  std::optional<std::vector<ToolCall>> tool_calls = {};  // of an assistant; an empty list is not the same as none
  std::optional<std::string> tool_call_id = {};          // of a tool's message: what it answers
  std::optional<std::string> name = {};                  // Kimi-K2's templates print it instead of the role
  bool prefix = false;  // of the last message: the beginning of an answer that the model goes on with (DeepSeek-V3.1)
  OrderedJson others = {};         // an object of what else the message had, as "reasoning_content"; null: nothing
  std::vector<size_t> seams = {};  // where the line feeds are in `content` that stand between its parts

  /// One more part of the content.
  void add_part(std::string_view text);
};

struct RenderOptions {
  std::string bos_token = {};           // from tokenizer_config.json; empty if there is none
  std::string eos_token = {};           // the same
  bool add_generation_prompt = true;    // end where the assistant's answer begins
  bool continue_final_message = false;  // end within the last message, after its content; without a generation prompt
  OrderedJson tools = {};               // a list in OpenAI's form, or null; DeepSeek's templates do not print it
  OrderedJson arguments = {};           // what else the template is told, by name; an object or null
  std::tm now = {};                     // what templates that print the date are told
  std::stop_token stop = {};            // a rendering nobody waits for any more ends
  /// Where it is set, the text comes guarded (guarded_text.h): what others have written passes through this.
  std::function<std::string(std::string_view)> guard = {};
};

/// Of one conversation. Published templates read eight at most.
inline constexpr size_t kMostTemplateArguments = 256;

struct Conversation {
  std::vector<ChatMessage> messages;
  OrderedJson tools = {};      // null: none
  OrderedJson arguments = {};  // of the template, an object; null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message is an assistant's, and the answer goes on with it
};

/// A conversation from JSON, in the form of OpenAI's chat API: {"messages": [...], "tools": [...]}, or the list of
/// messages alone. As for other servers, "chat_template_kwargs" has the template's arguments.
///
/// A message: "role", "content" (a string, or null; absent is null), and where it has them "tool_calls" (a list of
/// {"id", "type", "function": {"name", "arguments"}}; null is absent), "tool_call_id", "name", "prefix". Other fields
/// are kept as they are for templates that use them. Arguments are a string or an object (some templates take only one
/// of these); null stands for those of a call without any. Errors: invalid, naming message and field.
[[nodiscard]] Result<Conversation> parse_conversation(std::string_view json_text);
/// The same of JSON that parse_ordered_json has read.
[[nodiscard]] Result<Conversation> read_conversation(const OrderedJson& root);

/// An object in JSON, for RenderOptions::arguments. Errors: invalid, likewise.
[[nodiscard]] Result<OrderedJson> parse_template_arguments(std::string_view json_text);

/// A call's arguments as an object, also where they are written as JSON text. Errors: invalid, likewise.
[[nodiscard]] Result<OrderedJson> arguments_as_object(const ToolCall& call);

}  // namespace dspack::runtime
