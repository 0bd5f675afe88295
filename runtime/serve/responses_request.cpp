#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include <utility>

#include "format/base/foreign_text.h"
#include "runtime/serve/field_table.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

/// An item's reasoning as text; summaries and encrypted content are ignored.
std::string reasoning_text(const JsonFields& fields) {
  std::string text;
  const OrderedJson* content = fields.find("content");
  if (content == nullptr || !content->is_array()) return text;
  for (const OrderedJson& part : *content) {
    if (part.is_object() && part.contains("text") && part["text"].is_string()) text += part["text"].get<std::string>();
  }
  return text;
}

/// Reads a list of text parts, or one text, into a message's content. `place`: its container, for errors.
Result<void> read_parts(const OrderedJson& content, std::string_view place, ChatMessage& message) {
  message.content = "";
  if (content.is_string()) message.content = content.get<std::string>();
  if (content.is_string()) return {};
  if (!content.is_array()) return invalid(fmt::format("{} is not a string or a list", place));
  for (const OrderedJson& part : content) {
    TRY_ASSIGN(const auto kind, part.is_object() ? JsonFields(part).text("type") : std::optional<std::string>());
    if (kind != "input_text" && kind != "output_text" && kind != "text") {
      return Error{ErrorKind::unsupported,
                   fmt::format("{}: a part of type {} cannot be read, only text", place, quote(kind.value_or("")))};
    }
    TRY_ASSIGN(const auto text, JsonFields(part).text("text"));
    if (message.content->empty())
      message.content = text.value_or("");
    else
      message.add_part(text.value_or(""));
  }
  return {};
}

/// Begins an assistant's message, with the preceding reasoning.
ChatMessage begin_answer(std::string& reasoning) {
  ChatMessage message{.role = Role::assistant};
  if (!reasoning.empty()) message.others["reasoning_content"] = std::exchange(reasoning, {});
  return message;
}

/// Adds a call to the assistant's message before it, if there is one.
void add_call(ToolCall call, std::vector<ChatMessage>& messages, std::string& reasoning) {
  const bool continues = !messages.empty() && messages.back().role == Role::assistant && reasoning.empty();
  if (!continues) messages.push_back(begin_answer(reasoning));
  if (!messages.back().tool_calls) messages.back().tool_calls.emplace();
  messages.back().tool_calls->push_back(std::move(call));
}

/// Reads an item of a response's input. `reasoning`: kept for the assistant's message that follows.
Result<void> read_item(const OrderedJson& item, std::vector<ChatMessage>& messages, std::string& reasoning) {
  if (!item.is_object()) return invalid("an item of \"input\" is not an object");
  const JsonFields fields(item);
  TRY_ASSIGN(const auto type, fields.text("type"));
  if (type == "reasoning") {
    reasoning = reasoning_text(fields);
    return {};
  }
  if (type == "function_call") {
    TRY_ASSIGN(const auto name, fields.text("name"));
    TRY_ASSIGN(const auto id, fields.text("call_id"));
    TRY_ASSIGN(const auto arguments, fields.text("arguments"));
    if (!name) return invalid("a function_call lacks \"name\"");
    add_call({.name = *name, .arguments = arguments.value_or("{}"), .id = id}, messages, reasoning);
    return {};
  }
  if (type == "custom_tool_call") {
    TRY_ASSIGN(const auto name, fields.text("name"));
    TRY_ASSIGN(const auto id, fields.text("call_id"));
    TRY_ASSIGN(const auto text, fields.text("input"));
    if (!name) return invalid("a custom_tool_call lacks \"name\"");
    add_call(custom_call(*name, text.value_or(""), id), messages, reasoning);
    return {};
  }
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    TRY_ASSIGN(const auto id, fields.text("call_id"));
    ChatMessage result{.role = Role::tool, .content = "", .tool_call_id = id};
    if (const OrderedJson* output = fields.find("output")) {
      TRY(read_parts(*output, fmt::format("\"output\" of a {}", *type), result));
    }
    messages.push_back(std::move(result));
    return {};
  }
  if (type && *type != "message") {
    return Error{ErrorKind::unsupported, fmt::format("an item of type {} cannot be read", quote(*type))};
  }
  TRY_ASSIGN(const auto role_name, fields.text("role"));
  TRY_ASSIGN(const Role role, parse_role(role_name.value_or("")));
  ChatMessage message = role == Role::assistant ? begin_answer(reasoning) : ChatMessage{.role = role};
  reasoning.clear();  // used, or without a message
  const OrderedJson* content = fields.find("content");
  if (content == nullptr) return invalid("a message of \"input\" has no \"content\"");
  TRY(read_parts(*content, "a message's \"content\"", message));
  messages.push_back(std::move(message));
  return {};
}

}  // namespace

Result<AnswerRequest> parse_responses_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  AnswerRequest request;
  TRY(check_fields(root, kResponses, request.remarks));
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY(read_length(fields, {"max_output_tokens"}, 1, request));
  TRY_ASSIGN(request.stop, read_stops(fields.find("stop"), "stop"));
  Conversation conversation;
  TRY_ASSIGN(const auto instructions, fields.text("instructions"));
  if (instructions) conversation.messages.push_back({.role = Role::system, .content = *instructions});
  const OrderedJson* input = fields.find("input");
  if (input == nullptr) return invalid("\"input\" is missing");
  if (input->is_string()) {
    conversation.messages.push_back({.role = Role::user, .content = input->get<std::string>()});
  } else if (input->is_array()) {
    if (input->empty()) return invalid("\"input\" is empty");
    std::string reasoning;
    for (const OrderedJson& item : *input)
      TRY(read_item(item, conversation.messages, reasoning));
  } else {
    return invalid("\"input\" is not a string or a list");
  }
  if (conversation.messages.empty()) return invalid("\"input\" is empty");
  if (const OrderedJson* tools = fields.find("tools")) {
    if (!tools->is_array()) return invalid("\"tools\" is not a list");
    for (const OrderedJson& tool : *tools) {
      TRY_ASSIGN(const auto type, tool.is_object() ? JsonFields(tool).text("type") : std::optional<std::string>());
      if (!type) return invalid("a tool has no \"type\"");
      if (type != "function") {
        remark(request.remarks, left_out_tool(*type));
        continue;
      }
      OrderedJson function = tool;
      function.erase("type");
      conversation.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const OrderedJson* text = fields.find("text"); text != nullptr && text->is_object()) {
    TRY(read_format(JsonFields(*text).find("format"), "format", request.form));
  }
  TRY(read_schemas(fields, request.form));
  TRY(read_tool_choice(fields, conversation.tools, request.form, request.remarks));
  if (const OrderedJson* reasoning = fields.find("reasoning"); reasoning != nullptr && reasoning->is_object()) {
    TRY_ASSIGN(request.effort, JsonFields(*reasoning).text("effort"));
    if (request.effort) conversation.arguments["reasoning_effort"] = *request.effort;
  }
  request.prompt = std::move(conversation);
  return request;
}

}  // namespace dspack::runtime
