#include "runtime/text/tokenizer_config.h"

#include <doctest/doctest.h>

namespace dspack::tokenizer_config_test {

using namespace dspack;
using namespace dspack::runtime;

TEST_CASE("tokenizer_config.json: tokens are strings or objects with content") {
  const auto config = TokenizerConfig::from_json(R"({
    "add_bos_token": true, "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": false},
    "eos_token": "</s>", "pad_token": null, "chat_template": "{{ x }}", "model_max_length": 16384})");
  REQUIRE(config.has_value());
  CHECK(config->add_bos_token);
  CHECK_FALSE(config->add_eos_token);
  CHECK(config->bos_token == "<s>");
  CHECK(config->eos_token == "</s>");
  CHECK_FALSE(config->pad_token.has_value());
  CHECK(config->chat_template == "{{ x }}");
}

TEST_CASE("tokenizer_config.json: of a list of chat templates the default one and the one for tools count") {
  const auto config = TokenizerConfig::from_json(
      R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  REQUIRE(config.has_value());
  CHECK(config->chat_template == "D");
  CHECK(config->tool_chat_template == "T");
  const auto none = TokenizerConfig::from_json(R"({"chat_template": [{"name": "tool_use", "template": "T"}]})");
  REQUIRE(none.has_value());
  CHECK_FALSE(none->chat_template.has_value());
}

TEST_CASE("tokenizer_config.json: everything is optional") {
  const auto config = TokenizerConfig::from_json("{}");
  REQUIRE(config.has_value());
  CHECK_FALSE(config->add_bos_token);
  CHECK_FALSE(config->chat_template.has_value());
}

TEST_CASE("tokenizer_config.json: wrong types are invalid and named") {
  for (const char* text :
       {R"({"add_bos_token": 1})", R"({"bos_token": 5})", R"({"bos_token": {"text": "x"}})", R"({"chat_template": 5})",
        R"({"chat_template": [5]})", R"({"chat_template": [{"name": "default"}]})", "[]", "{", ""}) {
    CAPTURE(text);
    const auto config = TokenizerConfig::from_json(text);
    REQUIRE_FALSE(config.has_value());
    CHECK(config.error().kind == ErrorKind::invalid);
    CHECK(config.error().message.starts_with("tokenizer_config.json"));
  }
}

}  // namespace dspack::tokenizer_config_test
