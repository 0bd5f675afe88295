#include "runtime/text/tool_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace dspack::runtime {
namespace {

constexpr std::string_view kReasoningBegin = "<think>";
constexpr std::string_view kReasoningEnd = "</think>";
constexpr char kProbe[] = "probe_function";
constexpr uint32_t kMostSpaces = 12;  // in a row, where JSON allows any: a model that likes them would never end

/// The text that the template makes of a call. Templates differ in what they take for arguments, and for no content.
Result<std::string> probe_text(const ChatTemplate& chat) {
  const OrderedJson object = {{"probe_argument", "probe"}};
  std::optional<Error> first;
  for (const bool is_text : {true, false}) {
    for (const std::optional<std::string>& content : {std::optional<std::string>(), std::optional<std::string>("")}) {
      const std::array<ChatMessage, 2> messages = {
          ChatMessage{.role = Role::user, .content = "probe"},
          ChatMessage{.role = Role::assistant,
                      .content = content,
                      .tool_calls = {{ToolCall{.name = kProbe,
                                               .arguments = is_text ? OrderedJson(object.dump()) : object,
                                               .id = fmt::format("functions.{}:0", kProbe)}}}}};
      const auto text = chat.render(messages, {.add_generation_prompt = false});
      if (text && text->find(kProbe) != std::string::npos) return *text;
      if (!text && !first) first = text.error();
    }
  }
  return first.value_or(Error{ErrorKind::unsupported, "it does not write calls"});
}

OrderedJson choice_form(std::vector<OrderedJson> options) {
  if (options.size() == 1) return std::move(options.front());
  return {{"type", "or"}, {"elements", std::move(options)}};
}

OrderedJson pattern_form(std::string_view pattern) {
  return {{"type", "regex"}, {"pattern", pattern}};
}

}  // namespace

bool is_spelled(std::string_view added_token) {
  constexpr std::array<std::string_view, 5> kSpelled = {"｜DSML｜", "<arg_key>", "</arg_key>", "<arg_value>",
                                                        "</arg_value>"};
  return std::ranges::find(kSpelled, added_token) != kSpelled.end();
}

OrderedJson sequence_form(std::vector<OrderedJson> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  return {{"type", "sequence"}, {"elements", std::move(parts)}};
}

OrderedJson schema_form(OrderedJson schema, std::string_view style) {
  return {{"type", "json_schema"},
          {"json_schema", std::move(schema)},
          {"style", style},
          {"max_whitespace_cnt", kMostSpaces}};
}

OrderedJson constant_form(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<OrderedJson> parts;
  std::string spelled;
  const auto flush = [&] {
    if (!spelled.empty()) parts.push_back({{"type", "const_string"}, {"value", std::exchange(spelled, {})}});
  };
  const auto ids = tokenizer.encode(text, SpecialTokens::parse);
  if (!ids) return {{"type", "const_string"}, {"value", text}};
  for (const uint32_t id : *ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (!tokenizer.is_added(id) || is_spelled(bytes)) {
      spelled += bytes;
      continue;
    }
    flush();
    parts.push_back({{"type", "token"}, {"token", id}});
  }
  flush();
  return sequence_form(std::move(parts));
}

OrderedJson reasoned_form(OrderedJson answer, bool is_optional, const Tokenizer& tokenizer) {
  const OrderedJson end = constant_form(kReasoningEnd, tokenizer);
  std::vector<OrderedJson> parts;
  if (is_optional) parts.push_back(sequence_form({pattern_form("\\n?"), constant_form(kReasoningBegin, tokenizer)}));
  if (end["type"] == "token") {
    parts.push_back({{"type", "any_text"}});
    parts.push_back(end);
  } else {
    parts.push_back({{"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", kReasoningEnd}});
  }
  parts.push_back(pattern_form("[ \\n]{0,4}"));
  OrderedJson reasoning = sequence_form(std::move(parts));
  if (is_optional) reasoning = {{"type", "optional"}, {"content", std::move(reasoning)}};
  return sequence_form({std::move(reasoning), std::move(answer)});
}

Result<ToolSyntax> ToolSyntax::of(const ChatTemplate& chat) {
  const auto text = probe_text(chat);
  if (!text) return Error{ErrorKind::unsupported, "the chat template writes no calls: " + text.error().message};
  const auto has = [&text](std::string_view mark) { return text->find(mark) != std::string::npos; };
  if (has("<｜DSML｜invoke")) {
    return ToolSyntax(Family::dsml, has("<｜DSML｜tool_calls>") ? "tool_calls" : "function_calls");
  }
  if (has("<|tool_call_argument_begin|>")) return ToolSyntax(Family::kimi);
  if (has(fmt::format("<｜tool▁sep｜>{}", kProbe))) return ToolSyntax(Family::v3);
  if (has(fmt::format("{}<｜tool▁sep｜>", kProbe))) return ToolSyntax(Family::v31);
  if (has("<tool_call>")) return ToolSyntax(has("<arg_key>") ? Family::glm : Family::json);
  return Error{ErrorKind::unsupported, "the chat template writes calls in a form that is not known"};
}

OrderedJson ToolSyntax::calls(const std::vector<CallableTool>& tools, bool is_parallel,
                              const Tokenizer& tokenizer) const {
  const auto constant = [&tokenizer](std::string_view text) { return constant_form(text, tokenizer); };
  std::vector<OrderedJson> each;
  for (const auto& [name, parameters] : tools) {
    switch (family_) {
      case Family::v3:
        each.push_back(
            sequence_form({constant(fmt::format("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n", name)),
                           schema_form(parameters), constant("\n```<｜tool▁call▁end｜>")}));
        break;
      case Family::v31:
        each.push_back(sequence_form({constant(fmt::format("<｜tool▁call▁begin｜>{}<｜tool▁sep｜>", name)),
                                      schema_form(parameters), constant("<｜tool▁call▁end｜>")}));
        break;
      case Family::dsml:
        each.push_back(sequence_form({constant(fmt::format("<｜DSML｜invoke name=\"{}\">\n", name)),
                                      schema_form(parameters, "deepseek_xml"), constant("</｜DSML｜invoke>\n")}));
        break;
      case Family::kimi:
        each.push_back(sequence_form({constant(fmt::format("<|tool_call_begin|>functions.{}:", name)),
                                      pattern_form("[0-9]{1,4}"), constant("<|tool_call_argument_begin|>"),
                                      schema_form(parameters), constant("<|tool_call_end|>")}));
        break;
      case Family::glm:
        each.push_back(sequence_form({constant(fmt::format("<tool_call>{}\n", name)),
                                      schema_form(parameters, "glm_xml"), constant("</tool_call>")}));
        break;
      case Family::json:
        each.push_back(sequence_form(
            {constant(fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": ", OrderedJson(name).dump())),
             schema_form(parameters), constant("}\n</tool_call>")}));
        break;
    }
  }
  const OrderedJson call = choice_form(std::move(each));
  std::string separator;
  std::string end;
  switch (family_) {
    case Family::v3: separator = "\n"; [[fallthrough]];
    case Family::v31: end = "<｜tool▁calls▁end｜>"; break;
    case Family::kimi: end = "<|tool_calls_section_end|>"; break;
    case Family::dsml: end = fmt::format("</｜DSML｜{}>", dsml_name_); break;
    case Family::glm:
    case Family::json: separator = "\n"; break;
  }
  std::vector<OrderedJson> parts;
  if (!begin().empty()) parts.push_back(constant(begin()));
  parts.push_back(call);
  if (is_parallel) {
    const OrderedJson next = separator.empty() ? call : sequence_form({constant(separator), call});
    parts.push_back({{"type", "star"}, {"content", next}});
  }
  if (!end.empty()) parts.push_back(constant(end));
  return sequence_form(std::move(parts));
}

/// What all calls together begin with; empty where each call begins alone.
std::string ToolSyntax::begin() const {
  switch (family_) {
    case Family::v3:
    case Family::v31: return "<｜tool▁calls▁begin｜>";
    case Family::kimi: return "<|tool_calls_section_begin|>";
    case Family::dsml: return fmt::format("<｜DSML｜{}>\n", dsml_name_);
    case Family::glm:
    case Family::json: break;
  }
  return "";
}

OrderedJson ToolSyntax::text_with_calls(const std::vector<CallableTool>& tools, bool is_parallel,
                                        const Tokenizer& tokenizer) const {
  // A mark that is a token ends the text by itself, as no text holds it.
  OrderedJson text = {{"type", "any_text"}};
  std::string mark = begin().empty() ? "<tool_call>" : begin();
  if (mark.ends_with('\n')) mark.pop_back();
  if (constant_form(mark, tokenizer)["type"] == "const_string") text["excludes"] = {mark};
  return sequence_form({std::move(text), {{"type", "optional"}, {"content", calls(tools, is_parallel, tokenizer)}}});
}

}  // namespace dspack::runtime
