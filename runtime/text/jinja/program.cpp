#include "runtime/text/jinja/program.h"

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/inputs.h"
#include "runtime/text/jinja/parser.h"

namespace dspack::runtime::jinja {
Result<Program> Program::compile(std::string_view source) {
  TRY_ASSIGN(auto tokens, tokenize(source));
  TRY_ASSIGN(NodePtr root, parse(std::move(tokens)));
  auto inputs = inputs_of(*root);
  return Program(std::shared_ptr<const Node>(std::move(root)), std::move(inputs));
}

Result<std::string> Program::render(const nlohmann::ordered_json& variables, const std::tm& now, Budget& budget) const {
  Evaluator evaluator(budget, now);
  for (const auto& [name, value] : variables.items()) {
    TRY_ASSIGN(Value made, evaluator.heap().from_json(value));
    TRY(evaluator.define(name, std::move(made)));
  }
  return evaluator.run(*root_);
}

Result<std::string> Program::render(const nlohmann::ordered_json& variables, const std::tm& now,
                                    const std::stop_token& stop, Cost* cost) const {
  Budget budget(Budget::limits(bytes_as_value(variables)), stop);
  auto text = render(variables, now, budget);
  if (cost != nullptr) *cost = {.steps = budget.steps(), .bytes = budget.bytes()};
  return text;
}

}  // namespace dspack::runtime::jinja
