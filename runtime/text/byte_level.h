// The spelling of bytes as printable characters that byte-level vocabularies use (GPT-2's bytes_to_unicode): a
// vocabulary writes the two bytes " a" as "Ġa".
// Threads: thread-safe (pure functions). Errors: a token that is not spelled this way is nullopt.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dspack::runtime {

/// Bytes to spelling. Any bytes, each becomes one character.
[[nodiscard]] std::string spell_bytes(std::string_view bytes);
/// Spelling to bytes; nullopt if any character stands for no byte.
[[nodiscard]] std::optional<std::string> unspell_bytes(std::string_view token);

}  // namespace dspack::runtime
