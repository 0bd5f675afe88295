#include "runtime/serve/answer_check.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/text/schema_validator.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {
namespace {

bool has_calls(const AnswerForm& form) {
  return form.kind == AnswerForm::Kind::calls || form.kind == AnswerForm::Kind::strict_calls;
}

}  // namespace

void AnswerCheck::take(const ReplyPart& part) {
  switch (part.kind) {
    case ReplyPart::Kind::reasoning: break;
    case ReplyPart::Kind::content:
      if (is_json(form_)) content_ += part.text;
      break;
    case ReplyPart::Kind::call:
      if (has_calls(form_)) calls_.push_back({.name = part.text, .arguments = {}});
      break;
    case ReplyPart::Kind::arguments:
      if (has_calls(form_)) calls_.back().arguments += part.text;
      break;
  }
}

std::optional<std::string> AnswerCheck::fault() const {
  if (is_json(form_)) {
    const auto fault = schema_fault(content_, form_.schema);
    if (!fault) return std::nullopt;
    return fmt::format("the answer is not of the form that was asked for: {}", *fault);
  }
  if (form_.kind == AnswerForm::Kind::calls && calls_.empty()) return "the answer ended before a call was whole";
  for (const auto& [name, arguments] : calls_) {
    const CallableTool* tool = find_tool(form_.tools, name);
    const auto fault = tool == nullptr ? std::nullopt : schema_fault(arguments, tool->parameters);
    if (fault) return fmt::format("the arguments of {} are not of its parameters: {}", quote(name), *fault);
  }
  return std::nullopt;
}

}  // namespace dspack::runtime
