#include "runtime/text/reply_parser.h"

#include <doctest/doctest.h>

#include <random>

namespace dspack::reply_parser_test {

using namespace dspack::runtime;
using Kind = ReplyPart::Kind;

namespace {

/// Neighbouring parts of a kind are one.
std::vector<ReplyPart> read(const std::vector<std::string>& pieces, bool reasons) {
  ReplyParser parser(reasons);
  std::vector<ReplyPart> all;
  const auto take = [&all](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      if (!all.empty() && all.back().kind == part.kind && part.kind != Kind::call) {
        all.back().text += part.text;
      } else {
        all.push_back(part);
      }
    }
  };
  for (const std::string& piece : pieces)
    take(parser.push(piece));
  take(parser.finish());
  return all;
}

struct Case {
  std::string name;
  std::string text;
  bool reasons = false;
  std::vector<ReplyPart> wanted;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"plain", "Hello <b>world</b>.\n", false, {{Kind::content, "Hello <b>world</b>.\n"}}},
      {"nothing", " \n", false, {}},
      {"a thought", "<think>\nhm\n</think>\n\nYes.", false, {{Kind::reasoning, "\nhm"}, {Kind::content, "Yes."}}},
      {"a thought that the prompt began",
       "hm < 3</think>Yes.",
       true,
       {{Kind::reasoning, "hm < 3"}, {Kind::content, "Yes."}}},
      {"a thought that is cut", "hm </thi", true, {{Kind::reasoning, "hm </thi"}}},
      {"DeepSeek-V3",
       "Let me look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": "
       "\"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       false,
       {{Kind::content, "Let me look."},
        {Kind::call, "weather"},
        {Kind::arguments, "{\"city\": \"Paris\"}"},
        {Kind::call, "time"},
        {Kind::arguments, "{}"}}},
      {"DeepSeek-V3.1",
       "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"``` Paris\"}"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       true,
       {{Kind::call, "weather"}, {Kind::arguments, "{\"city\": \"``` Paris\"}"}}},
      {"Kimi-K2",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:weather:0<|tool_call_argument_begin|>{\"a\": 1}"
       "<|tool_call_end|><|tool_calls_section_end|>",
       false,
       {{Kind::call, "get:weather", "functions.get:weather:0"}, {Kind::arguments, "{\"a\": 1}"}}},
      {"DeepSeek-V3.2, within a thought",
       "hm <｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
       "string=\"true\">1 "
       "\"x\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       true,
       {{Kind::reasoning, "hm"}, {Kind::call, "weather"}, {Kind::arguments, R"({"city":"1 \"x\"","days":[1, 2]})"}}},
      {"GLM",
       "Look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
       "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now</tool_call>",
       false,
       {{Kind::content, "Look."},
        {Kind::call, "weather"},
        {Kind::arguments, R"({"city":"Paris","days":3})"},
        {Kind::call, "now"},
        {Kind::arguments, "{}"}}},
      {"a call as JSON",
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>",
       false,
       {{Kind::call, "f"}, {Kind::arguments, R"({"a":[1]})"}}},
      {"a call that is cut",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\"",
       false,
       {{Kind::call, "f"}, {Kind::arguments, "{\"a\""}}},
      {"a mark that is cut", "so <｜tool▁calls", false, {{Kind::content, "so <｜tool▁calls"}}},
      {"arguments that are no JSON",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>not JSON<｜tool▁call▁end｜>",
       false,
       {{Kind::call, "f"}, {Kind::arguments, "not JSON"}}},
  };
  return kCases;
}

}  // namespace

TEST_CASE("reply: reasoning, content and calls in the forms of the templates") {
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    CHECK(read({each.text}, each.reasons) == each.wanted);
  }
}

TEST_CASE("reply: however the text is cut, the parts are the same") {
  std::mt19937 random(7);
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < each.text.size();) {
        const size_t length = round == 0 ? 1 : 1 + random() % 9;
        pieces.push_back(each.text.substr(at, length));
        at += length;
      }
      CHECK(read(pieces, each.reasons) == each.wanted);
    }
  }
}

TEST_CASE("reply: where no calls are expected, what looks like one is content") {
  ReplyParser parser(true, ReplyParser::Calls::none);
  std::string content;
  for (const char* piece : {"so</thi", "nk>\n[\"<tool_", "call> x\"", "]"})
    for (const ReplyPart& part : parser.push(piece))
      if (part.kind == Kind::content) content += part.text;
  CHECK(parser.finish().empty());
  CHECK(content == "[\"<tool_call> x\"]");
}

TEST_CASE("reply: marks are known as tokens") {
  CHECK(ReplyParser::is_mark("</think>"));
  CHECK(ReplyParser::is_mark("<|tool_call_argument_begin|>"));
  CHECK_FALSE(ReplyParser::is_mark("<｜end▁of▁sentence｜>"));
}

}  // namespace dspack::reply_parser_test
