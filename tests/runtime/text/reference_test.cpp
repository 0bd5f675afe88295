// Against Hugging Face tokenizers (V2's kind) and tiktoken (Kimi's), by the golden files of tests/data/text; V3's kind
// is in golden_test.cpp. tests/tools/text makes the files, and compares far more text.
#include "golden.h"
#include "runtime/text/tiktoken_file.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/unicode.h"

namespace dspack::reference_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

Tokenizer loaded(Result<Tokenizer> tokenizer) {
  REQUIRE_MESSAGE(tokenizer.has_value(), (tokenizer ? "" : tokenizer.error().message));
  return *std::move(tokenizer);
}

Tokenizer v2_tokenizer() {
  return loaded(Tokenizer::from_json(test_file("text/v2/tokenizer.json")));
}

Tokenizer kimi_tokenizer() {
  return loaded(
      Tokenizer::from_tiktoken(test_file("text/kimi/tiktoken.model"), test_file("text/kimi/tokenizer_config.json")));
}

/// One by one; every piece must be whole characters.
std::string decode_by_pieces(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer, SpecialOutput::keep);
  std::string text;
  for (const uint32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    if (!is_valid_utf8(piece)) FAIL("token " << id << " printed half a character");
    text += piece;
  }
  return text + detokenizer.flush();
}

void check_golden(const Tokenizer& tokenizer, const json& golden) {
  REQUIRE(golden.at("encode").size() > 100);
  for (const json& expected : golden.at("encode")) {
    const auto text = decode_base64(expected.at(0).get<std::string>());
    REQUIRE(text.has_value());
    CAPTURE(*text);
    const auto ids = tokenizer.encode(*text, SpecialTokens::parse);
    REQUIRE(ids.has_value());
    CHECK(*ids == expected.at(1).get<Ids>());
    // Not more than the text again: V2's kind spells some letters as bytes that no UTF-8 has.
    CHECK(decode_by_pieces(tokenizer, *ids) == tokenizer.decode(*ids, SpecialOutput::keep));
  }
  REQUIRE(golden.at("decode").size() > 100);
  for (const json& expected : golden.at("decode"))
    CHECK(decode_by_pieces(tokenizer, expected.at(0).get<Ids>()) == expected.at(1).get<std::string>());
}

/// A text of a million characters must take time in proportion, and no limit of any engine.
void check_long(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, SpecialTokens::parse);
  REQUIRE_MESSAGE(ids.has_value(), (ids ? "" : ids.error().message));
  if (tokenizer.decode(*ids, SpecialOutput::keep) != text) FAIL("a long text came back changed");
}

}  // namespace

TEST_CASE("references: DeepSeek-V2's kind of tokenizer.json has Hugging Face's ids and texts") {
  check_golden(v2_tokenizer(), test_json("text/v2/golden.json"));
}

TEST_CASE("references: Kimi's kind of tiktoken.model has tiktoken's ids and texts") {
  check_golden(kimi_tokenizer(), test_json("text/kimi/golden.json"));
}

TEST_CASE("references: long runs without a place to cut are encoded in time") {
  for (const Tokenizer& tokenizer :
       {loaded(Tokenizer::from_json(test_file("tiny-v3/tokenizer.json"))), v2_tokenizer(), kimi_tokenizer()}) {
    constexpr size_t kMillion = 1'000'000;
    check_long(tokenizer, std::string(kMillion, 'a'));
    check_long(tokenizer, std::string(kMillion, ' ') + "5");
    for (const char* unit : {"A", "7", "!", "\n", "aB中\u0301é"}) {
      std::string text;
      while (text.size() < kMillion / 5)
        text += unit;
      check_long(tokenizer, text + "b");
    }
  }
}

}  // namespace dspack::reference_test
