// To what form an answer is held: any JSON object, JSON of a schema, or calls of tools; as each API asks for it, and as
// the constraint that is made of it.
// Threads: plain values, pure functions. Errors: invalid (a field; named), unsupported (what a schema, a template or
// this server cannot be held to).
#pragma once

#include <string>
#include <vector>

#include "runtime/serve/json_fields.h"
#include "runtime/text/tool_syntax.h"

namespace dspack::runtime {

struct AnswerForm {
  enum class Kind {
    free,
    object,  // any JSON object
    schema,
    calls,         // nothing but calls
    strict_calls,  // text, and calls if the model wants; these in the form of their schemas, or one at most
  };
  Kind kind = Kind::free;
  OrderedJson schema = {};               // of JSON
  std::vector<CallableTool> tools = {};  // that may be called
  bool is_parallel = true;               // more than one call may be made
};

/// Whether the answer is JSON from its first character to its last.
[[nodiscard]] inline bool is_json(const AnswerForm& form) {
  return form.kind == AnswerForm::Kind::object || form.kind == AnswerForm::Kind::schema;
}

/// OpenAI's response_format, or the "format" of its Responses API; null: absent. `name`: the field, for errors.
[[nodiscard]] Result<void> read_format(const OrderedJson* format, const char* name, AnswerForm& form);
/// The names that other servers have for a schema: "json_schema" (llama-server, SGLang), "guided_json" and
/// "structured_outputs" (vLLM). Each is a schema, or its text.
[[nodiscard]] Result<void> read_schemas(const JsonFields& fields, AnswerForm& form);
/// "tool_choice" and "parallel_tool_calls" of both APIs of OpenAI. `tools`: the request's, in the form of the chat API,
/// or null; they become null where none may be called. `remarks`: lines for the log, on schemas that calls are not held
/// to.
[[nodiscard]] Result<void> read_tool_choice(const JsonFields& fields, OrderedJson& tools, AnswerForm& form,
                                            std::vector<std::string>& remarks);
/// "tool_choice" of Anthropic's API; tools likewise.
[[nodiscard]] Result<void> read_messages_tool_choice(const JsonFields& fields, OrderedJson& tools, AnswerForm& form,
                                                     std::vector<std::string>& remarks);

/// How the answer to a prompt begins.
enum class Reasoning { none, optional, begun };

/// What a ConstraintCompiler makes the constraint of; null: the answer is free. `chat`: the template that has written
/// the prompt, or why there is none.
[[nodiscard]] Result<OrderedJson> compose_form(const AnswerForm& form, Reasoning reasoning,
                                               const Result<ChatTemplate>& chat, const Tokenizer& tokenizer);

}  // namespace dspack::runtime
