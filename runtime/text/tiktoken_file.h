// tiktoken.model with tokenizer_config.json as parts: the tokenizer of Kimi-K2 and Moonlight (class TikTokenTokenizer).
//
// Each line of tiktoken.model has a token in base64 and its rank; ranks are ids, and of all neighbours those are joined
// first whose joined bytes have the lowest rank. The file has no pattern: it is part of the class. The 256 ids after
// the vocabulary are special tokens; tokenizer_config.json names some, the others are called <|reserved_token_ID|>.
// Threads: thread-safe (a pure function). Lifetime: owns everything. Errors: unsupported (another class, flags of a
// token that tiktoken does not know) or invalid, one line, beginning with the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/tokenizer_json.h"

namespace dspack::runtime {

[[nodiscard]] Result<TokenizerParts> parse_tiktoken(std::string_view model, std::string_view tokenizer_config_json);

// Decodes base64 (RFC 4648, section 4) as tiktoken.model writes tokens: with padding, without other characters.
// nullopt: not such a text.

[[nodiscard]] std::optional<std::string> decode_base64(std::string_view text);

// The slices in which Kimi's TikTokenTokenizer.encode passes a text to tiktoken: at most 400,000 characters, and at
// most 25,000 in a row that are all white space, or all not (by Python's str.isspace).
//
// Words, special tokens and merges end where a slice ends, so equal ids need equal slices. Texts of up to 25,000
// characters are one slice.
// Slices view the text.

/// `text`: valid UTF-8. No slice is empty; an empty text has none.
[[nodiscard]] std::vector<std::string_view> slice_long_runs(std::string_view text);

}  // namespace dspack::runtime
