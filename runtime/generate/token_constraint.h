// A constraint on an answer: the tokens that may follow its tokens so far. It remembers how far it has read, so one
// more token costs one step, and fewer tokens (rejected drafts) cost a step back.
// Threads: single-thread. Errors: unsupported (the form asks for more work than is allowed), invalid (tokens that the
// form does not allow).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "format/base/result.h"

namespace dspack::runtime {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// One bit per token, [(vocab + 31) / 32]: those that may follow `answer`, including end tokens if it may end. After
  /// an end token: only end tokens. Borrowed until the next call.
  [[nodiscard]] virtual Result<std::span<const uint32_t>> allowed_after(std::span<const uint32_t> answer) = 0;

  /// Whether only the end may follow `answer`, so that no pass is needed to get it.
  [[nodiscard]] virtual Result<bool> is_complete(std::span<const uint32_t> answer) = 0;

  /// The same constraint, for another answer.
  [[nodiscard]] virtual std::unique_ptr<TokenConstraint> restart() const = 0;
};

[[nodiscard]] constexpr bool allows(std::span<const uint32_t> bits, uint32_t token) {
  return token / 32 < bits.size() && ((bits[token / 32] >> (token % 32)) & 1U) != 0;
}

}  // namespace dspack::runtime
