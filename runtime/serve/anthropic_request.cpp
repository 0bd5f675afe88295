#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

/// A content block of Anthropic's API as a part of OpenAI's.
Result<std::string> block_text(const OrderedJson& content, std::string_view where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return invalid(fmt::format("{} is not a string or a list", where));
  std::string text;
  for (const OrderedJson& block : content) {
    const auto type = block.is_object() ? block.find("type") : block.end();
    if (!block.is_object() || type == block.end() || *type != "text") {
      return Error{ErrorKind::unsupported, fmt::format("{}: only blocks of type \"text\" can be read there", where)};
    }
    TRY_ASSIGN(const auto words, JsonFields(block).text("text"));
    if (!text.empty()) text += '\n';
    text += words.value_or("");
  }
  return text;
}

/// One message of Anthropic's API, which may stand for several: results of tools are messages of their own.
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
      spoken.content = spoken.content ? *spoken.content + "\n" + text.value_or("") : text.value_or("");
    } else if (type == "thinking") {
      TRY_ASSIGN(const auto thinking, fields.text("thinking"));
      if (thinking) spoken.others["reasoning_content"] = *thinking;
    } else if (type == "tool_use") {
      TRY_ASSIGN(const auto name, fields.text("name"));
      TRY_ASSIGN(const auto id, fields.text("id"));
      const OrderedJson* input = fields.find("input");
      if (!name || input == nullptr || !input->is_object())
        return invalid("a tool_use block lacks \"name\" or \"input\"");
      if (!spoken.tool_calls) spoken.tool_calls.emplace();
      spoken.tool_calls->push_back({.name = *name, .arguments = input->dump(), .id = id});
    } else if (type == "tool_result") {
      TRY_ASSIGN(const auto id, fields.text("tool_use_id"));
      const OrderedJson* result = fields.find("content");
      ChatMessage answer{.role = Role::tool, .content = "", .tool_call_id = id};
      if (result != nullptr) {
        TRY_ASSIGN(answer.content, block_text(*result, "the content of a tool_result"));
      }
      messages.push_back(std::move(answer));
    } else if (type != "redacted_thinking") {
      return Error{ErrorKind::unsupported, fmt::format("a block of type {} cannot be read", quote(type.value_or("")))};
    }
  }
  if (spoken.content || spoken.tool_calls) messages.push_back(std::move(spoken));
  return {};
}

}  // namespace

Result<AnswerRequest> parse_messages_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  AnswerRequest request;
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY_ASSIGN(const auto most, fields.whole("max_tokens", 1, kMostTokens));
  if (most) request.max_tokens = static_cast<uint32_t>(*most);
  TRY_ASSIGN(request.stop, read_stops(fields.find("stop_sequences"), "stop_sequences"));
  Conversation conversation;
  if (const OrderedJson* system = fields.find("system")) {
    TRY_ASSIGN(std::string text, block_text(*system, "\"system\""));
    conversation.messages.push_back({.role = Role::system, .content = std::move(text)});
  }
  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array()) return invalid("\"messages\" is not a list");
  if (messages->empty()) return invalid("\"messages\" is empty");
  for (const OrderedJson& message : *messages) {
    if (!message.is_object()) return invalid("a message is not an object");
    TRY(read_blocks(message, conversation.messages));
  }
  if (const OrderedJson* tools = fields.find("tools"); tools != nullptr) {
    if (!tools->is_array()) return invalid("\"tools\" is not a list");
    conversation.tools = OrderedJson::array();
    for (const OrderedJson& tool : *tools) {
      TRY_ASSIGN(const auto name, tool.is_object() ? JsonFields(tool).text("name") : std::optional<std::string>());
      if (!name) return invalid("a tool has no \"name\"");
      OrderedJson function = {{"name", *name}};
      if (tool.contains("description")) function["description"] = tool["description"];
      if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
      if (tool.contains("strict")) function["strict"] = tool["strict"];
      conversation.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  TRY(read_messages_tool_choice(fields, conversation.tools, request.form));
  if (const OrderedJson* thinking = fields.find("thinking"); thinking != nullptr && thinking->is_object()) {
    TRY_ASSIGN(const auto type, JsonFields(*thinking).text("type"));
    request.thinking = type == "enabled";
  }
  request.prompt = std::move(conversation);
  return request;
}

}  // namespace dspack::runtime
