// A value of a template: what Jinja takes from Python. Texts, lists and dicts are shared and never change once made;
// a namespace and the state of a loop are what does. heap.h makes them.
// Threads: single-thread. Errors: budget (too large, or nested too deeply); invalid (what Python refuses).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/jinja/budget.h"

namespace dspack::runtime::jinja {

struct List;
class Dict;
struct Callable;
struct Namespace;
struct LoopState;

/// A name or an attribute that is not there. It prints as nothing; any other use fails with this message.
struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct None {};
/// A whole number beyond 63 bits, which is printed and compared, but not computed with.
struct LongInteger {
  std::shared_ptr<const std::string> digits;  // with a sign, if it is below zero; as JSON writes it
};

class Value {
 public:
  Value() = default;  // undefined, without a name
  Value(None none) : data_(none) {}
  Value(bool truth) : data_(truth) {}
  Value(int64_t number) : data_(number) {}
  Value(double number) : data_(number) {}
  Value(LongInteger number) : data_(std::move(number)) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(std::shared_ptr<const std::string> text) : data_(std::move(text)) {}
  Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(std::shared_ptr<LoopState> loop) : data_(std::move(loop)) {}
  Value(const char*) = delete;  // would be a bool

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(data_); }
  [[nodiscard]] bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // and no bool
  [[nodiscard]] bool is_float() const { return std::holds_alternative<double>(data_); }
  [[nodiscard]] bool is_number() const { return is_bool() || is_integer() || is_float(); }
  [[nodiscard]] bool is_text() const { return text() != nullptr; }

  // Null if it is something else.
  [[nodiscard]] const std::string* digits() const;  // of a LongInteger
  [[nodiscard]] const std::string* text() const;
  [[nodiscard]] const List* list() const;
  [[nodiscard]] std::shared_ptr<const List> shared_list() const;
  [[nodiscard]] const Dict* dict() const;
  [[nodiscard]] const Callable* callable() const;
  [[nodiscard]] Namespace* space() const;
  [[nodiscard]] LoopState* loop() const;

  // Nothing if it is something else.
  [[nodiscard]] std::optional<int64_t> integer() const;  // of a bool or an integer
  [[nodiscard]] std::optional<double> real() const;      // of these and a float

  [[nodiscard]] bool truth() const;
  /// Python's name of the type.
  [[nodiscard]] std::string_view type() const;
  /// Why it is undefined.
  [[nodiscard]] std::string why_undefined() const;
  /// Whether it leads to what changes, a namespace or the state of a loop, which dicts and namespaces therefore may not
  /// hold: else a namespace could hold itself.
  [[nodiscard]] bool leads_to_state() const;
  /// Levels of lists and dicts within.
  [[nodiscard]] uint32_t depth() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, LongInteger, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<const Callable>,
               std::shared_ptr<Namespace>, std::shared_ptr<LoopState>>
      data_;
};

using Values = std::vector<Value>;

struct List {
  Charge charge = {};
  Values items;
  bool tuple = false;
  // What Jinja computes as it is asked for: it has no length, is no JSON, and is true even if nothing comes.
  bool generator = false;
  bool holds_state = false;  // Value::leads_to_state of an item
  uint32_t depth = 1;
};
using SharedList = std::shared_ptr<const List>;

/// What a name with a value takes in a scope or a namespace, beside its own bytes.
inline constexpr uint64_t kNameBytes = 128;

struct Namespace {
  Charge charge = {};
  std::map<std::string, Value, std::less<>> fields = {};
  /// Errors: unsupported (what leads to state), budget.
  [[nodiscard]] Result<void> set(std::string_view name, Value value, Budget& budget);
};

/// Where a loop is, which `loop` tells in its body.
struct LoopState {
  Charge charge = {};
  SharedList items;
  size_t at = 0;
  Value seen = {};  // a tuple: what loop.changed was given last; undefined before
  /// Of `loop.NAME`; null if the loop has no such field.
  [[nodiscard]] std::optional<Value> field(std::string_view name) const;
};

struct Node;
struct Scope;

/// A macro, a function of the environment, or a method of a value.
struct Callable {
  enum class Kind { macro, function, method };
  Kind kind = Kind::function;
  std::string name;
  Value self = {};                    // of a method
  const Node* macro = nullptr;        // of a macro; borrows the program
  std::shared_ptr<Scope> scope = {};  // of a macro: where it was defined
  Charge charge = {};
};

/// Python's ==. False, and nothing is left, when the budget ends.
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
/// Python's < as -1, 0 or 1. Errors: invalid (types without an order).
[[nodiscard]] Result<int> compare(const Value& a, const Value& b, std::string_view sign, Budget& budget);

}  // namespace dspack::runtime::jinja
