#include "runtime/text/chat_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {
namespace {

constexpr const char* kNoArguments = "{}";

Error wrong(std::string_view what, std::string_view expected) {
  return {ErrorKind::invalid, fmt::format("{} is not {}", what, expected)};
}

/// Reads a message's content: a string, or a list of {"type": "text", "text": "..."}, as OpenAI's clients write it.
/// Templates take a string, so parts are joined by line feeds, as in vLLM and llama.cpp. Absent and null are nullopt;
/// so is an assistant's empty list, since it may have calls instead; for other roles that is an empty text.
Result<void> read_content(const OrderedJson& json, ChatMessage& message) {
  const auto found = json.find("content");
  if (found == json.end() || !found->is_array()) {
    TRY_ASSIGN(message.content, JsonFields(json).text("content"));
    return {};
  }
  if (found->empty() && message.role != Role::assistant) message.content = "";
  for (const OrderedJson& part : *found) {
    if (!part.is_object()) return wrong("a part of \"content\"", "an object");
    TRY_ASSIGN(const auto type, JsonFields(part).text("type"));
    TRY_ASSIGN(const auto words, JsonFields(part).text("text"));
    if (type != "text") {
      return Error{ErrorKind::unsupported,
                   fmt::format("a part of \"content\" has the type {}; only \"text\" can be answered",
                               type ? quote(*type) : "null")};
    }
    if (!words) return wrong("\"text\" of a part of \"content\"", "a string");
    message.add_part(*words);
  }
  return {};
}

/// Reads a call of an OpenAI tool of type "custom", whose input is one text, as a function call with this one argument.
Result<ToolCall> read_custom_call(const OrderedJson& value, ToolCall call) {
  const auto custom = value.find("custom");
  if (custom == value.end() || !custom->is_object()) return wrong("\"custom\"", "an object");
  TRY_ASSIGN(const auto name, JsonFields(*custom).text("name"));
  TRY_ASSIGN(const auto input, JsonFields(*custom).text("input"));
  if (!name) return wrong("\"name\" of \"custom\"", "a string");
  return custom_call(*name, input.value_or(""), std::move(call.id));
}

Result<ToolCall> read_call(const OrderedJson& value) {
  if (!value.is_object()) return wrong("a call", "an object");
  ToolCall call;
  TRY_ASSIGN(call.id, JsonFields(value).text("id"));
  TRY_ASSIGN(const auto type, JsonFields(value).text("type"));
  if (type == "custom") return read_custom_call(value, std::move(call));
  const auto function = value.find("function");
  if (function == value.end() || !function->is_object()) return wrong("\"function\"", "an object");
  TRY_ASSIGN(const auto name, JsonFields(*function).text("name"));
  if (!name) return wrong("\"name\" of \"function\"", "a string");
  call.type = type.value_or("function");
  call.name = *name;
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || arguments->is_null()) {
    call.arguments = kNoArguments;
    return call;
  }
  if (!arguments->is_string() && !arguments->is_object()) return wrong("\"arguments\"", "a string or an object");
  call.arguments = *arguments;
  return call;
}

Result<ChatMessage> read_message(const OrderedJson& value) {
  if (!value.is_object()) return wrong("a message", "an object");
  ChatMessage message;
  TRY_ASSIGN(const auto role, JsonFields(value).text("role"));
  if (!role) return wrong("\"role\"", "a string");
  TRY_ASSIGN(message.role, parse_role(*role));
  TRY(read_content(value, message));
  TRY_ASSIGN(message.tool_call_id, JsonFields(value).text("tool_call_id"));
  TRY_ASSIGN(message.name, JsonFields(value).text("name"));
  for (const auto& [key, field] : value.items()) {
    constexpr std::array<std::string_view, 6> kFields = {"role",         "content", "tool_calls",
                                                         "tool_call_id", "name",    "prefix"};
    if (std::ranges::find(kFields, key) != kFields.end()) continue;
    if (message.others.is_null()) message.others = OrderedJson::object();
    add_member(message.others, key, field);
  }
  if (const auto prefix = value.find("prefix"); prefix != value.end() && !prefix->is_null()) {
    if (!prefix->is_boolean()) return wrong("\"prefix\"", "true or false");
    message.prefix = prefix->get<bool>();
  }
  const auto calls = value.find("tool_calls");
  if (calls == value.end() || calls->is_null()) return message;
  if (!calls->is_array()) return wrong("\"tool_calls\"", "a list");
  message.tool_calls.emplace();
  for (const OrderedJson& each : *calls) {
    auto call = read_call(each);
    if (!call) return call.error().in(fmt::format("tool call {}", message.tool_calls->size()));
    message.tool_calls->push_back(*std::move(call));
  }
  return message;
}

Error too_many_arguments(std::string_view place) {
  return invalid(fmt::format("{} has more than {} members; templates read a handful", place, kMaxTemplateArguments));
}

/// Parses strictly. Errors: invalid, budget.
Result<OrderedJson> parse_ordered(std::string_view json_text) {
  return parse_ordered_json(json_text, format::kConversationDocument);
}

}  // namespace

void ChatMessage::add_part(std::string_view text) {
  if (content) {
    seams.push_back(content->size());
    *content += '\n';
  } else {
    content.emplace();
  }
  *content += text;
}

ToolCall custom_call(std::string name, std::string_view input, std::optional<std::string> id) {
  return {.type = "function",
          .name = std::move(name),
          .arguments = python_json(OrderedJson{{"input", input}}, /*compact=*/false),
          .id = std::move(id)};
}

Result<Role> parse_role(std::string_view name) {
  for (const Role role :
       {Role::system, Role::developer, Role::user, Role::assistant, Role::tool, Role::latest_reminder}) {
    if (name == to_string(role)) return role;
  }
  return Error{
      ErrorKind::invalid,
      fmt::format("unknown role {}; known are system, developer, user, assistant, tool, latest_reminder", quote(name))};
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::system: return "system";
    case Role::developer: return "developer";
    case Role::user: return "user";
    case Role::assistant: return "assistant";
    case Role::tool: return "tool";
    case Role::latest_reminder: return "latest_reminder";
  }
  return "";
}

Result<Conversation> parse_conversation(std::string_view json_text) {
  TRY_ASSIGN(const OrderedJson root, parse_ordered(json_text));
  return read_conversation(root);
}

Result<Conversation> read_conversation(const OrderedJson& root) {
  const OrderedJson* messages = &root;
  Conversation conversation;
  if (root.is_object()) {
    const auto found = root.find("messages");
    if (found == root.end()) return Error{ErrorKind::invalid, "\"messages\" is missing"};
    messages = &*found;
    if (const auto tools = root.find("tools"); tools != root.end() && !tools->is_null()) {
      if (!tools->is_array()) return wrong("\"tools\"", "a list");
      conversation.tools = *tools;
    }
    if (const auto given = root.find("chat_template_kwargs"); given != root.end() && !given->is_null()) {
      if (!given->is_object()) return wrong("\"chat_template_kwargs\"", "an object");
      if (given->size() > kMaxTemplateArguments) return too_many_arguments("\"chat_template_kwargs\"");
      conversation.arguments = *given;
    }
  }
  if (!messages->is_array()) return wrong("\"messages\"", "a list");
  for (const OrderedJson& each : *messages) {
    auto message = read_message(each);
    if (!message) return message.error().in(fmt::format("message {}", conversation.messages.size()));
    conversation.messages.push_back(*std::move(message));
  }
  return conversation;
}

Result<OrderedJson> parse_template_arguments(std::string_view json_text) {
  TRY_ASSIGN(OrderedJson arguments, parse_ordered(json_text));
  if (!arguments.is_object()) return wrong("this", "an object, such as {\"thinking\": true}");
  if (arguments.size() > kMaxTemplateArguments) return too_many_arguments("this");
  return arguments;
}

Result<OrderedJson> arguments_as_object(const ToolCall& call) {
  if (!call.arguments.is_string()) return call.arguments;
  const auto place = [&call] { return fmt::format("the arguments of the call of {}", quote(call.name)); };
  const auto& text = call.arguments.get_ref<const std::string&>();
  // Clients write this for a call without arguments.
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return OrderedJson::object();
  auto object = parse_ordered(text);
  if (!object) return object.error().in(place());
  if (!object->is_object()) return wrong(place(), "an object in JSON, such as {\"city\": \"Paris\"}");
  return object;
}

}  // namespace dspack::runtime
