#include "runtime/serve/answer_request.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include "runtime/generate/text_model.h"
#include "runtime/text/json.h"

namespace dspack::answer_request_test {

using namespace dspack;
using namespace dspack::runtime;

namespace {

std::string chat(std::string_view fields, std::string_view messages = R"([{"role": "user", "content": "x"}])") {
  return fmt::format(R"({{"messages": {}, {}}})", messages, fields);
}

AnswerRequest read(const Result<AnswerRequest>& request) {
  REQUIRE_MESSAGE(request.has_value(), (request ? "" : request.error().message));
  return *request;
}

Conversation conversation(const Result<AnswerRequest>& request) {
  return std::get<Conversation>(read(request).prompt);
}

std::string refusal(const Result<AnswerRequest>& request) {
  REQUIRE_FALSE(request.has_value());
  return request.error().message;
}

}  // namespace

TEST_CASE("requests: -1 is no limit, all tokens, a drawn seed; in every API") {
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    CAPTURE(name);
    CHECK(read(parse_chat_request(chat(fmt::format(R"("{}": -1)", name)), {})).max_tokens == UINT32_MAX);
    CHECK(read(parse_completion_request(fmt::format(R"({{"prompt": "x", "{}": -1}})", name), {})).max_tokens ==
          UINT32_MAX);
    CHECK(refusal(parse_chat_request(chat(fmt::format(R"("{}": -2)", name)), {})).find("-1") != std::string::npos);
    // 2^64 - 1, and more.
    for (const char* large : {"18446744073709551615", "99999999999999999999999"})
      CHECK_FALSE(parse_chat_request(chat(fmt::format(R"("{}": {})", name, large)), {}).has_value());
    CHECK(refusal(parse_chat_request(chat(fmt::format(R"("{}": 0)", name)), {})).find(name) != std::string::npos);
  }
  CHECK(read(parse_responses_request(R"({"input": "x", "max_output_tokens": -1})", {})).max_tokens == UINT32_MAX);
  CHECK(read(parse_messages_request(chat(R"("max_tokens": -1)"), {})).max_tokens == UINT32_MAX);
  CHECK(read(parse_chat_request(chat(R"("top_k": -1)"), {.top_k = 5})).sampling.top_k == 0);
  CHECK(read(parse_chat_request(chat(R"("top_k": 0)"), {.top_k = 5})).sampling.top_k == 0);
  CHECK(read(parse_chat_request(chat(R"("n": 1)"), {.top_k = 5})).sampling.top_k == 5);
  CHECK(parse_chat_request(chat(R"("seed": -1)"), {}).has_value());
  CHECK(read(parse_chat_request(chat(R"("top_logprobs": 0)"), {})).top_logprobs == std::nullopt);
  CHECK_FALSE(parse_chat_request(chat(R"("top_logprobs": 1)"), {}).has_value());
}

TEST_CASE("requests: a seed of any size counts modulo 2^64") {
  const auto seed = [](const char* value) {
    return read(parse_chat_request(chat(fmt::format(R"("seed": {})", value)), {})).sampling.seed;
  };
  CHECK(seed("7") == 7);
  CHECK(seed("18446744073709551615") == UINT64_MAX);
  CHECK(seed("18446744073709551623") == 7);                     // 2^64 + 7
  CHECK(seed("340282366920938463463374607431768211463") == 7);  // 2^128 + 7
  CHECK(seed("-5") == UINT64_MAX - 4);
  CHECK(seed("-18446744073709551621") == UINT64_MAX - 4);  // -(2^64 + 5)
  CHECK_FALSE(parse_chat_request(chat(R"("seed": 1.5)"), {}).has_value());
  CHECK_FALSE(parse_chat_request(chat(R"("seed": 1e30)"), {}).has_value());
}

TEST_CASE("requests: whole numbers of any size stay as they came, in schemas and in calls") {
  const std::string schema = R"({"properties":{"n":{"type":"integer","minimum":-9223372036854775808,)"
                             R"("maximum":18446744073709551616,"default":123456789012345678901234567890}}})";
  const std::string tools = fmt::format(
      R"("tools": [{{"type": "function", "function": {{"name": "f", "parameters": {}}}}}], "max_tokens": 1)", schema);
  const Conversation talk = conversation(parse_chat_request(chat(tools), {}));
  CHECK(python_json(talk.tools[0]["function"]["parameters"], true) == schema);
  const auto messages =
      parse_messages_request(fmt::format(R"({{"max_tokens": 1, "messages": [{{"role": "user", "content": "x"}},
        {{"role": "assistant", "content": [{{"type": "tool_use", "id": "a", "name": "f", "input": {{"n": 99999999999999999999}}}}]}},
        {{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "a", "content": "y"}}]}}],
        "tools": [{{"name": "f", "input_schema": {}}}]}})",
                                         schema),
                             {});
  CHECK(python_json(conversation(messages).tools[0]["function"]["parameters"], true) == schema);
  CHECK((*conversation(messages).messages[1].tool_calls)[0].arguments == R"({"n":99999999999999999999})");
  const auto responses = parse_responses_request(
      fmt::format(R"({{"input": "x", "tools": [{{"type": "function", "name": "f", "parameters": {}}}]}})", schema), {});
  CHECK(python_json(conversation(responses).tools[0]["function"]["parameters"], true) == schema);
}

TEST_CASE("requests: calls without arguments, empty contents, results as lists") {
  const Conversation talk = conversation(parse_chat_request(chat(R"("n": 1)", R"([{"role": "user", "content": []},
        {"role": "assistant", "content": [], "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": null}},
          {"function": {"name": "g"}}, {"type": "custom", "id": "c", "custom": {"name": "h", "input": "a \"b\""}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
        {"role": "tool", "tool_call_id": "a", "content": []}])"),
                                                            {}));
  CHECK(talk.messages[0].content == "");
  CHECK(talk.messages[1].content == std::nullopt);
  const auto& calls = *talk.messages[1].tool_calls;
  CHECK(calls[0].arguments == "{}");
  CHECK(calls[1].arguments == "{}");
  CHECK(calls[2].type == "function");
  CHECK(calls[2].name == "h");
  CHECK(calls[2].arguments == R"({"input": "a \"b\""})");
  CHECK(talk.messages[2].content == "1\n2");
  CHECK(talk.messages[3].content == "");
  CHECK(*arguments_as_object({.name = "f", .arguments = " "}) == OrderedJson::object());

  const Conversation input = conversation(parse_responses_request(R"({"input": [{"role": "user", "content": []},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": null},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"},
                                                                 {"type": "output_text", "text": "2"}]},
    {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "text"},
    {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
    {"type": "function_call_output", "call_id": "a"}]})",
                                                                  {}));
  REQUIRE(input.messages.size() == 6);
  CHECK((*input.messages[1].tool_calls)[0].arguments == "{}");
  CHECK(input.messages[2].content == "1\n2");
  CHECK((*input.messages[3].tool_calls)[0].arguments == R"({"input": "text"})");
  CHECK(input.messages[4].content == "done");
  CHECK(input.messages[5].content == "");

  const Conversation blocks = conversation(parse_messages_request(R"({"max_tokens": 1, "messages": [
    {"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "id": "a"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": []},
      {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]}]})",
                                                                  {}));
  CHECK((*blocks.messages[1].tool_calls)[0].arguments == "{}");
  CHECK(blocks.messages[2].content == "");
  CHECK(blocks.messages[3].content == "1\n2");
}

TEST_CASE("requests: a tool's parameters are those of an object; what calls cannot be held to is said, or refused") {
  const auto request = [](const std::string& parameters, const std::string& more) {
    return parse_chat_request(
        chat(R"("max_tokens": 1, "tools": [{"type": "function", "function": {"name": "f", "parameters": )" +
             parameters + more),
        {});
  };
  for (const char* parameters : {"5", "[]", "false", R"({"type":"string"})", R"({"type":["array","null"]})"}) {
    CAPTURE(parameters);
    const auto refused = request(parameters, "}}]");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message.find("describe no object") != std::string::npos);
  }
  for (const char* parameters : {"{}", "true", "null", R"({"type":["object","null"]})", R"({"properties":{}})"})
    CHECK(request(parameters, "}}]").has_value());
  const std::string unheld = R"({"type":"object","unevaluatedProperties":false})";
  CHECK(request(unheld, "}}]")->remarks.empty());  // nothing is held to it
  const auto forced = request(unheld, R"(}}], "tool_choice": "required")");
  REQUIRE(forced.has_value());
  REQUIRE(forced->remarks.size() == 1);
  CHECK(forced->remarks[0].find("unevaluatedProperties") != std::string::npos);
  const auto strict = request(unheld, R"(, "strict": true}}])");
  REQUIRE_FALSE(strict.has_value());
  CHECK(strict.error().message.find("unevaluatedProperties") != std::string::npos);
}

TEST_CASE("requests: a picture in a tool's result is refused by its type") {
  CHECK(refusal(parse_chat_request(chat(R"("n": 1)", R"([{"role": "tool", "content": [{"type": "image_url"}]}])"), {}))
            .find("image_url") != std::string::npos);
  CHECK(refusal(parse_responses_request(R"({"input": [{"type": "function_call_output", "call_id": "a",
      "output": [{"type": "input_image", "image_url": "a"}]}]})",
                                        {}))
            .find("input_image") != std::string::npos);
  CHECK(refusal(parse_messages_request(R"({"max_tokens": 1, "messages": [{"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": {}}]}]}]})",
                                       {}))
            .find("image") != std::string::npos);
}

TEST_CASE("requests: tools that are no functions are left out, and the log says so") {
  const auto check = [](const Result<AnswerRequest>& request, size_t left, std::string_view word) {
    const AnswerRequest got = read(request);
    const auto& tools = std::get<Conversation>(got.prompt).tools;
    CHECK((left == 0 ? tools.is_null() : tools.size() == left));
    REQUIRE(got.remarks.size() == 1);
    CHECK(got.remarks[0].find(word) != std::string::npos);
  };
  check(parse_responses_request(
            R"({"input": "x", "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]})", {}),
        1, "web_search");
  check(parse_responses_request(R"({"input": "x", "tools": [{"type": "custom", "name": "f"}]})", {}), 0, "custom");
  check(parse_messages_request(chat(R"("tools": [{"type": "web_search_20250305", "name": "web_search"},
      {"type": "custom", "name": "f", "input_schema": {}}, {"name": "g"}], "max_tokens": 1)"),
                               {}),
        2, "web_search_20250305");
  check(parse_chat_request(chat(R"("tools": [{"type": "custom", "custom": {"name": "f"}}])"), {}), 0, "custom");
  std::string many = R"({"type": "web_search"})";
  for (int i = 0; i < 100; ++i)
    many += fmt::format(R"(, {{"type": "web_search_{}"}})", i);
  CHECK(read(parse_responses_request(fmt::format(R"({{"input": "x", "tools": [{}]}})", many), {})).remarks.size() <=
        16);
}

TEST_CASE("requests: a last message of the assistant is continued where it is asked for") {
  const std::string_view ends = R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}])";
  const auto continues = [&](std::string_view fields, std::string_view messages) {
    return conversation(parse_chat_request(chat(fields, messages), {})).continue_final_message;
  };
  CHECK_FALSE(continues(R"("n": 1)", ends));
  CHECK(continues(R"("continue_final_message": true)", ends));
  CHECK(continues(R"("continue_final_message": true, "add_generation_prompt": false)", ends));
  CHECK(continues(R"("n": 1)",
                  R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "a", "prefix": true}])"));
  CHECK_FALSE(
      conversation(parse_chat_request(chat(R"("add_generation_prompt": false)", ends), {})).add_generation_prompt);
  CHECK_FALSE(parse_chat_request(chat(R"("continue_final_message": true, "add_generation_prompt": true)", ends), {})
                  .has_value());
  CHECK_FALSE(parse_chat_request(chat(R"("continue_final_message": true)"), {}).has_value());
  CHECK_FALSE(parse_chat_request(chat(R"("continue_final_message": true)",
                                      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])"),
                                 {})
                  .has_value());
  CHECK(conversation(parse_messages_request(chat(R"("max_tokens": 1)", ends), {})).continue_final_message);
  CHECK_FALSE(conversation(parse_messages_request(chat(R"("max_tokens": 1)"), {})).continue_final_message);
  CHECK_FALSE(conversation(parse_messages_request(chat(R"("max_tokens": 1)", R"([{"role": "assistant", "content":
      [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}])"),
                                                  {}))
                  .continue_final_message);
}

TEST_CASE("requests: what says whether the model reasons") {
  const auto thinking = [](std::string_view fields) { return read(parse_chat_request(chat(fields), {})).reasons(); };
  CHECK(thinking(R"("n": 1)") == std::nullopt);
  CHECK(thinking(R"("thinking": {"type": "adaptive"})") == true);
  CHECK(thinking(R"("thinking": {"type": "disabled"})") == false);
  CHECK(thinking(R"("enable_thinking": false)") == false);
  CHECK(thinking(R"("reasoning": {"effort": "none"})") == false);
  CHECK(thinking(R"("reasoning": {"enabled": true})") == true);
  CHECK(thinking(R"("reasoning_effort": "low")") == true);
  CHECK_FALSE(parse_chat_request(chat(R"("thinking": {"type": "sometimes"})"), {}).has_value());
  CHECK(read(parse_messages_request(chat(R"("max_tokens": 1, "thinking": {"type": "adaptive"})"), {})).thinking ==
        true);
  CHECK(read(parse_messages_request(chat(R"("max_tokens": 1, "thinking": {"type": "disabled"})"), {})).thinking ==
        false);
}

TEST_CASE("requests: other servers' names of a schema, one of them at a time") {
  const auto kind = [](std::string_view fields) { return read(parse_chat_request(chat(fields), {})).form.kind; };
  for (const char* fields :
       {R"("json_schema": {"type": "object"})", R"("json_schema": "{\"type\": \"object\"}")",
        R"("guided_json": {"type": "object"})", R"("structured_outputs": {"json": {"type": "object"}})",
        R"("response_format": {"type": "json_object", "schema": {"type": "object"}})"}) {
    CAPTURE(fields);
    CHECK(kind(fields) == AnswerForm::Kind::schema);
  }
  CHECK(kind(R"("structured_outputs": {"json_object": true, "regex": null})") == AnswerForm::Kind::object);
  CHECK(read(parse_messages_request(chat(R"("max_tokens": 1, "output_config": {"effort": "low",
      "format": {"type": "json_schema", "schema": {"type": "object"}}})"),
                                    {}))
            .form.kind == AnswerForm::Kind::schema);
  CHECK(refusal(parse_chat_request(chat(R"("structured_outputs": {"regex": "a+"})"), {})).find("regex") !=
        std::string::npos);
  CHECK_FALSE(parse_chat_request(chat(R"("json_schema": {}, "guided_json": {})"), {}).has_value());
  CHECK_FALSE(parse_chat_request(chat(R"("json_schema": "{")"), {}).has_value());
}

TEST_CASE("requests: which tokens end the answer") {
  const AnswerRequest request =
      read(parse_chat_request(chat(R"("min_tokens": 3, "ignore_eos": true, "stop_token_ids": [5, 7])"), {}));
  CHECK(request.min_tokens == 3);
  CHECK(request.ignores_end_tokens);
  CHECK(request.stop_tokens == std::vector<uint32_t>{5, 7});
  CHECK(refusal(parse_chat_request(chat(R"("min_tokens": 3, "max_tokens": 2)"), {})).find("min_tokens") !=
        std::string::npos);
  CHECK(read(parse_completion_request(R"({"prompt": "x", "min_tokens": 30})", {})).max_tokens == 30);
  for (const char* wrong :
       {R"("stop_token_ids": 5)", R"("stop_token_ids": ["a"])", R"("stop_token_ids": [-1])", R"("min_tokens": -1)"})
    CHECK_FALSE(parse_chat_request(chat(wrong), {}).has_value());
  std::string many = "0";
  for (int i = 0; i < 200; ++i)
    many += ", 1";
  CHECK_FALSE(parse_chat_request(chat(fmt::format(R"("stop_token_ids": [{}])", many)), {}).has_value());
}

TEST_CASE("requests: an empty conversation is refused in every API") {
  CHECK(refusal(parse_chat_request(R"({"messages": []})", {})).find("empty") != std::string::npos);
  CHECK(refusal(parse_messages_request(R"({"messages": []})", {})).find("empty") != std::string::npos);
  CHECK(refusal(parse_responses_request(R"({"input": []})", {})).find("empty") != std::string::npos);
}

TEST_CASE("requests: the last mark of an answer that is continued says whether it reasons") {
  const std::string_view prompt = "<user>what is <think>?<assistant>";
  CHECK_FALSE(continues_reasoning(std::string(prompt) + "It", prompt.size()));
  CHECK(continues_reasoning(std::string(prompt) + "<think>It", prompt.size()));
  CHECK_FALSE(continues_reasoning(std::string(prompt) + "<think>It</think>Is", prompt.size()));
  CHECK(continues_reasoning(std::string(prompt) + "</think>a<think>It", prompt.size()));
  CHECK(continues_reasoning(std::string(prompt) + "<think>\n", prompt.size() + 8));
  CHECK_FALSE(continues_reasoning(std::string(prompt), prompt.size()));
}

}  // namespace dspack::answer_request_test
