// tiktoken.model with tokenizer_config.json. Input: the latter on the first line, then the former up to an empty line,
// then a text to encode.
#include "tests/fuzz/tokenizer_checks.h"

#include <algorithm>

using namespace dspack;
using runtime::SpecialTokens;
using runtime::Tokenizer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const std::string_view config = fuzz::take(text, '\n');
  const std::string_view model = text.substr(0, text.find("\n\n"));
  text.remove_prefix(std::min(text.size(), model.size() + 2));
  const auto tokenizer = Tokenizer::from_tiktoken(model, config);
  if (!tokenizer) {
    fuzz::check_refusal(tokenizer.error());
    DSPACK_CHECK(tokenizer.error().message.find('\n') == std::string::npos, "an error of several lines");
    return 0;
  }
  for (const SpecialTokens special : {SpecialTokens::parse, SpecialTokens::as_text})
    fuzz::check_text(*tokenizer, text, special, true);
  return 0;
}
