#include "runtime/text/stop_strings.h"

#include <doctest/doctest.h>

#include <random>

namespace dspack::stop_strings_test {

using namespace dspack::runtime;

namespace {

struct Heard {
  std::string text;
  bool found = false;
  friend bool operator==(const Heard&, const Heard&) = default;
};

Heard hear(const std::vector<std::string>& strings, const std::vector<std::string>& pieces) {
  StopStrings stop(strings);
  Heard heard;
  for (const std::string& piece : pieces)
    heard.text += stop.push(piece);
  heard.found = stop.found();
  heard.text += stop.finish();
  return heard;
}

}  // namespace

TEST_CASE("stop strings: none of them lets everything through at once") {
  StopStrings stop({});
  CHECK(stop.push("abc") == "abc");
  CHECK_FALSE(stop.found());
  CHECK(stop.finish().empty());
}

TEST_CASE("stop strings: a string is found across pieces, and nothing from it on is shown") {
  CHECK(hear({"END"}, {"one E", "N", "D two", " three"}) == Heard{"one ", true});
  CHECK(hear({"END"}, {"END"}) == Heard{"", true});
  CHECK(hear({"\n\n"}, {"a\n", "b\n", "\nc"}) == Heard{"a\nb", true});
  CHECK(hear({"。"}, {"你好", "。", "再见"}) == Heard{"你好", true});
}

TEST_CASE("stop strings: only what may begin a stop string is held back, and comes when it does not") {
  StopStrings stop({"<end>"});
  CHECK(stop.push("a <") == "a ");
  CHECK(stop.push("en") == "");
  CHECK(stop.push("emy <e") == "<enemy ");
  CHECK_FALSE(stop.found());
  CHECK(stop.finish() == "<e");
  CHECK(hear({"aab"}, {"a", "a", "a", "b"}) == Heard{"a", true});  // a beginning within a beginning
}

TEST_CASE("stop strings: the one that is complete first counts, of those the longest") {
  CHECK(hear({"abc", "b"}, {"xabc"}) == Heard{"xa", true});
  CHECK(hear({"bc", "abc", "c"}, {"xabc"}) == Heard{"x", true});
}

TEST_CASE("stop strings: after the end the next text can begin") {
  StopStrings stop({"x"});
  CHECK(stop.push("ax") == "a");
  CHECK(stop.found());
  CHECK(stop.push("b") == "");
  CHECK(stop.finish() == "");
  CHECK_FALSE(stop.found());
  CHECK(stop.push("b") == "b");
}

TEST_CASE("stop strings: what comes out does not depend on the pieces") {
  std::mt19937 random(1);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t size = 1 + random() % most; size > 0; --size)
      text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::string> strings{word(6), word(5)};
    const std::string text = word(16);
    const Heard whole = hear(strings, {text});
    std::vector<std::string> pieces(1);
    for (const char c : text) {
      pieces.back() += c;
      if (random() % 2 == 0) pieces.emplace_back();
    }
    CAPTURE(text);
    CHECK(hear(strings, pieces) == whole);
    const bool there = text.find(strings[0]) != std::string::npos || text.find(strings[1]) != std::string::npos;
    CHECK(whole.found == there);
    CHECK(text.starts_with(whole.text));
    if (there) CHECK(whole.text.find(strings[0]) == std::string::npos);
  }
}

}  // namespace dspack::stop_strings_test
