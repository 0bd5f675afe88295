// A pattern of tokenizer.json. Input: the pattern on the first line, the text to search behind it.
#include <string>

#include "runtime/text/regex.h"
#include "runtime/text/unicode.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::Regex;
using runtime::RegexDialect;

namespace {

bool starts_character(std::string_view text, size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

/// Matches go on, do not overlap, and cut no character.
void check_matches(std::string_view text, const std::vector<Regex::Match>& matches) {
  size_t end = 0;
  for (const Regex::Match& match : matches) {
    DSPACK_CHECK(match.begin >= end && match.begin <= match.end && match.end <= text.size(), "a match out of place");
    DSPACK_CHECK(starts_character(text, match.begin) && starts_character(text, match.end), "half a character");
    end = match.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::as_text(data, size);
  const std::string_view pattern = fuzz::take(input, '\n');
  const std::string text = runtime::to_valid_utf8(input);
  runtime::RegexScratch scratch;
  runtime::WorkBudget budget(text.size());
  std::vector<Regex::Match> matches;
  for (const RegexDialect dialect : {RegexDialect::oniguruma, RegexDialect::rust}) {
    const auto regex = Regex::compile(pattern, dialect);
    if (!regex) {
      fuzz::check_refusal(regex.error());
    } else if (const auto found = regex->find_all(text, budget, scratch, matches); found) {
      check_matches(text, matches);
    } else {
      fuzz::check_refusal(found.error());
    }
  }
  // A text escaped is a pattern that finds it.
  const std::string literal = runtime::to_valid_utf8(pattern);
  if (literal.empty()) return 0;
  const auto exact = Regex::compile(runtime::escape_pattern(literal));
  if (!exact && exact.error().kind == ErrorKind::unsupported) return 0;  // too long, or too many different characters
  DSPACK_CHECK(exact.has_value(), exact.error().message);
  runtime::WorkBudget anew(literal.size());
  DSPACK_CHECK(exact->find_all(literal, anew, scratch, matches).has_value(), literal);
  DSPACK_CHECK(matches.size() == 1 && matches[0].begin == 0 && matches[0].end == literal.size(), literal);
  return 0;
}
