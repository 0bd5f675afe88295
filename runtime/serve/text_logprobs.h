// "logprobs" in the form of /v1/completions: parallel lists of tokens, their logprobs, the most likely tokens, and
// offsets.
// Threads: a pure function. Errors: none.
#pragma once

#include <span>

#include "runtime/serve/json_fields.h"
#include "runtime/serve/token_likelihood.h"

namespace dspack::runtime {

/// "text_offset" counts code points of the choice's text, as Python's len does, from the character in which the token
/// begins. "top_logprobs" always includes the token itself, besides the most likely ones (up to logprobs + 1, as OpenAI
/// and vLLM); of several tokens with one text the most likely is kept. A token that is not whole characters is written
/// as "bytes:\xe6\xbc", OpenAI's form. Null: unknown, for a prompt's first token.
[[nodiscard]] OrderedJson text_logprobs(std::span<const TokenLikelihood> tokens);

}  // namespace dspack::runtime
