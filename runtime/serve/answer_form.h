// The form that an answer is held to: any JSON object, JSON of a schema, or tool calls. Read from each API's request,
// and composed into the constraint.
// Threads: plain values, pure functions. Errors: invalid (a field; named), unsupported (a form that a schema, a
// template or this server cannot enforce).
#pragma once

#include <string>
#include <vector>

#include "runtime/text/json_fields.h"
#include "runtime/text/tool_syntax.h"

namespace dspack::runtime {

struct AnswerForm {
  enum class Kind {
    free,
    object,  // any JSON object
    schema,
    calls,         // tool calls only
    strict_calls,  // text with optional calls, which follow their schemas or are limited to one
  };
  Kind kind = Kind::free;
  OrderedJson schema = {};               // for object and schema
  std::vector<CallableTool> tools = {};  // callable tools
  bool is_parallel = true;               // whether more than one call is allowed
};

/// Whether the answer is JSON from its first character to its last.
[[nodiscard]] inline bool is_json(const AnswerForm& form) {
  return form.kind == AnswerForm::Kind::object || form.kind == AnswerForm::Kind::schema;
}

/// Reads OpenAI's response_format, or the "format" of its Responses API; null: absent. `name`: the field, for errors.
[[nodiscard]] Result<void> read_format(const OrderedJson* format, const char* name, AnswerForm& form);
/// Reads the schema fields of other servers: "json_schema" (llama-server, SGLang), "guided_json" and
/// "structured_outputs" (vLLM). Each is a schema or its text.
[[nodiscard]] Result<void> read_schemas(const JsonFields& fields, AnswerForm& form);
/// Reads "tool_choice" and "parallel_tool_calls" of OpenAI's two APIs. `tools`: the request's tools in the form of the
/// chat API, or null; set to null if none may be called. `remarks`: gets log lines on schemas that calls are not held
/// to.
[[nodiscard]] Result<void> read_tool_choice(const JsonFields& fields, OrderedJson& tools, AnswerForm& form,
                                            std::vector<std::string>& remarks);
/// The same for "tool_choice" of Anthropic's API.
[[nodiscard]] Result<void> read_messages_tool_choice(const JsonFields& fields, OrderedJson& tools, AnswerForm& form,
                                                     std::vector<std::string>& remarks);

/// How the answer to a prompt begins: without reasoning, with optional reasoning, or within reasoning.
enum class Reasoning { none, optional, begun };

/// The input from which a ConstraintCompiler makes the constraint; null: the answer is free. `chat`: the template that
/// rendered the prompt, or the error if there is none.
[[nodiscard]] Result<OrderedJson> compose_form(const AnswerForm& form, Reasoning reasoning,
                                               const Result<ChatTemplate>& chat, const Tokenizer& tokenizer);

}  // namespace dspack::runtime
