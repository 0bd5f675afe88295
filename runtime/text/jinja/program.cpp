#include "runtime/text/jinja/program.h"

#include <algorithm>

#include "runtime/text/jinja/evaluator.h"
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

bool mentions_in(const Node& node, std::string_view name) {
  if (node.kind == Node::Kind::name && node.text == name) return true;
  return std::ranges::any_of(node.kids, [name](const NodePtr& kid) { return kid && mentions_in(*kid, name); });
}

}  // namespace

Result<Program> Program::compile(std::string_view source) {
  TRY_ASSIGN(auto tokens, tokenize(source));
  TRY_ASSIGN(NodePtr root, parse(std::move(tokens)));
  return Program(std::shared_ptr<const Node>(std::move(root)));
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

bool Program::mentions(std::string_view name) const {
  return mentions_in(*root_, name);
}

}  // namespace dspack::runtime::jinja
