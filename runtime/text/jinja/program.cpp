#include "runtime/text/jinja/program.h"

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/inputs.h"
#include "runtime/text/jinja/parser.h"

namespace dspack::runtime::jinja {
namespace {

/// Bytes of the texts in a value, and something for each part of it.
uint64_t bytes_of(const nlohmann::ordered_json& value) {
  uint64_t bytes = 8;
  if (value.is_string()) bytes += value.get_ref<const std::string&>().size();
  if (value.is_structured()) {
    for (const auto& [key, item] : value.items())
      bytes += key.size() + bytes_of(item);
  }
  return bytes;
}

}  // namespace

Result<Program> Program::compile(std::string_view source) {
  TRY_ASSIGN(auto tokens, tokenize(source));
  TRY_ASSIGN(NodePtr root, parse(std::move(tokens)));
  auto inputs = inputs_of(*root);
  return Program(std::shared_ptr<const Node>(std::move(root)), std::move(inputs));
}

Result<std::string> Program::render(const nlohmann::ordered_json& variables, const std::tm& now, Cost* cost) const {
  Budget budget(bytes_of(variables));
  Evaluator evaluator(budget, now);
  for (const auto& [name, value] : variables.items()) {
    TRY_ASSIGN(Value made, evaluator.heap().from_json(value));
    evaluator.define(name, std::move(made));
  }
  auto text = evaluator.run(*root_);
  if (cost != nullptr) *cost = {.steps = budget.steps(), .bytes = budget.bytes()};
  return text;
}

}  // namespace dspack::runtime::jinja
