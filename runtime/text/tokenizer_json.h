// tokenizer.json as the parts of a Tokenizer.
//
// Read: added_tokens, normalizer (null or an empty Sequence), pre_tokenizer, decoder (ByteLevel), model (BPE without
// dropout, unknown token, affixes and byte fallback). Not read: post_processor, truncation and padding, which add to a
// text or cut it; that is the caller's decision.
// Threads: thread-safe (a pure function). Lifetime: owns everything. Errors: unsupported or invalid, one line,
// beginning with the section.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "format/base/result.h"
#include "runtime/text/added_tokens.h"
#include "runtime/text/bpe.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/vocabulary.h"

namespace dspack::runtime {

/// Whether a long text is sliced before all other steps (tiktoken_file.h).
enum class Slicing { none, long_runs };

struct TokenizerParts {
  Vocabulary vocabulary;
  AddedTokens added_tokens;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  Slicing slicing = Slicing::none;
};

/// An added token as tokenizer.json and tokenizer_config.json both describe it: "content" and flags.
[[nodiscard]] Result<AddedToken> parse_added_token(const nlohmann::json& value, uint32_t id);

[[nodiscard]] Result<TokenizerParts> parse_tokenizer_json(std::string_view text);

}  // namespace dspack::runtime
