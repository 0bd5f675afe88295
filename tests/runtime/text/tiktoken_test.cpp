#include "runtime/text/tiktoken_file.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/text/tokenizer.h"

namespace dspack::tiktoken_test {

using namespace dspack;
using namespace dspack::runtime;

namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A line for a token of one to three bytes.
std::string line(std::string_view bytes, uint32_t rank) {
  std::string text;
  uint32_t bits = 0;
  for (size_t i = 0; i < 3; ++i)
    bits = (bits << 8U) | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U);
  for (size_t i = 0; i < 4; ++i)
    text.push_back(i > bytes.size() ? '=' : kAlphabet[(bits >> (18U - 6U * static_cast<unsigned>(i))) & 63U]);
  return text + " " + std::to_string(rank) + "\n";
}

/// Ids 0 to 255 are the bytes, then "bc" 256, "ab" 257, "abc" 258.
std::string small_model() {
  std::string model;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(static_cast<unsigned char>(byte));
    model += line({&value, 1}, byte);
  }
  return model + line("bc", 256) + line("ab", 257) + line("abc", 258);
}

json small_config() {
  return {{"tokenizer_class", "TikTokenTokenizer"},
          {"added_tokens_decoder",
           {{"259", {{"content", "[BOS]"}, {"special", true}}}, {"261", {{"content", "abc"}, {"special", false}}}}}};
}

Error refusal(const std::string& model, const json& config) {
  const auto tokenizer = Tokenizer::from_tiktoken(model, config.dump());
  REQUIRE_FALSE(tokenizer.has_value());
  CHECK(tokenizer.error().message.find('\n') == std::string::npos);
  return tokenizer.error();
}

}  // namespace

TEST_CASE("tiktoken: neighbours join by the rank of what they are together, and a whole word is its token") {
  json config = small_config();
  config["added_tokens_decoder"].erase("261");
  const auto tokenizer = Tokenizer::from_tiktoken(small_model(), config.dump());
  REQUIRE(tokenizer.has_value());
  CHECK(tokenizer->encode("abc", SpecialTokens::parse).value() == Ids{258});
  CHECK(tokenizer->encode("abcb", SpecialTokens::parse).value() == Ids{258, 'b'});  // bc, then a + bc
  CHECK(tokenizer->encode("abab", SpecialTokens::parse).value() == Ids{257, 257});
  CHECK(tokenizer->vocab_size() == 259 + 256);
}

TEST_CASE("tiktoken: special tokens have the config's names, the others their numbers") {
  const auto tokenizer = Tokenizer::from_tiktoken(small_model(), small_config().dump());
  REQUIRE(tokenizer.has_value());
  CHECK(tokenizer->encode("[BOS]<|reserved_token_260|>x", SpecialTokens::parse).value() == Ids{259, 260, 'x'});
  CHECK(tokenizer->encode("xabc", SpecialTokens::parse).value() ==
        Ids{'x', 261});  // the special token is cut out first
  CHECK(tokenizer->encode("abc", SpecialTokens::as_text).value() == Ids{258});
  CHECK(tokenizer->id_of("abc") == 261);
  CHECK(tokenizer->token_bytes(258) == "abc");
  CHECK(tokenizer->is_special(259));
  CHECK_FALSE(tokenizer->is_special(260));
  CHECK(tokenizer->decode(Ids{259, 'h', 260}, SpecialOutput::skip) == "h<|reserved_token_260|>");
}

TEST_CASE("tiktoken: another class is refused by name") {
  json config = small_config();
  config["tokenizer_class"] = "QWenTokenizer";
  CHECK(refusal(small_model(), config).kind == ErrorKind::unsupported);
  CHECK(refusal(small_model(), config).message.find("QWenTokenizer") != std::string::npos);
  config.erase("tokenizer_class");
  CHECK(refusal(small_model(), config).kind == ErrorKind::unsupported);
}

TEST_CASE("tiktoken: a broken file is refused with its line") {
  CHECK(refusal("", small_config()).kind == ErrorKind::invalid);
  CHECK(refusal("YQ== 0\nYg= 1\n", small_config()).message.find("line 2") != std::string::npos);
  for (const char* model : {"YQ==", "YQ== ", "YQ== x", "YQ== 1x", "YQ==  0", "YQ== -1", "YQ== 4294967296", " 0",
                            "YQ== 1", "YQ== 0\nYQ== 1", "YQ== 0\nYg== 0", "YQ== 4294967295"}) {
    CAPTURE(model);
    CHECK(refusal(model, small_config()).kind == ErrorKind::invalid);
  }
  CHECK(refusal(line("a", 0), small_config()).message.find("259") != std::string::npos);  // not behind this vocabulary
}

TEST_CASE("tiktoken: names that cannot be are refused") {
  json config = small_config();
  config["added_tokens_decoder"]["260"] = {{"content", "[BOS]"}};
  CHECK(refusal(small_model(), config).kind == ErrorKind::invalid);
  config["added_tokens_decoder"] = {{"x", {{"content", "y"}}}};
  CHECK(refusal(small_model(), config).kind == ErrorKind::invalid);
  config["added_tokens_decoder"] = {{"259", {{"content", ""}}}};
  CHECK(refusal(small_model(), config).kind == ErrorKind::invalid);
  config["added_tokens_decoder"] = {{"259", {{"content", "x"}, {"lstrip", true}}}};
  CHECK(refusal(small_model(), config).kind == ErrorKind::unsupported);
}

TEST_CASE("base64: only whole groups of the alphabet") {
  CHECK(decode_base64("") == "");
  CHECK(decode_base64("YQ==") == "a");
  CHECK(decode_base64("YWI=") == "ab");
  CHECK(decode_base64("YWJj") == "abc");
  CHECK(decode_base64("/+8=") == "\xFF\xEF");
  for (const char* text : {"Y", "YQ", "YQ=", "Y===", "YQ==YQ==", "YQ= ", "Y Q=", "YQ-_"})
    CHECK_FALSE(decode_base64(text).has_value());
}

TEST_CASE("slices: a text ends after 400,000 characters, and within a run after 25,000") {
  const auto sizes = [](const std::string& text) {
    std::vector<size_t> found;
    for (const std::string_view slice : slice_long_runs(text))
      found.push_back(slice.size());
    return found;
  };
  const auto repeat = [](std::string_view text, size_t count) {
    std::string all;
    for (size_t i = 0; i < count; ++i)
      all += text;
    return all;
  };
  using Sizes = std::vector<size_t>;
  CHECK(sizes("").empty());
  CHECK(sizes(repeat("a", 25'000)) == Sizes{25'000});
  CHECK(sizes(repeat("a", 25'001)) == Sizes{25'000, 1});
  CHECK(sizes(repeat("中", 25'001) + " ") == Sizes{75'000, 4});
  CHECK(sizes(repeat("a", 25'000) + " " + repeat("b", 25'000)) == Sizes{50'001});
  CHECK(sizes(repeat(" ", 20'000) + repeat("\x1c", 5'001)) == Sizes{25'000, 1});  // white space for Python
  CHECK(sizes(repeat("a ", 200'001)) == Sizes{400'000, 2});
  CHECK(sizes(repeat("a ", 195'000) + repeat("b", 35'000)) == Sizes{400'000, 25'000});
}

}  // namespace dspack::tiktoken_test
