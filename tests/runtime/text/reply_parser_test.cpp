#include "runtime/text/reply_parser.h"

#include <doctest/doctest.h>

#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace dspack::reply_parser_test {

using namespace dspack::runtime;
using Kind = ReplyPart::Kind;

namespace {

struct Reply {
  std::vector<ReplyPart> parts;  // neighbouring parts of a kind are one
  ReplyCalls calls = ReplyCalls::none;
  [[nodiscard]] bool operator==(const Reply&) const = default;
};

Reply read(const std::vector<std::string>& pieces, const ReplyForm& form) {
  ReplyParser parser(form);
  Reply all;
  const auto take = [&all](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      if (!all.parts.empty() && all.parts.back().kind == part.kind && part.kind != Kind::call) {
        all.parts.back().text += part.text;
      } else {
        all.parts.push_back(part);
      }
    }
  };
  for (const std::string& piece : pieces)
    take(parser.push(piece));
  take(parser.finish());
  all.calls = parser.calls();
  return all;
}

OrderedJson schema(const char* properties) {
  return {{"type", "object"}, {"properties", OrderedJson::parse(properties)}};
}

const std::vector<CallableTool>& tools() {
  static const std::vector<CallableTool> kTools = {
      {"weather", schema(R"({"city": {"type": "string"}, "days": {"type": "integer"}})")},
      {"now", schema("{}")},
      {"get:weather", OrderedJson()},
      {"function", OrderedJson()},
      {"weather_1", OrderedJson()},
      {"write", schema(R"({"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"},
                           "size": {"type": "number"}, "note": {"type": ["string", "null"]}, "tag": {"enum": ["1", "2"]},
                           "by": {"$ref": "#/$defs/name"}, "any": {}, "list": {"anyOf": [{"type": "array"},
                           {"type": "null"}]}, "flag": {"type": "boolean"}})")},
  };
  return kTools;
}

struct Case {
  std::string name;
  std::string text;
  bool reasons = false;
  std::vector<ReplyPart> wanted;
  ReplyCalls calls = ReplyCalls::none;
  std::optional<ToolFamily> family = {};
};

std::string dsml(const std::string& calls) {
  return "<｜DSML｜function_calls>\n" + calls + "</｜DSML｜function_calls>";
}

std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜invoke>\n";
}

std::string parameter(const std::string& name, const std::string& value, bool is_text = true) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_text ? "true" : "false") + "\">" + value +
         "</｜DSML｜parameter>\n";
}

std::string glm(const std::string& name, const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string text = "<tool_call>" + name + "\n";
  for (const auto& [key, value] : arguments)
    text += "<arg_key>" + key + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
  return text + "</tool_call>";
}

std::string v31(const std::string& name, const std::string& arguments) {
  return "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>";
}

std::string kimi(const std::string& id, const std::string& arguments) {
  return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments + "<|tool_call_end|>";
}

std::string deepseek_block(const std::string& calls) {
  return "<｜tool▁calls▁begin｜>" + calls + "<｜tool▁calls▁end｜>";
}

std::string kimi_block(const std::string& calls) {
  return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
}

/// That stays what it is.
Case text_case(const std::string& name, const std::string& text, std::optional<ToolFamily> family = {}) {
  return {.name = name, .text = text, .wanted = {{Kind::content, text}}, .family = family};
}

Case thought_case(const std::string& name, const std::string& thought, std::optional<ToolFamily> family = {}) {
  return {.name = name,
          .text = thought + "</think>\n\nYes.",
          .reasons = true,
          .wanted = {{Kind::reasoning, thought}, {Kind::content, "Yes."}},
          .family = family};
}

Case call_case(const std::string& name, const std::string& text, const std::string& tool, const std::string& arguments,
               const std::string& id = {}) {
  return {.name = name,
          .text = text,
          .wanted = {{Kind::call, tool, id}, {Kind::arguments, arguments}},
          .calls = ReplyCalls::whole};
}

std::vector<Case> plain_cases() {
  return {
      text_case("plain", "Hello <b>world</b>.\n"),
      text_case("white space alone", " \n"),
      {"a thought", "<think>\nhm\n</think>\n\nYes.\n", false, {{Kind::reasoning, "\nhm"}, {Kind::content, "Yes.\n"}}},
      {"a thought that the prompt began",
       "hm < 3</think>Yes.",
       true,
       {{Kind::reasoning, "hm < 3"}, {Kind::content, "Yes."}}},
      {"a thought that is cut", "hm </thi", true, {{Kind::reasoning, "hm </thi"}}},
  };
}

std::vector<Case> family_cases() {
  return {
      {"DeepSeek-V3",
       "Let me look.\n" +
           deepseek_block("<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```"
                          "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
                          "<｜tool▁call▁end｜>"),
       false,
       {{Kind::content, "Let me look."},
        {Kind::call, "weather"},
        {Kind::arguments, "{\"city\": \"Paris\"}"},
        {Kind::call, "now"},
        {Kind::arguments, "{}"}},
       ReplyCalls::whole,
       ToolFamily::v3},
      {"DeepSeek-V3.1",
       "</think>" + deepseek_block(v31("weather", "{\"city\": \"``` Paris\"}")),
       true,
       {{Kind::call, "weather"}, {Kind::arguments, "{\"city\": \"``` Paris\"}"}},
       ReplyCalls::whole,
       ToolFamily::v31},
      call_case("DeepSeek-V3.1, a tool named function", deepseek_block(v31("function", "{\"a\": 1}")), "function",
                "{\"a\": 1}"),
      {"DeepSeek-V3.2",
       "Look.\n\n" + dsml(invoke("weather", parameter("city", "1 \"x\"") + parameter("days", "[1, 2.50]", false)) +
                          invoke("now", "")),
       false,
       {{Kind::content, "Look."},
        {Kind::call, "weather"},
        {Kind::arguments, R"({"city":"1 \"x\"","days":[1, 2.50]})"},
        {Kind::call, "now"},
        {Kind::arguments, "{}"}},
       ReplyCalls::whole,
       ToolFamily::dsml},
      call_case("DeepSeek-V4's name of the block",
                "<｜DSML｜tool_calls>\n" + invoke("now", "") + "</｜DSML｜tool_calls>", "now", "{}"),
      call_case("DSML, text or not by the schema",
                dsml(invoke("weather",
                            "<｜DSML｜parameter name=\"city\">5</｜DSML｜parameter>\n"
                            "<｜DSML｜parameter name=\"days\">5</｜DSML｜parameter>\n")),
                "weather", R"({"city":"5","days":5})"),
      {"GLM",
       "Look.\n" + glm("weather", {{"city", "Paris"}, {"days", "3"}}) + "\n<tool_call>now</tool_call>\nDone.",
       false,
       {{Kind::content, "Look."},
        {Kind::call, "weather"},
        {Kind::arguments, R"({"city":"Paris","days":3})"},
        {Kind::call, "now"},
        {Kind::arguments, "{}"},
        {Kind::content, "\nDone."}},
       ReplyCalls::whole,
       ToolFamily::glm},
      {"JSON between marks",
       "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"a\": [1.10, \"</tool_call>\", "
       "123456789012345678901]}}\n</tool_call>",
       false,
       {{Kind::call, "weather"}, {Kind::arguments, R"({"a": [1.10, "</tool_call>", 123456789012345678901]})"}},
       ReplyCalls::whole,
       ToolFamily::json},
      call_case("JSON, its arguments a string", R"(<tool_call>{"arguments": "{\"a\":1}", "name": "now"}</tool_call>)",
                "now", "{\"a\":1}"),
      {"Kimi-K2",
       kimi_block(kimi("functions.get:weather:0", "{\"a\": \"<|tool_call_end|>\"}") + "\n" +
                  kimi("functions.now:1", "{}")),
       false,
       {{Kind::call, "get:weather", "functions.get:weather:0"},
        {Kind::arguments, "{\"a\": \"<|tool_call_end|>\"}"},
        {Kind::call, "now", "functions.now:1"},
        {Kind::arguments, "{}"}},
       ReplyCalls::whole,
       ToolFamily::kimi},
      {"Kimi-K2, no block",
       "Sure." + kimi("functions.weather:0", "{}"),
       false,
       {{Kind::content, "Sure."}, {Kind::call, "weather", "functions.weather:0"}, {Kind::arguments, "{}"}},
       ReplyCalls::whole},
      call_case("Kimi-K2, an id with underscores", kimi("functions_weather_2", "{}"), "weather", "{}",
                "functions_weather_2"),
      call_case("Kimi-K2, a name that looks numbered", kimi("functions.weather_1", "{}"), "weather_1", "{}",
                "functions.weather_1"),
      call_case("Kimi-K2, a name alone", kimi("now", "{}"), "now", "{}", "now"),
      {"a call whose end is forgotten",
       "<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_argument_begin|>{\"a\": 1}\n" + kimi("now", "{}"),
       false,
       {{Kind::call, "now", "now"},
        {Kind::arguments, "{\"a\": 1}"},
        {Kind::call, "now", "now"},
        {Kind::arguments, "{}"}},
       ReplyCalls::whole},
  };
}

std::vector<Case> text_cases() {
  return {
      text_case("marks in prose", "In HTML, `<tool_call>` is no tag; close with `</tool_call>`. The end.\n"),
      text_case("marks of all families in prose",
                "<|tool_calls_section_begin|> and <｜tool▁calls▁begin｜>, \n<｜DSML｜function_calls>\n and "
                "<｜DSML｜invoke name=\"f\">, <|tool_call_begin|> or\n\n<｜tool▁call▁begin｜> \n"),
      text_case("a tool's name in prose", "<tool_call>weather is what I would call</tool_call>"),
      text_case("an unknown name, V3",
                deepseek_block("<｜tool▁call▁begin｜>function<｜tool▁sep｜>nope\n```json\n{}\n```"
                               "<｜tool▁call▁end｜>")),
      text_case("an unknown name, V3.1", "Well.\n" + deepseek_block(v31("nope", "{}"))),
      text_case("an unknown name, DSML", dsml(invoke("nope", parameter("a", "1")))),
      text_case("an unknown name, GLM", glm("nope", {{"a", "b"}})),
      text_case("an unknown name, JSON", R"(<tool_call>{"name": "nope", "arguments": {}}</tool_call>)"),
      text_case("an unknown name, Kimi", kimi_block(kimi("functions.nope:0", "{}"))),
      text_case("an id without a name, Kimi", kimi_block(kimi("call_7", "{}"))),
      text_case("a block of nothing", kimi_block("") + deepseek_block("") + dsml("")),
      text_case("marks of another family", glm("weather", {{"city", "Paris"}}), ToolFamily::kimi),
      text_case("marks of another family, reversed", kimi("now", "{}"), ToolFamily::glm),
      text_case("DSML marks for V3.1", dsml(invoke("now", "")), ToolFamily::v31),
      {"an unknown name after a call",
       kimi_block(kimi("now", "{}") + kimi("nope", "{}")) + ".",
       false,
       {{Kind::call, "now", "now"},
        {Kind::arguments, "{}"},
        {Kind::content, kimi("nope", "{}") + "<|tool_calls_section_end|>."}},
       ReplyCalls::whole},
      {"text after a block",
       dsml(invoke("now", "")) + "and more",
       false,
       {{Kind::call, "now"}, {Kind::arguments, "{}"}, {Kind::content, "and more"}},
       ReplyCalls::whole},
      // What cannot be read.
      text_case("DSML, a parameter that is none",
                dsml(invoke("write", "<parameter name=\"mode\">1</｜DSML｜parameter>\n"))),
      text_case("DSML, a parameter without its end",
                dsml(invoke("now", "<｜DSML｜parameter name=\"a\" string=\"true\">1\n"))),
      text_case("DSML, text beside parameters", dsml(invoke("now", "so: " + parameter("a", "1")))),
      text_case("DSML, no JSON", dsml(invoke("now", parameter("a", "not json", false)))),
      text_case("DSML, an unknown attribute",
                dsml(invoke("now", "<｜DSML｜parameter name=\"a\" string=\"maybe\">1</｜DSML｜parameter>\n"))),
      text_case("GLM, a key without a value", "<tool_call>weather<arg_key>city</arg_key></tool_call>"),
      text_case("JSON that is none", "<tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call>"),
      text_case("JSON without arguments", "<tool_call>{\"name\": \"now\"}</tool_call>"),
      text_case("arguments that are no object", deepseek_block(v31("now", "not JSON"))),
      text_case("no arguments at all", kimi_block(kimi("now", ""))),
      // What is cut.
      text_case("a mark", "so <｜tool▁calls"),
      text_case("a block", "so \n<｜tool▁calls▁begin｜>\n"),
      text_case("a head", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weat"),
      text_case("a DSML name", "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weat"),
      text_case("a DSML value", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n" +
                                    parameter("city", "Rome") + "<｜DSML｜parameter name=\"days\" string=\"false\">1"),
      text_case("a GLM value", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ro"),
      text_case("JSON", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1"),
      {"arguments",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\"",
       false,
       {{Kind::call, "now"}, {Kind::arguments, "{\"a\""}},
       ReplyCalls::broken},
      {"arguments with a fence",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"a\": 1\n``",
       false,
       {{Kind::call, "now"}, {Kind::arguments, "{\"a\": 1"}},
       ReplyCalls::broken},
      {"arguments, another family",
       "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{\"a\": \"<|tool_call_end|>",
       false,
       {{Kind::call, "now", "functions.now:0"}, {Kind::arguments, "{\"a\": \"<|tool_call_end|>"}},
       ReplyCalls::broken},
      {"arguments that the model has left open",
       deepseek_block(v31("now", "{\"a\": 1") + v31("now", "{}")),
       false,
       {{Kind::call, "now"}, {Kind::arguments, "{\"a\": 1"}, {Kind::call, "now"}, {Kind::arguments, "{}"}},
       ReplyCalls::broken},
  };
}

std::vector<Case> thought_cases() {
  const auto call = [](const std::string& name, const std::string& text, const std::string& id = {}) {
    return Case{.name = name,
                .text = "hm \n" + text + "\nYes.",
                .reasons = true,
                .wanted = {{Kind::reasoning, "hm"},
                           {Kind::call, "now", id},
                           {Kind::arguments, "{}"},
                           {Kind::reasoning, "\nYes."}},
                .calls = ReplyCalls::whole};
  };
  return {
      call("DSML", dsml(invoke("now", ""))),
      call("GLM", "<tool_call>now</tool_call>"),
      call("JSON", "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"),
      call("V3.1", deepseek_block(v31("now", "{}"))),
      call("Kimi", kimi_block(kimi("functions.now:3", "{}")), "functions.now:3"),
      {"the thought ends after the call",
       "hm\n" + kimi_block(kimi("now", "{}")) + "\n</think>\n",
       true,
       {{Kind::reasoning, "hm"}, {Kind::call, "now", "now"}, {Kind::arguments, "{}"}},
       ReplyCalls::whole},
      thought_case("marks", "I could write <tool_call> or\n<｜DSML｜function_calls>\n here"),
      thought_case("an unknown name", kimi_block(kimi("functions.nope:0", "{}"))),
      thought_case("arguments that are no object", "so " + deepseek_block(v31("now", "{\"a\" 1}")) + " no"),
      thought_case("marks of another family", dsml(invoke("now", "")), ToolFamily::kimi),
      {"a call that is cut",
       "hm \n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\"",
       true,
       {{Kind::reasoning, "hm \n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\""}}},
      {"a call that is cut, GLM",
       "hm \n<tool_call>now\n<arg_key>",
       true,
       {{Kind::reasoning, "hm \n<tool_call>now\n<arg_key>"}}},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& some : {plain_cases(), family_cases(), text_cases(), thought_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

ReplyForm form_of(const Case& each) {
  return {.reasons = each.reasons, .tools = tools(), .family = each.family};
}

std::vector<std::string> bytes_of(const std::string& text) {
  std::vector<std::string> bytes;
  for (const char c : text)
    bytes.emplace_back(1, c);
  return bytes;
}

}  // namespace

TEST_CASE("reply: reasoning, content and calls in the forms of the templates") {
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    const Reply reply = read({each.text}, form_of(each));
    CHECK(reply.parts == each.wanted);
    CHECK(reply.calls == each.calls);
  }
}

TEST_CASE("reply: however the text is cut, the parts are the same") {
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    const Reply whole{each.wanted, each.calls};
    CHECK(read(bytes_of(each.text), form_of(each)) == whole);
    for (size_t at = 1; at < each.text.size(); ++at)
      CHECK(read({each.text.substr(0, at), each.text.substr(at)}, form_of(each)) == whole);
  }
}

TEST_CASE("reply: where no tools are offered, marks of calls are text, however it is cut") {
  for (const Case& each : cases()) {
    CAPTURE(each.name);
    const ReplyForm form = {.reasons = each.reasons, .family = each.family};
    const Reply whole = read({each.text}, form);
    CHECK(whole.calls == ReplyCalls::none);
    std::string text;
    for (const ReplyPart& part : whole.parts)
      text += (part.kind == Kind::content && !text.empty() ? "</think>" : "") + part.text;
    if (each.text.find("think>") == std::string::npos) CHECK(text == each.text);
    for (size_t at = 1; at < each.text.size(); ++at)
      CHECK(read({each.text.substr(0, at), each.text.substr(at)}, form) == whole);
  }
}

TEST_CASE("reply: arguments are told as they come where they are JSON, and calls as wholes where they are not") {
  ReplyParser parser({.tools = tools()});
  (void)parser.push("<|tool_call_begin|>now<|tool_call_argument_begin|>");
  CHECK(parser.push("{\"a\": ").front() == ReplyPart{Kind::call, "now", "now"});
  CHECK(parser.push("12, \"b\"").front() == ReplyPart{Kind::arguments, " 12, \"b\""});
  CHECK(parser.calls() == ReplyCalls::broken);
  ReplyParser tagged({.tools = tools()});
  CHECK(tagged.push("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n").empty());
  CHECK(tagged.push("</tool_call>").size() == 2);
}

TEST_CASE("reply: DeepSeek-V4's answers, as its publisher's parser reads them but for what it swallows or makes up") {
  // Where that parser loses text, or makes a call of what cannot be read, the bytes stay.
  const std::map<std::string, std::vector<ReplyPart>> others = {
      {"string=false but not JSON",
       {{Kind::content, "\n\n<｜DSML｜tool_calls>\n" + invoke("get_weather", parameter("n", "not json", false)) +
                            "</｜DSML｜tool_calls>"}}},
      {"call cut in a value",
       {{Kind::content,
         "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
         "name=\"location\" string=\"true"}}},
      {"call cut after invoke name", {{Kind::content, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_wea"}}},
      {"text after the block",
       {{Kind::call, "get_weather"}, {Kind::arguments, R"({"location":"Oslo"})"}, {Kind::content, "and more"}}},
      {"unknown tool name",
       {{Kind::content, "\n\n<｜DSML｜tool_calls>\n" + invoke("nope", parameter("a", "1")) + "</｜DSML｜tool_calls>"}}},
      {"markup spelled in reasoning",
       {{Kind::reasoning, "I could write <｜DSML｜tool_calls> here"}, {Kind::content, "No."}}},
      {"second </think>", {{Kind::reasoning, "a"}, {Kind::content, "b</think>c"}}},
      {"think tag in chat mode", {{Kind::reasoning, "a"}, {Kind::content, "b"}}},
      {"reasoning with leading newlines", {{Kind::reasoning, "\n\nthink"}, {Kind::content, "Hello.\n"}}},
  };
  std::ifstream file(DSPACK_TEST_DATA "/text/deepseek_v4_replies.json");
  const OrderedJson cases = OrderedJson::parse(file).at("replies");
  size_t different = 0;
  for (const OrderedJson& each : cases) {
    const std::string name = each.at("name");
    CAPTURE(name);
    const ReplyForm form{
        .reasons = each.at("reasons"), .tools = {{"get_weather", nullptr}}, .family = ToolFamily::dsml};
    const std::vector<ReplyPart> parts = read({each.at("reply")}, form).parts;
    if (const auto other = others.find(name); other != others.end()) {
      CHECK(parts == other->second);
      ++different;
      continue;
    }
    std::string reasoning;
    std::string content;
    OrderedJson calls = OrderedJson::array();
    for (const ReplyPart& part : parts) {
      if (part.kind == Kind::reasoning) reasoning += part.text;
      if (part.kind == Kind::content) content += part.text;
      if (part.kind == Kind::call) calls.push_back({part.text, ""});
      if (part.kind == Kind::arguments) calls.back()[1] = OrderedJson::parse(part.text);
    }
    OrderedJson wanted = each.at("calls");
    for (OrderedJson& call : wanted)
      call[1] = OrderedJson::parse(call[1].get<std::string>());
    CHECK(reasoning == each.at("reasoning"));
    CHECK(content == each.at("content"));
    CHECK(calls == wanted);
  }
  CHECK(different == others.size());
  CHECK(cases.size() > 20);
}

TEST_CASE("reply: a text that begins calls without end, and ends none, is text") {
  for (const char* end : {"", "</tool_call>", "\"}</tool_call>"}) {
    std::string text;
    for (int i = 0; i < 40'000; ++i)
      text += "<tool_call>{\"";  // in time, this would take the square of their number
    text += end;
    CHECK(read({text}, {.tools = tools()}) == Reply{{{Kind::content, text}}});
    CHECK(read({text.substr(0, 250'001), text.substr(250'001)}, {.tools = tools()}) == Reply{{{Kind::content, text}}});
  }
}

TEST_CASE("reply: white space without end costs a bounded time, wherever it comes") {
  // 2 MB in pieces of a token: what looks at all of it for each piece reads 64 GB.
  for (const char* front :
       {"", "x", "<tool_call>now</tool_call>", "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\":"}) {
    CAPTURE(front);
    ReplyParser parser({.tools = tools()});
    (void)parser.push(front);
    const std::clock_t begin = std::clock();
    for (int i = 0; i < 65'536; ++i)
      (void)parser.push("                                \n");
    CHECK(std::clock() - begin < 2 * CLOCKS_PER_SEC);
    CHECK(parser.push("end").back().text.ends_with("end"));
  }
}

TEST_CASE("reply: marks are known as tokens") {
  CHECK(is_reply_mark("</think>"));
  CHECK(is_reply_mark("<|tool_call_argument_begin|>"));
  CHECK_FALSE(is_reply_mark("<｜end▁of▁sentence｜>"));
}

}  // namespace dspack::reply_parser_test
