// A value of a template, with Python's semantics as in Jinja. Texts, lists and dicts are shared and immutable; only a
// namespace and a loop's state change. heap.h creates values, within the limits of a run.
// Threads: single-thread. Lifetime: a budget outlives every Charge. Errors: budget (too large, or nested too deeply),
// naming the limit that was reached; cancelled; invalid (what Python refuses).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime::jinja {

class Budget;

/// Bytes that a value, or a text under construction, holds; its destructor returns them.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge();
  /// Also takes the other's bytes; both belong to the same budget.
  void add(Charge other) {
    if (budget_ == nullptr) budget_ = other.budget_;
    bytes_ += std::exchange(other.bytes_, 0);
  }

 private:
  friend class Budget;
  Charge(Budget& budget, uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
  Budget* budget_ = nullptr;
  uint64_t bytes_ = 0;
};

/// Limits of one run of a template: steps, bytes held, nesting. Templates are untrusted programs, so all three are
/// counted, and counting is deterministic: whether a template renders does not depend on the machine. A stop token can
/// end the run at any time.
class Budget {
 public:
  /// A step is one evaluated node of the program, one new text or value, or 16 bytes of text read. Published templates
  /// take some thousand steps per message.
  static constexpr uint64_t kBaseSteps = 20'000'000;
  static constexpr uint64_t kStepsPerInputByte = 50;
  /// Limit for all values and texts that are alive at one time, including allocator overhead.
  static constexpr uint64_t kBaseBytes = 256ULL << 20;
  static constexpr uint64_t kBytesPerInputByte = 8;
  /// Limit for nested statements and expressions under evaluation: a level takes about 2 kB of the stack, up to 12
  /// under a sanitizer, and a thread may have only 8 MiB.
  static constexpr uint32_t kMaxDepth = 400;

  struct Limits {
    uint64_t steps = kBaseSteps;
    uint64_t bytes = kBaseBytes;
  };
  /// `input_bytes`: size of the variables as values.
  [[nodiscard]] static Limits limits(uint64_t input_bytes) {
    return {.steps = kBaseSteps + kStepsPerInputByte * input_bytes,
            .bytes = kBaseBytes + kBytesPerInputByte * input_bytes};
  }

  explicit Budget(const Limits& limits, std::stop_token stop = {})
      : max_steps_(limits.steps), max_bytes_(limits.bytes), stop_(std::move(stop)) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  [[nodiscard]] Result<void> step(uint64_t count = 1) {
    steps_ = count > max_steps_ - steps_ ? max_steps_ : steps_ + count;
    if (steps_ < next_look_) [[likely]]
      return {};
    return look();
  }
  /// The same for callers that cannot fail: their next step fails.
  bool spend(uint64_t count) { return step(count).has_value(); }
  /// Counts the steps of reading this many bytes of text.
  [[nodiscard]] Result<void> read(uint64_t bytes) { return step(1 + bytes / 16); }
  /// Call before allocating the bytes.
  [[nodiscard]] Result<Charge> hold(uint64_t bytes) {
    if (bytes > max_bytes_ - bytes_) return Error{ErrorKind::budget, "the template takes too much memory"};
    TRY(step(1 + bytes / 64));
    bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
    return Charge(*this, bytes);
  }
  [[nodiscard]] Result<void> enter() {
    if (++depth_ <= kMaxDepth) return {};
    return Error{ErrorKind::budget, "the template nests calls too deeply"};
  }
  void leave() { --depth_; }

  [[nodiscard]] uint64_t steps() const { return steps_; }
  /// The most bytes held at one time.
  [[nodiscard]] uint64_t bytes() const { return most_bytes_; }
  [[nodiscard]] uint64_t max_bytes() const { return max_bytes_; }

 private:
  friend class Charge;
  /// Fails if no steps are left or a stop was requested. Every later step then fails too.
  [[nodiscard]] Result<void> look() {
    constexpr uint64_t kStepsBetweenLooks = 1024;  // some tens of microseconds
    if (stop_.stop_requested()) {
      next_look_ = 0;
      return stopped();
    }
    if (steps_ >= max_steps_) return Error{ErrorKind::budget, "the template takes too many steps"};
    next_look_ = std::min(max_steps_, steps_ + kStepsBetweenLooks);
    return {};
  }

  uint64_t max_steps_;
  uint64_t max_bytes_;
  std::stop_token stop_;
  uint64_t steps_ = 0;
  uint64_t next_look_ = 0;
  uint64_t bytes_ = 0;
  uint64_t most_bytes_ = 0;
  uint32_t depth_ = 0;
};

inline Charge::~Charge() {
  if (budget_ != nullptr) budget_->bytes_ -= bytes_;
}

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

/// A dict of a template. It keeps insertion order; keys are texts, numbers, none, or tuples of these, and 1, 1.0 and
/// true are the same key. Errors: invalid (a key that Python cannot hash), budget.
class Dict {
 public:
  Dict() = default;
  Dict(Dict&&) noexcept = default;
  Dict& operator=(Dict&&) noexcept = default;

  /// Adds a key, or replaces its value.
  [[nodiscard]] Result<void> set(Value key, Value value, Budget& budget);
  /// nullptr: not in the dict, or not a valid key.
  [[nodiscard]] Result<const Value*> find(const Value& key, Budget& budget) const;
  [[nodiscard]] Result<Dict> copy(Budget& budget) const;
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  [[nodiscard]] uint32_t depth() const { return depth_; }
  void add(Charge charge) { charge_.add(std::move(charge)); }
  /// Value::leads_to_state of any value.
  [[nodiscard]] bool holds_state() const { return holds_state_; }

 private:
  // Ordered, not hashed: keys are untrusted and could be chosen to collide.
  struct KeyOrder {
    bool operator()(const Value& a, const Value& b) const;
  };

  Charge charge_;
  std::vector<std::pair<Value, Value>> items_;
  std::map<Value, size_t, KeyOrder> places_;
  uint32_t depth_ = 1;
  bool holds_state_ = false;
};

/// The arguments of one call, by position and by name. Errors: invalid (an argument of another type), budget.
struct Arguments {
  Values positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
  Charge charge = {};  // for both lists
  [[nodiscard]] Result<void> add(Value value, Budget& budget);
  [[nodiscard]] Result<void> add(std::string_view name, Value value, Budget& budget);
  [[nodiscard]] size_t count() const { return positional.size() + named.size(); }
  /// By position or by name; nullptr: not given.
  [[nodiscard]] const Value* get(size_t place, std::string_view name) const;
  /// The argument as a text, integer or bool; `otherwise` if it is not given.
  [[nodiscard]] Result<std::string_view> text(size_t place, std::string_view name, std::string_view otherwise) const;
  [[nodiscard]] Result<int64_t> integer(size_t place, std::string_view name, int64_t otherwise) const;
  [[nodiscard]] bool truth(size_t place, std::string_view name, bool otherwise) const;
  /// Without the positional arguments before `place`.
  [[nodiscard]] Result<Arguments> from(size_t place, Budget& budget) const;
};

}  // namespace dspack::runtime::jinja
