// tokenizer.json. Input: its text on the first line, a text to encode behind it.
#include <algorithm>
#include <string>

#include "format/json.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/unicode.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::SpecialOutput;
using runtime::SpecialTokens;
using runtime::Tokenizer;

namespace {

/// A tokenizer may be told to drop delimiters; then its ids do not hold the whole text.
bool drops_text(std::string_view tokenizer_json) {
  return format::canonical_json(format::parse_json(tokenizer_json).value()["pre_tokenizer"]).find("emoved") !=
         std::string::npos;
}

/// Without spaces: a tokenizer may be told to put some in front of words.
std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

void check_text(const Tokenizer& tokenizer, std::string_view text, SpecialTokens special, bool whole) {
  const auto ids = tokenizer.encode(text, special);
  if (!ids) {
    fuzz::check_refusal(ids.error());
    return;
  }
  std::string bytes;
  for (const uint32_t id : *ids) {
    DSPACK_CHECK(id < tokenizer.vocab_size(), "an id beyond the vocabulary");
    bytes += tokenizer.token_bytes(id);
  }
  const std::string decoded = tokenizer.decode(*ids, SpecialOutput::keep);
  DSPACK_CHECK(decoded == runtime::to_valid_utf8(bytes), "decoding differs from the tokens' bytes");
  if (whole && special == SpecialTokens::as_text) {
    DSPACK_CHECK(without_spaces(decoded) == without_spaces(runtime::to_valid_utf8(text)), decoded);
  }
  DSPACK_CHECK(tokenizer.encode(text, special).value() == *ids, "encoded twice, two results");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const std::string_view json = fuzz::take(text, '\n');
  const auto tokenizer = Tokenizer::from_json(json);
  if (!tokenizer) {
    fuzz::check_refusal(tokenizer.error());
    DSPACK_CHECK(tokenizer.error().message.find('\n') == std::string::npos, "an error of several lines");
    return 0;
  }
  const bool whole = !drops_text(json);
  for (const SpecialTokens special : {SpecialTokens::parse, SpecialTokens::as_text})
    check_text(*tokenizer, text, special, whole);
  return 0;
}
