// Compiles descriptions of a text's form into constraints on tokens: JSON schemas, constants, and combinations of these
// (xgrammar's structural tags: https://xgrammar.mlc.ai/docs/). Recently used forms are kept, since clients send the
// same form with every request.
// Threads: thread-safe. Two threads of its own compile: one for most forms, one for those that turn out to take long;
// clients take turns in both. Lifetime: owns all it needs. Errors: make: unsupported (a build without the library);
// compile: invalid or unsupported (the form, in the library's words; one that takes too long), budget (too many wait).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "runtime/generate/token_constraint.h"
#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

/// Most bytes of a form's description; the library takes too long for more.
inline constexpr size_t kMaxFormBytes = 512U << 10U;

class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;

  /// For answers in tokens below `vocab`, which end with one of `end_tokens`.
  [[nodiscard]] static Result<std::unique_ptr<ConstraintCompiler>> make(const Tokenizer& tokenizer, uint32_t vocab,
                                                                        std::span<const uint32_t> end_tokens);
  /// Whether this build has the library.
  [[nodiscard]] static bool is_available();

  /// Called once, by a compiling thread, or at once with an error. Not called if the compiler is destroyed first, or
  /// the caller is gone.
  using Done = std::function<void(Result<std::unique_ptr<TokenConstraint>> made)>;
  /// `form`: the "format" of a structural tag, as JSON. `client`: who wants it. `gone`: requested once the result is
  /// not needed any more; the form then makes room for others at once, even while it is compiled.
  virtual void compile(std::string form, std::string client, Done done, std::stop_token gone) = 0;
};

}  // namespace dspack::runtime
