#include "runtime/text/tokenizer_json.h"

#include "small_tokenizer.h"

namespace dspack::tokenizer_json_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

using nlohmann::json;

/// The error of a file that must be refused; also checks that it is one line.
Error refusal(const std::string& text) {
  const auto tokenizer = Tokenizer::from_json(text);
  REQUIRE_FALSE(tokenizer.has_value());
  const std::string& message = tokenizer.error().message;
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 300);
  return tokenizer.error();
}

Error refusal(const json& value) {
  return refusal(value.dump());
}

json with(const char* pointer, json value) {
  json tokenizer = small_tokenizer();
  tokenizer[json::json_pointer(pointer)] = std::move(value);
  return tokenizer;
}

bool mentions(const Error& error, std::string_view text) {
  return error.message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("tokenizer.json: unsupported parts are named") {
  const std::pair<const char*, json> cases[] = {
      {"/model/type", "Unigram"},
      {"/model/dropout", 0.1},
      {"/model/unk_token", "<unk>"},
      {"/model/continuing_subword_prefix", "##"},
      {"/model/end_of_word_suffix", "</w>"},
      {"/model/byte_fallback", true},
      {"/normalizer", {{"type", "NFC"}}},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "_"}}}}}},
      {"/pre_tokenizer", {{"type", "Metaspace"}}},
      {"/decoder", {{"type", "WordPiece"}}},
  };
  for (const auto& [pointer, value] : cases) {
    CAPTURE(pointer);
    const Error error = refusal(with(pointer, value));
    CHECK(error.kind == ErrorKind::unsupported);
    CHECK(mentions(error, "tokenizer.json: "));
  }
  CHECK(mentions(refusal(with("/normalizer", {{"type", "NFC"}})), "normalizer: type \"NFC\""));
}

TEST_CASE("tokenizer.json: settings that are off, and parts that are not read, do no harm") {
  json tokenizer = small_tokenizer();
  tokenizer["model"].update(json{{"dropout", 0.0},
                                 {"unk_token", nullptr},
                                 {"continuing_subword_prefix", ""},
                                 {"byte_fallback", false},
                                 {"fuse_unk", true}});
  tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  tokenizer["post_processor"] = {{"type", "TemplateProcessing"}};
  tokenizer["truncation"] = {{"max_length", 3}};
  tokenizer.erase("added_tokens");
  CHECK(Tokenizer::from_json(tokenizer.dump()).has_value());
}

TEST_CASE("tokenizer.json: wrong types and missing parts are invalid") {
  for (const char* key : {"model", "pre_tokenizer", "decoder"}) {
    json tokenizer = small_tokenizer();
    tokenizer.erase(key);
    CHECK(mentions(refusal(tokenizer), key));
    for (const json& wrong : {json(1), json("x"), json::array(), json(true)}) {
      tokenizer[key] = wrong;
      CHECK(refusal(tokenizer).kind == ErrorKind::invalid);
    }
  }
  const std::pair<const char*, json> cases[] = {
      {"/model/vocab", json::array()},
      {"/model/vocab/a", "97"},
      {"/model/vocab/a", -1},
      {"/model/vocab/a", 1.5},
      {"/model/vocab/a", nullptr},
      {"/model/merges", nullptr},
      {"/model/merges", json::parse(R"([["a", 1]])")},
      {"/model/merges", {"a b c"}},
      {"/model/merges", {"ab"}},
      {"/model/merges", json::parse(R"([["a", "b", "c"]])")},
      {"/model/merges", json::object()},
      {"/model/merges", "a b"},
      {"/model/ignore_merges", "yes"},
      {"/added_tokens", json::object()},
      {"/added_tokens", {1}},
      {"/added_tokens", {{{"id", 300}}}},
      {"/added_tokens", {{{"content", "x"}}}},
      {"/added_tokens", {{{"id", "1"}, {"content", "x"}}}},
      {"/normalizer", 3},
  };
  for (const auto& [pointer, value] : cases) {
    CAPTURE(pointer);
    CAPTURE(value.dump());
    CHECK(refusal(with(pointer, value)).kind == ErrorKind::invalid);
  }
}

TEST_CASE("tokenizer.json: an id used twice, and a token with two ids, are invalid") {
  CHECK(mentions(refusal(with("/model/vocab/b", 97)), "belongs to two tokens"));
  json tokenizer = small_tokenizer();
  add_token(tokenizer, 300, "a");
  CHECK(mentions(refusal(tokenizer), "two ids"));
  tokenizer = small_tokenizer();
  add_token(tokenizer, 97, "<s>");
  CHECK(mentions(refusal(tokenizer), "belongs to two tokens"));
}

TEST_CASE("tokenizer.json: huge ids are refused before memory is taken for them") {
  CHECK(mentions(refusal(with("/model/vocab/a", 4'294'967'295)), "too far beyond"));
  CHECK(mentions(refusal(with("/model/vocab/a", 18'446'744'073'709'551'615u)), "too far beyond"));
  json tokenizer = small_tokenizer();
  add_token(tokenizer, 4'000'000'000, "<s>");
  CHECK(mentions(refusal(tokenizer), "too far beyond"));
}

TEST_CASE("tokenizer.json: merges must stay within the vocabulary") {
  CHECK(mentions(refusal(with("/model/merges", {"a zz"})), "merge 0 needs the token \"zz\""));
  CHECK(mentions(refusal(with("/model/merges", {"zz a"})), "\"zz\""));
  CHECK(mentions(refusal(with("/model/merges", {"a b"})), "\"ab\""));
}

TEST_CASE("tokenizer.json: added tokens must have a sane length") {
  json tokenizer = small_tokenizer();
  add_token(tokenizer, 300, "");
  CHECK(refusal(tokenizer).kind == ErrorKind::invalid);
  tokenizer = small_tokenizer();
  add_token(tokenizer, 300, std::string(100'000, 'x'));
  CHECK(refusal(tokenizer).kind == ErrorKind::invalid);
}

TEST_CASE("tokenizer.json: bytes that are no JSON object are one clear line") {
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, "{"s, "[]"s, "null"s, "7"s, "{\"a\":1e999}"s, "\xFF\xFE"s, "{\"\xC3\":1}"s, "{}{}"s}) {
    CHECK(mentions(refusal(text), "tokenizer.json"));
  }
  const std::string valid = small_tokenizer().dump();
  for (size_t length = 0; length < valid.size(); length += 37) {
    CHECK(refusal(valid.substr(0, length)).kind == ErrorKind::invalid);
  }
}

TEST_CASE("tokenizer.json: deep nesting is refused") {
  std::string arrays(1'000'000, '[');
  CHECK(mentions(refusal(arrays), "nested"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i)
    objects += "{\"a\":";
  CHECK(mentions(refusal(objects), "nested"));
  CHECK(refusal("{\"model\":\"" + arrays + "\"}").kind == ErrorKind::invalid);  // within a string it is only text
}

}  // namespace dspack::tokenizer_json_test
