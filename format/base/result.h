// Result<T>: a value, or an Error caused by a user or the environment.
// Threads: thread-compatible (a plain value). Lifetime: owns what it holds.
// Errors: carries one of the kinds below; callers branch on the kind, never on the text.
// The interface is that of C++23's std::expected, so a later standard can replace it by an alias.
#pragma once

#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include "format/base/check.h"

namespace dspack {

enum class ErrorKind {
  not_found,    // a file, repository, tensor or entry does not exist
  invalid,      // input breaks the rules of its format, or an argument is out of range
  corrupt,      // bytes differ from what a digest, a length or a header promises
  unsupported,  // well-formed, but this version cannot do it
  io,           // the operating system refused a file operation
  network,      // a transfer failed, after retries
  budget,       // more memory, disk or open files needed than available or allowed by the user
  conflict,     // another run, or the remains of a different run, are in the way
  cancelled,    // the user or the caller asked to stop
};

[[nodiscard]] std::string_view to_string(ErrorKind kind);

/// The kind is for the program, the text (place, reason, remedy) for a person.
struct [[nodiscard]] Error {
  ErrorKind kind;
  std::string message;

  /// The same error with its place as a prefix: "place: message".
  [[nodiscard]] Error in(std::string_view place) const { return {kind, std::string(place) + ": " + message}; }
};

/// Input that breaks the rules of its format.
[[nodiscard]] inline Error invalid(std::string message) {
  return {ErrorKind::invalid, std::move(message)};
}

/// The caller asked to stop.
[[nodiscard]] inline Error stopped() {
  return {ErrorKind::cancelled, "stopped on request"};
}

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  [[nodiscard]] T& value() & { return checked(); }
  [[nodiscard]] const T& value() const& { return const_cast<Result*>(this)->checked(); }
  [[nodiscard]] T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->checked(); }

  [[nodiscard]] const Error& error() const {
    DSPACK_CHECK(!has_value(), "error() of a Result that holds a value");
    return std::get<1>(state_);
  }

 private:
  T& checked() {
    DSPACK_CHECK(has_value(), "value of a Result that holds an error: " + std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] const Error& error() const {
    DSPACK_CHECK(!has_value(), "error() of a Result that holds a value");
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

// The standard library throws when memory or threads run out; `guarded` turns that into an Error. main guards all that
// it calls; functions that run on their own thread or are called by a C library must guard themselves, since an
// exception that leaves such a function ends the process.
inline constexpr char kOutOfMemory[] =
    "out of memory: more was needed than this machine, or a limit set for the process, gives";
/// More memory was asked for than the system, or the limit of this process, allows.
[[nodiscard]] Error out_of_memory();
/// A thread or a lock could not be created.
[[nodiscard]] Error out_of_threads(const std::system_error& reason);

/// Returns the Result of `work`, or an Error if it ran out of memory, threads or locks.
template <class Work>
[[nodiscard]] std::invoke_result_t<Work&> guarded(Work&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::length_error&) {  // a container was to grow beyond any memory
    return out_of_memory();
  } catch (const std::system_error& reason) {
    return out_of_threads(reason);
  }
}

/// Passes on an object that a C library allocated; throws std::bad_alloc for nullptr, as the standard library does.
template <class Object>
[[nodiscard]] Object* allocated(Object* made) {
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace dspack

#define DSPACK_CONCAT_INNER(a, b) a##b
#define DSPACK_CONCAT(a, b) DSPACK_CONCAT_INNER(a, b)

/// Returns from the caller with the error of a Result<void> expression, if it holds one.
#define TRY(expr)                                            \
  do {                                                       \
    if (auto try_result = (expr); !try_result.has_value()) { \
      return try_result.error();                             \
    }                                                        \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses
/// `TRY_ASSIGN(auto x, f())`: x = the value of f(), or return its error to the caller.
#define TRY_ASSIGN(declaration, expr) TRY_ASSIGN_INNER(DSPACK_CONCAT(try_result_, __LINE__), declaration, expr)
#define TRY_ASSIGN_INNER(result, declaration, expr) \
  auto result = (expr);                             \
  if (!result.has_value()) {                        \
    return result.error();                          \
  }                                                 \
  declaration = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
