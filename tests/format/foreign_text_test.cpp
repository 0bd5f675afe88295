#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "format/base/foreign_text.h"

namespace dspack::foreign_text_test {

using namespace dspack;

namespace {

struct Shown {
  const char* text;
  const char* line;   // as printable has it
  const char* lines;  // as printable_text has it; nullptr: the same
};

constexpr Shown kTable[] = {
    {"plain, \"quoted\" \\ text", "plain, \"quoted\" \\ text", nullptr},
    {"\x01\x1b[31m\x07\x1f", "\\u0001\\u001b[31m\\u0007\\u001f", nullptr},
    {"a\nb\tc\rd", "a\\u000ab\\u0009c\\u000dd", "a\nb\tc\\u000dd"},
    {"~\x7f", "~\\u007f", nullptr},
    {"\xC2\x80\xC2\x85\xC2\x9B\xC2\x9F\xC2\xA0", "\\u0080\\u0085\\u009b\\u009f\xC2\xA0", nullptr},
    {"\xD8\x9B\xD8\x9C\xD8\x9D", "\xD8\x9B\\u061c\xD8\x9D", nullptr},
    {"\xE2\x80\x8D\xE2\x80\x8E\xE2\x80\x8F\xE2\x80\x90", "\xE2\x80\x8D\\u200e\\u200f\xE2\x80\x90", nullptr},
    {"\xE2\x80\xA7\xE2\x80\xA8\xE2\x80\xA9\xE2\x80\xAA", "\xE2\x80\xA7\\u2028\\u2029\\u202a", nullptr},
    {"\xE2\x80\xAB\xE2\x80\xAC\xE2\x80\xAD\xE2\x80\xAE\xE2\x80\xAF", "\\u202b\\u202c\\u202d\\u202e\xE2\x80\xAF",
     nullptr},
    {"\xE2\x81\xA5\xE2\x81\xA6\xE2\x81\xA7", "\xE2\x81\xA5\\u2066\\u2067", nullptr},
    {"\xE2\x81\xA8\xE2\x81\xA9\xE2\x81\xAA", "\\u2068\\u2069\xE2\x81\xAA", nullptr},
    {"\xC3\xA4\xE4\xB8\xAD\xF0\x9F\x98\x80", "\xC3\xA4\xE4\xB8\xAD\xF0\x9F\x98\x80", nullptr},
    {"\x80\xFF", "\\x80\\xff", nullptr},                               // no start of a character
    {"\xC0\x9B", "\\xc0\\x9b", nullptr},                               // an overlong ESC
    {"\xE2\x80", "\\xe2\\x80", nullptr},                               // ends too early
    {"\xE2\x80 \xED\xA0\x80", "\\xe2\\x80 \\xed\\xa0\\x80", nullptr},  // a surrogate
    {"\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80", nullptr},             // above U+10FFFF
};

}  // namespace

TEST_CASE("foreign text: what steers a terminal or turns the writing around is escaped") {
  for (const Shown& shown : kTable) {
    CAPTURE(shown.line);
    CHECK(printable(shown.text) == shown.line);
    CHECK(printable_text(shown.text) == (shown.lines != nullptr ? shown.lines : shown.line));
  }
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\u0000b");
  CHECK(printable("") == "");
}

TEST_CASE("foreign text: exactly the listed code points are unprintable") {
  size_t found = 0;
  for (uint32_t codepoint = 0; codepoint <= 0x10FFFF; ++codepoint)
    found += is_unprintable(codepoint) ? 1 : 0;
  CHECK(found == 32 + 1 + 32 + 1 + 2 + 7 + 4);  // C0, DEL, C1, U+061C, U+200E/F, U+2028-202E, U+2066-2069
}

TEST_CASE("foreign text: JSON stays the same JSON") {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // what is no UTF-8 cannot be in JSON
  std::string all;
  for (const Shown& shown : kTable)
    all += shown.text;
  const nlohmann::json written = {{"names", {all, "\x7f", "\xC2\x9B", "a\nb\t"}}, {"\xE2\x80\xAE", 1}};
  const nlohmann::json value = nlohmann::json::parse(written.dump(-1, ' ', false, kReplace));
  for (const int indent : {-1, 2}) {
    const std::string shown = printable_text(value.dump(indent, ' ', false, kReplace));
    CHECK(shown.find('\x7f') == std::string::npos);
    CHECK(shown.find("\xC2\x9B") == std::string::npos);
    CHECK(shown.find("\xE2\x80\xAE") == std::string::npos);
    CHECK(nlohmann::json::parse(shown) == value);
  }
}

TEST_CASE("foreign text: long text loses its middle, and no character is split") {
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdefg", 6) == "ab...g");
  CHECK(shortened("abcdefg", 2) == "..");
  const std::string umlauts = "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F\xC3\xA4\xC3\xB6";
  for (size_t bytes = 0; bytes <= umlauts.size(); ++bytes) {
    CAPTURE(bytes);
    CHECK(shortened(umlauts, bytes).size() <= bytes);
    CHECK(printable(shortened(umlauts, bytes)) == shortened(umlauts, bytes));
  }
  CHECK(brief(std::string(4 << 20, 'x')).size() == kPieceBytes);
  CHECK(brief(std::string(4 << 20, '\x1b')).size() <= kPieceBytes);
  CHECK(quote("a\"\x1b") == "\"a\"\\u001b\"");
  CHECK(quote(std::string(61, 'x')) == "\"" + std::string(60, 'x') + "...\"");
}

TEST_CASE("foreign text: a message keeps what it says about a long word") {
  CHECK(message_line("short: as it is") == "short: as it is");
  const std::string name(1 << 20, 'n');
  const std::string line = message_line("x.safetensors: tensor \"" + name + "\" has no scale; convert it first");
  CHECK(line.starts_with("x.safetensors: tensor \"nnn"));
  CHECK(line.ends_with("nnn\" has no scale; convert it first"));
  CHECK(line.size() < kMessageBytes);
  std::string words = "file: ";
  for (int i = 0; i < 100'000; ++i)
    words += "w\n";
  const std::string many = message_line(words + ": no key");
  CHECK(many.size() <= kMessageBytes);
  CHECK(many.starts_with("file: w"));
  CHECK(many.ends_with(": no key"));
  std::string figures = "--vram 5.0 GB is too little:";
  while (figures.size() < 450)
    figures += " 12.5 GB for this,";
  CHECK(message_line(figures) == figures);
  CHECK(message_line("one\nreshard: all is well") == "one\\u000areshard: all is well");
}

TEST_CASE("foreign text: no URL shows a password") {
  const auto shown = [](std::string_view text) { return without_passwords(text); };
  CHECK(shown("http://u:p@h:1/a@b") == "http://h:1/a@b");
  CHECK(shown("http://u@h") == "http://h");
  CHECK(shown("a http://u:p@h/x, b \"https://u:p@h/y\" c") == "a http://h/x, b \"https://h/y\" c");
  CHECK(shown("http://u:p@q@h/x") == "http://h/x");
  CHECK(shown("socks5://u:p@h") == "socks5://h");
  CHECK(shown("http://u:p/q@h/x") == "http://h/x");  // badly written, and still a password
  CHECK(shown("http://h:80/a@b and http://[::1]/a@b and http://h/a@b") ==
        "http://h:80/a@b and http://[::1]/a@b and http://h/a@b");
  CHECK(shown("hf://org/name@main, hf://name@main, org/name@main") ==
        "hf://org/name@main, hf://name@main, org/name@main");
  for (const char* same : {"", "://", "a://", "u:p@h", "http:/u:p@h"})
    CHECK(shown(same) == same);
  CHECK(message_line("http://u:p@h/x: refused") == "http://h/x: refused");
}

}  // namespace dspack::foreign_text_test
