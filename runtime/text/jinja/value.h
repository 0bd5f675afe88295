// A value of a template: what Jinja takes from Python. Texts, lists and dicts are shared and never change once made;
// a namespace is the one thing that does.
// Threads: single-thread. Errors: budget (too large, or nested too deeply); invalid (what Python refuses).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/jinja/budget.h"

namespace dspack::runtime::jinja {

class Value;
struct List;
class Dict;
struct Callable;
struct Namespace;

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
  Value(std::shared_ptr<const std::string> text) : data_(std::move(text)) {}
  Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(const char*) = delete;  // would be a bool
  [[nodiscard]] static Value undefined(std::string message);

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
  [[nodiscard]] const Dict* dict() const;
  [[nodiscard]] const Callable* callable() const;
  [[nodiscard]] Namespace* space() const;

  // Of a number.
  [[nodiscard]] int64_t integer() const;  // of a bool or an integer
  [[nodiscard]] double real() const;

  [[nodiscard]] bool truth() const;
  /// Python's name of the type.
  [[nodiscard]] std::string_view type() const;
  /// Why it is undefined.
  [[nodiscard]] std::string why_undefined() const;
  /// Whether it leads to a namespace, which dicts and namespaces therefore may not hold: else a namespace could hold
  /// itself.
  [[nodiscard]] bool leads_to_space() const;
  /// Levels of lists and dicts within.
  [[nodiscard]] uint32_t depth() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, LongInteger, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<const Callable>,
               std::shared_ptr<Namespace>>
      data_;
};

using Values = std::vector<Value>;

struct List {
  Values items;
  bool tuple = false;
  // What Jinja computes as it is asked for: it has no length, is no JSON, and is true even if nothing comes.
  bool generator = false;
  bool holds_space = false;  // it leads to a namespace
  uint32_t depth = 1;
};

/// Keeps the order in which keys came. Keys are texts, numbers, none, or tuples of these.
class Dict {
 public:
  /// Replaces the value of a key that is there. Errors: invalid (a key that Python cannot hash).
  [[nodiscard]] Result<void> set(Value key, Value value);
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  [[nodiscard]] uint32_t depth() const { return depth_; }

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> places_;  // by the key's identity
  uint32_t depth_ = 1;
};

struct Namespace {
  std::unordered_map<std::string, Value> fields;
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
};

/// Makes values within a budget.
class Heap {
 public:
  explicit Heap(Budget& budget) : budget_(&budget) {}
  [[nodiscard]] Result<Value> text(std::string text);
  [[nodiscard]] Result<Value> list(Values items, bool tuple = false);
  [[nodiscard]] Result<Value> generator(Values items);
  [[nodiscard]] Result<Value> dict(Dict dict);
  [[nodiscard]] Result<Value> from_json(const nlohmann::ordered_json& json);
  [[nodiscard]] Budget& budget() { return *budget_; }

  static constexpr uint32_t kMaxDepth = 150;  // of lists and dicts within each other

 private:
  Budget* budget_;
};

/// Python's ==. False, and nothing is left, when the budget ends.
[[nodiscard]] bool equal(const Value& a, const Value& b, Budget& budget);
/// Python's < as -1, 0 or 1. Errors: invalid (types without an order).
[[nodiscard]] Result<int> compare(const Value& a, const Value& b, std::string_view sign, Budget& budget);

}  // namespace dspack::runtime::jinja
