#include "runtime/text/jinja/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/jinja/value_tests.h"

namespace dspack::runtime::jinja {
namespace {

constexpr uint64_t kScopeBytes = 256;  // of a scope kept for a macro, and of the macro

/// The innermost place says the line.
Error at_line(const Error& error, uint32_t line) {
  if (error.message.starts_with("line ")) return error;
  return {error.kind, fmt::format("line {}: {}", line, error.message)};
}

}  // namespace

Evaluator::~Evaluator() {
  for (const auto& scope : scopes_)
    scope->names.clear();
  scope_->names.clear();
}

Result<std::string> Evaluator::run(const Node& program) {
  push_scope();
  TRY(execute(program));
  return std::move(out_);
}

void Evaluator::push_scope() {
  auto inner = std::make_shared<Scope>();
  inner->outer = scope_;
  scope_ = std::move(inner);
}

Result<void> Evaluator::write(std::string_view text) {
  TRY(heap_.budget().produce(text.size()));
  out_ += text;
  return {};
}

Result<Evaluator::Flow> Evaluator::execute_block(const Node& node) {
  for (const NodePtr& kid : node.kids) {
    TRY_ASSIGN(const Flow flow, execute(*kid));
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Result<Evaluator::Flow> Evaluator::execute(const Node& node) {
  auto budgeted = heap_.budget().step();
  if (budgeted) budgeted = heap_.budget().enter();
  if (!budgeted) return at_line(budgeted.error(), node.line);
  auto flow = execute_inner(node);
  heap_.budget().leave();
  return flow;
}

Result<Evaluator::Flow> Evaluator::execute_inner(const Node& node) {
  switch (node.kind) {
    case NodeKind::block: return execute_block(node);
    case NodeKind::data: {
      TRY(write(node.text));
      return Flow::on;
    }
    case NodeKind::print: {
      TRY_ASSIGN(const Value value, evaluate(*node.kids[0]));
      const auto text = to_text(value, heap_.budget());
      if (!text) return at_line(text.error(), node.line);
      TRY(write(*text));
      return Flow::on;
    }
    case NodeKind::branch:
      for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
        TRY_ASSIGN(const Value condition, evaluate(*node.kids[i]));
        if (condition.truth()) return execute(*node.kids[i + 1]);
      }
      if (node.kids.size() % 2 == 1) return execute(*node.kids.back());
      return Flow::on;
    case NodeKind::loop: return loop(node);
    case NodeKind::break_loop: return Flow::break_loop;
    case NodeKind::continue_loop: return Flow::continue_loop;
    case NodeKind::set: {
      TRY_ASSIGN(Value value, evaluate(*node.kids[1]));
      const auto done = assign(*node.kids[0], std::move(value));
      if (!done) return at_line(done.error(), node.line);
      return Flow::on;
    }
    case NodeKind::set_block: {
      const auto done = set_block(node);
      if (!done) return at_line(done.error(), node.line);
      return Flow::on;
    }
    case NodeKind::macro: {
      TRY(heap_.budget().produce(kScopeBytes));
      scopes_.push_back(scope_);
      scope_->names[node.text] = Value(std::make_shared<const Callable>(
          Callable{.kind = Callable::Kind::macro, .name = node.text, .macro = &node, .scope = scope_}));
      return Flow::on;
    }
    case NodeKind::call_block: {
      TRY(heap_.budget().produce(kScopeBytes));
      scopes_.push_back(scope_);
      const Value caller(std::make_shared<const Callable>(
          Callable{.kind = Callable::Kind::macro, .name = "caller", .macro = node.kids[0].get(), .scope = scope_}));
      const auto value = call(*node.kids[1], &caller);
      if (!value) return at_line(value.error(), node.line);
      TRY_ASSIGN(const std::string text, to_text(*value, heap_.budget()));
      TRY(write(text));
      return Flow::on;
    }
    case NodeKind::filter_block: {
      TRY_ASSIGN(std::string text, captured(*node.kids[1]));
      push_scope();
      TRY_ASSIGN(scope_->names[" block"], heap_.text(std::move(text)));
      TRY_ASSIGN(const Value value, evaluate(*node.kids[0]));
      scope_ = scope_->outer;
      if (!value.is_text()) return at_line(invalid("a filter block must give a text"), node.line);
      TRY(write(*value.text()));
      return Flow::on;
    }
    default: return with(node);
  }
}

Result<void> Evaluator::set_block(const Node& node) {
  TRY_ASSIGN(std::string text, captured(*node.kids[2]));
  TRY_ASSIGN(Value value, heap_.text(std::move(text)));
  if (node.kids[1]) {
    push_scope();
    scope_->names[" block"] = std::move(value);
    TRY_ASSIGN(value, evaluate(*node.kids[1]));
    scope_ = scope_->outer;
  }
  return assign(*node.kids[0], std::move(value));
}

Result<std::string> Evaluator::captured(const Node& body) {
  std::string outside = std::move(out_);
  out_.clear();
  push_scope();
  TRY(execute(body));
  scope_ = scope_->outer;
  std::swap(outside, out_);
  return outside;
}

Result<Evaluator::Flow> Evaluator::with(const Node& node) {
  // Values are those of the names outside.
  Values values;
  for (size_t i = 1; i < node.kids.size(); i += 2) {
    TRY_ASSIGN(Value value, evaluate(*node.kids[i]));
    values.push_back(std::move(value));
  }
  push_scope();
  for (size_t i = 0; i < values.size(); ++i) {
    TRY(assign(*node.kids[2 * i], std::move(values[i])));
  }
  TRY_ASSIGN(const Flow flow, execute(*node.kids.back()));
  scope_ = scope_->outer;
  return flow;
}

Result<void> Evaluator::assign(const Node& target, Value value) {
  if (target.kind == NodeKind::name) {
    TRY(heap_.budget().produce(64 + target.text.size()));
    scope_->names[target.text] = std::move(value);
    return {};
  }
  if (target.kind == NodeKind::attribute) {
    TRY_ASSIGN(const Value space, evaluate(*target.kids[0]));
    if (space.space() == nullptr) return invalid("cannot assign attribute on non-namespace object");
    if (value.leads_to_space()) return Error{ErrorKind::unsupported, "a namespace cannot hold another"};
    TRY(heap_.budget().produce(64 + target.text.size()));
    space.space()->fields[target.text] = std::move(value);
    return {};
  }
  TRY_ASSIGN(Values values, iterate(value, heap_));
  if (values.size() != target.kids.size()) {
    return invalid(fmt::format("{} values cannot be unpacked to {} names", values.size(), target.kids.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    TRY(assign(*target.kids[i], std::move(values[i])));
  }
  return {};
}

Result<Evaluator::Flow> Evaluator::loop(const Node& node) {
  TRY_ASSIGN(const Value iterable, evaluate(*node.kids[1]));
  auto all = iterate(iterable, heap_);
  if (!all) return at_line(all.error(), node.line);
  Values items = *std::move(all);
  const std::shared_ptr<Scope> outside = scope_;
  if (node.kids[2]) {
    Values chosen;
    for (Value& each : items) {
      push_scope();
      TRY(assign(*node.kids[0], each));
      TRY_ASSIGN(const Value condition, evaluate(*node.kids[2]));
      scope_ = outside;
      if (condition.truth()) chosen.push_back(std::move(each));
    }
    items = std::move(chosen);
  }
  const auto count = static_cast<int64_t>(items.size());
  const auto state = std::make_shared<Namespace>();  // also remembers what loop.changed saw
  bool finished_a_turn = false;  // Jinja runs `else` also where `continue` or `break` ended every turn
  for (int64_t i = 0; i < count; ++i) {
    push_scope();
    auto& fields = state->fields;
    fields["index"] = Value(i + 1);
    fields["index0"] = Value(i);
    fields["revindex"] = Value(count - i);
    fields["revindex0"] = Value(count - i - 1);
    fields["first"] = Value(i == 0);
    fields["last"] = Value(i + 1 == count);
    fields["length"] = Value(count);
    fields["depth"] = Value(int64_t{1});
    fields["depth0"] = Value(int64_t{0});
    fields["previtem"] = i > 0 ? items[static_cast<size_t>(i - 1)] : Value::undefined("there is no previous item");
    fields["nextitem"] = i + 1 < count ? items[static_cast<size_t>(i + 1)] : Value::undefined("there is no next item");
    scope_->names["loop"] = Value(state);
    TRY(heap_.budget().step(12));
    const auto assigned = assign(*node.kids[0], items[static_cast<size_t>(i)]);
    if (!assigned) return at_line(assigned.error(), node.line);
    TRY_ASSIGN(const Flow flow, execute(*node.kids[3]));
    scope_ = outside;
    finished_a_turn |= flow == Flow::on;
    if (flow == Flow::break_loop) break;
  }
  if (finished_a_turn || !node.kids[4]) return Flow::on;
  push_scope();
  TRY_ASSIGN(const Flow flow, execute(*node.kids[4]));
  scope_ = outside;
  return flow;
}

Result<Value> Evaluator::evaluate(const Node& node) {
  auto budgeted = heap_.budget().step();
  if (budgeted) budgeted = heap_.budget().enter();
  if (!budgeted) return at_line(budgeted.error(), node.line);
  auto value = evaluate_inner(node);
  heap_.budget().leave();
  if (!value) return at_line(value.error(), node.line);
  return value;
}

Result<Value> Evaluator::look_up(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
    TRY(heap_.budget().step());
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return found->second;
  }
  if (std::ranges::find(kFunctions, name) != kFunctions.end()) {
    return Value(std::make_shared<const Callable>(Callable{.name = name}));
  }
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

Result<Value> Evaluator::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) return invalid(object.why_undefined());
  if (is_method(object, name) || (object.space() != nullptr && object.space()->fields.contains("revindex0") &&
                                  (name == "cycle" || name == "changed"))) {
    TRY(heap_.budget().produce(sizeof(Callable)));
    return Value(
        std::make_shared<const Callable>(Callable{.kind = Callable::Kind::method, .name = name, .self = object}));
  }
  TRY_ASSIGN(const Value key, heap_.text(name));
  return item_of(object, key, heap_);
}

Result<Value> Evaluator::item(const Node& node) {
  TRY_ASSIGN(const Value object, evaluate(*node.kids[0]));
  if (node.kids[1]->kind != NodeKind::slice) {
    TRY_ASSIGN(const Value key, evaluate(*node.kids[1]));
    TRY_ASSIGN(Value found, item_of(object, key, heap_));
    if (found.is_undefined() && key.text() != nullptr && is_method(object, *key.text())) {
      return attribute(object, *key.text());
    }
    return found;
  }
  Values parts;
  for (const NodePtr& part : node.kids[1]->kids) {
    Value value(None{});
    if (part) {
      TRY_ASSIGN(value, evaluate(*part));
    }
    parts.push_back(std::move(value));
  }
  return slice(object, parts[0], parts[1], parts[2], heap_);
}

Result<Value> Evaluator::comparison(const Node& node) {
  TRY_ASSIGN(Value left, evaluate(*node.kids[0]));
  for (size_t i = 1; i < node.kids.size(); ++i) {
    TRY_ASSIGN(Value right, evaluate(*node.kids[i]->kids[0]));
    TRY_ASSIGN(const bool holds, compare_by(node.kids[i]->text, left, right, heap_));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::collection(const Node& node) {
  Values items;
  for (const NodePtr& kid : node.kids) {
    TRY_ASSIGN(Value value, evaluate(*kid));
    items.push_back(std::move(value));
  }
  if (node.kind != NodeKind::dict) return heap_.list(std::move(items), node.kind == NodeKind::tuple);
  Dict dict;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    TRY(dict.set(std::move(items[i]), std::move(items[i + 1])));
  }
  return heap_.dict(std::move(dict));
}

Result<Value> Evaluator::evaluate_inner(const Node& node) {
  switch (node.kind) {
    case NodeKind::constant: return node.value;
    case NodeKind::name: return look_up(node.text);
    case NodeKind::tuple:
    case NodeKind::list:
    case NodeKind::dict: return collection(node);
    case NodeKind::attribute: {
      TRY_ASSIGN(const Value object, evaluate(*node.kids[0]));
      return attribute(object, node.text);
    }
    case NodeKind::item: return item(node);
    case NodeKind::call: return call(node, nullptr);
    case NodeKind::filter: {
      Result<Value> value = node.kids[0] ? evaluate(*node.kids[0]) : look_up(" block");
      if (!value) return value;
      TRY_ASSIGN(const Arguments args, arguments(node, 1));
      return apply_filter(node.text, *value, args, heap_);
    }
    case NodeKind::test: {
      TRY_ASSIGN(const Value value, evaluate(*node.kids[0]));
      TRY_ASSIGN(const Arguments args, arguments(node, 1));
      TRY_ASSIGN(const bool holds, apply_test(node.text, value, args, heap_));
      return Value(holds);
    }
    case NodeKind::unary: {
      TRY_ASSIGN(const Value value, evaluate(*node.kids[0]));
      if (node.text == "not") return Value(!value.truth());
      if (value.is_undefined()) return invalid(value.why_undefined());
      if (!value.is_number())
        return invalid(fmt::format("bad operand type for unary {}: '{}'", node.text, value.type()));
      if (value.is_float()) return Value(node.text == "-" ? -value.real() : value.real());
      return binary(node.text, Value(int64_t{0}), value, heap_);
    }
    case NodeKind::binary: {
      TRY_ASSIGN(const Value left, evaluate(*node.kids[0]));
      TRY_ASSIGN(const Value right, evaluate(*node.kids[1]));
      return binary(node.text, left, right, heap_);
    }
    case NodeKind::both:
    case NodeKind::either: {
      TRY_ASSIGN(Value left, evaluate(*node.kids[0]));
      if (left.truth() != (node.kind == NodeKind::both)) return left;
      return evaluate(*node.kids[1]);
    }
    case NodeKind::join: {
      std::string text;
      for (const NodePtr& kid : node.kids) {
        TRY_ASSIGN(const Value value, evaluate(*kid));
        TRY_ASSIGN(const std::string part, to_text(value, heap_.budget()));
        text += part;
      }
      return heap_.text(std::move(text));
    }
    case NodeKind::comparison: return comparison(node);
    case NodeKind::choice: {
      TRY_ASSIGN(const Value condition, evaluate(*node.kids[1]));
      if (condition.truth()) return evaluate(*node.kids[0]);
      if (node.kids[2]) return evaluate(*node.kids[2]);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
    }
    default: return Error{ErrorKind::invalid, "no expression"};
  }
}

}  // namespace dspack::runtime::jinja
