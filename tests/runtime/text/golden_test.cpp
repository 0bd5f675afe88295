// Against Hugging Face tokenizers and Jinja, by the golden files of the tiny model.
#include "golden.h"
#include "runtime/text/chat_message.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tokenizer_config.h"

namespace dspack::golden_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

Tokenizer tiny_tokenizer() {
  auto tokenizer = Tokenizer::from_json(test_file("tiny-v3/tokenizer.json"));
  REQUIRE_MESSAGE(tokenizer.has_value(), (tokenizer ? "" : tokenizer.error().message));
  return *std::move(tokenizer);
}

}  // namespace

TEST_CASE("golden: texts have the ids that Hugging Face gives them") {
  const Tokenizer tokenizer = tiny_tokenizer();
  const json golden = test_json("tiny-v3-golden/tokenizer_cases.json");
  REQUIRE(golden.at("cases").size() > 0);
  for (const json& expected : golden.at("cases")) {
    const auto text = expected.at("text").get<std::string>();
    CAPTURE(text);
    const auto ids = tokenizer.encode(text, SpecialTokens::parse);
    REQUIRE(ids.has_value());
    CHECK(*ids == expected.at("ids").get<Ids>());
    CHECK(tokenizer.decode(*ids, SpecialOutput::keep) == expected.at("decoded").get<std::string>());
    CHECK(tokenizer.decode(*ids, SpecialOutput::skip) == expected.at("decoded_without_special").get<std::string>());
  }
}

TEST_CASE("golden: ids that break a character decode as Hugging Face decodes them") {
  const Tokenizer tokenizer = tiny_tokenizer();
  const json golden = test_json("tiny-v3-golden/tokenizer_cases.json");
  REQUIRE(golden.at("partial").size() > 0);
  for (const json& expected : golden.at("partial")) {
    const auto ids = expected.at("ids").get<Ids>();
    Detokenizer detokenizer(tokenizer, SpecialOutput::keep);
    std::string text;
    for (const uint32_t id : ids)
      text += detokenizer.push(id);
    text += detokenizer.flush();
    CHECK(text == expected.at("decoded").get<std::string>());
  }
}

TEST_CASE("golden: conversations render as Jinja renders them, and have the same ids") {
  const Tokenizer tokenizer = tiny_tokenizer();
  const auto config = TokenizerConfig::from_json(test_file("tiny-v3/tokenizer_config.json"));
  REQUIRE(config.has_value());
  REQUIRE(config->chat_template.has_value());
  const auto chat = ChatTemplate::compile(*config->chat_template);
  REQUIRE(chat.has_value());
  const json golden = test_json("tiny-v3-golden/chat_cases.json");
  REQUIRE(golden.at("cases").size() > 0);
  for (const json& expected : golden.at("cases")) {
    CAPTURE(expected.at("messages").dump());
    const auto conversation = parse_conversation(expected.at("messages").dump());
    REQUIRE(conversation.has_value());
    const RenderOptions options{.bos_token = *config->bos_token,
                                .add_generation_prompt = expected.at("add_generation_prompt").get<bool>()};
    const auto text = chat->render(conversation->messages, options);
    REQUIRE(text.has_value());
    CHECK(*text == expected.at("text").get<std::string>());
    const auto ids = tokenizer.encode(*text, SpecialTokens::parse);
    REQUIRE(ids.has_value());
    CHECK(*ids == expected.at("ids").get<Ids>());
  }
}

}  // namespace dspack::golden_test
