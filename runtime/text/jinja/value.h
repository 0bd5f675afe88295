// A value of a template, with Python's semantics as in Jinja. Texts, lists and dicts are shared and immutable; only a
// namespace and a loop's state change. heap.h creates values.
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

/// A missing name or attribute. It prints as nothing; any other use fails with this message.
struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct None {};
/// A whole number beyond 63 bits, which can be printed and compared, but not computed with.
struct LongInteger {
  std::shared_ptr<const std::string> digits;  // as in JSON; with a sign if negative
};

class Value {
 public:
  Value() = default;  // undefined, without a message
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
  [[nodiscard]] bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // not a bool
  [[nodiscard]] bool is_float() const { return std::holds_alternative<double>(data_); }
  [[nodiscard]] bool is_number() const { return is_bool() || is_integer() || is_float(); }
  [[nodiscard]] bool is_text() const { return text() != nullptr; }

  // nullptr: another type.
  [[nodiscard]] const std::string* digits() const;  // for a LongInteger
  [[nodiscard]] const std::string* text() const;
  [[nodiscard]] const List* list() const;
  [[nodiscard]] std::shared_ptr<const List> shared_list() const;
  [[nodiscard]] const Dict* dict() const;
  [[nodiscard]] const Callable* callable() const;
  [[nodiscard]] Namespace* space() const;
  [[nodiscard]] LoopState* loop() const;

  // nullopt: another type.
  [[nodiscard]] std::optional<int64_t> integer() const;  // for a bool or an integer
  [[nodiscard]] std::optional<double> real() const;      // for a bool, an integer or a float

  [[nodiscard]] bool truth() const;
  /// Python's name for the type.
  [[nodiscard]] std::string_view type() const;
  /// The message that explains why it is undefined.
  [[nodiscard]] std::string why_undefined() const;
  /// Whether it contains mutable state, a namespace or a loop's state. Dicts and namespaces may not hold such values:
  /// else a namespace could contain itself.
  [[nodiscard]] bool leads_to_state() const;
  /// Nesting depth of lists and dicts.
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
  // Jinja computes it lazily: it has no length, is not JSON, and is true even if empty.
  bool generator = false;
  bool holds_state = false;  // Value::leads_to_state of an item
  uint32_t depth = 1;
};
using SharedList = std::shared_ptr<const List>;

/// Bytes of a name with a value in a scope or a namespace, besides the name's own.
inline constexpr uint64_t kNameBytes = 128;

struct Namespace {
  Charge charge = {};
  std::map<std::string, Value, std::less<>> fields = {};
  /// Errors: unsupported (a value that leads to state), budget.
  [[nodiscard]] Result<void> set(std::string_view name, Value value, Budget& budget);
};

/// The state of a loop, visible as `loop` in its body.
struct LoopState {
  Charge charge = {};
  SharedList items;
  size_t at = 0;
  Value seen = {};  // tuple of the last arguments of loop.changed; undefined before
  /// The value of `loop.NAME`; nullopt: no such field.
  [[nodiscard]] std::optional<Value> field(std::string_view name) const;
};

struct Node;
struct Scope;

/// A macro, a function of the environment, or a method of a value.
struct Callable {
  enum class Kind { macro, function, method };
  Kind kind = Kind::function;
  std::string name;
  Value self = {};                    // for a method
  const Node* macro = nullptr;        // for a macro; borrows the program
  std::shared_ptr<Scope> scope = {};  // for a macro: the scope of its definition
  Charge charge = {};
};

/// Python's ==. False, with nothing left, if the budget ends.
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
/// Python's < as -1, 0 or 1. Errors: invalid (types without an order).
[[nodiscard]] Result<int> compare(const Value& a, const Value& b, std::string_view sign, Budget& budget);

}  // namespace dspack::runtime::jinja
