#include "runtime/text/chat_template.h"

#include "golden.h"

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

std::string v3_source() {
  return test_json("tiny-v3/tokenizer_config.json").at("chat_template").get<std::string>();
}

std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt = true) {
  const auto chat = ChatTemplate::recognise(v3_source());
  REQUIRE(chat.has_value());
  const auto text = chat->render(messages, {.bos_token = "<B>", .add_generation_prompt = add_generation_prompt});
  REQUIRE(text.has_value());
  return *text;
}

ChatMessage message(Role role, std::string content) {
  return {role, std::move(content), {}};
}

ChatMessage calls(std::vector<ToolCall> list) {
  return {Role::assistant, std::nullopt, std::move(list)};
}

const ToolCall kCall = {"function", "f", "{}"};
const std::string kOneCall = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>";
const std::string kClosed = "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>";

}  // namespace

TEST_CASE("chat template: only the exact source is recognised") {
  const std::string source = v3_source();
  const auto chat = ChatTemplate::recognise(source);
  REQUIRE(chat.has_value());
  CHECK(chat->name() == "DeepSeek-V3");
  CHECK(ChatTemplate::recognise(source + "\n").has_value());  // Jinja drops this newline itself
  for (const std::string& other :
       {source + " ", source + "\n\n", source.substr(1), std::string(), std::string("{{ x }}")}) {
    const auto unknown = ChatTemplate::recognise(other);
    REQUIRE_FALSE(unknown.has_value());
    CHECK(unknown.error().kind == ErrorKind::unsupported);
  }
}

TEST_CASE("chat template: system texts stand in front, whatever their place") {
  CHECK(render({message(Role::user, "u"), message(Role::system, "a"), message(Role::system, "b")}) ==
        "<B>a\n\nb<｜User｜>u<｜Assistant｜>");
  CHECK(render({}) == "<B><｜Assistant｜>");
}

TEST_CASE("chat template: turns end with the end of sentence, the question for an answer is optional") {
  const std::vector<ChatMessage> turns{message(Role::user, "u"), message(Role::assistant, "a")};
  CHECK(render(turns, false) == "<B><｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜>");
  CHECK(render(turns) == "<B><｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜Assistant｜>");
}

TEST_CASE("chat template: a single tool call is never closed, later ones are each closed") {
  CHECK(render({calls({kCall})}, false) == "<B><｜Assistant｜><｜tool▁calls▁begin｜>" + kOneCall);
  CHECK(render({calls({kCall, kCall})}, false) ==
        "<B><｜Assistant｜><｜tool▁calls▁begin｜>" + kOneCall + "\n" + kOneCall + kClosed);
  CHECK(render({calls({kCall, kCall, kCall})}, false) ==
        "<B><｜Assistant｜><｜tool▁calls▁begin｜>" + kOneCall + "\n" + kOneCall + kClosed + "\n" + kOneCall + kClosed);
  CHECK(render({calls({kCall}), calls({kCall})}, false) ==
        "<B><｜Assistant｜><｜tool▁calls▁begin｜>" + kOneCall + "\n" + kOneCall + kClosed);
  CHECK(render({calls({})}, false) == "<B>");
}

TEST_CASE("chat template: tool results are closed by the answer or by the end, not by a user") {
  const std::string open = "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>1<｜tool▁output▁end｜>";
  const std::string next = "\n<｜tool▁output▁begin｜>2<｜tool▁output▁end｜>";
  const auto one = message(Role::tool, "1");
  const auto two = message(Role::tool, "2");
  CHECK(render({one, two}) == "<B>" + open + next + "<｜tool▁outputs▁end｜>");
  CHECK(render({one, message(Role::assistant, "a")}, false) ==
        "<B>" + open + "<｜tool▁outputs▁end｜>a<｜end▁of▁sentence｜>");
  CHECK(render({one, message(Role::user, "u"), two}) == "<B>" + open + "<｜User｜>u" + next + "<｜tool▁outputs▁end｜>");
}

TEST_CASE("chat template: tool calls beside content are passed over") {
  CHECK(render({{Role::assistant, "a", {kCall}}}, false) == "<B><｜Assistant｜>a<｜end▁of▁sentence｜>");
}

TEST_CASE("chat template: a message without content is an error where Jinja fails too") {
  const auto chat = ChatTemplate::recognise(v3_source());
  REQUIRE(chat.has_value());
  for (const Role role : {Role::system, Role::user, Role::tool}) {
    const std::vector<ChatMessage> messages{{role, std::nullopt, {}}};
    const auto text = chat->render(messages, {});
    REQUIRE_FALSE(text.has_value());
    CHECK(text.error().kind == ErrorKind::invalid);
  }
}

TEST_CASE("chat template: unknown roles are refused") {
  for (const Role role : {Role::system, Role::user, Role::assistant, Role::tool}) {
    const auto parsed = parse_role(to_string(role));
    REQUIRE(parsed.has_value());
    CHECK(*parsed == role);
  }
  CHECK_FALSE(parse_role("developer").has_value());
}
