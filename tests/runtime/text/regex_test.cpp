#include "runtime/text/regex.h"

#include <doctest/doctest.h>

#include "runtime/text/unicode.h"

namespace dspack::regex_test {

using namespace dspack;
using namespace dspack::runtime;

namespace {

std::vector<std::string> all_matches(std::string_view pattern, std::string_view text,
                                     RegexDialect dialect = RegexDialect::oniguruma) {
  const Result<Regex> regex = Regex::compile(pattern, dialect);
  REQUIRE_MESSAGE(regex.has_value(), (regex ? "" : regex.error().message));
  RegexScratch scratch;
  WorkBudget budget(text.size());
  std::vector<Regex::Match> matches;
  const auto searched = regex->find_all(text, budget, scratch, matches);
  REQUIRE_MESSAGE(searched.has_value(), (searched ? "" : searched.error().message));
  std::vector<std::string> found;
  for (const auto& match : matches)
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  return found;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("regex: white space is Unicode's White_Space, so U+180E is none") {
  CHECK(all_matches("\\s", "a\u180Eb\u3000c\u0085\u200Bd") == Strings{"\u3000", "\u0085"});
  CHECK(all_matches("[^\\sab]", "a\u180Eb ") == Strings{"\u180E"});
  CHECK(all_matches("\\S+", "x\u00A0\u180Ey") == Strings{"x", "\u180Ey"});
}

TEST_CASE("regex: characters newer than the library's Unicode have their category") {
  // U+31350 is a letter since 15.0, U+1FAE8 a symbol since 15.0, U+1C89 a letter since 16.0, U+10D40 a digit
  // since 16.0.
  CHECK(all_matches("\\p{L}+", "a\U00031350\u1C89.") == Strings{"a\U00031350\u1C89"});
  CHECK(all_matches("[\\p{P}\\p{S}]+", "a\U0001FAE8!") == Strings{"\U0001FAE8!"});
  CHECK(all_matches("\\p{N}{1,3}", "1\U00010D40") == Strings{"1\U00010D40"});
  CHECK(all_matches("\\P{L}", "a\U00031350.") == Strings{"."});
}

TEST_CASE("regex: ^ and $ are lines, and only \\n ends one") {
  CHECK(all_matches("^\\p{L}+", "ab\ncd\re") == Strings{"ab", "cd"});
  CHECK(all_matches("\\p{L}+$", "ab\ncd\re") == Strings{"ab", "e"});
}

TEST_CASE("regex: an empty match directly behind a match does not count") {
  CHECK(all_matches("\\p{N}*", "a12b") == Strings{"", "12", ""});
  CHECK(all_matches("", "é") == Strings{"", ""});
  CHECK(all_matches("a", "").empty());
}

TEST_CASE("regex: (?i: takes both cases of each ASCII letter, and what Unicode folds to one") {
  CHECK(all_matches("(?i:az)", "az AZ aZ Az bz") == Strings{"az", "AZ", "aZ", "Az"});
  CHECK(all_matches("(?i:AZ)", "az AZ [z") == Strings{"az", "AZ"});
  CHECK(all_matches("(?i:k)", "kK\u212Aj") == Strings{"k", "K", "\u212A"});
  CHECK(all_matches("(?i:s)", "sS\u017Fr") == Strings{"s", "S", "\u017F"});
  CHECK(all_matches("(?i:'a)b", "'AB 'Ab") == Strings{"'Ab"});  // to its own bracket
}

TEST_CASE("regex: classes lie in classes to depth 16") {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + "a" + std::string(depth, ']'); };
  CHECK(all_matches(nested(16), "ab") == Strings{"a"});
  CHECK_FALSE(Regex::compile(nested(17), RegexDialect::oniguruma).has_value());
}

TEST_CASE("regex: an escaped literal matches itself") {
  CHECK(all_matches(escape_pattern("a+(b)|[c]{2}\\ #"), "xa+(b)|[c]{2}\\ #y") == Strings{"a+(b)|[c]{2}\\ #"});
}

TEST_CASE("regex: constructs that the dialects read differently are refused by name") {
  for (const char* pattern :
       {"\\w",     "\\b",        "\\h",         "\\d",     "\\x41",    "\\p{Greek}", "\\p{^L}",    "\\pL",
        "\\p{",    "a{,2}",      "a{2}?",       "a{2}+",   "{",        "(?i)a",      "(?<name>a)", "(?#x)",
        "(*UTF)",  "[]a]",       "[^]a]",       "[a&&]",   "[&&a]",    "[a-\\s]",    "[\\s-a]",    "[a-b-c]",
        "[a-[b]]", "[a--b]",     "[[:alpha:]]", "[a",      "[[a]",     "\\",         "\\é",        "\\1",
        "(?i:é)",  "(?i:[a-z])", "(?i:\\p{L})", "(?i:ss)", "(?i:aFf)", "(?i:s(?:t))"}) {
    CAPTURE(pattern);
    const auto regex = Regex::compile(pattern);
    REQUIRE_FALSE(regex.has_value());
    CHECK(regex.error().kind == ErrorKind::unsupported);
  }
}

TEST_CASE("regex: broken syntax is an error, not a crash") {
  for (const char* pattern : {"(a", "a)", "*", "[z-a]", "a{2,1}", "(?<=a+)b"}) {
    CAPTURE(pattern);
    const auto regex = Regex::compile(pattern);
    REQUIRE_FALSE(regex.has_value());
    CHECK(regex.error().kind == ErrorKind::invalid);
  }
  CHECK_FALSE(Regex::compile(std::string(100'000, 'a')).has_value());
}

TEST_CASE("regex: a long run of white space neither overflows nor is dropped") {
  const std::string spaces(1'000'000, ' ');
  CHECK(all_matches("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces) == Strings{spaces});
}

TEST_CASE("regex: a pattern that explodes on a text is reported, in as many steps wherever the work lies") {
  struct Case {
    const char* pattern;
    size_t letters = 6000;
    const char* end = "xc";  // so that the engine does not miss the c at once
  };
  const Case cases[] = {
      {"(?:a|a|aa)+$", 60, "b"},  // brackets
      {"a*a*a*a*a*c"},            // no bracket at all
      {"(?:a|a|a|a)*(?:a|a)*c"},  // alternatives
      {"(?=a*a*a*c)a|b"},         // anew at every place
      {"a*?a*?a*?a*?c"},          // the shortest first
      {"a{0,500}a{0,500}a{0,500}c"},
  };
  for (const auto& [pattern, letters, end] : cases) {
    CAPTURE(pattern);
    std::string text(letters, 'a');
    text.append(end);
    const auto regex = Regex::compile(pattern);
    REQUIRE_MESSAGE(regex.has_value(), (regex ? "" : regex.error().message));
    RegexScratch scratch;
    WorkBudget budget(text.size());
    std::vector<Regex::Match> matches;
    const auto result = regex->find_all(text, budget, scratch, matches);
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().kind == ErrorKind::invalid);
    CHECK_MESSAGE(result.error().message.find("the tokenizer's pattern \"" + std::string(pattern)) == 0,
                  result.error().message);
    CHECK(budget.spent() == budget.all());
    // What is spent stays spent, for the next pattern and the next piece of the text.
    CHECK_FALSE(Regex::compile("b").value().find_all("b", budget, scratch, matches).has_value());
  }
}

TEST_CASE("regex: patterns as they are take a small part of the steps, on any text") {
  // V3's, GPT-4o's way of words, and GPT-2's.
  const char* const patterns[] = {
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm})"
      R"(\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
  const auto repeated = [](std::string_view unit) {
    std::string text;
    while (text.size() < 1'000'000)
      text += unit;
    return text;
  };
  for (const char* pattern : patterns) {
    const auto regex = Regex::compile(pattern);
    REQUIRE_MESSAGE(regex.has_value(), (regex ? "" : regex.error().message));
    for (const char* unit : {" ",
                             "a",
                             "A",
                             "aA",
                             "\n",
                             " \n",
                             "\t ",
                             "1",
                             "!",
                             " !",
                             "a ",
                             "'",
                             "'s",
                             "模",
                             "模 ",
                             "é",
                             "\u0301",
                             "The quick brown fox, 1234 jumps.\n\n  ",
                             "if (x) {\n\t\treturn y;\n}\n",
                             "🙂"}) {
      const std::string text = repeated(unit);
      CAPTURE(pattern);
      CAPTURE(unit);
      RegexScratch scratch;
      WorkBudget budget(text.size());
      std::vector<Regex::Match> matches;
      REQUIRE(regex->find_all(text, budget, scratch, matches).has_value());
      CHECK(budget.spent() < text.size() * WorkBudget::kStepsPerByte / 5);
      MESSAGE(unit << ": " << static_cast<double>(budget.spent()) / static_cast<double>(text.size()));
    }
  }
}

TEST_CASE("regex: classes can be put together, excepted from and taken the rest of") {
  CHECK(all_matches("[a[b-c]&&[^b]]+", "abcc") == Strings{"a", "cc"});
  CHECK(all_matches("[^a-c&&[b]]+", "abcd") == Strings{"a", "cd"});
  CHECK(all_matches("[\\P{L}]+", "a12b") == Strings{"12"});
  CHECK(all_matches("[\\S&&\\P{L}]", "a 1") == Strings{"1"});
  CHECK(all_matches("[\\p{Lo}&&[^\\p{Han}]]+", "中あア文\U00020000ß") == Strings{"あア"});
  CHECK(all_matches("[a-]+", "b-a-") == Strings{"-a-"});
  CHECK(all_matches("[\\s\\S&&[^\\s\\S]]", "ab").empty());
}

TEST_CASE("regex: letters without regard to case are those of Unicode's simple folding") {
  CHECK(all_matches("(?i:'s|'k|'ll)", "'S'\u017F'\u212A'lL's1") == Strings{"'S", "'\u017F", "'\u212A", "'lL", "'s"});
  CHECK(all_matches("(?i:a)b", "AbaBab") == Strings{"Ab", "ab"});
  CHECK(all_matches("(?i:st)", "\uFB06St", RegexDialect::rust) == Strings{"St"});
}

TEST_CASE("regex: Rust's dialect has no lines") {
  CHECK_FALSE(Regex::compile("a$", RegexDialect::rust).has_value());
  CHECK_FALSE(Regex::compile("^a", RegexDialect::rust).has_value());
}

TEST_CASE("regex: a run that cannot match is tried once, and found where it can begin later") {
  CHECK(all_matches("\\s+$", "a  \n  b  ") == Strings{"  ", "  "});
  CHECK(all_matches("\\s+$", " \n\n x") == Strings{" \n"});
  const std::string spaces(1'000'000, ' ');
  CHECK(all_matches("\\s+$", spaces + "5").empty());
  CHECK(all_matches("\\s+$", "5" + spaces) == Strings{spaces});
}

TEST_CASE("regex: a pattern may name no more kinds of characters than fit a byte") {
  std::string literals;
  for (char32_t c = 0x4E00; c < 0x4E00 + 300; ++c)
    append_utf8(literals, c);
  const auto regex = Regex::compile(literals);
  REQUIRE_FALSE(regex.has_value());
  CHECK(regex.error().kind == ErrorKind::unsupported);
  CHECK(all_matches(literals.substr(0, 3 * 250), literals) == Strings{literals.substr(0, 3 * 250)});
}

}  // namespace dspack::regex_test
