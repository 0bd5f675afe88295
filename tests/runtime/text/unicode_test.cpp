#include "runtime/text/unicode.h"

#include <doctest/doctest.h>

#include "runtime/text/vocabulary.h"

namespace dspack::unicode_test {

using namespace dspack::runtime;

TEST_CASE("unicode: every code point survives encoding and decoding") {
  for (uint32_t codepoint = 0; codepoint <= 0x10FFFF; ++codepoint) {
    if (codepoint >= 0xD800 && codepoint <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, codepoint);
    const Utf8Unit unit = first_utf8_unit(text);
    const bool whole = unit.kind == Utf8Unit::Kind::character && unit.bytes == text.size();
    if (!whole || decode_utf8_character(text) != codepoint) FAIL("code point " << codepoint);
  }
}

TEST_CASE("unicode: broken sequences become one U+FFFD for each longest start of a character") {
  // The expected values are Python's bytes.decode("utf-8", "replace").
  CHECK(to_valid_utf8("a\x80z") == "a\uFFFDz");
  CHECK(to_valid_utf8("\xE4\xB8z") == "\uFFFDz");
  CHECK(to_valid_utf8("\xF0\x9F\x98") == "\uFFFD");
  CHECK(to_valid_utf8("\xC0\xAF") == "\uFFFD\uFFFD");
  CHECK(to_valid_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(to_valid_utf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(to_valid_utf8("\xE2\x82\xE2\x82\xAC") == "\uFFFD€");
  CHECK_FALSE(is_valid_utf8("ok\xFF"));
  CHECK(is_valid_utf8("中文 😀"));
}

TEST_CASE("unicode: white space is counted in bytes from either side") {
  CHECK(leading_white_space(" \u3000\u00A0x ") == 6);
  CHECK(trailing_white_space("x \u2028\n") == 5);
  CHECK(trailing_white_space("x\u180E") == 0);  // no white space since Unicode 6.3
  CHECK(leading_white_space("") == 0);
}

TEST_CASE("byte level: all bytes are spelled as in GPT-2, and back") {
  CHECK(spell_bytes(" a\n") == "ĠaĊ");
  CHECK(spell_bytes("é") == "Ã©");
  CHECK(spell_bytes(std::string_view("\0\x7F\xAD", 3)) == "ĀġŃ");
  std::string all;
  for (int byte = 0; byte < 256; ++byte)
    all.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  CHECK(unspell_bytes(spell_bytes(all)) == all);
  CHECK_FALSE(unspell_bytes("<｜User｜>").has_value());
  CHECK_FALSE(unspell_bytes("a b").has_value());
}

}  // namespace dspack::unicode_test
