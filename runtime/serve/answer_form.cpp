#include "runtime/serve/answer_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/serve/field_table.h"
#include "runtime/text/json.h"
#include "runtime/text/json_schema.h"
#include "runtime/text/schema_grammar.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxNameBytes = 64;  // per function; OpenAI's limit

OrderedJson any_object() {
  return {{"type", "object"}, {"additionalProperties", true}};
}

/// Whether a name can stand in a call without ending it.
bool is_plain(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

struct NamedTool {
  CallableTool tool;
  bool is_strict = false;
};

/// Whether a schema can describe arguments, which are an object.
bool may_be_object(const OrderedJson& schema) {
  const OrderedJson* type = find_keyword(schema, "type");
  return schema == true ||
         (schema.is_object() && (type == nullptr || *type == "object" ||
                                 (type->is_array() && std::ranges::find(*type, "object") != type->end())));
}

/// Reads the functions among the request's tools and erases "strict", which is not for the model. Fails if a strict
/// schema cannot be enforced.
Result<std::vector<NamedTool>> read_tools(OrderedJson& tools) {
  std::vector<NamedTool> read;
  if (!tools.is_array()) return read;
  for (OrderedJson& each : tools) {
    if (!each.is_object() || !each.contains("function") || !each["function"].is_object()) continue;
    const JsonFields function(each["function"]);
    TRY_ASSIGN(const auto name, function.text("name"));
    if (!name) continue;
    TRY_ASSIGN(const auto strict, function.flag("strict"));
    each["function"].erase("strict");
    const OrderedJson* parameters = function.find("parameters");
    const auto place = fmt::format("the tool {}", quote(*name));
    if (parameters != nullptr && !may_be_object(*parameters))
      return invalid(fmt::format("{}: \"parameters\" describe no object", place));
    NamedTool tool{.tool = {.name = *name, .parameters = parameters == nullptr ? any_object() : *parameters},
                   .is_strict = strict.value_or(false)};
    if (tool.is_strict)
      if (const auto accepted = schema_grammar(tool.tool.parameters); !accepted) return accepted.error().in(place);
    read.push_back(std::move(tool));
  }
  return read;
}

enum class Choice { automatic, none, any, named };

/// A tool with the schema that its calls are held to. A schema that cannot be enforced is replaced by any object,
/// unless it is strict.
CallableTool held_tool(NamedTool named, std::vector<std::string>& remarks) {
  if (named.is_strict) return std::move(named.tool);
  if (const auto accepted = schema_grammar(named.tool.parameters); !accepted) {
    remark(remarks, fmt::format("calls of the tool {} are not held to its parameters: {}", quote(named.tool.name),
                                accepted.error().message));
    named.tool.parameters = any_object();
  }
  return std::move(named.tool);
}

Result<void> choose(Choice choice, const std::string& name, bool is_parallel, OrderedJson& tools, AnswerForm& form,
                    std::vector<std::string>& remarks) {
  if (choice == Choice::none) tools = nullptr;
  TRY_ASSIGN(const std::vector<NamedTool> known, read_tools(tools));
  const bool is_forced = choice == Choice::any || choice == Choice::named;
  const bool is_strict = std::ranges::any_of(known, [](const NamedTool& each) { return each.is_strict; });
  const bool has_plain_names =
      std::ranges::all_of(known, [](const NamedTool& each) { return is_plain(each.tool.name); });
  const bool is_held = is_forced || is_strict || (!known.empty() && !is_parallel && has_plain_names);
  if (!is_held) return {};
  // The other form is for text: it makes the answer JSON without calls, unless a call is forced.
  if (form.kind != AnswerForm::Kind::free && !is_forced) return {};
  form.kind = is_forced ? AnswerForm::Kind::calls : AnswerForm::Kind::strict_calls;
  // A named function is forced once, as in OpenAI's API: the answer is one call, whatever parallel_tool_calls is.
  form.is_parallel = is_parallel && choice != Choice::named;
  for (const NamedTool& each : known) {
    const CallableTool& tool = each.tool;
    if (choice == Choice::named && tool.name != name) continue;
    if (!is_plain(tool.name)) {
      return invalid(fmt::format("the tool's name {} is not of letters, digits, \"_\", \"-\" and \".\", up to {}",
                                 quote(tool.name), kMaxNameBytes));
    }
    form.tools.push_back(is_forced || each.is_strict ? held_tool(each, remarks)
                                                     : CallableTool{.name = tool.name, .parameters = any_object()});
  }
  if (!form.tools.empty()) return {};
  if (choice == Choice::named)
    return invalid(fmt::format("\"tool_choice\" names {}, which \"tools\" lacks", quote(name)));
  return invalid("\"tool_choice\" forces a call, but \"tools\" is empty");
}

/// Reads a schema, or its JSON as text. `name`: the field, for errors.
Result<void> read_schema(const OrderedJson& schema, std::string_view name, AnswerForm& form) {
  const auto place = fmt::format("\"{}\"", name);
  if (form.kind != AnswerForm::Kind::free) return invalid(place + ": another field says the answer's form already");
  const bool is_text = schema.is_string();
  const auto parsed = is_text ? parse_ordered_json(schema.get_ref<const std::string&>(), format::kConversationDocument)
                              : Result<OrderedJson>(schema);
  if (!parsed) return parsed.error().in(place);
  if (const auto accepted = schema_grammar(*parsed); !accepted) return accepted.error().in(place);
  form.kind = AnswerForm::Kind::schema;
  form.schema = *parsed;
  return {};
}

Result<OrderedJson> compose(const AnswerForm& form, const Result<ChatTemplate>& chat, const Tokenizer& tokenizer) {
  switch (form.kind) {
    case AnswerForm::Kind::free: break;
    case AnswerForm::Kind::object:
    case AnswerForm::Kind::schema: return schema_form(form.schema);
    case AnswerForm::Kind::calls: {
      const auto syntax = chat ? ToolSyntax::of(*chat) : Result<ToolSyntax>(chat.error());
      if (!syntax) return syntax.error().in("\"tool_choice\" that forces a call");
      return syntax->calls(form.tools, form.is_parallel, tokenizer);
    }
    case AnswerForm::Kind::strict_calls: {
      const auto syntax = chat ? ToolSyntax::of(*chat) : Result<ToolSyntax>(chat.error());
      if (!syntax) return OrderedJson();  // calls in an unknown syntax are not constrained
      return syntax->text_with_calls(form.tools, form.is_parallel, tokenizer);
    }
  }
  return OrderedJson();
}

}  // namespace

Result<void> read_format(const OrderedJson* format, const char* name, AnswerForm& form) {
  if (format == nullptr) return {};
  const auto type = format->is_object() ? format->find("type") : format->end();
  if (type == format->end() || !type->is_string()) return invalid(fmt::format("\"{}\" has no \"type\"", name));
  if (*type == "text") return {};
  if (*type == "json_object") {
    // llama-server's form of json_schema.
    if (const OrderedJson* schema = JsonFields(*format).find("schema")) return read_schema(*schema, name, form);
    form.kind = AnswerForm::Kind::object;
    form.schema = any_object();
    return {};
  }
  if (*type != "json_schema") {
    return Error{ErrorKind::unsupported,
                 fmt::format("\"{}\": {} is not supported; \"text\", \"json_object\" and \"json_schema\" are", name,
                             quote(type->get<std::string>()))};
  }
  // The chat API has the schema one level deeper than the Responses API.
  const JsonFields fields(*format);
  const OrderedJson* nested = fields.find("json_schema");
  const OrderedJson* schema = nested == nullptr     ? fields.find("schema")
                              : nested->is_object() ? JsonFields(*nested).find("schema")
                                                    : nullptr;
  if (schema == nullptr) return invalid(fmt::format("\"{}\" has no \"schema\"", name));
  return read_schema(*schema, name, form);
}

Result<void> read_schemas(const JsonFields& fields, AnswerForm& form) {
  for (const char* name : {"json_schema", "guided_json"})
    if (const OrderedJson* schema = fields.find(name)) TRY(read_schema(*schema, name, form));
  const OrderedJson* outputs = fields.find("structured_outputs");
  if (outputs == nullptr) return {};
  if (!outputs->is_object()) return invalid("\"structured_outputs\" is not an object");
  for (const auto& [name, value] : outputs->items()) {
    const auto place = fmt::format("structured_outputs.{}", brief(name));
    if (value.is_null()) continue;
    if (name == "json") {
      TRY(read_schema(value, place, form));
    } else if (name == "json_object") {
      if (!value.is_boolean()) return invalid(fmt::format("\"{}\" is not true or false", place));
      if (!value.get<bool>()) continue;
      if (form.kind != AnswerForm::Kind::free)
        return invalid(fmt::format("\"{}\": another field says the answer's form already", place));
      form.kind = AnswerForm::Kind::object;
      form.schema = any_object();
    } else if (!(value.is_boolean() && !value.get<bool>())) {
      return Error{ErrorKind::unsupported,
                   fmt::format("\"{}\" is not supported; \"json\" and \"json_object\" are", place)};
    }
  }
  return {};
}

Result<void> read_tool_choice(const JsonFields& fields, OrderedJson& tools, AnswerForm& form,
                              std::vector<std::string>& remarks) {
  TRY_ASSIGN(const auto parallel, fields.flag("parallel_tool_calls"));
  const OrderedJson* choice = fields.find("tool_choice");
  const bool is_parallel = parallel.value_or(true);
  if (choice == nullptr || *choice == "auto") return choose(Choice::automatic, "", is_parallel, tools, form, remarks);
  if (*choice == "none") return choose(Choice::none, "", is_parallel, tools, form, remarks);
  if (*choice == "required") return choose(Choice::any, "", is_parallel, tools, form, remarks);
  if (choice->is_object()) {
    const JsonFields chosen(*choice);
    TRY_ASSIGN(const auto type, chosen.text("type"));
    const OrderedJson* function = chosen.find("function");
    TRY_ASSIGN(const auto name,
               function != nullptr && function->is_object() ? JsonFields(*function).text("name") : chosen.text("name"));
    if (type == "function" && name) return choose(Choice::named, *name, is_parallel, tools, form, remarks);
  }
  return Error{
      ErrorKind::unsupported,
      "\"tool_choice\" can be \"auto\", \"none\", \"required\", or an object of type \"function\" with a name"};
}

Result<void> read_messages_tool_choice(const JsonFields& fields, OrderedJson& tools, AnswerForm& form,
                                       std::vector<std::string>& remarks) {
  const OrderedJson* choice = fields.find("tool_choice");
  if (choice == nullptr) return choose(Choice::automatic, "", true, tools, form, remarks);
  if (!choice->is_object()) return invalid("\"tool_choice\" is not an object");
  const JsonFields chosen(*choice);
  TRY_ASSIGN(const auto type, chosen.text("type"));
  TRY_ASSIGN(const auto name, chosen.text("name"));
  TRY_ASSIGN(const auto alone, chosen.flag("disable_parallel_tool_use"));
  const bool is_parallel = !alone.value_or(false);
  if (type == "auto") return choose(Choice::automatic, "", is_parallel, tools, form, remarks);
  if (type == "none") return choose(Choice::none, "", is_parallel, tools, form, remarks);
  if (type == "any") return choose(Choice::any, "", is_parallel, tools, form, remarks);
  if (type == "tool" && name) return choose(Choice::named, *name, is_parallel, tools, form, remarks);
  return invalid("\"tool_choice\" is not of type \"auto\", \"none\", \"any\", or \"tool\" with a \"name\"");
}

Result<OrderedJson> compose_form(const AnswerForm& form, Reasoning reasoning, const Result<ChatTemplate>& chat,
                                 const Tokenizer& tokenizer) {
  TRY_ASSIGN(OrderedJson answer, compose(form, chat, tokenizer));
  if (answer.is_null()) return answer;
  // If text is free, so is reasoning before it.
  if (reasoning == Reasoning::none && form.kind == AnswerForm::Kind::strict_calls) reasoning = Reasoning::optional;
  if (reasoning == Reasoning::none) return answer;
  return reasoned_form(std::move(answer), reasoning == Reasoning::optional, tokenizer);
}

}  // namespace dspack::runtime
