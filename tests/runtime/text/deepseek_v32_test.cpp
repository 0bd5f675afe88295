// DeepSeek-V3.2's encoding of chats. The cases were made by tests/tools/text/compare_encoding.py, which runs the
// program that the model's repository has.
#include <algorithm>
#include <random>

#include "golden.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/reply_parser.h"

namespace dspack::deepseek_v32_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

const OrderedJson& cases() {
  static const OrderedJson kFile = OrderedJson::parse(test_file("text/deepseek_v32_cases.json"));
  return kFile;
}

Result<std::string> write(const OrderedJson& conversation, const OrderedJson& arguments) {
  static const auto kChat = ChatTemplate::named("deepseek-v3.2");
  REQUIRE(kChat.has_value());
  TRY_ASSIGN(const Conversation read, parse_conversation(conversation.dump()));
  return kChat->render(read.messages,
                       {.bos_token = "<｜begin▁of▁sentence｜>", .tools = read.tools, .arguments = arguments});
}

std::string written(std::string_view messages, const OrderedJson& arguments = {}) {
  const auto text = write(OrderedJson::parse(messages), arguments);
  REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
  return text->substr(std::string_view("<｜begin▁of▁sentence｜>").size());
}

std::string refusal(std::string_view messages, const OrderedJson& arguments = {}) {
  const auto text = write(OrderedJson::parse(messages), arguments);
  REQUIRE_FALSE(text.has_value());
  CHECK(text.error().kind == ErrorKind::invalid);
  return text.error().message;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// An answer's parts, however its text is cut, where these functions are offered.
OrderedJson read_reply(const std::string& reply, bool reasons, const std::vector<CallableTool>& tools, size_t most,
                       std::mt19937& random) {
  ReplyParser parser({.reasons = reasons, .tools = tools, .family = ToolFamily::dsml});
  std::string reasoning;
  std::string content;
  OrderedJson calls = OrderedJson::array();
  const auto take = [&](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      switch (part.kind) {
        case ReplyPart::Kind::reasoning: reasoning += part.text; break;
        case ReplyPart::Kind::content: content += part.text; break;
        case ReplyPart::Kind::call: calls.push_back({part.text, ""}); break;
        case ReplyPart::Kind::arguments: calls.back()[1].get_ref<std::string&>() += part.text; break;
      }
    }
  };
  for (size_t at = 0; at < reply.size();) {
    const size_t length = std::min<size_t>(1 + random() % most, reply.size() - at);
    take(parser.push(reply.substr(at, length)));
    at += length;
  }
  take(parser.finish());
  for (OrderedJson& call : calls)
    call[1] = OrderedJson::parse(call[1].get<std::string>());
  // White space at the end of an answer is its own; the encoder's parser and this one differ in front of calls alone.
  const auto trimmed = [](std::string text) {
    text.erase(text.find_last_not_of(" \t\r\n") + 1);
    return text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  };
  return {{"reasoning", trimmed(reasoning)}, {"content", trimmed(content)}, {"calls", calls}};
}

}  // namespace

TEST_CASE("deepseek v3.2: what the published encoder writes, and what it refuses") {
  size_t texts = 0;
  size_t refusals = 0;
  for (const OrderedJson& each : cases().at("cases")) {
    CAPTURE(each.at("name").get<std::string>());
    const auto text = write({{"messages", each.at("messages")}, {"tools", each.at("tools")}},
                            {{"thinking", each.at("thinking")}, {"drop_thinking", each.at("drop_thinking")}});
    CHECK_MESSAGE(text.has_value() == each.at("text").is_string(), (text ? "" : text.error().message));
    if (text && each.at("text").is_string()) CHECK(*text == each.at("text").get<std::string>());
    ++(text ? texts : refusals);
  }
  CHECK(texts > 50);
  CHECK(refusals > 5);
}

TEST_CASE("deepseek v3.2: answers, as the published encoder reads them") {
  std::mt19937 random(5);
  size_t calls = 0;
  for (const OrderedJson& each : cases().at("replies")) {
    CAPTURE(each.at("reply").get<std::string>());
    std::vector<CallableTool> tools;
    for (const OrderedJson& call : each.at("calls"))
      tools.push_back({.name = call[0], .parameters = nullptr});
    for (const size_t most : {size_t{1}, size_t{9}, size_t{1} << 20}) {
      const OrderedJson told = read_reply(each.at("reply"), each.at("reasons"), tools, most, random);
      CHECK(told == OrderedJson{{"reasoning", each.at("reasoning")},
                                {"content", each.at("content")},
                                {"calls", each.at("calls")}});
    }
    calls += each.at("calls").size();
  }
  CHECK(calls > 30);
}

TEST_CASE("deepseek v3.2: a call's numbers keep their digits") {
  ReplyParser parser({.tools = {{.name = "f", .parameters = nullptr}}});
  const std::string value = "[123456789012345678901234567890, 0.1000]";
  auto parts = parser.push(
      "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"false\">" + value +
      "</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"a\\\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>");
  REQUIRE(parts.size() == 2);
  CHECK(parts[1].text == R"({"a":)" + value + R"(,"a\\":"x"})");
}

TEST_CASE("deepseek v3.2: reasoning is asked for under either name, and stays until the next question") {
  const char* talk = R"([{"role": "user", "content": "q"},
      {"role": "assistant", "reasoning_content": "why", "content": null, "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "1", "content": "r"}])";
  const std::string call =
      "</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke "
      "name=\"f\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
      "<｜end▁of▁sentence｜>\n\n<function_results>\n<result>r</result>\n</function_results>\n\n";
  CHECK(written(talk) == "<｜User｜>q<｜Assistant｜>" + call + "</think>");
  for (const char* name : {"thinking", "enable_thinking"})
    CHECK(written(talk, {{name, true}}) == "<｜User｜>q<｜Assistant｜><think>why" + call + "<think>");
  const OrderedJson thinking = {{"thinking", true}};
  OrderedJson more = OrderedJson::parse(talk);
  more.push_back({{"role", "assistant"}, {"reasoning_content", "so"}, {"content", "a"}});
  more.push_back({{"role", "user"}, {"content", "q2"}});
  CHECK(written(more.dump(), thinking) ==
        "<｜User｜>q<｜Assistant｜>" + call + "</think>a<｜end▁of▁sentence｜><｜User｜>q2<｜Assistant｜><think>");
}

TEST_CASE("deepseek v3.2: reasoning within an answer's content is taken out of it") {
  const char* talk = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>hm</think>a"}])";
  CHECK(written(talk) == "<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜>");
  CHECK(written(talk, {{"thinking", true}}) == "<｜User｜>q<｜Assistant｜><think>hm</think>a<｜end▁of▁sentence｜>");
}

TEST_CASE("deepseek v3.2: results stand in the order of their calls, as far as ids tell it") {
  const auto results = [](std::string_view ids, std::string_view given) {
    OrderedJson talk =
        OrderedJson::parse(R"([{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": []}])");
    for (const char id : ids)
      talk[1]["tool_calls"].push_back({{"id", std::string(1, id)}, {"function", {{"name", "f"}, {"arguments", "{}"}}}});
    for (size_t i = 0; i < given.size(); ++i)
      talk.push_back({{"role", "tool"}, {"tool_call_id", std::string(1, given[i])}, {"content", std::to_string(i)}});
    const std::string text = written(talk.dump());
    std::string order;
    for (size_t at = text.find("<result>"); at != std::string::npos; at = text.find("<result>", at + 1))
      order += text[at + 8];
    return order;
  };
  CHECK(results("abc", "abc") == "012");
  CHECK(results("abc", "cab") == "120");
  CHECK(results("aA", "Aa") == "10");
  CHECK(results("aab", "baa") == "012");  // ids that tell calls apart no more
  CHECK(results("abc", "cba").size() == 3);
  CHECK(results("abc", "cax") == "012");
  CHECK(results("abc", "ca") == "01");
}

TEST_CASE("deepseek v3.2: the conversation's tools stand in its first message") {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  const std::string schema = "<functions>\n{\"name\": \"f\"}\n</functions>\n";
  CHECK(has(written(R"({"messages": [{"role": "user", "content": "q"}], )" + tools + "}"), schema + "<｜User｜>q"));
  const std::string system =
      written(R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], )" + tools + "}");
  CHECK(system.starts_with("s\n\n## Tools\n"));
  CHECK(has(system, schema + "<｜User｜>q"));
  const std::string developer = written(R"({"messages": [{"role": "developer", "content": "q"}], )" + tools + "}");
  CHECK(developer.starts_with("<｜User｜>\n\n## Tools\n"));
  CHECK(developer.ends_with(schema + "\n\n# The user's message is: q<｜Assistant｜></think>"));
  CHECK(ChatTemplate::named("deepseek-v3.2")->prints_tools());
}

TEST_CASE("deepseek v3.2: what cannot be written is refused by its message and reason") {
  const OrderedJson thinking = {{"thinking", true}};
  const char* developer = R"([{"role": "developer", "content": "d"}, {"role": "user", "content": "q"}])";
  CHECK(has(refusal(developer, thinking), "message 0 (developer) stands before the last question"));
  CHECK(written(developer) ==
        "<｜User｜>\n\n# The user's message is: d<｜Assistant｜></think><｜User｜>q<｜Assistant｜></think>");
  CHECK(written(developer, {{"thinking", true}, {"drop_thinking", false}}).ends_with("q<｜Assistant｜><think>"));
  const std::vector<std::pair<const char*, const char*>> mistakes = {
      {R"([{"role": "developer"}])", "message 0 (developer) has no content"},
      {R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
       "message 1 (assistant) follows the last question without reasoning"},
      {R"([{"role": "tool", "content": "r"}])", "message 0 (tool) is the result of no call"},
      {R"([{"role": "user", "content": "q"}, {"role": "tool", "content": "r"}])", "message 1 (tool)"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
           {"role": "tool", "content": "r"}, {"role": "tool", "content": "r"}])",
       "message 2 (tool)"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}])",
       "message 0: the arguments of the call of \"f\" is not an object"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])",
       "message 0: the arguments of the call of \"f\""},
      {R"({"messages": [{"role": "system", "tools": [{"function": {}}]}], "tools": [{"function": {}}]})",
       "message 0 and the conversation both have tools"},
      {R"({"messages": [], "tools": [{"name": "f"}]})", "a tool has no \"function\""},
  };
  for (const auto& [talk, reason] : mistakes) {
    const std::string said = refusal(talk, thinking);
    CAPTURE(said);
    CHECK(has(said, reason));
  }
}

TEST_CASE("deepseek v3.2: its kind of model, and no other, has the template") {
  CHECK(builtin_template_of("deepseek_v32") == "deepseek-v3.2");
  CHECK_FALSE(builtin_template_of("deepseek_v3").has_value());
  CHECK_FALSE(builtin_template_of("").has_value());
  CHECK(ChatTemplate::named("deepseek-v3.2")->has_thinking_switch());
}

}  // namespace dspack::deepseek_v32_test
