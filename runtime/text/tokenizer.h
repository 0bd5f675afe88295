// Converts text to token ids and back exactly as the reference programs: Hugging Face `tokenizers` with the same
// tokenizer.json (byte-level BPE: DeepSeek-V2 and V3; see tokenizer_json.h for what is supported), and Kimi's class
// over tiktoken with the same tiktoken.model (tiktoken_file.h).
//
// Threads: immutable, thread-safe. Lifetime: owns all it needs; returned views live as long as the Tokenizer.
// Errors: from_json, from_tiktoken: invalid or unsupported, one line; encode: unsupported (a byte without a token),
// invalid (a text above 1 GiB, or one on which a pattern gives up), cancelled. No text is ever dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/tokenizer_json.h"

namespace dspack::runtime {

/// Whether literals of added tokens in a text, such as "<｜User｜>", become those tokens or are ordinary text. as_text
/// covers all added tokens, whether flagged special or not: use it for untrusted text. Guarded text (guarded_text.h) is
/// parsed except where its guards keep text as text.
enum class SpecialTokens { parse, as_text, guarded };

/// Whether decoding skips tokens that are flagged special.
enum class SpecialOutput { keep, skip };

/// Conditions that end an encoding early.
struct EncodingLimits {
  /// Encoding stops beyond this number of tokens: the result is then the first tokens, more than this number.
  uint64_t most_tokens = UINT64_MAX;
  std::stop_token stop = {};  // then the encoding is cancelled
};

class Tokenizer {
 public:
  [[nodiscard]] static Result<Tokenizer> from_json(std::string_view tokenizer_json);
  /// `model`: the text of tiktoken.model.
  [[nodiscard]] static Result<Tokenizer> from_tiktoken(std::string_view model, std::string_view tokenizer_config_json);

  /// Adds no tokens, not even a BOS. Broken UTF-8 is read as U+FFFD, one for each broken sequence, as Rust and Python
  /// decode it.
  [[nodiscard]] Result<std::vector<uint32_t>> encode(std::string_view text, SpecialTokens special,
                                                     const EncodingLimits& limits = {}) const;
  /// The text with guards in the spellings of added tokens.
  [[nodiscard]] std::string guarded(std::string_view text) const { return parts_.added_tokens.guarded(text); }
  /// Length of the longest token's text: a text has at least (its bytes / this) tokens. (White space that an added
  /// token swallows beside it is not counted.)
  [[nodiscard]] size_t longest_token_bytes() const { return longest_token_bytes_; }

  /// Always valid UTF-8: broken sequences become U+FFFD. Ids without a token have no text.
  [[nodiscard]] std::string decode(std::span<const uint32_t> ids, SpecialOutput special) const;

  /// The bytes of a token, which need not be whole characters; empty for an id without a token.
  [[nodiscard]] std::string_view token_bytes(uint32_t id) const { return parts_.vocabulary.bytes(id); }
  /// `token`: as spelled in tokenizer.json ("Ġthe", "<｜User｜>").
  [[nodiscard]] std::optional<uint32_t> id_of(std::string_view token) const { return parts_.vocabulary.find(token); }
  [[nodiscard]] bool is_special(uint32_t id) const { return parts_.vocabulary.is_special(id); }
  /// Whether the token is cut out of a text as a whole, flagged special or not.
  [[nodiscard]] bool is_added(uint32_t id) const { return parts_.added_tokens.contains(id); }
  /// One more than the highest id. A model's vocabulary may be padded beyond it.
  [[nodiscard]] uint32_t vocab_size() const { return parts_.vocabulary.size(); }

 private:
  struct Scratch;
  explicit Tokenizer(TokenizerParts parts);
  [[nodiscard]] Result<void> encode_slice(std::string_view text, SpecialTokens special, Scratch& scratch,
                                          std::vector<uint32_t>& ids) const;

  TokenizerParts parts_;
  size_t longest_token_bytes_ = 1;
};

// Converts token ids to text, one by one: each push returns the text that has become certain, in whole characters.
//
// All pushes and the flush together return the same text as Tokenizer::decode of all the ids.
// Threads: belongs to one thread. Lifetime: borrows the Tokenizer, which must outlive it. Errors: none; broken UTF-8
// becomes U+FFFD, and ids without a token have no text.

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, SpecialOutput special) : tokenizer_(&tokenizer), special_(special) {}

  /// The characters that `id` completes; often empty within a multi-byte character.
  [[nodiscard]] std::string push(uint32_t id);
  /// U+FFFD if a character is still incomplete, else empty. Afterwards the next text can begin.
  [[nodiscard]] std::string flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialOutput special_;
  std::string rest_;  // the start of a character, at most three bytes
};

}  // namespace dspack::runtime
