#include "runtime/text/pre_tokenizer.h"

#include "small_tokenizer.h"

namespace dspack::pre_tokenizer_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

using Words = std::vector<std::string>;
using nlohmann::json;

const json kByteLevel = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};

Words words_of(const json& steps, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::from_json({{"type", "Sequence"}, {"pretokenizers", steps}});
  REQUIRE_MESSAGE(pre_tokenizer.has_value(), (pre_tokenizer ? "" : pre_tokenizer.error().message));
  PreTokenizer::Scratch scratch;
  WorkBudget budget(text.size());
  REQUIRE(pre_tokenizer->split(text, budget, scratch).has_value());
  return Words(scratch.words.begin(), scratch.words.end());
}

/// The three steps of DeepSeek-V3.
json v3_steps() {
  constexpr const char* kRest =
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  return {split_step(R"(\p{N}{1,3})"), split_step("[一-龥\u3040-ゟ゠-ヿ]+"), split_step(kRest), kByteLevel};
}

}  // namespace

// The expected words are those of Hugging Face tokenizers 0.23.3.
TEST_CASE("pre-tokenizer: V3 cuts numbers into threes, and letters by script") {
  CHECK(words_of(v3_steps(), "in 12345 Tagen") == Words{"in", " ", "123", "45", " Tagen"});
  CHECK(words_of(v3_steps(), "模型DeepSeekです1") == Words{"模型", "DeepSeek", "です", "1"});
}

TEST_CASE("pre-tokenizer: V3 leaves the last space of a run to the next word") {
  CHECK(words_of(v3_steps(), "a   b") == Words{"a", "  ", " b"});
  CHECK(words_of(v3_steps(), "a  \n\n  b ") == Words{"a", "  \n\n", " ", " b", " "});
  CHECK(words_of(v3_steps(), "f(x) = .join") == Words{"f", "(x", ")", " =", " .", "join"});
}

TEST_CASE("pre-tokenizer: combining marks stay with their letters") {
  CHECK(words_of(v3_steps(), "cafe\u0301 naïve") == Words{"cafe\u0301", " naïve"});
}

TEST_CASE("pre-tokenizer: every behaviour as Hugging Face has it") {
  const auto cut = [](const char* behavior, bool invert) {
    return words_of({split_step("-", behavior, invert), kByteLevel}, "the-final--countdown");
  };
  CHECK(cut("Removed", false) == Words{"the", "final", "countdown"});
  CHECK(cut("Isolated", false) == Words{"the", "-", "final", "-", "-", "countdown"});
  CHECK(cut("MergedWithPrevious", false) == Words{"the-", "final-", "-", "countdown"});
  CHECK(cut("MergedWithNext", false) == Words{"the", "-final", "-", "-countdown"});
  CHECK(cut("Contiguous", false) == Words{"the", "-", "final", "--", "countdown"});
  CHECK(cut("Removed", true) == Words{"-", "-", "-"});
  CHECK(cut("MergedWithPrevious", true) == Words{"the", "-final", "-", "-countdown"});
}

TEST_CASE("pre-tokenizer: a String pattern is literal") {
  const json step = {{"type", "Split"}, {"pattern", {{"String", ".+"}}}, {"behavior", "Isolated"}};
  CHECK(words_of({step, kByteLevel}, "a.+b.") == Words{"a", ".+", "b."});
}

TEST_CASE("pre-tokenizer: digits alone or together, of any script") {
  const json together = {{"type", "Digits"}};
  const json alone = {{"type", "Digits"}, {"individual_digits", true}};
  CHECK(words_of({together, kByteLevel}, "a12½b") == Words{"a", "12½", "b"});
  CHECK(words_of({alone, kByteLevel}, "a12٣b") == Words{"a", "1", "2", "٣", "b"});
}

TEST_CASE("pre-tokenizer: ByteLevel puts a space in front of words that have none, and splits as GPT-2") {
  const json step = {{"type", "ByteLevel"}};  // both options are on by default
  CHECK(words_of(json::array({step}), "it's  me") == Words{" it", "'s", " ", " me"});
  CHECK(words_of({split_step("\n"), step}, "a\n b") == Words{" a", " \n", " b"});
}

TEST_CASE("pre-tokenizer: what it cannot do is refused by name") {
  const auto kind_of = [](const json& value) {
    const auto result = PreTokenizer::from_json(value);
    return result ? ErrorKind::cancelled : result.error().kind;
  };
  CHECK(kind_of({{"type", "Metaspace"}}) == ErrorKind::unsupported);
  CHECK(kind_of({{"type", "Sequence"}, {"pretokenizers", {kByteLevel, split_step("a")}}}) == ErrorKind::unsupported);
  CHECK(kind_of(split_step("a")) == ErrorKind::unsupported);  // no ByteLevel
  CHECK(kind_of(split_step("a", "Sideways")) == ErrorKind::invalid);
  CHECK(kind_of({{"type", "Sequence"}}) == ErrorKind::invalid);
  CHECK(kind_of({{"type", "Split"}, {"pattern", {{"Glob", "*"}}}, {"behavior", "Isolated"}}) == ErrorKind::invalid);
  CHECK(kind_of({{"type", 7}}) == ErrorKind::invalid);
  CHECK(kind_of(json::array()) == ErrorKind::invalid);
}

}  // namespace dspack::pre_tokenizer_test
