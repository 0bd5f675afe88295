#include "runtime/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "format/base/foreign_text.h"
#include "runtime/text/builtin_templates.h"
#include "runtime/text/guarded_text.h"
#include "runtime/text/json.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {
namespace {

constexpr std::array<std::string_view, 2> kThinking = {"thinking", "enable_thinking"};
// Names of a message's reasoning; the first is the usual one.
constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};
constexpr std::array<std::string_view, 5> kGiven = {"messages", "tools", "add_generation_prompt", "bos_token",
                                                    "eos_token"};

// Appended to the content of the message that is continued, to find its end in the rendered text, wherever else the
// same words occur. Noncharacters, which no text has; a template that trims contents removes the trailing space.
constexpr std::string_view kContentEnd = "\uFDD0\uFDD1 ";

/// The text up to the end of the last message's content, to which kContentEnd was appended.
Result<std::string> cut_behind(std::string text, std::string_view content) {
  const std::string_view mark = kContentEnd.substr(0, kContentEnd.size() - 1);
  const size_t end = text.rfind(mark);
  if (end == std::string::npos) {
    return Error{ErrorKind::unsupported,
                 "it does not write the last message's content as it is, so that the answer cannot continue it"};
  }
  const bool is_trimmed = text.compare(end, kContentEnd.size(), kContentEnd) != 0;
  text.resize(end);
  if (!is_trimmed) return text;
  const size_t last = content.find_last_not_of(" \t\r\n");
  const std::string_view space = content.substr(last == std::string_view::npos ? 0 : last + 1);
  if (text.ends_with(space)) text.resize(text.size() - space.size());
  return text;
}

/// A call's arguments for a template that wants an object. Errors: invalid.
Result<OrderedJson> arguments_object(const ToolCall& call, TemplateTraits traits) {
  auto object = arguments_as_object(call);
  if (object || !traits.is_v4) return object;
  return OrderedJson{{"arguments", call.arguments}};  // as the model wrote them, cut or malformed
}

/// The message's content with an empty line between the parts.
std::string apart(const ChatMessage& message) {
  const std::string_view content = *message.content;
  std::string text;
  size_t done = 0;
  for (const size_t seam : message.seams) {
    text += content.substr(done, seam - done);
    text += '\n';
    done = seam;
  }
  return text += content.substr(done);
}

/// DeepSeek-V4 writes a tool's name between quotes without escapes. Errors: invalid, as in DeepSeek's service.
Result<void> check_names(const OrderedJson& tools) {
  for (const CallableTool& tool : callable_tools(tools)) {
    const bool is_plain = !tool.name.empty() && std::ranges::all_of(tool.name, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-';
    });
    if (!is_plain)
      return invalid(
          fmt::format("the tool's name {} is not of letters, digits, \"_\" and \"-\" alone", quote(tool.name)));
  }
  return {};
}

/// A message as transformers passes it to a template, adjusted to the template's traits. Errors: invalid (a call's
/// arguments that are no object, a role that the template does not know).
Result<OrderedJson> as_json(const ChatMessage& message, TemplateTraits traits) {
  OrderedJson json = OrderedJson::object();
  if (message.role == Role::latest_reminder && !traits.is_v4)
    return invalid("the role latest_reminder is known to DeepSeek-V4's chat templates alone");
  const bool is_other_system = message.role == Role::developer && !traits.has_developer;
  json["role"] = to_string(is_other_system ? Role::system : message.role);
  json["content"] = message.content ? OrderedJson(traits.is_v4 ? apart(message) : *message.content) : OrderedJson();
  if (message.tool_calls) {
    json["tool_calls"] = OrderedJson::array();
    for (const ToolCall& call : *message.tool_calls) {
      OrderedJson each = OrderedJson::object();
      if (call.id) each["id"] = *call.id;
      each["type"] = call.type;
      each["function"]["name"] = call.name;
      each["function"]["arguments"] = call.arguments;
      if (traits.parses_arguments) {
        TRY_ASSIGN(each["function"]["arguments"], arguments_object(call, traits));
      }
      json["tool_calls"].push_back(std::move(each));
    }
  }
  if (message.tool_call_id) json["tool_call_id"] = *message.tool_call_id;
  if (message.name) json["name"] = *message.name;
  if (message.prefix) json["prefix"] = true;
  if (!message.others.is_object()) return json;
  for (const auto& [name, value] : message.others.items())
    add_member(json, name, value);  // not among the members above
  for (const char* name : kReasoning) {
    const auto found = message.others.find(name);
    if (found == message.others.end() || found->is_null()) continue;
    json["reasoning_content"] = *found;
    if (!json.contains("thinking")) json["thinking"] = *found;
    break;
  }
  return json;
}

/// The most common cause of failure in published templates, in terms of the conversation; empty if it does not apply.
std::string likely_cause(std::span<const ChatMessage> messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].content && !messages[i].tool_calls) {
      return fmt::format("; message {} ({}) has no content", i, to_string(messages[i].role));
    }
    if (!messages[i].tool_calls) continue;
    for (const ToolCall& call : *messages[i].tool_calls) {
      if (call.arguments.is_string()) continue;
      return fmt::format("; message {}: the arguments of the call of {} are an object, not JSON as text", i,
                         quote(call.name));
    }
  }
  return "";
}

}  // namespace

Result<ChatTemplate> ChatTemplate::compile(std::string_view jinja_source) {
  return compile(jinja_source, {});
}

Result<ChatTemplate> ChatTemplate::compile(std::string_view jinja_source, TemplateTraits traits) {
  auto program = jinja::Program::compile(jinja_source);
  if (!program) return program.error().in("the chat template");
  return ChatTemplate(*std::move(program), traits);
}

Result<ChatTemplate> ChatTemplate::named(std::string_view name) {
  if (const auto known = builtin_template(name)) return compile(known->source, known->traits);
  return Error{ErrorKind::not_found, fmt::format("there is no chat template {}; known are {}", quote(name),
                                                 fmt::join(builtin_template_names(), " "))};
}

bool ChatTemplate::has_thinking_switch() const {
  return std::ranges::any_of(kThinking, [this](std::string_view name) { return program_.inputs().contains(name); });
}

bool ChatTemplate::prints_tools() const {
  return program_.inputs().contains("tools");
}

std::vector<std::string> ChatTemplate::arguments() const {
  std::vector<std::string> names;
  std::ranges::remove_copy_if(program_.inputs(), std::back_inserter(names), &is_given_to_templates);
  return names;
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages, const RenderOptions& options,
                                         jinja::Cost* cost) const {
  OrderedJson variables = OrderedJson::object();
  const auto from_others = [&options](OrderedJson value) {
    return options.guard ? guard_texts(value, options.guard) : std::move(value);
  };
  variables["messages"] = OrderedJson::array();
  for (const ChatMessage& message : messages) {
    auto json = as_json(message, traits_);
    if (!json) return json.error().in(fmt::format("message {}", variables["messages"].size()));
    variables["messages"].push_back(from_others(*std::move(json)));
  }
  if (traits_.continues_prefix) TRY(check_names(options.tools));
  variables["tools"] = from_others(options.tools);
  variables["documents"] = nullptr;
  const bool cuts = options.continue_final_message && !traits_.continues_prefix;
  std::string continued;  // content of that message
  if (options.continue_final_message) {
    if (messages.empty()) return invalid("there is no message to continue");
    OrderedJson& last = variables["messages"].back();
    if (cuts) {
      continued = last["content"].is_null() ? "" : last["content"].get<std::string>();
      last["content"] = continued + std::string(kContentEnd);
    } else {
      last["prefix"] = true;
    }
  }
  variables["add_generation_prompt"] = options.add_generation_prompt && !options.continue_final_message;
  variables["bos_token"] = options.bos_token;
  variables["eos_token"] = options.eos_token;
  if (options.arguments.is_object()) variables.update(from_others(options.arguments));
  auto text = program_.render(variables, options.now, options.stop, cost);
  if (text && cuts) text = cut_behind(*std::move(text), continued);
  if (text) return text;
  Error error = text.error().in("the chat template");
  // Templates that parse arguments report the causes themselves.
  if (error.kind == ErrorKind::invalid && !traits_.parses_arguments) error.message += likely_cause(messages);
  return error;
}

OrderedJson thinking_arguments(bool thinking) {
  OrderedJson arguments = OrderedJson::object();
  for (const std::string_view name : kThinking)
    arguments[std::string(name)] = thinking;
  return arguments;
}

bool is_given_to_templates(std::string_view name) {
  return std::ranges::find(kGiven, name) != kGiven.end();
}

}  // namespace dspack::runtime
