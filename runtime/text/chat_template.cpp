#include "runtime/text/chat_template.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/text/chat_deepseek.h"
#include "runtime/text/chat_kimi.h"
#include "runtime/text/jinja_source.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kKimiSystem =
    "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>";
// In the latest template a line feed follows: the tag behind it removes its own indentation, not the end of the line.
constexpr std::string_view kKimiSystemLine =
    "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>\n";

constexpr V3Style kV25 = {.last_system_only = true, .system_litter = "        "};
constexpr V3Style kV3 = {};
constexpr V3Style kR1January = {.last_system_only = true, .strips_reasoning = true};

// July 2025, as first published.
constexpr KimiStyle kKimiFirst = {
    .default_system = "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>",
    .names = false,
    .numbers_calls = true,
    .quotes_text_arguments = true,
    .before_result = "\\n",  // a backslash and an n, outside of any string of the template
    .none_is_text = true};
constexpr KimiStyle kKimi0905 = {
    .tools_heading = "\n  # Tools\n  ", .default_system = kKimiSystem, .before_result = "\n    ", .none_is_text = true};
constexpr KimiStyle kKimi0905Open = {.tools_heading = "\n  # Tools\n  ",
                                     .default_system = kKimiSystem,
                                     .before_result = "\n    ",
                                     .none_is_text = true,
                                     .leaves_last_open = true};
constexpr KimiStyle kKimiLatest = {.compact_tools = true, .default_system = kKimiSystemLine, .before_result = "\n"};

template <const V3Style& style>
Result<std::string> render_v3(Messages messages, const RenderOptions& options) {
  return render_deepseek_v3(messages, options, style);
}

template <const KimiStyle& style>
Result<std::string> render_kimi(Messages messages, const RenderOptions& options) {
  return render_kimi_k2(messages, options, style);
}

/// As transformers hands it to a template.
OrderedJson as_json(const ChatMessage& message) {
  OrderedJson json = OrderedJson::object();
  json["role"] = to_string(message.role);
  json["content"] = message.content ? OrderedJson(*message.content) : OrderedJson();
  if (message.tool_calls) {
    json["tool_calls"] = OrderedJson::array();
    for (const ToolCall& call : *message.tool_calls) {
      OrderedJson each = OrderedJson::object();
      if (call.id) each["id"] = *call.id;
      each["type"] = call.type;
      each["function"]["name"] = call.name;
      each["function"]["arguments"] = call.arguments;
      json["tool_calls"].push_back(std::move(each));
    }
  }
  if (message.tool_call_id) json["tool_call_id"] = *message.tool_call_id;
  if (message.name) json["name"] = *message.name;
  if (message.prefix) json["prefix"] = true;
  if (message.others.is_object()) json.update(message.others);
  return json;
}

}  // namespace

struct ChatTemplate::Known {
  std::string_view name;
  // Of the canonical source.
  size_t bytes = 0;
  uint64_t fingerprint = 0;
  Result<std::string> (*render)(Messages, const RenderOptions&) = nullptr;
  bool thinking = false;
  bool tools = false;
};

// Where each source is from: docs/chat.md.
const ChatTemplate::Known ChatTemplate::kKnown[] = {
    {"deepseek-v2", 464, 0xe4a7374951db473c, &render_deepseek_v2},
    {"deepseek-v2.5", 2176, 0x2482e1936ba6f9eb, &render_v3<kV25>},
    {"deepseek-v3", 2362, 0x382daa1d827599c2, &render_v3<kV3>},
    {"deepseek-v3-0324", 3131, 0xa67f52353baed5a1,
     [](Messages messages, const RenderOptions& options) { return render_deepseek_v3_0324(messages, options, false); }},
    {"deepseek-r1-first", 2287, 0x875904636574da83, &render_v3<kR1January>},
    {"deepseek-r1-closed", 2815, 0x1fde1bc24624d0b2,
     [](Messages messages, const RenderOptions& options) {
       return render_deepseek_r1(messages, options, "<｜Assistant｜>");
     }},
    {"deepseek-r1", 2823, 0x2c96c7da0fd3fad6,
     [](Messages messages, const RenderOptions& options) {
       return render_deepseek_r1(messages, options, "<｜Assistant｜><think>\n");
     }},
    {"deepseek-r1-0528", 3195, 0x161d08677541ee5e,
     [](Messages messages, const RenderOptions& options) { return render_deepseek_v3_0324(messages, options, true); }},
    {.name = "deepseek-v3.1",
     .bytes = 2983,
     .fingerprint = 0xc8551750cab92141,
     .render = [](Messages messages,
                  const RenderOptions& options) { return render_deepseek_v3_1(messages, options, false); },
     .thinking = true},
    {.name = "deepseek-v3.1-terminus",
     .bytes = 3318,
     .fingerprint = 0x0dbecea8da49b1bd,
     .render = [](Messages messages,
                  const RenderOptions& options) { return render_deepseek_v3_1(messages, options, true); },
     .thinking = true},
    {.name = "kimi-k2-first",
     .bytes = 1718,
     .fingerprint = 0xec06d865db3e71bd,
     .render = &render_kimi<kKimiFirst>,
     .tools = true},
    {.name = "kimi-k2-0905",
     .bytes = 1786,
     .fingerprint = 0xfc32719d969f0b67,
     .render = &render_kimi<kKimi0905>,
     .tools = true},
    {.name = "kimi-k2-0905-open",
     .bytes = 1864,
     .fingerprint = 0x4b589a1c92d913b5,
     .render = &render_kimi<kKimi0905Open>,
     .tools = true},
    {.name = "kimi-k2",
     .bytes = 1892,
     .fingerprint = 0xca573cdfe858a5f8,
     .render = &render_kimi<kKimiLatest>,
     .tools = true},
};

Result<ChatTemplate> ChatTemplate::recognise(std::string_view jinja_source) {
  if (const auto canonical = canonical_jinja(jinja_source)) {
    const uint64_t hash = fingerprint(*canonical);
    for (const Known& known : kKnown) {
      if (known.bytes == canonical->size() && known.fingerprint == hash) return ChatTemplate(known);
    }
  }
  auto program = jinja::Program::compile(jinja_source);
  if (!program) return program.error().in("the chat template");
  return ChatTemplate(*std::move(program));
}

Result<ChatTemplate> ChatTemplate::named(std::string_view name) {
  for (const Known& known : kKnown) {
    if (known.name == name) return ChatTemplate(known);
  }
  return Error{ErrorKind::not_found, fmt::format("there is no chat template {}; known are {}", quote(name), names())};
}

std::string ChatTemplate::names() {
  std::string list;
  for (const Known& known : kKnown) {
    if (!list.empty()) list += ", ";
    list += known.name;
  }
  return list;
}

std::string_view ChatTemplate::name() const {
  return program_ ? "of this repository" : known_->name;
}

bool ChatTemplate::has_thinking_switch() const {
  if (program_) return program_->mentions("thinking") || program_->mentions("enable_thinking");
  return known_->thinking;
}

bool ChatTemplate::prints_tools() const {
  return program_ ? program_->mentions("tools") : known_->tools;
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages, const RenderOptions& options) const {
  if (!program_) return known_->render(messages, options);
  OrderedJson variables = OrderedJson::object();
  variables["messages"] = OrderedJson::array();
  for (const ChatMessage& message : messages)
    variables["messages"].push_back(as_json(message));
  variables["tools"] = options.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = options.add_generation_prompt;
  variables["bos_token"] = options.bos_token;
  variables["eos_token"] = options.eos_token;
  // Templates have either name for it, and a default of their own.
  if (options.thinking_is_said || options.thinking) {
    variables["thinking"] = options.thinking;
    variables["enable_thinking"] = options.thinking;
  }
  auto text = program_->render(variables, options.now);
  if (!text) return text.error().in("the chat template");
  return text;
}

}  // namespace dspack::runtime
