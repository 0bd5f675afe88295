// tiktoken.model with tokenizer_config.json as parts: the tokenizer of Kimi-K2 and Moonlight (class TikTokenTokenizer).
//
// tiktoken.model lists a token and its rank on each line, the token in base64; ranks are ids, and of two neighbours
// those are joined first whose joined bytes have the lowest rank. The file has no pattern: it is the class's own. The
// 256 ids after the vocabulary are special tokens; tokenizer_config.json names some, the others are called
// <|reserved_token_ID|>.
// Threads: thread-safe (a pure function). Lifetime: owns everything. Errors: unsupported (another class, flags of a
// token that tiktoken does not know) or invalid, one line, with the file in front.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/tokenizer_json.h"

namespace dspack::runtime {

[[nodiscard]] Result<TokenizerParts> parse_tiktoken(std::string_view model, std::string_view tokenizer_config_json);

// Base64 (RFC 4648, section 4) as tiktoken.model writes tokens: with padding, nothing else in it.
// Other text is nullopt.

[[nodiscard]] std::optional<std::string> decode_base64(std::string_view text);

// The slices in which Kimi's TikTokenTokenizer.encode hands a text to tiktoken: at most 400,000 characters, and at most
// 25,000 in a row that are all white space, or all not (by Python's str.isspace).
//
// Words, special tokens and merges end where a slice ends, so equal ids need equal slices. Texts of up to 25,000
// characters are one slice.
// Slices view the text.

/// Of valid UTF-8. None empty; none of an empty text.
[[nodiscard]] std::vector<std::string_view> slice_long_runs(std::string_view text);

}  // namespace dspack::runtime
