// How likely a token was, of an answer or of a prompt: natural logarithms of the softmax over the model's logits,
// before temperature and the like. Threads: plain values, a pure function. Errors: none.
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
  bool is_known = true;  // false: the first token of a prompt, before which there was nothing to tell of it
  size_t offset = 0;     // characters (code points) of its choice's text before it, an echoed prompt included
};

/// `logits`: those before the token, not empty. `most`: of the likeliest tokens, the lowest id first among equals.
[[nodiscard]] TokenLikelihood likelihood_of(const Tokenizer& tokenizer, uint32_t id, std::span<const float> logits,
                                            uint32_t most);

}  // namespace dspack::runtime
