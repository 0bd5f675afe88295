// tokenizer.json. Input: its text on the first line, a text to encode behind it.
#include "format/json.h"
#include "tests/fuzz/tokenizer_checks.h"

using namespace dspack;
using runtime::SpecialTokens;
using runtime::Tokenizer;

namespace {

/// A tokenizer may be told to drop delimiters; then its ids do not hold the whole text.
bool drops_text(std::string_view tokenizer_json) {
  return format::canonical_json(format::parse_json(tokenizer_json, format::kManifestDocument).value()["pre_tokenizer"])
             .find("emoved") != std::string::npos;
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
    fuzz::check_text(*tokenizer, text, special, whole);
  return 0;
}
