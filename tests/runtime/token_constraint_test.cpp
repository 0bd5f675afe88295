// Answers held to a form: every mask against a check of its own, and what the model makes of them.
#include "runtime/generate/token_constraint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <limits>
#include <random>
#include <set>

#include "runtime/generate/constraint_compiler.h"
#include "runtime/generate/session.h"
#include "runtime/serve/answer_form.h"
#include "runtime/text/reply_parser.h"
#include "tests/runtime/support/grammar_lab.h"
#include "tests/runtime/support/recording_model.h"

namespace dspack::runtime::token_constraint_test {
namespace {

using test::is_there;
using test::json_form;
using Lab = test::GrammarLab;
constexpr uint32_t kEnd = Lab::kEnd;

TEST_CASE("constraint: a mask allows exactly the tokens that some text of the form goes on with") {
  if (!is_there()) return;
  const Lab lab;
  const auto constraint =
      lab.constraint(json_form(OrderedJson::parse(R"({"enum": ["Paris", "Pa", "the end", 12, 127, null]})")));
  const std::set<std::string> texts = {R"("Paris")", R"("Pa")", R"("the end")", "12", "127", "null"};
  const auto begins_one = [&](const std::string& text) {
    return std::ranges::any_of(texts, [&](const std::string& each) { return each.starts_with(text); });
  };
  std::vector<std::vector<uint32_t>> left = {{}};
  size_t seen = 0;
  while (!left.empty()) {
    const std::vector<uint32_t> answer = std::move(left.back());
    left.pop_back();
    std::string text;
    for (const uint32_t token : answer)
      text += lab.tokenizer.token_bytes(token);
    CAPTURE(text);
    const auto bits = constraint->allowed_after(answer);
    REQUIRE(bits);
    const std::vector<uint32_t> mask(bits->begin(), bits->end());
    for (uint32_t token = 0; token < lab.vocab; ++token) {
      const std::string next = text + std::string(lab.tokenizer.token_bytes(token));
      const bool is_wanted =
          token == kEnd ? texts.contains(text) : !lab.tokenizer.is_added(token) && next != text && begins_one(next);
      CAPTURE(token);
      REQUIRE(allows(mask, token) == is_wanted);
      if (!is_wanted || token == kEnd) continue;
      left.push_back(answer);
      left.back().push_back(token);
    }
    ++seen;
  }
  CHECK(seen > 20);
}

TEST_CASE("constraint: what has been read before does not matter") {
  if (!is_there()) return;
  const Lab lab;
  const OrderedJson form = json_form(OrderedJson::parse(R"({"type": "object", "properties": {"name": {"type": "string"},
      "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "tags"]})"));
  const auto constraint = lab.constraint(form);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const std::vector<uint32_t> answer = lab.walk(*constraint, random, 60);
    for (int other = 0; other < 4; ++other) {
      const std::span part = std::span(answer).first(random() % answer.size());
      CHECK(lab.allowed(*constraint, part) == lab.allowed(*constraint->restart(), part));
    }
    // Drafts may go on after an end.
    std::vector<uint32_t> beyond = answer;
    if (beyond.back() != kEnd) continue;
    CHECK(lab.allowed(*constraint, beyond) == std::vector<uint32_t>{kEnd});
    beyond.push_back(5);
    CHECK(lab.allowed(*constraint, beyond) == std::vector<uint32_t>{kEnd});
  }
}

TEST_CASE("constraint: reasoning comes first and is free, but for the end") {
  if (!is_there()) return;
  const Lab lab;
  const OrderedJson schema = OrderedJson::parse(R"({"enum": ["yes", "no"]})");
  const uint32_t end_think = *lab.tokenizer.id_of("</think>");
  for (const bool is_optional : {false, true}) {
    const auto constraint = lab.constraint(reasoned_form(json_form(schema), is_optional, lab.tokenizer));
    std::vector<uint32_t> answer =
        *lab.tokenizer.encode(is_optional ? "<think>So \"x\" {1" : "So \"x\" {1", SpecialTokens::parse);
    const auto reasoning = lab.allowed(*constraint, answer);
    CHECK(std::ranges::find(reasoning, kEnd) == reasoning.end());
    CHECK(std::ranges::find(reasoning, end_think) != reasoning.end());
    CHECK(reasoning.size() > 1000);
    answer.push_back(end_think);
    const auto begin = lab.allowed(*constraint, answer);
    for (const uint32_t token : begin) {
      const std::string_view text = lab.tokenizer.token_bytes(token);
      CHECK((text.find_first_not_of(" \n\"") == std::string_view::npos || text.starts_with('"')));
    }
    const auto at_once = lab.allowed(*constraint, {});
    const uint32_t quote = *lab.tokenizer.id_of("\"");
    CHECK(std::ranges::find(at_once, quote) != at_once.end());
    CHECK((std::ranges::find(at_once, *lab.tokenizer.id_of("<think>")) != at_once.end()) == is_optional);
  }
}

constexpr std::string_view kGlmTemplate =
    "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}\n"
    "<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>{% endfor %}{% endfor %}";
constexpr std::string_view kJsonTemplate =
    "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {}}\n</tool_call>{% endfor %}{% endfor %}";
constexpr std::string_view kDsmlTemplate =
    "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"{{ c.function.name }}\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>{% endfor %}{% "
    "endfor %}";

std::vector<std::pair<std::string, Result<ChatTemplate>>> templates() {
  std::vector<std::pair<std::string, Result<ChatTemplate>>> all;
  for (const char* name : {"deepseek-v3", "deepseek-r1", "deepseek-v3.1", "deepseek-v3.2", "kimi-k2"})
    all.emplace_back(name, ChatTemplate::named(name));
  all.emplace_back("glm", ChatTemplate::compile(kGlmTemplate));
  all.emplace_back("json", ChatTemplate::compile(kJsonTemplate));
  all.emplace_back("dsml", ChatTemplate::compile(kDsmlTemplate));
  return all;
}

TEST_CASE("constraint: calls in the form of each family are what the reply parser finds") {
  if (!is_there()) return;
  const Lab lab;
  const OrderedJson weather =
      OrderedJson::parse(R"({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]},
      "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"]})");
  const std::vector<CallableTool> tools = {
      {.name = "get_weather", .parameters = weather},
      {.name = "get-time.2", .parameters = OrderedJson::parse(R"({"type": "object", "properties": {}})")}};
  std::mt19937 random(3);
  for (const auto& [name, chat] : templates()) {
    CAPTURE(name);
    REQUIRE(chat);
    for (const bool is_parallel : {true, false}) {
      const AnswerForm form{.kind = AnswerForm::Kind::calls, .tools = tools, .is_parallel = is_parallel};
      const auto composed = compose_form(form, Reasoning::none, chat, lab.tokenizer);
      REQUIRE_MESSAGE(composed, (composed ? "" : composed.error().message));
      const auto constraint = lab.constraint(*composed);
      std::set<std::string> called;
      size_t most = 0;
      for (int round = 0; round < 12; ++round) {
        const std::vector<uint32_t> answer = lab.walk(*constraint, random, 1500);
        REQUIRE(answer.back() == kEnd);
        const std::string text = lab.text(answer);
        CAPTURE(text);
        const auto syntax = ToolSyntax::of(*chat);
        REQUIRE(syntax);
        ReplyParser parser({.tools = tools, .family = syntax->family()});
        std::vector<ReplyPart> parts = parser.push(text);
        std::ranges::move(parser.finish(), std::back_inserter(parts));
        std::vector<std::string> arguments;
        for (const ReplyPart& part : parts) {
          REQUIRE(part.kind != ReplyPart::Kind::content);
          if (part.kind == ReplyPart::Kind::arguments) {
            REQUIRE(!arguments.empty());
            arguments.back() += part.text;
            continue;
          }
          arguments.emplace_back(part.text + ' ');
          called.insert(part.text);
        }
        most = std::max(most, arguments.size());
        REQUIRE(!arguments.empty());
        for (const std::string& each : arguments) {
          const auto json = OrderedJson::parse(each.substr(each.find(' ')), nullptr, false);
          REQUIRE(json.is_object());
          if (!each.starts_with("get_weather")) continue;
          CHECK((json["city"] == "Rome" || json["city"] == "Oslo"));
          CHECK(json["days"].get<int>() >= 1);
          CHECK(json["days"].get<int>() <= 9);
          CHECK(json.size() == 2);
        }
      }
      CHECK(called == std::set<std::string>{"get_weather", "get-time.2"});
      CHECK((most > 1) == is_parallel);
    }
  }
}

/// Whether every token of a text may follow those before it, and then the end.
bool fits(const Lab& lab, TokenConstraint& constraint, const std::string& text) {
  const std::vector<uint32_t> tokens = *lab.tokenizer.encode(text, SpecialTokens::parse);
  for (size_t count = 0; count <= tokens.size(); ++count) {
    const auto bits = constraint.allowed_after(std::span(tokens).first(count));
    if (!bits || !allows(*bits, count < tokens.size() ? tokens[count] : kEnd)) return false;
  }
  return true;
}

TEST_CASE("constraint: arguments of any name, of patterns and of any value can be calls of every family") {
  if (!is_there()) return;
  const Lab lab;
  for (
      const char* parameters :
      {R"({"type":"object","patternProperties":{"^k[0-9]$":{"type":"integer"}},"additionalProperties":false})",
       R"({"type":"object","additionalProperties":{"type":"string"}})",
       R"({"anyOf":[{"required":["a"]},{"required":["b"]}]})",
       R"({"type":"object","properties":{"a":{"type":["string","null"]},"b":{"enum":["x",1,[]]}},"propertyNames":{"minLength":1}})",
       "{}", "true"}) {
    CAPTURE(parameters);
    for (const auto& [name, chat] : templates()) {
      CAPTURE(name);
      const auto form = ToolSyntax::of(*chat)->calls({{.name = "f", .parameters = OrderedJson::parse(parameters)}},
                                                     false, lab.tokenizer);
      REQUIRE_MESSAGE(form, (form ? "" : form.error().message));
      const auto made = lab.compile(*form);
      CHECK_MESSAGE(made, (made ? "" : made.error().message));
    }
  }
}

TEST_CASE("constraint: 128 tools fit, in every family") {
  if (!is_there()) return;
  const Lab lab;
  std::vector<CallableTool> tools;
  for (int i = 0; i < 128; ++i)
    tools.push_back({.name = "tool_" + std::to_string(i),
                     .parameters = OrderedJson::parse(R"({"type":"object","properties":{"path":{"type":"string"},
                         "limit":{"type":"integer","minimum":1},"flags":{"type":"array","items":{"type":"string"}}},
                         "required":["path"]})")});
  for (const auto& [name, chat] : templates()) {
    CAPTURE(name);
    const auto syntax = ToolSyntax::of(*chat);
    REQUIRE(syntax);
    const auto form = syntax->calls(tools, true, lab.tokenizer);
    REQUIRE(form);
    const auto made = lab.compile(*form);
    CHECK_MESSAGE(made, (made ? "" : made.error().message));
  }
}

TEST_CASE("constraint: with strict tools the text is free, and calls are held to their schemas") {
  if (!is_there()) return;
  const Lab lab;
  const std::vector<CallableTool> tools = {
      {.name = "get_weather", .parameters = OrderedJson::parse(R"({"type": "object",
      "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]})")}};
  std::mt19937 random(5);
  for (const auto& [name, chat] : templates()) {
    CAPTURE(name);
    AnswerForm form{.kind = AnswerForm::Kind::calls, .tools = tools, .is_parallel = false};
    const auto forced = compose_form(form, Reasoning::none, chat, lab.tokenizer);
    REQUIRE(forced);
    const std::vector<uint32_t> call = lab.walk(*lab.constraint(*forced), random, 1500);
    REQUIRE(call.back() == kEnd);
    const std::string text = lab.text(call);
    CAPTURE(text);
    form.kind = AnswerForm::Kind::strict_calls;
    const auto composed = compose_form(form, Reasoning::none, chat, lab.tokenizer);
    REQUIRE(composed);
    const auto constraint = lab.constraint(*composed);
    CHECK(fits(lab, *constraint, "Let me see: {1 < 2}\n"));
    CHECK(fits(lab, *constraint, "<think>Rome?</think>Let me see. "));
    CHECK(fits(lab, *constraint, "Let me see. " + text));
    CHECK_FALSE(fits(lab, *constraint, "Let me see. " + text + text));
    for (const auto& [right, wrong] : {std::pair("get_weather", "get_whether"), std::pair("Rome", "Oslo")}) {
      std::string other = "Let me see. " + text;
      other.replace(other.find(right), std::string_view(right).size(), wrong);
      CHECK_FALSE(fits(lab, *constraint, other));
    }
  }
}

TEST_CASE("constraint: an answer is complete where nothing but its end may follow") {
  if (!is_there()) return;
  const Lab lab;
  const std::vector<CallableTool> tools = {
      {.name = "get_weather", .parameters = OrderedJson::parse(R"({"type": "object",
      "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]})")}};
  std::vector<OrderedJson> forms = {json_form(OrderedJson::parse(R"({"enum": [1, 12, "x"]})")),
                                    json_form({{"type", "object"}})};
  for (const auto& [name, chat] : templates()) {
    for (const bool is_parallel : {true, false}) {
      for (const AnswerForm::Kind kind : {AnswerForm::Kind::calls, AnswerForm::Kind::strict_calls}) {
        const AnswerForm form{.kind = kind, .tools = tools, .is_parallel = is_parallel};
        const auto composed = compose_form(form, Reasoning::none, chat, lab.tokenizer);
        REQUIRE(composed);
        forms.push_back(*composed);
      }
    }
  }
  std::mt19937 random(11);
  size_t ends = 0;
  for (const OrderedJson& form : forms) {
    CAPTURE(form.dump());
    const auto constraint = lab.constraint(form);
    for (int round = 0; round < 3; ++round) {
      const std::vector<uint32_t> answer = lab.walk(*constraint, random, 200);
      const auto other = constraint->restart();
      for (size_t count = 0; count <= answer.size(); ++count) {
        const std::span part = std::span(answer).first(count);
        const auto complete = constraint->is_complete(part);
        REQUIRE(complete);
        CHECK(*complete == (lab.allowed(*other, part) == std::vector<uint32_t>{kEnd}));
        CHECK(lab.allowed(*constraint, part) == lab.allowed(*other, part));
        ends += *complete ? 1 : 0;
      }
    }
  }
  CHECK(ends > forms.size());
}

TEST_CASE("constraint: a whole answer ends, though no end token may be chosen, with drafts and without") {
  if (!is_there()) return;
  test::RecordingModel rig(test::tiny_folder());
  const Lab lab;
  const OrderedJson form = json_form(OrderedJson::parse(R"({"enum": ["Paris", "Rome", "Oslo"]})"));
  const std::vector<uint32_t> prompt = *lab.tokenizer.encode("What is the capital of France? ", SpecialTokens::parse);
  for (const std::optional<uint32_t> drafts : {std::optional<uint32_t>(), std::optional(3U)}) {
    std::optional<SpeculationOptions> way;
    if (drafts) way = SpeculationOptions{.drafts = drafts};
    Session session = rig.session(way);
    auto sampler = Sampler::make({.logit_bias = {{kEnd, -std::numeric_limits<double>::infinity()}}});
    REQUIRE(sampler);
    sampler->constrain(lab.constraint(form));
    const auto answer =
        session.generate(prompt, {.max_tokens = 50, .end_tokens = {kEnd}}, *sampler, [](uint32_t) { return true; }, {});
    REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
    CHECK(answer->reason == StopReason::end_token);
    CHECK(lab.text(answer->tokens).ends_with('"'));
  }
}

TEST_CASE("constraint: a template that writes no calls cannot be forced, by name") {
  const Lab lab;
  const AnswerForm form{.kind = AnswerForm::Kind::calls, .tools = {{.name = "f", .parameters = true}}};
  const auto refused =
      compose_form(form, Reasoning::none, ChatTemplate::compile("{{ messages[0].content }}"), lab.tokenizer);
  REQUIRE(!refused);
  CHECK(refused.error().kind == ErrorKind::unsupported);
  CHECK(refused.error().message.find("tool_choice") != std::string::npos);
}

TEST_CASE("constraint: the model's answer is JSON of the schema, the same with drafts as without") {
  if (!is_there()) return;
  test::RecordingModel rig(test::tiny_folder());
  const Lab lab;
  OrderedJson form = json_form(OrderedJson::parse(R"({"type": "object", "properties": {
      "city": {"enum": ["Paris", "Rome"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
      "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}},
      "required": ["city", "count", "list"]})"));
  auto grammar = form["grammar"].get<std::string>();
  grammar.replace(grammar.find("{0,12}"), 6, "{0,1}");  // of white space: the rig has room for a short answer
  form["grammar"] = grammar;
  const std::vector<uint32_t> prompt = *lab.tokenizer.encode("What is the capital of France? ", SpecialTokens::parse);
  for (const double penalty : {1.0, 1.3}) {
    std::vector<std::vector<uint32_t>> answers;
    for (const std::optional<uint32_t> drafts : {std::optional<uint32_t>(), std::optional(1U), std::optional(3U)}) {
      std::optional<SpeculationOptions> way;
      if (drafts) way = SpeculationOptions{.drafts = drafts};
      Session session = rig.session(way);
      auto sampler = Sampler::make({.repetition_penalty = penalty});
      REQUIRE(sampler);
      sampler->constrain(lab.constraint(form));
      CHECK(!sampler->takes_highest());
      const auto answer = session.generate(prompt, {.max_tokens = 200, .end_tokens = {kEnd}}, *sampler,
                                           [](uint32_t) { return true; }, {});
      REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
      CHECK(answer->reason == StopReason::end_token);
      answers.push_back(answer->tokens);
      const auto json = OrderedJson::parse(lab.text(answer->tokens), nullptr, false);
      REQUIRE(json.is_object());
      CHECK(json.size() == 3);
      CHECK((json["city"] == "Paris" || json["city"] == "Rome"));
      CHECK(json["list"].size() >= 2);
    }
    CHECK(answers[0] == answers[1]);
    CHECK(answers[0] == answers[2]);
  }
}

}  // namespace
}  // namespace dspack::runtime::token_constraint_test
