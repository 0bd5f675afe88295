// What must hold of any tokenizer that was accepted, for the targets that read one.
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <string>

#include "runtime/text/tokenizer.h"
#include "runtime/text/unicode.h"
#include "tests/fuzz/target.h"

namespace dspack::fuzz {

/// Without spaces: a tokenizer may be told to put some in front of words.
inline std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

/// One by one, ids give the same text, and whole characters only.
inline void check_pieces(const runtime::Tokenizer& tokenizer, const std::vector<uint32_t>& ids,
                         std::string_view decoded) {
  runtime::Detokenizer detokenizer(tokenizer, runtime::SpecialOutput::keep);
  std::string text;
  for (const uint32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    DSPACK_CHECK(runtime::is_valid_utf8(piece), "half a character");
    text += piece;
  }
  text += detokenizer.flush();
  DSPACK_CHECK(text == decoded, "pieces differ from the whole");
}

/// `whole`: the ids must hold all of the text.
inline void check_text(const runtime::Tokenizer& tokenizer, std::string_view text, runtime::SpecialTokens special,
                       bool whole) {
  const auto ids = tokenizer.encode(text, special);
  if (!ids) {
    check_refusal(ids.error());
    return;
  }
  std::string bytes;
  for (const uint32_t id : *ids) {
    DSPACK_CHECK(id < tokenizer.vocab_size(), "an id beyond the vocabulary");
    bytes += tokenizer.token_bytes(id);
  }
  const std::string decoded = tokenizer.decode(*ids, runtime::SpecialOutput::keep);
  DSPACK_CHECK(decoded == runtime::to_valid_utf8(bytes), "decoding differs from the tokens' bytes");
  if (whole && special == runtime::SpecialTokens::as_text) {
    DSPACK_CHECK(without_spaces(decoded) == without_spaces(runtime::to_valid_utf8(text)), decoded);
  }
  check_pieces(tokenizer, *ids, decoded);
  DSPACK_CHECK(tokenizer.encode(text, special).value() == *ids, "encoded twice, two results");
}

}  // namespace dspack::fuzz
