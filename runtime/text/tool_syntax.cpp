#include "runtime/text/tool_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/text/schema_grammar.h"

namespace dspack::runtime {
namespace {

using namespace marks;

constexpr char kProbe[] = "probe_function";

/// The template's text for a call. Templates differ in the form of arguments and of absent content.
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

OrderedJson grammar_form(std::string grammar) {
  return {{"type", "grammar"}, {"grammar", std::move(grammar)}};
}

}  // namespace

bool is_spelled(std::string_view added_token) {
  constexpr std::array<std::string_view, 5> kSpelled = {"｜DSML｜", kKey, kEndKey, kValue, kEndValue};
  return std::ranges::find(kSpelled, added_token) != kSpelled.end();
}

OrderedJson sequence_form(std::vector<OrderedJson> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  return {{"type", "sequence"}, {"elements", std::move(parts)}};
}

Result<OrderedJson> schema_form(const OrderedJson& schema) {
  TRY_ASSIGN(std::string grammar, schema_grammar(schema));
  return grammar_form(std::move(grammar));
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
  const OrderedJson end = constant_form(kEndThink, tokenizer);
  std::vector<OrderedJson> parts;
  if (is_optional) parts.push_back(sequence_form({pattern_form("\\n?"), constant_form(kThink, tokenizer)}));
  if (end["type"] == "token") {
    parts.push_back({{"type", "any_text"}});
    parts.push_back(end);
  } else {
    parts.push_back({{"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", kEndThink}});
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
  if (has(kInvoke)) return ToolSyntax(ToolFamily::dsml, has(kDsml[1]) ? 1 : 0);
  if (has(kHead[1])) return ToolSyntax(ToolFamily::kimi);
  if (has(fmt::format("{}{}", kHead[0], kProbe))) return ToolSyntax(ToolFamily::v3);
  if (has(fmt::format("{}{}", kProbe, kHead[0]))) return ToolSyntax(ToolFamily::v31);
  if (has(kToolCall)) return ToolSyntax(has(kKey) ? ToolFamily::glm : ToolFamily::json);
  return Error{ErrorKind::unsupported, "the chat template writes calls in a form that is not known"};
}

Result<OrderedJson> ToolSyntax::calls(const std::vector<CallableTool>& tools, bool is_parallel,
                                      const Tokenizer& tokenizer) const {
  TRY_ASSIGN(OrderedJson alone, block(tools, is_parallel, tokenizer));
  if (family_ != ToolFamily::dsml || dsml_form_ == 0) return alone;
  return sequence_form({constant_form("\n\n", tokenizer), std::move(alone)});  // as DeepSeek-V4 was trained
}

/// The block of calls, without text before it.
Result<OrderedJson> ToolSyntax::block(const std::vector<CallableTool>& tools, bool is_parallel,
                                      const Tokenizer& tokenizer) const {
  const auto constant = [&tokenizer](std::string_view text) { return constant_form(text, tokenizer); };
  std::vector<OrderedJson> each;
  for (const auto& [name, parameters] : tools) {
    TRY_ASSIGN(std::string grammar, family_ == ToolFamily::dsml  ? arguments_grammar(parameters, ArgumentStyle::dsml)
                                    : family_ == ToolFamily::glm ? arguments_grammar(parameters, ArgumentStyle::glm)
                                                                 : schema_grammar(parameters));
    const OrderedJson arguments = grammar_form(std::move(grammar));
    switch (family_) {
      case ToolFamily::v3:
        each.push_back(sequence_form({constant(fmt::format("{}function{}{}\n```json\n", kCall[0], kHead[0], name)),
                                      arguments, constant(fmt::format("\n```{}", kEndCall[0]))}));
        break;
      case ToolFamily::v31:
        each.push_back(sequence_form(
            {constant(fmt::format("{}{}{}", kCall[0], name, kHead[0])), arguments, constant(kEndCall[0])}));
        break;
      case ToolFamily::dsml:
        each.push_back(sequence_form({constant(fmt::format("{} name=\"{}\">\n", kInvoke, name)), arguments,
                                      constant(fmt::format("{}\n", kEndInvoke))}));
        break;
      case ToolFamily::kimi:
        each.push_back(
            sequence_form({constant(fmt::format("{}functions.{}:", kCall[1], name)), pattern_form("[0-9]{1,4}"),
                           constant(kHead[1]), arguments, constant(kEndCall[1])}));
        break;
      case ToolFamily::glm:
        each.push_back(
            sequence_form({constant(fmt::format("{}{}\n", kToolCall, name)), arguments, constant(kEndToolCall)}));
        break;
      case ToolFamily::json:
        each.push_back(sequence_form(
            {constant(fmt::format("{}\n{{\"name\": {}, \"arguments\": ", kToolCall, OrderedJson(name).dump())),
             arguments, constant(fmt::format("}}\n{}", kEndToolCall))}));
        break;
    }
  }
  const OrderedJson call = choice_form(std::move(each));
  std::vector<OrderedJson> parts;
  if (!begin().empty()) parts.push_back(constant(begin()));
  parts.push_back(call);
  if (is_parallel) {
    const bool are_lines = family_ == ToolFamily::v3 || family_ == ToolFamily::glm || family_ == ToolFamily::json;
    const OrderedJson next = are_lines ? sequence_form({constant("\n"), call}) : call;
    parts.push_back({{"type", "star"}, {"content", next}});
  }
  if (!end().empty()) parts.push_back(constant(end()));
  return sequence_form(std::move(parts));
}

/// The beginning of a block of calls; empty if each call begins by itself.
std::string ToolSyntax::begin() const {
  switch (family_) {
    case ToolFamily::v3:
    case ToolFamily::v31: return std::string(kCalls[0]);
    case ToolFamily::kimi: return std::string(kCalls[1]);
    case ToolFamily::dsml: return fmt::format("{}\n", kDsml[dsml_form_]);
    case ToolFamily::glm:
    case ToolFamily::json: break;
  }
  return "";
}

/// The end of a block of calls; empty if there is none.
std::string_view ToolSyntax::end() const {
  switch (family_) {
    case ToolFamily::v3:
    case ToolFamily::v31: return kEndCalls[0];
    case ToolFamily::kimi: return kEndCalls[1];
    case ToolFamily::dsml: return kEndDsml[dsml_form_];
    case ToolFamily::glm:
    case ToolFamily::json: break;
  }
  return "";
}

Result<OrderedJson> ToolSyntax::text_with_calls(const std::vector<CallableTool>& tools, bool is_parallel,
                                                const Tokenizer& tokenizer) const {
  // A mark that is a token ends the text by itself, since text never contains it.
  OrderedJson text = {{"type", "any_text"}};
  std::string mark = begin().empty() ? std::string(kToolCall) : begin();
  if (mark.ends_with('\n')) mark.pop_back();
  if (constant_form(mark, tokenizer)["type"] == "const_string") text["excludes"] = {mark};
  TRY_ASSIGN(OrderedJson held, block(tools, is_parallel, tokenizer));
  return sequence_form({std::move(text), {{"type", "optional"}, {"content", std::move(held)}}});
}

}  // namespace dspack::runtime
