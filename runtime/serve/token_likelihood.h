// Likelihood of a token in an answer or prompt: natural logarithms of the softmax over the model's logits, before
// temperature and the like.
// Threads: plain values, a pure function. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

struct TokenLikelihood {
  std::string text;  // bytes, not always whole characters
  double logprob = 0;
  struct Other {
    std::string text;
    double logprob = 0;
  };
  std::vector<Other> likeliest = {};
  bool is_known = true;  // false: a prompt's first token, which has no logits
  size_t offset = 0;     // code points before it in its choice's text, including an echoed prompt
};

/// `logits`: those that predict the token, not empty. `most`: how many of the most likely tokens; equal ones in order
/// of id.
[[nodiscard]] TokenLikelihood likelihood_of(const Tokenizer& tokenizer, uint32_t id, std::span<const float> logits,
                                            uint32_t most);

}  // namespace dspack::runtime
