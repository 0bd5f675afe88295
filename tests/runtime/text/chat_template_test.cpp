#include "runtime/text/chat_template.h"

#include <ctime>
#include <set>

#include "golden.h"
#include "runtime/text/chat_message.h"
#include "runtime/text/json.h"

namespace dspack::chat_template_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

TEST_CASE("chat template: what transformers renders, and its failures") {
  // Made by tests/tools/text/chat_cases.py of the templates that the repositories have.
  const auto file = OrderedJson::parse(test_file("text/chat_cases.json"));
  std::set<std::string> seen;
  size_t texts = 0;
  size_t failures = 0;
  for (const OrderedJson& each : file.at("cases")) {
    const OrderedJson& messages = file.at("conversations").at(each.at("messages").get<size_t>());
    const auto conversation = parse_conversation(messages.dump());
    REQUIRE_MESSAGE(conversation.has_value(), messages.dump());
    RenderOptions options{
        .bos_token = "<B>", .eos_token = "<E>", .add_generation_prompt = each.at("add_generation_prompt")};
    if (each.at("thinking").get<bool>()) options.arguments = thinking_arguments(true);
    if (each.at("tools").get<bool>()) options.tools = file.at("tools");
    for (const OrderedJson& result : each.at("results")) {
      for (const std::string name : result.at("templates")) {
        CAPTURE(name);
        CAPTURE(messages.dump());
        CAPTURE(options.add_generation_prompt);
        CAPTURE(options.arguments.dump());
        const auto chat = ChatTemplate::named(name);
        REQUIRE(chat.has_value());
        const auto text = chat->render(conversation->messages, options);
        CHECK(text.has_value() == result.at("text").is_string());
        if (text && result.at("text").is_string()) CHECK(*text == result.at("text").get<std::string>());
        seen.insert(name);
        ++(text ? texts : failures);
      }
    }
  }
  // Every name that is known; DeepSeek-V3.2 and V4 have a program in place of a template (deepseek_v32_test.cpp, _v4_).
  CHECK(seen.size() + 3 == builtin_template_names().size());
  CHECK(texts > 600);
  CHECK(failures > 50);
}

TEST_CASE("chat template: mistakes have their line") {
  const auto broken = ChatTemplate::compile("{{ bos_token }}\n{%");
  REQUIRE_FALSE(broken.has_value());
  CHECK(broken.error().message.find("line 2") != std::string::npos);
  const auto refused = ChatTemplate::compile("\n{{ raise_exception('no users') }}")->render({}, {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("line 2: the template refuses: no users") != std::string::npos);
}

TEST_CASE("chat template: a message's own fields may be many, a template's arguments may not") {
  // Whoever looks through all of them for each compares 20 billion names.
  std::string fields;
  for (int i = 0; i < 200'000; ++i)
    fields += ",\"f" + std::to_string(i) + "\":0";
  const std::clock_t begin = std::clock();
  const auto conversation = parse_conversation(R"([{"role":"user","content":"hi")" + fields + "}]");
  REQUIRE(conversation.has_value());
  const auto text =
      ChatTemplate::compile("{{ messages[0].f199999 }}{{ messages[0] | length }}")->render(conversation->messages, {});
  REQUIRE(text.has_value());
  CHECK(*text == "0200002");
  CHECK(std::clock() - begin < 10 * CLOCKS_PER_SEC);
  const auto refused = parse_conversation(R"({"messages":[],"chat_template_kwargs":{)" + fields.substr(1) + "}}");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::invalid);
  CHECK(refused.error().message.find("chat_template_kwargs") != std::string::npos);
}

TEST_CASE("chat template: what it reads says what it can be told") {
  CHECK(ChatTemplate::named("deepseek-v3.1")->has_thinking_switch());
  CHECK_FALSE(ChatTemplate::named("deepseek-r1")->has_thinking_switch());
  CHECK(ChatTemplate::named("kimi-k2")->prints_tools());
  CHECK_FALSE(ChatTemplate::named("deepseek-v3.1")->prints_tools());
  CHECK(ChatTemplate::named("deepseek-v3.1")->arguments() == std::vector<std::string>{"thinking"});
  CHECK(ChatTemplate::named("kimi-k2")->arguments().empty());
  const auto other = ChatTemplate::compile(
      "{% set effort = effort or 'low' %}{% set thinking = true %}{{ thinking }}{% for m in messages %}{{ loop.index }}"
      "{% endfor %}{% macro f(x) %}{{ x ~ caller() ~ f(y) }}{% endmacro %}{{ effort }}");
  REQUIRE(other.has_value());
  CHECK(other->arguments() == std::vector<std::string>{"effort", "y"});
  CHECK_FALSE(other->has_thinking_switch());
  CHECK(*ChatTemplate::compile("{{ effort }}")->render({}, {.arguments = {{"effort", "high"}}}) == "high");
}

TEST_CASE("chat template: reasoning comes under each name that templates read") {
  const auto chat =
      ChatTemplate::compile("{% for m in messages %}{{ m.reasoning_content }}-{{ m.thinking }} {% endfor %}");
  REQUIRE(chat.has_value());
  const auto talk = parse_conversation(R"([{"role": "assistant", "content": "a", "reasoning_content": "b"},
      {"role": "assistant", "content": "a", "thinking": "c"}, {"role": "assistant", "content": "a", "reasoning": "d"},
      {"role": "assistant", "content": "a", "thinking": "e", "reasoning_content": "f"},
      {"role": "assistant", "content": "a", "reasoning_content": null}])");
  REQUIRE(talk.has_value());
  CHECK(*chat->render(talk->messages, {}) == "b-b c-c d-d f-e None- ");
}

TEST_CASE("chat template: names") {
  const auto unknown = ChatTemplate::named("gpt");
  REQUIRE_FALSE(unknown.has_value());
  CHECK(unknown.error().kind == ErrorKind::not_found);
  CHECK(unknown.error().message.find("deepseek-v2.5 ") != std::string::npos);
}

TEST_CASE("chat template: roles") {
  for (const Role role : {Role::system, Role::developer, Role::user, Role::assistant, Role::tool})
    CHECK(*parse_role(to_string(role)) == role);
  CHECK_FALSE(parse_role("User").has_value());
  CHECK_FALSE(parse_role("").has_value());
}

TEST_CASE("chat json: a conversation in OpenAI's form") {
  const auto read = parse_conversation(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [
      {"id": "i", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]}], "tools": [{"z": 1, "a": 2}]})");
  REQUIRE(read.has_value());
  REQUIRE(read->messages.size() == 1);
  CHECK_FALSE(read->messages[0].content.has_value());
  REQUIRE(read->messages[0].tool_calls.has_value());
  const ToolCall& call = read->messages[0].tool_calls->at(0);
  CHECK(call.id == "i");
  CHECK(call.arguments.dump() == R"({"b":1,"a":2})");  // in their order
  CHECK(read->tools.dump() == R"([{"z":1,"a":2}])");
  CHECK(parse_conversation("[]")->messages.empty());
  CHECK(parse_conversation(R"([{"role": "user", "content": "1234567890123456789012"}])").has_value());
}

TEST_CASE("chat json: the template's arguments come with the conversation or alone") {
  const auto read = parse_conversation(R"({"messages": [], "chat_template_kwargs": {"b": 1, "a": [true]}})");
  REQUIRE(read.has_value());
  CHECK(read->arguments.dump() == R"({"b":1,"a":[true]})");
  CHECK(parse_conversation("[]")->arguments.is_null());
  CHECK(*parse_template_arguments(R"({"b": 1234567890123456789})") == OrderedJson({{"b", 1234567890123456789}}));
  for (const char* wrong : {"", "3", "[]", "{"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_template_arguments(wrong).has_value());
  }
}

TEST_CASE("chat json: content as a list of texts is one text") {
  const auto content_of = [](const std::string& content) {
    const auto read = parse_conversation(R"([{"role": "user", "content": )" + content + "}]");
    REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
    return read->messages[0].content;
  };
  CHECK(content_of(R"([{"type": "text", "text": "Hello"}])") == "Hello");
  CHECK(content_of(R"([{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}])") ==
        "a\n\nb");
  const auto picture =
      parse_conversation(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])");
  REQUIRE_FALSE(picture);
  CHECK(picture.error().kind == ErrorKind::unsupported);
  CHECK(picture.error().message.find("image_url") != std::string::npos);
}

TEST_CASE("chat json: a developer speaks as the system, in templates that do not know the role") {
  const auto developer =
      parse_conversation(R"([{"role": "developer", "content": "s"}, {"role": "user", "content": "u"}])");
  const auto system = parse_conversation(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])");
  REQUIRE(developer);
  for (const std::string name : {"deepseek-v3.1", "kimi-k2"}) {
    const auto known = ChatTemplate::named(name);
    REQUIRE(known);
    CHECK(*known->render(developer->messages, {}) == *known->render(system->messages, {}));
  }
}

TEST_CASE("chat json: mistakes are named by message and field") {
  const std::vector<std::pair<const char*, const char*>> mistakes = {
      {"", "JSON"},
      {"3", "\"messages\""},
      {"{}", "\"messages\""},
      {R"({"messages": {}})", "\"messages\""},
      {R"({"messages": [], "tools": {}})", "\"tools\""},
      {R"({"messages": [], "chat_template_kwargs": []})", "\"chat_template_kwargs\""},
      {R"([3])", "message 0"},
      {R"([{"role": "user"}, {"content": "x"}])", "message 1: \"role\""},
      {R"([{"role": "Developer"}])", "unknown role"},
      {R"([{"role": "user", "content": ["x"]}])", "message 0: a part of \"content\""},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "\"text\""},
      {R"([{"role": "user", "prefix": 1}])", "\"prefix\""},
      {R"([{"role": "user", "name": 1}])", "\"name\""},
      {R"([{"role": "assistant", "tool_calls": {}}])", "\"tool_calls\""},
      {R"([{"role": "assistant", "tool_calls": [1]}])", "tool call 0: a call"},
      {R"([{"role": "assistant", "tool_calls": [{}]}])", "tool call 0: \"function\""},
      {R"([{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}])", "\"name\""},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": ""}}]}])", "\"name\""},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}])", "\"arguments\""},
  };
  for (const auto& [text, part] : mistakes) {
    CAPTURE(text);
    const auto read = parse_conversation(text);
    REQUIRE_FALSE(read.has_value());
    CAPTURE(read.error().message);
    CHECK(read.error().kind == ErrorKind::invalid);
    CHECK(read.error().message.find(part) != std::string::npos);
  }
}

TEST_CASE("chat template: whole numbers of any size are printed as they came") {
  const std::string numbers =
      "[999999999999999999, -9223372036854775808, 9223372036854775807, 18446744073709551615, "
      "18446744073709551616, -123456789012345678901234567890, 0]";
  const auto talk = parse_conversation(R"({"messages": [{"role": "user", "x": )" + numbers + R"(}], "tools": )" +
                                       numbers + R"(, "chat_template_kwargs": {"given": )" + numbers + "}}");
  REQUIRE(talk.has_value());
  const auto chat = ChatTemplate::compile(
      "{{ messages[0].x | tojson }}\n{{ tools | tojson }}\n{{ given }}\n"
      "{{ tools[5] }} {{ tools[4] is integer }} {{ tools[5] < 0 < tools[4] }} "
      "{{ tools[4] == given[4] }} {{ tools[4] == tools[3] }} {{ tools | max }}");
  REQUIRE(chat.has_value());
  const auto text = chat->render(talk->messages, {.tools = talk->tools, .arguments = talk->arguments});
  REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
  CHECK(*text == numbers + "\n" + numbers + "\n" + numbers +
                     "\n-123456789012345678901234567890 True True True False 18446744073709551616");
  CHECK(python_json(talk->tools, false) == numbers);
  // As Python says; they are not computed with.
  const auto sum = ChatTemplate::compile("{{ tools[4] + 1 }}")->render(talk->messages, {.tools = talk->tools});
  REQUIRE_FALSE(sum.has_value());
  CHECK(sum.error().message.find("beyond 63 bits") != std::string::npos);
}

TEST_CASE("chat template: an answer continues the last message, in every template") {
  const auto messages = *parse_conversation(R"([{"role": "user", "content": "The capital of"},
                                                {"role": "assistant", "content": "The capital of"}])");
  for (const std::string& name : builtin_template_names()) {
    CAPTURE(name);
    const auto chat = ChatTemplate::named(name);
    // DeepSeek-V4 leaves out the reasoning of an answer that has ended, as of one from before.
    const RenderOptions closed{
        .bos_token = "<B>", .eos_token = "<E>", .add_generation_prompt = false, .arguments = thinking_arguments(false)};
    RenderOptions open = closed;
    open.continue_final_message = true;
    open.add_generation_prompt = true;  // is not looked at
    const auto whole = chat->render(messages.messages, closed);
    const auto text = chat->render(messages.messages, open);
    REQUIRE(whole.has_value());
    REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
    CHECK(text->ends_with("The capital of"));
    CHECK(whole->starts_with(*text));
    CHECK(whole->find("The capital of") < text->size() - 14);  // the question's words are not what was cut behind
  }
}

TEST_CASE("chat template: where the content of a continued message ends") {
  const auto continued = [](const char* source, const char* content) {
    ChatMessage message{.role = Role::assistant, .content = content};
    return ChatTemplate::compile(source)->render(std::span(&message, 1), {.continue_final_message = true});
  };
  constexpr const char* kPlain = "<a>{{ messages[0].content }}</a>";
  CHECK(*continued(kPlain, "a") == "<a>a");
  CHECK(*continued(kPlain, "/a") == "<a>/a");  // and not where the template goes on with the same
  CHECK(*continued(kPlain, "") == "<a>");
  CHECK(*continued(kPlain, "x \n") == "<a>x \n");
  CHECK(*continued("<a>\n{{ messages[0].content | trim }}</a>", " x \n") == "<a>\nx");
  CHECK(*continued("<a>\n{{ messages[0].content | trim }}</a>", "") == "<a>\n");
  CHECK(*continued("<a>{{ messages[0].content.split('</think>') | last }}</a>", "r</think>x") == "<a>x");
  for (const char* source : {"<a>", "{{ messages[0].content | length }}"}) {
    const auto refused = continued(source, "x");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().kind == ErrorKind::unsupported);
  }
  CHECK_FALSE(ChatTemplate::compile("x")->render({}, {.continue_final_message = true}).has_value());
}

TEST_CASE("python json: numbers as Python's repr") {
  const std::vector<std::pair<double, const char*>> numbers = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {0.1, "0.1"},
      {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},
      {123456789012345680.0, "1.2345678901234568e+17"},
      {1e-4, "0.0001"},
      {1e-5, "1e-05"},
      {1.5e-7, "1.5e-07"},
      {-2.5e-300, "-2.5e-300"},
      {5e-324, "5e-324"},
      {1e22, "1e+22"},
      {9007199254740993.0, "9007199254740992.0"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
  };
  for (const auto& [value, text] : numbers)
    CHECK(python_float(value) == text);
}

}  // namespace dspack::chat_template_test
