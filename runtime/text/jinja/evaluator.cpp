#include "runtime/text/jinja/evaluator.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"

namespace dspack::runtime::jinja {
namespace {

constexpr uint64_t kScopeBytes = 128;

/// The innermost node sets the line.
Error at_line(const Error& error, uint32_t line) {
  if (error.message.starts_with("line ")) return error;
  return {error.kind, fmt::format("line {}: {}", line, error.message)};
}

}  // namespace

Evaluator::~Evaluator() {
  for (auto& kept : scopes_) {
    // A scope without an outer one is the outermost, or was already cleared.
    for (std::shared_ptr<Scope> scope = kept; scope != nullptr; scope = std::exchange(scope->outer, nullptr))
      scope->names.clear();
  }
  scope_->names.clear();
}

Result<std::string> Evaluator::run(const Node& program) {
  TRY(push_scope());
  TRY(execute(program));
  return out_.take().first;
}

Result<void> Evaluator::push_scope() {
  TRY_ASSIGN(Charge charge, heap_.budget().hold(kScopeBytes));
  scope_ = std::make_shared<Scope>(Scope{.outer = scope_, .charge = std::move(charge)});
  return {};
}

Result<void> Evaluator::define(std::string_view name, Value value) {
  TRY(heap_.budget().read(name.size()));
  if (const auto found = scope_->names.find(name); found != scope_->names.end()) {
    found->second = std::move(value);
    return {};
  }
  TRY_ASSIGN(Charge charge, heap_.budget().hold(kNameBytes + name.size()));
  scope_->charge.add(std::move(charge));
  scope_->names.emplace(name, std::move(value));
  return {};
}

Result<Value> Evaluator::macro(const Node& node, const std::string& name) {
  TRY_ASSIGN(Charge charge, heap_.budget().hold(2 * sizeof(scope_)));  // including growth of the list
  scope_->charge.add(std::move(charge));
  scopes_.push_back(scope_);
  return heap_.callable({.kind = Callable::Kind::macro, .name = name, .macro = &node, .scope = scope_});
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
      TRY(out_.add(node.text));
      return Flow::on;
    }
    case NodeKind::print: {
      TRY_ASSIGN(const Value value, evaluate(*node.kids[0]));
      const auto printed = print(value, out_);
      if (!printed) return at_line(printed.error(), node.line);
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
      TRY_ASSIGN(Value made, macro(node, node.text));
      TRY(define(node.text, std::move(made)));
      return Flow::on;
    }
    case NodeKind::call_block: {
      TRY_ASSIGN(const Value caller, macro(*node.kids[0], "caller"));
      const auto value = call(*node.kids[1], &caller);
      if (!value) return at_line(value.error(), node.line);
      TRY(print(*value, out_));
      return Flow::on;
    }
    case NodeKind::filter_block: {
      TRY_ASSIGN(Value text, captured(*node.kids[1]));
      TRY(push_scope());
      TRY(define(" block", std::move(text)));
      TRY_ASSIGN(const Value value, evaluate(*node.kids[0]));
      scope_ = scope_->outer;
      if (!value.is_text()) return at_line(invalid("a filter block must give a text"), node.line);
      TRY(print(value, out_));
      return Flow::on;
    }
    default: return with(node);
  }
}

Result<void> Evaluator::set_block(const Node& node) {
  TRY_ASSIGN(Value value, captured(*node.kids[2]));
  if (node.kids[1]) {
    TRY(push_scope());
    TRY(define(" block", std::move(value)));
    TRY_ASSIGN(value, evaluate(*node.kids[1]));
    scope_ = scope_->outer;
  }
  return assign(*node.kids[0], std::move(value));
}

Result<Value> Evaluator::captured(const Node& body) {
  TextBuilder outside(heap_.budget());
  std::swap(outside, out_);
  TRY(push_scope());
  TRY(execute(body));
  scope_ = scope_->outer;
  std::swap(outside, out_);
  return heap_.text(std::move(outside));
}

Result<Evaluator::Flow> Evaluator::with(const Node& node) {
  // The values are evaluated in the outer scope.
  ListBuilder values(heap_.budget());
  for (size_t i = 1; i < node.kids.size(); i += 2) {
    TRY_ASSIGN(Value value, evaluate(*node.kids[i]));
    TRY(values.add(std::move(value)));
  }
  TRY(push_scope());
  for (size_t i = 0; i < values.items().size(); ++i) {
    TRY(assign(*node.kids[2 * i], std::move(values.items()[i])));
  }
  TRY_ASSIGN(const Flow flow, execute(*node.kids.back()));
  scope_ = scope_->outer;
  return flow;
}

Result<void> Evaluator::assign(const Node& target, Value value) {
  if (target.kind == NodeKind::name) return define(target.text, std::move(value));
  if (target.kind == NodeKind::attribute) {
    TRY_ASSIGN(const Value object, evaluate(*target.kids[0]));
    Namespace* space = object.space();
    if (space == nullptr) return invalid("cannot assign attribute on non-namespace object");
    return space->set(target.text, std::move(value), heap_.budget());
  }
  TRY_ASSIGN(const SharedList values, iterate(value, heap_));
  if (values->items.size() != target.kids.size()) {
    return invalid(fmt::format("{} values cannot be unpacked to {} names", values->items.size(), target.kids.size()));
  }
  for (size_t i = 0; i < target.kids.size(); ++i) {
    TRY(assign(*target.kids[i], values->items[i]));
  }
  return {};
}

Result<Evaluator::Flow> Evaluator::loop(const Node& node) {
  TRY_ASSIGN(const Value iterable, evaluate(*node.kids[1]));
  auto all = iterate(iterable, heap_);
  if (!all) return at_line(all.error(), node.line);
  SharedList list = *std::move(all);
  const std::shared_ptr<Scope> outside = scope_;
  if (node.kids[2]) {
    ListBuilder chosen(heap_.budget());
    for (const Value& each : list->items) {
      TRY(push_scope());
      TRY(assign(*node.kids[0], each));
      TRY_ASSIGN(const Value condition, evaluate(*node.kids[2]));
      scope_ = outside;
      if (condition.truth()) TRY(chosen.add(each));
    }
    TRY_ASSIGN(const Value made, heap_.list(std::move(chosen)));
    list = made.shared_list();
  }
  TRY_ASSIGN(Charge charge, heap_.budget().hold(2 * sizeof(LoopState)));
  const auto state = std::make_shared<LoopState>(LoopState{.charge = std::move(charge), .items = list});
  bool finished_a_turn = false;  // Jinja also runs `else` if `continue` or `break` ended every iteration
  for (size_t i = 0; i < list->items.size(); ++i) {
    state->at = i;
    TRY(push_scope());
    TRY(define("loop", Value(state)));
    const auto assigned = assign(*node.kids[0], list->items[i]);
    if (!assigned) return at_line(assigned.error(), node.line);
    TRY_ASSIGN(const Flow flow, execute(*node.kids[3]));
    scope_ = outside;
    finished_a_turn |= flow == Flow::on;
    if (flow == Flow::break_loop) break;
  }
  if (finished_a_turn || !node.kids[4]) return Flow::on;
  TRY(push_scope());
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
    TRY(heap_.budget().read(name.size()));
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return found->second;
  }
  if (std::ranges::find(kFunctions, name) != kFunctions.end()) return heap_.callable({.name = name});
  return heap_.undefined(fmt::format("'{}' is undefined", shortened(name, kPieceBytes)));
}

Result<Value> Evaluator::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) return invalid(object.why_undefined());
  if (is_method(object, name)) {
    return heap_.callable({.kind = Callable::Kind::method, .name = std::string(name), .self = object});
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
  std::array<Value, 3> parts = {None{}, None{}, None{}};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!node.kids[1]->kids[i]) continue;
    TRY_ASSIGN(parts[i], evaluate(*node.kids[1]->kids[i]));
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
  if (node.kind == NodeKind::dict) {
    Dict dict;
    for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
      TRY_ASSIGN(Value key, evaluate(*node.kids[i]));
      TRY_ASSIGN(Value value, evaluate(*node.kids[i + 1]));
      TRY(dict.set(std::move(key), std::move(value), heap_.budget()));
    }
    return heap_.dict(std::move(dict));
  }
  ListBuilder items(heap_.budget());
  for (const NodePtr& kid : node.kids) {
    TRY_ASSIGN(Value value, evaluate(*kid));
    TRY(items.add(std::move(value)));
  }
  return heap_.list(std::move(items), node.kind == NodeKind::tuple);
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
      if (value.is_float()) return Value(node.text == "-" ? -*value.real() : *value.real());
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
      TextBuilder text(heap_.budget());
      for (const NodePtr& kid : node.kids) {
        TRY_ASSIGN(const Value value, evaluate(*kid));
        TRY(print(value, text));
      }
      return heap_.text(std::move(text));
    }
    case NodeKind::comparison: return comparison(node);
    case NodeKind::choice: {
      TRY_ASSIGN(const Value condition, evaluate(*node.kids[1]));
      if (condition.truth()) return evaluate(*node.kids[0]);
      if (node.kids[2]) return evaluate(*node.kids[2]);
      return heap_.undefined("the inline if-expression evaluated to false and no else section was defined.");
    }
    default: return Error{ErrorKind::invalid, "no expression"};
  }
}

}  // namespace dspack::runtime::jinja
