// What an answer may consist of, as a function of its tokens so far: the tokens that may follow them. It remembers how
// far it has read, so that one token more costs one step, and fewer tokens (drafts that were rejected) a step back.
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

  /// A bit for each token, [(vocab + 31) / 32]: those that may follow `answer`, end tokens among them where it may end.
  /// After an end token: end tokens alone. Borrowed until the next call.
  [[nodiscard]] virtual Result<std::span<const uint32_t>> allowed_after(std::span<const uint32_t> answer) = 0;

  /// Whether nothing may follow `answer` but its end, so that it need not be waited for.
  [[nodiscard]] virtual Result<bool> is_complete(std::span<const uint32_t> answer) = 0;

  /// The same for another answer.
  [[nodiscard]] virtual std::unique_ptr<TokenConstraint> restart() const = 0;
};

[[nodiscard]] constexpr bool allows(std::span<const uint32_t> bits, uint32_t token) {
  return token / 32 < bits.size() && ((bits[token / 32] >> (token % 32)) & 1U) != 0;
}

}  // namespace dspack::runtime
