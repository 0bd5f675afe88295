// "logprobs" in the form of /v1/completions: a list each of tokens, their probabilities, the likeliest in their place,
// and where they begin.
// Threads: a pure function. Errors: none.
#pragma once

#include <span>

#include "runtime/serve/json_fields.h"
#include "runtime/serve/token_likelihood.h"

namespace dspack::runtime {

/// "text_offset" counts code points of the choice's text, as Python's len does, from the character in which the token
/// begins. "top_logprobs" of a token always has the token itself, beside the likeliest (OpenAI: up to logprobs + 1; so
/// does vLLM); of several tokens with one text the likeliest stays. A token that is no whole characters is written
/// as "bytes:\xe6\xbc", OpenAI's form. Null: what is not known of a prompt's first token.
[[nodiscard]] OrderedJson text_logprobs(std::span<const TokenLikelihood> tokens);

}  // namespace dspack::runtime
