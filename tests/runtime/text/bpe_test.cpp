#include "runtime/text/bpe.h"

#include "small_tokenizer.h"

namespace dspack::bpe_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

TEST_CASE("bpe: the merge of lowest rank comes first, wherever it stands") {
  auto json = small_tokenizer();
  const uint32_t bc = add_merge(json, "b", "c");
  add_merge(json, "a", "b");
  const uint32_t abc = add_merge(json, "a", "bc");
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "abc") == std::vector<uint32_t>{abc});
  CHECK(encode(tokenizer, "bcbc") == std::vector<uint32_t>{bc, bc});
  CHECK(encode(tokenizer, "xbcx") == std::vector<uint32_t>{'x', bc, 'x'});
}

TEST_CASE("bpe: equal merges go from left to right") {
  auto json = small_tokenizer();
  const uint32_t aa = add_merge(json, "a", "a");
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "aaa") == std::vector<uint32_t>{aa, 'a'});
  CHECK(encode(tokenizer, "aaaaa") == std::vector<uint32_t>{aa, aa, 'a'});
}

TEST_CASE("bpe: merges may be written as strings or as pairs") {
  auto json = small_tokenizer();
  const uint32_t ab = add_merge(json, "a", "b");
  json["model"]["merges"] = nlohmann::json::parse(R"([["a", "b"]])");
  CHECK(encode(load(json), "ab") == std::vector<uint32_t>{ab});
  json["model"]["merges"] = {"#version: 0.2", "a b"};
  CHECK(encode(load(json), "ab") == std::vector<uint32_t>{ab});
}

TEST_CASE("bpe: a pair can hold a space, a string cannot") {
  auto json = small_tokenizer();
  json["model"]["vocab"]["x y"] = 256;
  json["model"]["vocab"]["x yz"] = 257;
  json["model"]["merges"] = nlohmann::json::parse(R"([["x y", "z"]])");
  CHECK(Tokenizer::from_json(json.dump()).has_value());
  json["model"]["merges"] = {"x y z"};
  CHECK_FALSE(Tokenizer::from_json(json.dump()).has_value());
}

TEST_CASE("bpe: ignore_merges takes a word that is a token as it is") {
  auto json = small_tokenizer();
  json["model"]["vocab"]["Ġhi"] = 256;  // no merge leads there
  CHECK(encode(load(json), " hi") == std::vector<uint32_t>{' ', 'h', 'i'});
  json["model"]["ignore_merges"] = true;
  CHECK(encode(load(json), " hi") == std::vector<uint32_t>{256});
  CHECK(encode(load(json), " ho") == std::vector<uint32_t>{' ', 'h', 'o'});
}

TEST_CASE("bpe: a word longer than the cache takes, and one met twice, are encoded alike") {
  auto json = small_tokenizer();
  const uint32_t aa = add_merge(json, "a", "a");
  const uint32_t aaaa = add_merge(json, "aa", "aa");
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const Tokenizer tokenizer = load(json);
  const std::vector<uint32_t> once{aaaa, aa, 'a'};
  CHECK(encode(tokenizer, "aaaaaaa") == once);
  CHECK(encode(tokenizer, "aaaaaaa.aaaaaaa") == std::vector<uint32_t>{aaaa, aa, 'a', '.', aaaa, aa, 'a'});
  CHECK(encode(tokenizer, std::string(400'000, 'a')) == std::vector<uint32_t>(100'000, aaaa));
}

TEST_CASE("bpe: a byte without a token is an error, not a silent loss") {
  auto json = small_tokenizer();
  json["model"]["vocab"].erase("b");
  const Tokenizer tokenizer = load(json);
  CHECK(tokenizer.encode("aa", SpecialTokens::parse).has_value());
  const auto ids = tokenizer.encode("ab", SpecialTokens::parse);
  REQUIRE_FALSE(ids.has_value());
  CHECK(ids.error().kind == ErrorKind::unsupported);
}

}  // namespace dspack::bpe_test
