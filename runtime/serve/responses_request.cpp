#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include <utility>

#include "format/base/foreign_text.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

/// The reasoning that an item has as text; what is summed up or encrypted is not read.
std::string reasoning_text(const JsonFields& fields) {
  std::string text;
  const OrderedJson* content = fields.find("content");
  if (content == nullptr || !content->is_array()) return text;
  for (const OrderedJson& part : *content) {
    if (part.is_object() && part.contains("text") && part["text"].is_string()) text += part["text"].get<std::string>();
  }
  return text;
}

/// The assistant's message that an item begins, with the reasoning in front of it.
ChatMessage begin_answer(std::string& reasoning) {
  ChatMessage message{.role = Role::assistant};
  if (!reasoning.empty()) message.others["reasoning_content"] = std::exchange(reasoning, {});
  return message;
}

/// An item of a response's input. `reasoning`: of the assistant's message that follows.
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
    if (!name || !arguments) return invalid("a function_call lacks \"name\" or \"arguments\"");
    const bool continues = !messages.empty() && messages.back().role == Role::assistant && reasoning.empty();
    if (!continues) messages.push_back(begin_answer(reasoning));
    if (!messages.back().tool_calls) messages.back().tool_calls.emplace();
    messages.back().tool_calls->push_back({.name = *name, .arguments = *arguments, .id = id});
    return {};
  }
  if (type == "function_call_output") {
    TRY_ASSIGN(const auto id, fields.text("call_id"));
    TRY_ASSIGN(const auto output, fields.text("output"));
    messages.push_back({.role = Role::tool, .content = output.value_or(""), .tool_call_id = id});
    return {};
  }
  if (type && *type != "message") {
    return Error{ErrorKind::unsupported, fmt::format("an item of type {} cannot be read", quote(*type))};
  }
  TRY_ASSIGN(const auto role_name, fields.text("role"));
  TRY_ASSIGN(const Role role, parse_role(role_name.value_or("")));
  ChatMessage message = role == Role::assistant ? begin_answer(reasoning) : ChatMessage{.role = role};
  message.content = "";
  reasoning.clear();  // it has found its message, or had none
  const OrderedJson* content = fields.find("content");
  if (content == nullptr) return invalid("a message of \"input\" has no \"content\"");
  if (content->is_string()) {
    message.content = content->get<std::string>();
  } else if (content->is_array()) {
    for (const OrderedJson& part : *content) {
      TRY_ASSIGN(const auto kind, part.is_object() ? JsonFields(part).text("type") : std::optional<std::string>());
      if (kind != "input_text" && kind != "output_text" && kind != "text") {
        return Error{ErrorKind::unsupported, "a part of \"content\" that is no text cannot be read"};
      }
      TRY_ASSIGN(const auto text, JsonFields(part).text("text"));
      *message.content += (message.content->empty() ? "" : "\n") + text.value_or("");
    }
  } else {
    return invalid("a message's \"content\" is not a string or a list");
  }
  messages.push_back(std::move(message));
  return {};
}

}  // namespace

Result<AnswerRequest> parse_responses_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  AnswerRequest request;
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY_ASSIGN(const auto most, fields.whole("max_output_tokens", 1, kMostTokens));
  if (most) request.max_tokens = static_cast<uint32_t>(*most);
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (fields.find(name) != nullptr) {
      return Error{ErrorKind::unsupported,
                   fmt::format("\"{}\": this server keeps no responses; send all of \"input\"", name)};
    }
  }
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
  if (const OrderedJson* tools = fields.find("tools")) {
    if (!tools->is_array()) return invalid("\"tools\" is not a list");
    for (const OrderedJson& tool : *tools) {
      TRY_ASSIGN(const auto type, tool.is_object() ? JsonFields(tool).text("type") : std::optional<std::string>());
      if (type != "function")
        return Error{ErrorKind::unsupported, "\"tools\": only those of type \"function\" are known"};
      OrderedJson function = tool;
      function.erase("type");
      conversation.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const OrderedJson* text = fields.find("text"); text != nullptr && text->is_object()) {
    TRY(read_format(JsonFields(*text).find("format"), "format", request.form));
  }
  TRY(read_tool_choice(fields, conversation.tools, request.form));
  if (const OrderedJson* reasoning = fields.find("reasoning"); reasoning != nullptr && reasoning->is_object()) {
    TRY_ASSIGN(const auto effort, JsonFields(*reasoning).text("effort"));
    if (effort) request.thinking = *effort != "none" && *effort != "minimal";
  }
  request.prompt = std::move(conversation);
  return request;
}

}  // namespace dspack::runtime
