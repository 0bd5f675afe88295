#include "runtime/text/codepoint_set.h"

#include <doctest/doctest.h>

namespace dspack::codepoint_set_test {

using namespace dspack::runtime;

namespace {

size_t count(const CodepointSet& set) {
  size_t total = 0;
  for (const CodepointRange& range : set.ranges())
    total += range.last - range.first + 1;
  return total;
}

size_t count(const char* property) {
  const auto set = unicode_property(property);
  REQUIRE(set.has_value());
  return count(*set);
}

}  // namespace

// What Hugging Face tokenizers 0.23.3 and tiktoken 0.14.0 matched, code point by code point (surrogates apart).
TEST_CASE("unicode properties: as many characters as the references know") {
  CHECK(count("Lu") == 1858);
  CHECK(count("Ll") == 2258);
  CHECK(count("Lt") == 31);
  CHECK(count("Lm") == 404);
  CHECK(count("Lo") == 136'477);
  CHECK(count("L") == 141'028);
  CHECK(count("M") == 2501);
  CHECK(count("N") == 1911);
  CHECK(count("P") == 855);
  CHECK(count("S") == 8514);
  CHECK(count("Z") == 19);
  CHECK(count("C") == 957'236 + 2048);
  CHECK(count("Han") == 99'030);
  CHECK(count(white_space()) == 25);
  CHECK(count(numeric_characters()) == 1924);
  CHECK(count(word_characters()) == 144'667);
}

TEST_CASE("unicode properties: others are unknown") {
  for (const char* name : {"", "X", "Lx", "Latin", "han", "l", "^L"})
    CHECK_FALSE(unicode_property(name).has_value());
}

TEST_CASE("code point sets: union, intersection, complement") {
  const CodepointSet letters({{'a', 'f'}, {'d', 'z'}});
  CHECK(letters.ranges().size() == 1);
  CHECK((letters & CodepointSet({{'x', 0x7F}})) == CodepointSet({{'x', 'z'}}));
  CHECK((letters | CodepointSet::of('{')) == CodepointSet({{'a', '{'}}));
  CHECK(~~letters == letters);
  CHECK((~CodepointSet()).contains(kLastCodepoint));
  CHECK((~CodepointSet({{0, kLastCodepoint}})).ranges().empty());
  CHECK(letters.contains('z'));
  CHECK_FALSE(letters.contains('`'));
}

}  // namespace dspack::codepoint_set_test
