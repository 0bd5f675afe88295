#include "runtime/text/tokenizer.h"

#include "small_tokenizer.h"

namespace dspack::tokenizer_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

using Ids = std::vector<uint32_t>;

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text)
    ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("added tokens: the longest literal at the leftmost place wins") {
  auto json = small_tokenizer();
  add_token(json, 256, "<a");
  add_token(json, 257, "<a>b");
  add_token(json, 258, "a>b<");
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "x<a>b<") == bytes_of("x") + Ids{257, '<'});
  CHECK(encode(tokenizer, "<a>c") == Ids{256, '>', 'c'});
  CHECK(encode(tokenizer, "a>b<a") == Ids{258, 'a'});
}

TEST_CASE("added tokens: those with normalized = false are cut out first, even where a longer one would match") {
  auto json = small_tokenizer();
  add_token(json, 'b', "b");
  add_token(json, 257, "abc", {{"normalized", true}});
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "abc") == Ids{'a', 'b', 'c'});
  CHECK(encode(tokenizer, "xabc") == Ids{'x', 'a', 'b', 'c'});
}

TEST_CASE("added tokens: lstrip and rstrip swallow white space beside them") {
  auto json = small_tokenizer();
  add_token(json, 256, "<L>", {{"lstrip", true}});
  add_token(json, 257, "<R>", {{"rstrip", true}});
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "a \u3000<L> b") == Ids{'a', 256, ' ', 'b'});
  CHECK(encode(tokenizer, "a <R>\n\t b") == Ids{'a', ' ', 257, 'b'});
  CHECK(encode(tokenizer, "<R>  <L>") == Ids{257, 256});
}

TEST_CASE("added tokens: single_word matches only between characters that are not of words") {
  auto json = small_tokenizer();
  add_token(json, 256, "cat", {{"single_word", true}});
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "cat") == Ids{256});
  CHECK(encode(tokenizer, "-cat.") == Ids{'-', 256, '.'});
  CHECK(encode(tokenizer, "cats") == bytes_of("cats"));
  CHECK(encode(tokenizer, "écat") == bytes_of("écat"));
  CHECK(encode(tokenizer, "_cat") == bytes_of("_cat"));
  CHECK(encode(tokenizer, "catcat") == bytes_of("catcat"));
}

TEST_CASE("added tokens: as_text leaves every literal as it is written") {
  auto json = small_tokenizer();
  add_token(json, 256, "<｜User｜>");
  add_token(json, 257, "<s>", {{"special", true}});
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "<s><｜User｜>") == Ids{257, 256});
  CHECK(encode(tokenizer, "<s><｜User｜>", SpecialTokens::as_text) == bytes_of("<s><｜User｜>"));
}

TEST_CASE("tokenizer: an added token inside a word separates it for the steps that follow") {
  auto json = small_tokenizer();
  const uint32_t ab = add_merge(json, "a", "b");
  add_token(json, '|', "|");
  const Tokenizer tokenizer = load(json);
  CHECK(encode(tokenizer, "ab|ab") == Ids{ab, '|', ab});
  CHECK(encode(tokenizer, "a|b") == Ids{'a', '|', 'b'});
}

TEST_CASE("tokenizer: no text, no tokens") {
  const Tokenizer tokenizer = load(small_tokenizer());
  CHECK(encode(tokenizer, "").empty());
  CHECK(tokenizer.decode({}, SpecialOutput::keep).empty());
}

TEST_CASE("tokenizer: broken UTF-8 is read as U+FFFD") {
  const Tokenizer tokenizer = load(small_tokenizer());
  CHECK(encode(tokenizer, "a\xE4\xB8z") == bytes_of("a\uFFFDz"));
}

TEST_CASE("tokenizer: tokens can be asked for by id and by spelling") {
  auto json = small_tokenizer();
  const uint32_t id = add_merge(json, "Ġ", "a");
  add_token(json, 300, "<s>", {{"special", true}});
  const Tokenizer tokenizer = load(json);
  CHECK(tokenizer.id_of("Ġa") == id);
  CHECK(tokenizer.id_of("<s>") == 300);
  CHECK_FALSE(tokenizer.id_of(" a").has_value());
  CHECK(tokenizer.token_bytes(id) == " a");
  CHECK(tokenizer.token_bytes(300) == "<s>");
  CHECK(tokenizer.token_bytes(299).empty());
  CHECK(tokenizer.token_bytes(4'000'000'000).empty());
  CHECK(tokenizer.is_special(300));
  CHECK_FALSE(tokenizer.is_special(id));
  CHECK_FALSE(tokenizer.is_special(4'000'000'000));
  CHECK(tokenizer.vocab_size() == 301);
}

TEST_CASE("decode: special tokens can be left out, ids without a token stand for nothing") {
  auto json = small_tokenizer();
  add_token(json, 300, "<s>", {{"special", true}});
  const Tokenizer tokenizer = load(json);
  const Ids ids{300, 'h', 'i', 299, 5'000'000};
  CHECK(tokenizer.decode(ids, SpecialOutput::keep) == "<s>hi");
  CHECK(tokenizer.decode(ids, SpecialOutput::skip) == "hi");
}

TEST_CASE("detokenizer: characters appear when their last byte does") {
  const Tokenizer tokenizer = load(small_tokenizer());
  Detokenizer detokenizer(tokenizer, SpecialOutput::keep);
  CHECK(detokenizer.push(0xE4) == "");
  CHECK(detokenizer.push(0xB8) == "");
  CHECK(detokenizer.push(0xAD) == "中");
  CHECK(detokenizer.push('a') == "a");
  CHECK(detokenizer.flush() == "");
}

TEST_CASE("detokenizer: what can no longer become a character is replaced at once, a rest at the flush") {
  const Tokenizer tokenizer = load(small_tokenizer());
  Detokenizer detokenizer(tokenizer, SpecialOutput::keep);
  CHECK(detokenizer.push(0xE4) == "");
  CHECK(detokenizer.push('a') == "\uFFFDa");
  CHECK(detokenizer.push(0xFF) == "\uFFFD");
  CHECK(detokenizer.push(0xF0) == "");
  CHECK(detokenizer.push(0x9F) == "");
  CHECK(detokenizer.flush() == "\uFFFD");
  CHECK(detokenizer.push('b') == "b");
}

TEST_CASE("detokenizer: an added token whose characters all spell bytes is those bytes, as for Hugging Face") {
  auto json = small_tokenizer();
  add_token(json, 300, "Ãx");
  add_token(json, 301, "é ");  // the space spells no byte, so this is text
  const Tokenizer tokenizer = load(json);
  CHECK(tokenizer.token_bytes(300) == "\xC3x");
  CHECK(tokenizer.token_bytes(301) == "é ");
}

TEST_CASE("encoding: of a text with too many tokens come the first ones, however its words are found") {
  auto json = small_tokenizer();
  add_token(json, 256, "<longest>");
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split_step("[a-z]| "), json["pre_tokenizer"]}}};
  const Tokenizer tokenizer = load(json);
  CHECK(tokenizer.longest_token_bytes() == 9);
  for (const std::string unit : {"a ", "a", "<longest>", "a<longest>"}) {
    CAPTURE(unit);
    std::string text;
    for (int i = 0; i < 10'000; ++i)
      text += unit;
    const Ids all = encode(tokenizer, text);
    const auto cut = tokenizer.encode(text, SpecialTokens::parse, {.most_tokens = 50});
    REQUIRE(cut);
    CHECK(cut->size() > 50);
    CHECK(cut->size() < 300);
    CHECK(std::equal(cut->begin(), cut->end(), all.begin()));
    const auto whole = tokenizer.encode(text, SpecialTokens::parse, {.most_tokens = all.size()});
    REQUIRE(whole);
    CHECK(*whole == all);
  }
}

TEST_CASE("encoding: what nobody waits for ends, among many words and within one of megabytes") {
  auto json = small_tokenizer();
  for (int length = 1; length < 64; length *= 2)
    add_merge(json, std::string(static_cast<size_t>(length), 'a'), std::string(static_cast<size_t>(length), 'a'));
  const Tokenizer tokenizer = load(json);
  const std::string text(2'000'000, 'a');
  std::stop_source gone;
  gone.request_stop();
  const auto stopped = tokenizer.encode(text, SpecialTokens::parse, {.stop = gone.get_token()});
  REQUIRE(!stopped);
  CHECK(stopped.error().kind == ErrorKind::cancelled);
  CHECK(encode(tokenizer, text).size() == text.size() / 64);
}

}  // namespace dspack::tokenizer_test
