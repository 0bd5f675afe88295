#include "runtime/serve/answering.h"

#include <doctest/doctest.h>

#include "tests/runtime/text/small_tokenizer.h"

namespace dspack::answering_test {

using namespace dspack::runtime;
using namespace std::chrono_literals;
using Kind = ReplyPart::Kind;

namespace {

struct Told {
  std::string content;
  std::vector<std::string> calls;
  std::string arguments;
  std::vector<AnswerProgress> waits;
  std::optional<AnswerEnd> end;
};

class Recorder final : public AnswerWriter {
 public:
  explicit Recorder(Told& told) : told_(told) {}
  void waiting(const AnswerProgress& progress) override { told_.waits.push_back(progress); }
  void part(const ReplyPart& part, std::vector<TokenLikelihood> /*tokens*/) override {
    if (part.kind == Kind::content) told_.content += part.text;
    if (part.kind == Kind::call) told_.calls.push_back(part.text);
    if (part.kind == Kind::arguments) told_.arguments += part.text;
  }
  void end(const AnswerEnd& end) override { told_.end = end; }
  void fail(const Error& error) override { FAIL(error.message); }

 private:
  Told& told_;
};

/// An answer whose tokens are bytes.
class Lab {
 public:
  explicit Lab(std::vector<std::string> stop = {}) {
    AnswerRequest request;
    Conversation conversation;
    conversation.tools = OrderedJson::parse(R"([{"type": "function", "function": {"name": "f"}}])");
    request.prompt = std::move(conversation);
    request.stop = std::move(stop);
    answering_.emplace(*tokenizer_, request, 3, Answering::Form::conversation, Answering::Marks(),
                       std::make_unique<Recorder>(told), [](const Error& error) { FAIL(error.message); });
    answering_->started(0);
  }

  Told told;

  void say(std::string_view bytes) {
    for (const char byte : bytes)
      if (!answering_->token(static_cast<unsigned char>(byte), {})) return;
  }
  const Told& end() {
    answering_->ended(StopReason::end_token);
    return told;
  }
  void ping(std::chrono::milliseconds later) { answering_->ping(Answering::Clock::now() + later, 1, 2); }

 private:
  Result<Tokenizer> tokenizer_ = Tokenizer::from_json(runtime::testing::small_tokenizer().dump());
  std::optional<Answering> answering_;
};

}  // namespace

TEST_CASE("answering: bytes that a stop string leaves undecided at the end are no part of the text in front of it") {
  Lab stopped({"\xe6\xbc\xa2"});
  stopped.say("n\xc3\xa9 \xe6\xbc\xa2");
  CHECK(stopped.end().content == "n\xc3\xa9 ");
  CHECK(stopped.told.end->stop_text == "\xe6\xbc\xa2");
  Lab cut({"\xe6\xbc\xa2"});
  cut.say("n\xc3\xa9 \xe6\xbc");
  CHECK(cut.end().content == "n\xc3\xa9 \xef\xbf\xbd");
  CHECK_FALSE(cut.told.end->stop_text);
}

TEST_CASE("answering: an answer of white space alone stays") {
  Lab lab;
  lab.say(" \n\n");
  CHECK(lab.end().content == " \n\n");
}

TEST_CASE(
    "answering: a client is told something where it would hear nothing, before the first token and while text is held "
    "back") {
  Lab lab;
  lab.ping(3900ms);
  CHECK(lab.told.waits.empty());
  lab.ping(4100ms);
  REQUIRE(lab.told.waits.size() == 1);
  CHECK(lab.told.waits[0].layer == 1);
  CHECK(lab.told.waits[0].answer_tokens == 0);
  lab.ping(8s);
  CHECK(lab.told.waits.size() == 1);
  lab.say("Look.\n<tool_call>f\n<arg_key>a</arg_key>");
  CHECK(lab.told.content == "Look.");
  lab.ping(3900ms);
  CHECK(lab.told.waits.size() == 1);
  lab.ping(4100ms);
  REQUIRE(lab.told.waits.size() == 2);
  CHECK(lab.told.waits[1].answer_tokens == 39);
  lab.say("\n<arg_value>1</arg_value></tool_call>");
  CHECK(lab.told.arguments == "{\"a\":1}");
  lab.ping(3900ms);
  CHECK(lab.told.waits.size() == 2);
  CHECK(lab.end().end->calls == ReplyCalls::whole);
  lab.ping(20s);
  CHECK(lab.told.waits.size() == 2);
}

}  // namespace dspack::answering_test
