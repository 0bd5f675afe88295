#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"

namespace dspack::runtime::jinja {
namespace {

/// Whether the tree contains the name; false, with nothing left, if the budget ends.
bool mentions(const Node& node, std::string_view name, Budget& budget) {
  if (!budget.spend(1)) return false;
  if (node.kind == NodeKind::name && node.text == name) return true;
  return std::ranges::any_of(node.kids, [&](const NodePtr& kid) { return kid && mentions(*kid, name, budget); });
}

}  // namespace

Result<Arguments> Evaluator::arguments(const Node& node, size_t first) {
  Arguments args;
  for (size_t i = first; i < node.kids.size(); ++i) {
    const Node& kid = *node.kids[i];
    const bool wrapped =
        kid.kind == NodeKind::keyword || kid.kind == NodeKind::unpack_list || kid.kind == NodeKind::unpack_dict;
    TRY_ASSIGN(Value value, evaluate(wrapped ? *kid.kids[0] : kid));
    if (kid.kind == NodeKind::keyword) {
      TRY(args.add(kid.text, std::move(value), heap_.budget()));
    } else if (kid.kind == NodeKind::unpack_list) {
      TRY_ASSIGN(const SharedList list, iterate(value, heap_));
      for (const Value& item : list->items)
        TRY(args.add(item, heap_.budget()));
    } else if (kid.kind == NodeKind::unpack_dict) {
      if (value.dict() == nullptr) return invalid("argument after ** must be a mapping");
      for (const auto& [key, item] : value.dict()->items()) {
        if (key.text() == nullptr) return invalid("keywords must be strings");
        TRY(args.add(*key.text(), item, heap_.budget()));
      }
    } else {
      TRY(args.add(std::move(value), heap_.budget()));
    }
  }
  return args;
}

Result<Value> Evaluator::call(const Node& node, const Value* caller) {
  TRY_ASSIGN(const Value callee, evaluate(*node.kids[0]));
  TRY_ASSIGN(Arguments args, arguments(node, 1));
  return call_value(callee, std::move(args), caller);
}

Result<Value> Evaluator::call_value(const Value& callee, Arguments args, const Value* caller) {
  const Callable* callable = callee.callable();
  if (callee.is_undefined()) return invalid(callee.why_undefined());
  if (callable == nullptr) return invalid(fmt::format("'{}' object is not callable", callee.type()));
  if (callable->kind == Callable::Kind::macro) {
    return call_macro(*callable, std::move(args), caller);
  }
  if (callable->kind == Callable::Kind::function) return call_function(callable->name, args);
  return call_method(callable->self, callable->name, args, heap_);
}

Result<Value> Evaluator::call_macro(const Callable& macro, Arguments args, const Value* caller) {
  const auto& parameters = macro.macro->kids[0]->kids;
  const std::shared_ptr<Scope> outside = scope_;
  scope_ = macro.scope;
  TRY(push_scope());
  size_t taken = 0;
  for (const NodePtr& parameter : parameters) {
    TRY(heap_.budget().step(1 + args.named.size() * (1 + parameter->text.size() / 16)));
    const auto named =
        std::ranges::find_if(args.named, [&](const auto& each) { return each.first == parameter->text; });
    Value value;
    if (taken < args.positional.size()) {
      if (named != args.named.end()) {
        return invalid(fmt::format("macro '{}' got multiple values for argument '{}'",
                                   shortened(macro.name, kPieceBytes), shortened(parameter->text, kPieceBytes)));
      }
      value = args.positional[taken];
    } else if (named != args.named.end()) {
      value = named->second;
      args.named.erase(named);
    } else if (parameter->kids[0]) {
      TRY_ASSIGN(value, evaluate(*parameter->kids[0]));
    } else {
      TRY_ASSIGN(value, heap_.undefined(
                            fmt::format("parameter '{}' was not provided", shortened(parameter->text, kPieceBytes))));
    }
    ++taken;
    TRY(define(parameter->text, std::move(value)));
  }
  if (caller != nullptr) TRY(define("caller", *caller));
  // A macro takes more arguments than its parameters only if it uses the names for them.
  const bool more_by_place = taken < args.positional.size();
  const bool more_by_name = !args.named.empty();
  if ((more_by_place && !mentions(*macro.macro, "varargs", heap_.budget())) ||
      (more_by_name && !mentions(*macro.macro, "kwargs", heap_.budget()))) {
    return invalid(fmt::format("macro '{}' takes not so many arguments", shortened(macro.name, kPieceBytes)));
  }
  if (caller != nullptr && !mentions(*macro.macro, "caller", heap_.budget()) &&
      !mentions(*macro.macro, "kwargs", heap_.budget())) {
    return invalid(fmt::format("macro '{}' does not use its caller", shortened(macro.name, kPieceBytes)));
  }
  ListBuilder more(heap_.budget());
  for (size_t i = taken; i < args.positional.size(); ++i)
    TRY(more.add(std::move(args.positional[i])));
  TRY_ASSIGN(Value varargs, heap_.list(std::move(more), true));
  TRY(define("varargs", std::move(varargs)));
  Dict rest;
  for (auto& [name, value] : args.named) {
    TRY_ASSIGN(Value key, heap_.text(name));
    TRY(rest.set(std::move(key), std::move(value), heap_.budget()));
  }
  TRY_ASSIGN(Value kwargs, heap_.dict(std::move(rest)));
  TRY(define("kwargs", std::move(kwargs)));
  TRY_ASSIGN(Value text, captured(*macro.macro->kids[1]));
  scope_ = outside;
  return text;
}

Result<Value> Evaluator::range(const Arguments& args) {
  constexpr int64_t kMaxItems = 100'000;  // as in Jinja's sandbox
  if (args.positional.empty() || args.positional.size() > 3) return invalid("range expected 1 to 3 arguments");
  std::array<int64_t, 3> parts = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    TRY_ASSIGN(parts[args.positional.size() == 1 ? 1 : i], args.integer(i, "range", 0));
  }
  const auto [from, to, step] = parts;
  if (step == 0) return invalid("range() arg 3 must not be zero");
  ListBuilder items(heap_.budget());
  for (int64_t at = from; step > 0 ? at < to : at > to;) {
    if (static_cast<int64_t>(items.items().size()) >= kMaxItems) {
      return Error{ErrorKind::budget, fmt::format("a range has at most {} items", kMaxItems)};
    }
    TRY(items.add(Value(at)));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return heap_.list(std::move(items));
}

Result<Value> Evaluator::call_function(std::string_view name, const Arguments& args) {
  if (name == "range") return range(args);
  if (name == "raise_exception") {
    constexpr size_t kMaxBytes = 2000;
    TRY_ASSIGN(const std::string_view message, args.text(0, "message", ""));
    return invalid(fmt::format("the template refuses: {}", shortened(message, kMaxBytes)));
  }
  if (name == "strftime_now") {
    TRY_ASSIGN(const std::string_view format, args.text(0, "format", ""));
    constexpr size_t kMaxBytes = 256;
    std::array<char, 4 * kMaxBytes> text{};
    if (format.size() > kMaxBytes) return invalid("strftime_now: the format is too long");
    const size_t size = std::strftime(text.data(), text.size(), std::string(format).c_str(), &now_);
    return heap_.text(std::string_view(text.data(), size));
  }
  Dict fields;
  if (!args.positional.empty()) {
    const Dict* given = args.positional.front().dict();
    if (given == nullptr) return Error{ErrorKind::unsupported, fmt::format("{}() of what is no dict", name)};
    TRY_ASSIGN(fields, given->copy(heap_.budget()));
  }
  for (const auto& [key, value] : args.named) {
    TRY_ASSIGN(Value text, heap_.text(key));
    TRY(fields.set(std::move(text), value, heap_.budget()));
  }
  if (name == "dict") return heap_.dict(std::move(fields));
  const auto space = std::make_shared<Namespace>();
  TRY_ASSIGN(space->charge, heap_.budget().hold(2 * sizeof(Namespace)));
  for (const auto& [key, value] : fields.items()) {
    if (key.text() == nullptr) return invalid("a namespace's names are texts");
    TRY(space->set(*key.text(), value, heap_.budget()));
  }
  return Value(space);
}

}  // namespace dspack::runtime::jinja
