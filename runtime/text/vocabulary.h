// Tokens and their ids: the entries of tokenizer.json's model.vocab and added_tokens, as one table.
// Threads: thread-compatible; const once filled. Lifetime: owns its strings; returned views live as long as the table.
// Errors: invalid: an id used twice, a token with two ids, an id far beyond the number of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/base/result.h"
#include "format/base/string_hash.h"

namespace dspack::runtime {

class Vocabulary {
 public:
  /// `expected_tokens` bounds the ids, so that one hostile id cannot make the table huge.
  explicit Vocabulary(uint64_t expected_tokens);

  /// Adding the same pair again does nothing.
  [[nodiscard]] Result<void> add(uint64_t id, std::string_view token);
  /// Adds a token that is plain text and not a spelling of bytes, as tiktoken's special tokens. Replaces a token of the
  /// same name.
  [[nodiscard]] Result<void> add_text(uint64_t id, std::string_view token);
  void mark_special(uint32_t id) { entries_[id].special = true; }

  [[nodiscard]] std::optional<uint32_t> find(std::string_view token) const;
  /// The token as the file spells it; nullopt: no token has this id.
  [[nodiscard]] std::optional<std::string_view> token(uint32_t id) const;
  /// The bytes of text that the token represents; empty if no token has this id.
  [[nodiscard]] std::string_view bytes(uint32_t id) const;
  [[nodiscard]] bool is_special(uint32_t id) const { return id < entries_.size() && entries_[id].special; }
  /// One more than the highest id; ids without a token may lie below it.
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }

 private:
  struct Entry {
    std::string token;
    std::string bytes;
    bool present = false;
    bool special = false;
  };
  [[nodiscard]] Result<uint32_t> claim(uint64_t id, std::string_view token);

  uint64_t id_limit_;
  std::vector<Entry> entries_;  // index is the id
  StringMap<uint32_t> ids_;
};

// The spelling of bytes as printable characters that byte-level vocabularies use (GPT-2's bytes_to_unicode): the two
// bytes " a" are written "Ġa".
// Thread-safe.

/// Bytes to spelling: each byte becomes one character.
[[nodiscard]] std::string spell_bytes(std::string_view bytes);
/// Spelling to bytes; nullopt if a character represents no byte.
[[nodiscard]] std::optional<std::string> unspell_bytes(std::string_view token);

}  // namespace dspack::runtime
