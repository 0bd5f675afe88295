// Runs a parsed template: statements write text, expressions return values.
// Threads: single-thread, one run each. Lifetime: borrows the tree, the budget and the clock. Errors: invalid
// (operations that Jinja refuses, and raise_exception), unsupported, budget; with the line.
#pragma once

#include <array>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/heap.h"
#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

/// Functions that every template can call.
inline constexpr std::array<std::string_view, 5> kFunctions = {"range", "dict", "namespace", "raise_exception",
                                                               "strftime_now"};

/// The names of a block; enclosing scopes follow through `outer`.
struct Scope {
  std::shared_ptr<Scope> outer = {};
  std::map<std::string, Value, std::less<>> names = {};
  Charge charge = {};
};

class Evaluator {
 public:
  Evaluator(Budget& budget, const std::tm& now)
      : heap_(budget), now_(now), scope_(std::make_shared<Scope>()), out_(budget) {}
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  [[nodiscard]] Heap& heap() { return heap_; }
  [[nodiscard]] Result<void> define(std::string_view name, Value value);
  [[nodiscard]] Result<std::string> run(const Node& program);

 private:
  enum class Flow { on, break_loop, continue_loop };

  Result<Flow> execute(const Node& node);
  Result<Flow> execute_inner(const Node& node);
  Result<Flow> execute_block(const Node& node);
  Result<Flow> loop(const Node& node);
  Result<Flow> with(const Node& node);
  Result<void> set_block(const Node& node);
  /// The text that a block writes, in its own scope.
  Result<Value> captured(const Node& body);
  Result<void> assign(const Node& target, Value value);
  Result<void> push_scope();
  /// Makes a macro of the current scope, which is kept alive for it.
  Result<Value> macro(const Node& node, const std::string& name);

  Result<Value> evaluate(const Node& node);
  Result<Value> evaluate_inner(const Node& node);
  Result<Value> look_up(const std::string& name);
  Result<Value> attribute(const Value& object, std::string_view name);
  Result<Value> item(const Node& node);
  Result<Value> comparison(const Node& node);
  Result<Value> collection(const Node& node);
  Result<Arguments> arguments(const Node& node, size_t first);
  Result<Value> call(const Node& node, const Value* caller);
  Result<Value> call_value(const Value& callee, Arguments args, const Value* caller);
  Result<Value> call_macro(const Callable& macro, Arguments args, const Value* caller);
  Result<Value> call_function(std::string_view name, const Arguments& args);
  Result<Value> range(const Arguments& args);

  Heap heap_;
  const std::tm& now_;
  std::shared_ptr<Scope> scope_;
  // The scopes that macros belong to. A macro and its scope, or an enclosing one, own each other. The destructor breaks
  // these cycles, oldest first, so that no destruction recurses deeply.
  std::vector<std::shared_ptr<Scope>> scopes_;
  TextBuilder out_;
};

}  // namespace dspack::runtime::jinja
