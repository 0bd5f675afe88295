#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/serve/field_table.h"
#include "runtime/serve/request_fields.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

/// Reads content blocks of Anthropic's API as a message's content.
Result<void> read_text(const OrderedJson& content, std::string_view where, ChatMessage& message) {
  message.content = "";
  if (content.is_string()) message.content = content.get<std::string>();
  if (content.is_string()) return {};
  if (!content.is_array()) return invalid(fmt::format("{} is not a string or a list", where));
  for (const OrderedJson& block : content) {
    if (!block.is_object()) return invalid(fmt::format("{}: a block is not an object", where));
    TRY_ASSIGN(const auto named, JsonFields(block).text("type"));
    const std::string type = named.value_or("");
    if (type != "text") {
      return Error{ErrorKind::unsupported,
                   fmt::format("{}: a block of type {} cannot be read there, only text", where, quote(type))};
    }
    TRY_ASSIGN(const auto words, JsonFields(block).text("text"));
    if (message.content->empty())
      message.content = words.value_or("");
    else
      message.add_part(words.value_or(""));
  }
  return {};
}

/// Reads one message of Anthropic's API, which may become several: each tool result is a message.
Result<void> read_blocks(const OrderedJson& message, std::vector<ChatMessage>& messages) {
  TRY_ASSIGN(const auto role, JsonFields(message).text("role"));
  if (role != "user" && role != "assistant") return invalid("a message's \"role\" is not user or assistant");
  const OrderedJson* content = JsonFields(message).find("content");
  if (content == nullptr) return invalid("a message has no \"content\"");
  ChatMessage spoken{.role = *role == "user" ? Role::user : Role::assistant};
  if (content->is_string()) {
    spoken.content = content->get<std::string>();
    messages.push_back(std::move(spoken));
    return {};
  }
  if (!content->is_array()) return invalid("a message's \"content\" is not a string or a list");
  for (const OrderedJson& block : *content) {
    if (!block.is_object()) return invalid("a block of \"content\" is not an object");
    const JsonFields fields(block);
    TRY_ASSIGN(const auto type, fields.text("type"));
    if (type == "text") {
      TRY_ASSIGN(const auto text, fields.text("text"));
      spoken.add_part(text.value_or(""));
    } else if (type == "thinking") {
      TRY_ASSIGN(const auto thinking, fields.text("thinking"));
      if (thinking) spoken.others["reasoning_content"] = *thinking;
    } else if (type == "tool_use") {
      TRY_ASSIGN(const auto name, fields.text("name"));
      TRY_ASSIGN(const auto id, fields.text("id"));
      const OrderedJson* input = fields.find("input");
      if (!name || (input != nullptr && !input->is_object()))
        return invalid("a tool_use block lacks \"name\", or its \"input\" is not an object");
      if (!spoken.tool_calls) spoken.tool_calls.emplace();
      spoken.tool_calls->push_back({.name = *name, .arguments = input == nullptr ? "{}" : json_text(*input), .id = id});
    } else if (type == "tool_result") {
      TRY_ASSIGN(const auto id, fields.text("tool_use_id"));
      const OrderedJson* result = fields.find("content");
      ChatMessage answer{.role = Role::tool, .content = "", .tool_call_id = id};
      if (result != nullptr) {
        TRY(read_text(*result, "the content of a tool_result", answer));
      }
      messages.push_back(std::move(answer));
    } else if (type != "redacted_thinking") {
      return Error{ErrorKind::unsupported, fmt::format("a block of type {} cannot be read", quote(type.value_or("")))};
    }
  }
  if (spoken.content || spoken.tool_calls) messages.push_back(std::move(spoken));
  return {};
}

/// The functions among the tools, in the form of the chat API; null: none. Other tools have types of their own and no
/// schema: a model not trained on them does not know them.
Result<OrderedJson> read_tools(const OrderedJson& tools, std::vector<std::string>& remarks) {
  if (!tools.is_array()) return invalid("\"tools\" is not a list");
  OrderedJson functions;
  for (const OrderedJson& tool : tools) {
    if (!tool.is_object()) return invalid("a tool is not an object");
    TRY_ASSIGN(const auto type, JsonFields(tool).text("type"));
    if (type && type != "custom") {
      remark(remarks, left_out_tool(*type));
      continue;
    }
    TRY_ASSIGN(const auto name, JsonFields(tool).text("name"));
    if (!name) return invalid("a tool has no \"name\"");
    OrderedJson function = {{"name", *name}};
    if (tool.contains("description")) function["description"] = tool["description"];
    if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
    if (tool.contains("strict")) function["strict"] = tool["strict"];
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return functions;
}

/// Reads "output_config", and the older "output_format".
Result<void> read_output(const JsonFields& fields, Conversation& conversation, AnswerForm& form) {
  TRY(read_format(fields.find("output_format"), "output_format", form));
  const OrderedJson* output = fields.find("output_config");
  if (output == nullptr) return {};
  if (!output->is_object()) return invalid("\"output_config\" is not an object");
  TRY(read_format(JsonFields(*output).find("format"), "output_config.format", form));
  TRY_ASSIGN(const auto effort, JsonFields(*output).text("effort"));
  if (effort) conversation.arguments["reasoning_effort"] = *effort;
  return {};
}

}  // namespace

Result<AnswerRequest> parse_messages_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  AnswerRequest request;
  TRY(check_fields(root, kMessages, request.remarks));
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY(read_length(fields, {"max_tokens"}, 1, request));
  TRY_ASSIGN(request.stop, read_stops(fields.find("stop_sequences"), "stop_sequences"));
  Conversation conversation;
  if (const OrderedJson* system = fields.find("system")) {
    ChatMessage message{.role = Role::system};
    TRY(read_text(*system, "\"system\"", message));
    conversation.messages.push_back(std::move(message));
  }
  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array()) return invalid("\"messages\" is not a list");
  if (messages->empty()) return invalid("\"messages\" is empty");
  for (const OrderedJson& message : *messages) {
    if (!message.is_object()) return invalid("a message is not an object");
    TRY(read_blocks(message, conversation.messages));
  }
  // If the last message is the assistant's, the answer continues it, unless it waits for tool results. (Anthropic
  // refuses one that ends in white space; here it is continued unchanged.)
  const ChatMessage* last = conversation.messages.empty() ? nullptr : &conversation.messages.back();
  if (last != nullptr && last->role == Role::assistant && !last->tool_calls) TRY(continue_last_message(conversation));
  if (const OrderedJson* tools = fields.find("tools")) {
    TRY_ASSIGN(conversation.tools, read_tools(*tools, request.remarks));
  }
  TRY(read_output(fields, conversation, request.form));
  TRY(read_messages_tool_choice(fields, conversation.tools, request.form, request.remarks));
  TRY(read_thinking(fields, request.thinking));
  request.prompt = std::move(conversation);
  return request;
}

}  // namespace dspack::runtime
