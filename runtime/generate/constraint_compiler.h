// Constraints on tokens out of descriptions of a text's form: JSON schemas, constants, and what is made of these
// (xgrammar's structural tags: https://xgrammar.mlc.ai/docs/). Clients send the same form with every request, so those
// used lately are kept.
// Threads: thread-safe. Forms are compiled by two threads of its own, one for most of them and one for those that turn
// out to take long, and clients come in turn in both. Lifetime: owns all it needs. Errors: make: unsupported (a build
// without the library); compile: invalid or unsupported (the form, in the library's words; one that takes too long),
// budget (too many wait).
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

/// Bytes of a form's description; more takes the library too long.
inline constexpr size_t kMostFormBytes = 512U << 10U;

class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;

  /// For answers in tokens below `vocab`, which end with one of `end_tokens`.
  [[nodiscard]] static Result<std::unique_ptr<ConstraintCompiler>> make(const Tokenizer& tokenizer, uint32_t vocab,
                                                                        std::span<const uint32_t> end_tokens);
  /// Whether this build has the library.
  [[nodiscard]] static bool is_available();

  /// Called once, by a compiling thread, or at once with an error. Never, if the compiler is gone before, or what it
  /// is for.
  using Done = std::function<void(Result<std::unique_ptr<TokenConstraint>> made)>;
  /// `form`: the "format" of a structural tag, as JSON. `client`: who wants it. `gone`: nobody waits for it any more;
  /// it makes room for others at once, also while it is compiled.
  virtual void compile(std::string form, std::string client, Done done, std::stop_token gone) = 0;
};

}  // namespace dspack::runtime
