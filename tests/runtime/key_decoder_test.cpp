#include "runtime/cli/key_decoder.h"

#include <doctest/doctest.h>

#include <random>
#include <string_view>

#include "format/base/foreign_text.h"

namespace dspack::runtime::key_decoder_test {
namespace {

/// What is typed as text; other keys as <number>, a paste in brackets.
std::string keys(std::string_view bytes) {
  KeyDecoder decoder;
  std::string all;
  for (const char byte : bytes) {
    const auto press = decoder.push(byte);
    if (!press) continue;
    if (press->key == Key::character) {
      all += press->text;
    } else if (press->key == Key::paste) {
      all += "[" + press->text + "]";
    } else {
      all += "<" + std::to_string(static_cast<int>(press->key)) + ">";
    }
  }
  return all;
}

std::string key(Key which) {
  return "<" + std::to_string(static_cast<int>(which)) + ">";
}

}  // namespace

TEST_CASE("keys: characters come whole, and broken ones not at all") {
  CHECK(keys("a\xc3\xa9\xe6\x97\xa5\xf0\x9f\x99\x82") == "a\xc3\xa9\xe6\x97\xa5\xf0\x9f\x99\x82");
  CHECK(keys("a\xff\xc3z\xe6\x97-") == "az-");
  CHECK(keys("\xc2\x85z\xc2\x9b"
             "5nz") == "zz");
}

TEST_CASE("keys: the sequences of several terminals mean the same") {
  for (const char* home : {"\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~", "\x01"})
    CHECK(keys(home) == key(Key::home));
  for (const char* end : {"\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~", "\x05"})
    CHECK(keys(end) == key(Key::end));
  for (const char* word : {"\x1b[1;5D", "\x1b[1;3D",
                           "\x1b"
                           "b"})
    CHECK(keys(word) == key(Key::word_left));
  CHECK(keys("\x1b[D") == key(Key::left));
  CHECK(keys("\x1b[1;2D") == key(Key::left));
  CHECK(keys("\x1b[3~") == key(Key::remove));
  CHECK(keys("\x1b\r") == key(Key::new_line));
}

TEST_CASE("keys: what is no key leaves nothing") {
  for (const char* sequence :
       {"\x1b[15~", "\x1b[[A", "\x1bOP", "\x1b]0;t\a", "\x1b]0;t\x1b\\", "\x1bP1+r\x1b\\", "\x1b(B", "\x1b[<0;1;1M",
        "\x1b[M !!", "\x1b[?1;2c", "\x1b[1;1R", "\x1b[I", "\x1bz", "\x18", "\x1c"})
    CHECK_MESSAGE(keys(std::string("a") + sequence + "z") == "az", printable(sequence));
}

TEST_CASE("keys: of a paste that is too long the beginning stays, and the rest is counted") {
  KeyDecoder decoder;
  const auto paste = [&](std::string_view text) {
    std::optional<KeyPress> last;
    for (const std::string_view part : {std::string_view("\x1b[200~"), text, std::string_view("\x1b[201~")}) {
      for (const char byte : part)
        last = decoder.push(byte);
    }
    REQUIRE(last);
    return *last;
  };
  const std::string most(KeyDecoder::kMaxPasteBytes - 1, 'a');
  const KeyPress cut = paste(most + "\xc3\xa9" + "bc");  // of the first two bytes one has room, and then "b" would
  CHECK(cut.text == most);
  CHECK(cut.lost_bytes == 4);
  const KeyPress next = paste("d");
  CHECK(next.text == "d");
  CHECK(next.lost_bytes == 0);
}

TEST_CASE("keys: a paste is one, in lines, without control characters and sequences") {
  CHECK(keys("\x1b[200~a\rb\r\nc\n\td\x1b[31m\x01\x1b[201~z") == "[a\nb\nc\n\td]z");
  CHECK(keys("\x1b[200~\x1b[201~") == "[]");
  CHECK(keys("\x1b[201~z") == "z");
}

TEST_CASE("keys: no bytes make text that could steer a terminal") {
  std::mt19937 random(1);
  const std::string_view likely = "\x1b\x1b[]OPM200~201;?\r\n\t\x07\\a\xc2\x9b\x85\xe2\x80\xae";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(40, '\0');
    for (char& byte : bytes)
      byte = random() % 4 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    for (const char c : keys(bytes)) {
      const auto value = static_cast<unsigned char>(c);
      CHECK_FALSE((value < 0x20 && c != '\n' && c != '\t'));
    }
  }
}

}  // namespace dspack::runtime::key_decoder_test
