// Token ids to text, one by one: each push returns what has become certain, and only whole characters.
//
// The pushes and the flush together are what Tokenizer::decode makes of all the ids.
// Threads: belongs to one thread. Lifetime: borrows the Tokenizer, which must outlive it. Errors: none; broken UTF-8
// becomes U+FFFD, and ids without a token stand for nothing.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, SpecialOutput special) : tokenizer_(&tokenizer), special_(special) {}

  /// The characters that `id` completes; often empty within a character of several bytes.
  [[nodiscard]] std::string push(uint32_t id);
  /// U+FFFD if a character is still incomplete, else nothing. Afterwards the next text can begin.
  [[nodiscard]] std::string flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialOutput special_;
  std::string rest_;  // the start of a character, at most three bytes
};

}  // namespace dspack::runtime
