#include "runtime/serve/field_table.h"

#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "runtime/serve/answer_request.h"

namespace dspack::field_table_test {

using namespace dspack;
using namespace dspack::runtime;

namespace {

struct Api {
  RequestApi bit;
  const char* path;
  const char* least;  // a request of as few fields as may be
  Result<AnswerRequest> (*parse)(std::string_view body, const SamplerOptions& defaults);
};

constexpr Api kApis[] = {
    {kChat, "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "x"}]})", &parse_chat_request},
    {kCompletions, "/v1/completions", R"({"prompt": "x"})", &parse_completion_request},
    {kResponses, "/v1/responses", R"({"input": "x"})", &parse_responses_request},
    {kMessages, "/v1/messages", R"({"max_tokens": 4, "messages": [{"role": "user", "content": "x"}]})",
     &parse_messages_request},
};

Result<AnswerRequest> with(const Api& api, std::string_view name, const OrderedJson& value) {
  OrderedJson body = OrderedJson::parse(api.least);
  body[std::string(name)] = value;
  return api.parse(body.dump(), {});
}

}  // namespace

TEST_CASE("fields of requests: a name is once in the table of an API, with an example") {
  for (const Api& api : kApis) {
    std::map<std::string_view, int> times;
    for (const RequestField& field : request_fields())
      if ((field.apis & api.bit) != 0) ++times[field.name];
    CHECK(times.size() > 30);
    for (const auto& [name, count] : times) {
      CAPTURE(name);
      CHECK(count == 1);
    }
  }
  for (const RequestField& field : request_fields()) {
    CAPTURE(field.name);
    CHECK(OrderedJson::accept(field.example));
    CHECK(field.apis != 0);
    CHECK((field.is_idle == nullptr) == field.idle.empty());
    if (field.treatment != RequestField::Treatment::obeyed) CHECK_FALSE(field.text.empty());
    if (field.treatment != RequestField::Treatment::refused) CHECK(field.idle.empty());
  }
}

TEST_CASE("fields of requests: a refused one is named, a harmless one and null are accepted") {
  size_t refused = 0;
  size_t harmless = 0;
  for (const Api& api : kApis) {
    for (const RequestField& field : request_fields()) {
      if ((field.apis & api.bit) == 0 || field.treatment == RequestField::Treatment::obeyed) continue;
      CAPTURE(api.path);
      CAPTURE(field.name);
      OrderedJson example = OrderedJson::parse(field.example);
      OrderedJson body = OrderedJson::parse(api.least);
      if (field.name == "repeat_last_n") body["repeat_penalty"] = 1.5;  // which it is about
      body[std::string(field.name)] = example;
      const auto read = api.parse(body.dump(), {});
      if (field.treatment == RequestField::Treatment::harmless) {
        CHECK_MESSAGE(read.has_value(), (read ? "" : read.error().message));
        if (read) CHECK(read->remarks.empty());
        ++harmless;
        continue;
      }
      REQUIRE_FALSE(read.has_value());
      CHECK(read.error().kind == ErrorKind::unsupported);
      CHECK(read.error().message.starts_with("\"" + std::string(field.name) + "\" is not supported"));
      CHECK(with(api, field.name, nullptr).has_value());
      ++refused;
    }
  }
  CHECK(refused > 100);
  CHECK(harmless > 100);
}

TEST_CASE("fields of requests: values that ask for nothing are accepted") {
  const std::vector<std::tuple<size_t, const char*, const char*>> values = {
      {1, "best_of", "1"},
      {0, "mirostat", "0"},
      {0, "typical_p", "1.0"},
      {0, "top_n_sigma", "-1"},
      {0, "grammar", R"("")"},
      {1, "suffix", R"("")"},
      {0, "functions", "[]"},
      {0, "function_call", R"("auto")"},
      {0, "modalities", R"(["text"])"},
      {0, "repeat_last_n", "64"},
      {2, "background", "false"},
      {2, "include", R"(["reasoning.encrypted_content"])"},
      {2, "top_logprobs", "0"},
      {0, "thinking_token_budget", "-1"},
      {0, "skip_special_tokens", "true"},
      {3, "mcp_servers", "[]"},
      {0, "reasoning_format", R"("deepseek")"},
      {0, "vllm_xargs", "{}"},
  };
  for (const auto& [api, name, value] : values) {
    CAPTURE(name);
    const auto read = with(kApis[api], name, OrderedJson::parse(value));
    CHECK_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  }
  // A penalty over fewer tokens is something else than one over all.
  CHECK_FALSE(
      parse_completion_request(R"({"prompt": "x", "repeat_penalty": 1.1, "repeat_last_n": 64})", {}).has_value());
  CHECK(parse_completion_request(R"({"prompt": "x", "repeat_penalty": 1.1, "repeat_last_n": -1})", {}).has_value());
}

TEST_CASE("fields of requests: what is not known is said, bounded, and on one line") {
  for (const Api& api : kApis) {
    const auto read = with(api, "a\n\x1b[31m", true);
    REQUIRE(read.has_value());
    REQUIRE(read->remarks.size() == 1);
    CHECK(read->remarks[0].find("is not known") != std::string::npos);
    CHECK(read->remarks[0].find_first_of("\n\x1b") == std::string::npos);
  }
  OrderedJson body = OrderedJson::parse(kApis[0].least);
  for (int i = 0; i < 1000; ++i)
    body["field" + std::to_string(i)] = i;
  body[std::string(10'000, 'x')] = 1;
  const auto read = parse_chat_request(body.dump(), {});
  REQUIRE(read.has_value());
  CHECK(read->remarks.size() <= 16);
  // Of another API: what it would have done there is not done.
  CHECK(parse_completion_request(R"({"prompt": "x", "messages": []})", {})->remarks.size() == 1);
}

TEST_CASE("fields of requests: the OpenAPI description has them all, and every path its methods") {
  const OrderedJson described = openapi_description();
  CHECK(described["openapi"] == "3.1.0");
  for (const Api& api : kApis) {
    const OrderedJson& fields =
        described["paths"][api.path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"];
    for (const RequestField& field : request_fields()) {
      if ((field.apis & api.bit) == 0) continue;
      CAPTURE(field.name);
      REQUIRE(fields.contains(std::string(field.name)));
      CHECK(fields[std::string(field.name)]["x-treatment"] == to_string(field.treatment));
    }
  }
  for (const auto& [path, methods] : described["paths"].items()) {
    CAPTURE(path);
    CHECK(allowed_methods(path).starts_with(methods.contains("get") ? "GET" : "POST"));
  }
  CHECK(allowed_methods("/v1/models/a/b") == "GET, HEAD");
  CHECK(allowed_methods("/v1/nothing").empty());
}

}  // namespace dspack::field_table_test
