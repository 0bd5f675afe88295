// DeepSeek-V4's encoding of chats. The cases were made by tests/tools/text/deepseek_v4_cases.py, which runs DeepSeek's
// own programs; tests/e2e/test_v4_token_ids.py has the token ids.
#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <set>

#include "golden.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/guarded_text.h"
#include "runtime/text/reply_parser.h"
#include "runtime/text/tool_syntax.h"
#include "small_tokenizer.h"

namespace dspack::deepseek_v4_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";

const OrderedJson& golden() {
  static const OrderedJson kFile = OrderedJson::parse(test_file("text/deepseek_v4_cases.json"));
  return kFile;
}

/// The text of a case; nullopt: it is refused.
std::optional<std::string> text_of(const OrderedJson& each) {
  if (each.at("text").is_null()) return std::nullopt;
  std::string text = each.at("text");
  for (const auto& [name, meant] : golden().at("stands_for").items()) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at))
      text.replace(at, name.size(), meant.get<std::string>());
  }
  return text;
}

const ChatTemplate& chat(bool april) {
  static const std::array<Result<ChatTemplate>, 2> kChats = {ChatTemplate::named("deepseek-v4"),
                                                             ChatTemplate::named("deepseek-v4-april")};
  REQUIRE_MESSAGE(kChats[april].has_value(), (kChats[april] ? "" : kChats[april].error().message));
  return *kChats[april];
}

Result<std::string> write(const OrderedJson& request, bool april, OrderedJson arguments = OrderedJson::object(),
                          RenderOptions options = {}) {
  TRY_ASSIGN(const Conversation read, parse_conversation(request.dump()));
  for (const char* name : {"reasoning_effort", "response_format"})
    if (request.is_object() && request.contains(name)) arguments[name] = request[name];
  options.bos_token = kBegin;
  options.tools = read.tools;
  options.arguments = std::move(arguments);
  // What takes the tools away is not the template's: the server does, and DeepSeek's program of July.
  if (!april && request.is_object() && request.value("tool_choice", "") == "none") options.tools = nullptr;
  return chat(april).render(read.messages, options);
}

Result<std::string> write_case(const OrderedJson& each, RenderOptions options = {}) {
  OrderedJson arguments = OrderedJson::object();
  if (!each.at("thinking").is_null()) arguments["thinking"] = each.at("thinking");
  return write(each.at("request"), each.at("april"), std::move(arguments), std::move(options));
}

std::string written(std::string_view request, bool april = false, OrderedJson arguments = {{"thinking", false}},
                    RenderOptions options = {}) {
  const auto text = write(OrderedJson::parse(request), april, std::move(arguments), std::move(options));
  REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
  return text->substr(kBegin.size());
}

std::string refusal(std::string_view request, bool april = false,
                    const OrderedJson& arguments = {{"thinking", false}}) {
  const auto text = write(OrderedJson::parse(request), april, arguments);
  REQUIRE_FALSE(text.has_value());
  CHECK(text.error().kind == ErrorKind::invalid);
  return text.error().message;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Bytes, and DeepSeek-V4's marks, with ids from 256 on.
const Tokenizer& marking_tokenizer() {
  static const Tokenizer kTokenizer = [] {
    nlohmann::json tokenizer = small_tokenizer();
    uint32_t id = 256;
    for (const char* mark : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
                             "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜action｜>"}) {
      add_token(tokenizer, id, mark, {{"normalized", id % 2 == 0}});
      ++id;
    }
    return load(tokenizer);
  }();
  return kTokenizer;
}

}  // namespace

TEST_CASE("deepseek v4: what DeepSeek's programs write, and what they refuse") {
  // A developer is the system here, as for other models, and strict schemas keep their keys as they stand.
  const std::set<std::string> others = {"developer role", "tool strict"};
  size_t texts = 0;
  size_t refusals = 0;
  for (const OrderedJson& each : golden().at("cases")) {
    const bool april = each.at("april");
    if (!april && others.contains(each.at("name"))) continue;
    CAPTURE(each.at("name").get<std::string>());
    CAPTURE(april);
    CAPTURE(each.at("thinking"));
    const auto text = write_case(each);
    CHECK_MESSAGE(text.has_value() == each.at("text").is_string(), (text ? "" : text.error().message));
    if (text && each.at("text").is_string()) CHECK(*text == *text_of(each));
    ++(text ? texts : refusals);
  }
  CHECK(texts > 200);
  CHECK(refusals > 10);
}

TEST_CASE("deepseek v4: the template's own marks are tokens, and what anybody else spells is text") {
  const Tokenizer& tokenizer = marking_tokenizer();
  const RenderOptions guarding = {.guard = [&](std::string_view text) { return tokenizer.guarded(text); }};
  size_t compared = 0;
  for (const OrderedJson& each : golden().at("cases")) {
    if (each.at("text").is_null()) continue;
    const std::string text = *text_of(each);
    CAPTURE(text);
    const auto guarded_text = write_case(each, guarding);
    REQUIRE(guarded_text.has_value());
    if (each.at("name") != "tool strict") CHECK(unguarded(*guarded_text) == text);
    const std::vector<uint32_t> ids = encode(tokenizer, *guarded_text, SpecialTokens::guarded);
    CHECK(tokenizer.decode(ids, SpecialOutput::keep) == unguarded(*guarded_text));
    if (!each.contains("marks")) continue;
    OrderedJson marks = OrderedJson::array();
    size_t at = 0;
    for (const uint32_t id : ids) {
      const size_t end = at + tokenizer.token_bytes(id).size();
      if (id >= 256) marks.push_back({at, end});
      at = end;
    }
    CHECK(marks == each.at("marks"));
    ++compared;
  }
  CHECK(compared > 20);
}

TEST_CASE("guarded text: has none of the marks that it spells, and is itself again") {
  const Tokenizer& tokenizer = marking_tokenizer();
  const std::vector<std::string> parts = {"<",      "｜", "<｜User｜>", "</think>", "｜DSML｜", "\uFDD2",
                                          "think>", "a",  "\xEF",       " ",        "，"};
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t count = random() % 8; count > 0; --count)
      text += parts[random() % parts.size()];
    CAPTURE(text);
    const std::string guarded_text = tokenizer.guarded(text);
    CHECK(unguarded(guarded_text) == text);
    CHECK(encode(tokenizer, guarded_text, SpecialTokens::guarded) == encode(tokenizer, text, SpecialTokens::as_text));
  }
  CHECK(tokenizer.guarded("a < b") == "a < b");
  CHECK(unguarded("a\uFDD2") == "a");
}

TEST_CASE("deepseek v4: parts of a content have an empty line between, and elsewhere a line feed") {
  const char* talk =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\nc"}, {"type": "text", "text": ""},
                         {"type": "text", "text": "d"}]}])";
  for (const bool april : {false, true})
    CHECK(written(talk, april) == "<｜User｜>a\n\nb\nc\n\n\n\nd<｜Assistant｜></think>");
  const auto other = ChatTemplate::named("deepseek-v3.2")->render(parse_conversation(talk)->messages, {});
  CHECK(*other == "<｜User｜>a\nb\nc\n\nd<｜Assistant｜></think>");
}

TEST_CASE("deepseek v4: a content of very many parts takes the time of its bytes") {
  ChatMessage message{.role = Role::user};
  for (int i = 0; i < 500'000; ++i)
    message.add_part("a");
  const std::clock_t begin = std::clock();
  const auto text = chat(false).render({&message, 1}, {.arguments = {{"thinking", false}}});
  REQUIRE(text.has_value());
  CHECK(text->size() == 500'000 + 2 * 499'999 + std::string_view("<｜User｜><｜Assistant｜></think>").size());
  CHECK(std::clock() - begin < 10 * CLOCKS_PER_SEC);
}

TEST_CASE("deepseek v4: reminders are known to its templates alone") {
  const auto talk =
      parse_conversation(R"([{"role": "latest_reminder", "content": "r"}, {"role": "user", "content": "q"}])");
  REQUIRE(talk.has_value());
  for (const std::string& name : builtin_template_names()) {
    CAPTURE(name);
    const auto text = ChatTemplate::named(name)->render(talk->messages, {});
    CHECK(text.has_value() == name.starts_with("deepseek-v4"));
    if (!text) CHECK(has(text.error().message, "message 0: the role latest_reminder"));
  }
}

TEST_CASE("deepseek v4: an effort says whether to reason, unless a switch does; in April only the most has a text") {
  const char* talk = R"([{"role": "user", "content": "q"}])";
  const std::string question = "<｜User｜>q<｜Assistant｜>";
  CHECK(written(talk, false, {{"reasoning_effort", "none"}}) == question + "</think>");
  CHECK(written(talk, false, {{"reasoning_effort", "minimal"}}) == question + "<think>");
  CHECK(written(talk, false, {{"reasoning_effort", "none"}, {"enable_thinking", true}})
            .starts_with("Reasoning Effort: Abs"));
  CHECK(written(talk, false, {{"reasoning_effort", "max"}, {"enable_thinking", false}}) == question + "</think>");
  CHECK(written(talk, false, OrderedJson::object()).starts_with("Reasoning Effort: Absolute maximum"));
  CHECK(written(talk, true, OrderedJson::object()) == question + "<think>");
  CHECK(written(talk, true, {{"reasoning_effort", "xhigh"}}) == question + "<think>");
  CHECK(written(talk, true, {{"reasoning_effort", "max"}}).starts_with("Reasoning Effort: Absolute maximum"));
  CHECK(written(talk, true, {{"reasoning_effort", "none"}}) == question + "</think>");
  for (const bool april : {false, true})
    CHECK(has(refusal(talk, april, {{"reasoning_effort", "<b>"}}), "none, minimal, low, medium, high, xhigh, max"));
}

TEST_CASE("deepseek v4: a last message is gone on with") {
  const auto continued = [](std::string_view last, bool april, bool thinking) {
    const std::string talk = R"([{"role": "user", "content": "q"}, {"role": "assistant", )" + std::string(last) + "}]";
    return written(talk, april, {{"thinking", thinking}, {"reasoning_effort", "low"}},
                   {.continue_final_message = true});
  };
  const std::string question = "<｜User｜>q<｜Assistant｜>";
  for (const bool april : {false, true}) {
    CHECK(continued(R"("content": "It is ")", april, false) == question + "</think>It is ");
    CHECK(continued(R"("content": "It is", "reasoning_content": "so")", april, true) ==
          question + "<think>so</think>It is");
  }
  CHECK(continued(R"("content": "", "reasoning_content": "so")", false, true) == question + "<think>so");
}

TEST_CASE("deepseek v4: quick tasks, which have their token in place of an answer's beginning") {
  const auto asked = [](std::string_view task, bool april, bool thinking = false) {
    return written(R"([{"role": "user", "content": "q", "task": ")" + std::string(task) + "\"}]", april,
                   {{"thinking", thinking}, {"reasoning_effort", "low"}});
  };
  for (const bool april : {false, true}) {
    for (const char* task : {"query", "authority", "domain", "title", "extracted_url", "read_url"})
      CHECK(asked(task, april) == "<｜User｜>q<｜" + std::string(task) + "｜>");
    CHECK(asked("action", april) == "<｜User｜>q<｜Assistant｜></think><｜action｜>");
    CHECK(asked("action", april, true) == "<｜User｜>q<｜Assistant｜><think><｜action｜>");
    CHECK(
        has(refusal(R"([{"role": "user", "content": "q", "task": "Assistant"}])", april), "a task is none of action"));
    CHECK(written(R"([{"role": "user", "content": "q", "task": "title"}, {"role": "assistant", "content": "t"},
                      {"role": "user", "content": "p"}])",
                  april) == "<｜User｜>q<｜title｜>t<｜end▁of▁sentence｜><｜User｜>p<｜Assistant｜></think>");
  }
}

TEST_CASE("deepseek v4: what cannot be written is refused by its reason") {
  const std::string call =
      R"({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]})";
  const std::string result = R"({"role": "tool", "tool_call_id": "1", "content": "r"})";
  const std::vector<std::pair<std::string, const char*>> mistakes = {
      {R"([{"role": "user"}])", "message 0 (user) has no content"},
      {"[" + result + "]", "of none of the calls in front"},
      {"[" + call + "," + result + "," + result + "]", "of none of the calls in front"},
      {"[" + call + R"(,{"role": "tool", "tool_call_id": "2", "content": "r"}])", "of none of the calls in front"},
      {"[]", "there are no messages"},
      {R"({"messages": [{"role": "user", "content": "q"}], "tools": [{"name": "f"}]})", "a tool has no \"function\""},
      {R"({"messages": [{"role": "user", "content": "q"}], "tools": [{"function": {"name": "a\">"}}]})",
       "the tool's name"},
  };
  for (const auto& [talk, reason] : mistakes) {
    const std::string said = refusal(talk);
    CAPTURE(said);
    CHECK(has(said, reason));
  }
  CHECK(has(
      refusal(R"({"messages": [{"role": "system", "tools": [{"function": {}}]}], "tools": [{"function": {}}]})", true),
      "message 0 and the conversation both have tools"));
}

TEST_CASE("deepseek v4: which rules a model has is said by its kind and by keys of DSpark") {
  CHECK(builtin_template_of("deepseek_v4", true) == "deepseek-v4");
  CHECK(builtin_template_of("deepseek_v4", false) == "deepseek-v4-april");
  CHECK_FALSE(builtin_template_of("deepseek_v41", true).has_value());
  CHECK(builtin_template_of("deepseek_v32", true) == "deepseek-v3.2");
  for (const bool april : {false, true}) {
    CHECK(chat(april).has_thinking_switch());
    CHECK(chat(april).prints_tools());
    const auto syntax = ToolSyntax::of(chat(april));
    REQUIRE(syntax.has_value());
    CHECK(syntax->family() == ToolFamily::dsml);
  }
}

TEST_CASE("reply: DeepSeek-V4's answers are the same wherever they are cut") {
  const OrderedJson file = OrderedJson::parse(test_file("text/deepseek_v4_replies.json"));
  size_t cuts = 0;
  for (const OrderedJson& each : file.at("replies")) {
    const std::string reply = each.at("reply");
    const auto read = [&](size_t cut) {
      ReplyParser parser(
          {.reasons = each.at("reasons"), .tools = {{"get_weather", nullptr}}, .family = ToolFamily::dsml});
      std::vector<std::pair<ReplyPart::Kind, std::string>> joined;
      for (const auto& parts : {parser.push(reply.substr(0, cut)), parser.push(reply.substr(cut)), parser.finish()}) {
        for (const ReplyPart& part : parts) {
          if (!joined.empty() && joined.back().first == part.kind && part.kind != ReplyPart::Kind::call)
            joined.back().second += part.text;
          else
            joined.emplace_back(part.kind, part.text);
        }
      }
      return joined;
    };
    const auto whole = read(reply.size());
    for (size_t cut = 0; cut < reply.size(); ++cut, ++cuts)
      CHECK(read(cut) == whole);
  }
  CHECK(cuts > 2000);
}

TEST_CASE("reply: calls of DeepSeek-V4 that are not quite of the form are passed on, to the byte") {
  using Kind = ReplyPart::Kind;
  const auto read = [](const std::string& reply) {
    ReplyParser parser({.tools = {{"f", nullptr}}, .family = ToolFamily::dsml});
    std::vector<ReplyPart> parts = parser.push(reply);
    std::ranges::move(parser.finish(), std::back_inserter(parts));
    return parts;
  };
  const std::string begin = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n";
  const std::string end = "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  const std::string argument = "<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n";
  const std::vector<std::string> texts = {
      begin + "<｜DSML｜ parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n" + end,  // a blank
      begin + "<｜DSML｜parameter name=\"a\" string=\"true\"1</｜DSML｜parameter>\n" + end,    // no >
      "<｜｜DSML｜｜tool_calls>\n<｜｜DSML｜｜invoke name=\"f\">\n</｜｜DSML｜｜invoke>",
      begin + argument + "</｜DSML｜invoke",
      begin + "a=1\n" + end,
  };
  for (const std::string& text : texts) {
    CAPTURE(text);
    std::string content;
    for (const ReplyPart& part : read(text)) {
      CHECK(part.kind == Kind::content);
      content += part.text;
    }
    CHECK(content == text);
  }
  // What only lacks its frame, or its end, is a call; and so is one whose arguments stand in one of that name.
  const ReplyPart one{Kind::arguments, R"({"a":"1"})"};
  CHECK(read("<｜DSML｜invoke name=\"f\">\n" + argument + "</｜DSML｜invoke>") ==
        std::vector{ReplyPart{Kind::call, "f"}, one});
  CHECK(read(begin + argument + "</｜DSML｜invoke>\n") == std::vector{ReplyPart{Kind::call, "f"}, one});
  CHECK(read(begin + "<｜DSML｜parameter name=\"arguments\" string=\"false\">{\"a\": 1}</｜DSML｜parameter>\n" + end)[1]
            .text == R"({"arguments":{"a": 1}})");
}

TEST_CASE("reply: where </think> is told by its token, one that is spelled is text, and one too many is left out") {
  using Kind = ReplyPart::Kind;
  struct Piece {
    std::string text;
    bool is_mark = false;
  };
  const Piece end{"</think>", true};
  const auto read = [](const std::vector<Piece>& pieces, bool reasons, size_t cut) {
    ReplyParser parser({.reasons = reasons, .tools = {{"f", nullptr}}, .family = ToolFamily::dsml, .told_ends = true});
    std::vector<ReplyPart> joined;
    const auto take = [&joined](const std::vector<ReplyPart>& parts) {
      for (const ReplyPart& part : parts) {
        if (!joined.empty() && joined.back().kind == part.kind && part.kind != Kind::call)
          joined.back().text += part.text;
        else
          joined.push_back(part);
      }
    };
    size_t told = 0;
    for (const Piece& piece : pieces) {
      if (piece.is_mark) parser.mark_end(told);
      told += piece.text.size();
      // A stop string may hold back a part of a mark that was told.
      for (size_t at = 0; at < piece.text.size(); at += cut)
        take(parser.push(piece.text.substr(at, cut)));
    }
    take(parser.finish());
    return joined;
  };
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  const std::vector<std::tuple<std::vector<Piece>, bool, std::vector<ReplyPart>>> cases = {
      {{{"a</think>b"}, end, {"c"}}, true, {{Kind::reasoning, "a</think>b"}, {Kind::content, "c"}}},
      {{{"a \n"}, end, {"\n\nb "}, end, {" c"}}, true, {{Kind::reasoning, "a"}, {Kind::content, "b  c"}}},
      {{end, {"c"}}, true, {{Kind::content, "c"}}},
      {{{"a "}}, true, {{Kind::reasoning, "a "}}},
      {{{"b</think> c"}}, false, {{Kind::content, "b</think> c"}}},
      {{{"b"}, end, {"c"}}, false, {{Kind::content, "bc"}}},
      {{{"a"}, end, {"\n\n" + call}, end, {"d"}},
       true,
       {{Kind::reasoning, "a"}, {Kind::call, "f"}, {Kind::arguments, "{}"}, {Kind::content, "d"}}},
      {{{"a <｜DSML｜tool_calls> b"}, end, {"c"}},
       true,
       {{Kind::reasoning, "a <｜DSML｜tool_calls> b"}, {Kind::content, "c"}}},
      {{{"a <｜DSML｜tool_calls>\n<｜DSML｜inv"}, end, {"c"}},
       true,
       {{Kind::reasoning, "a <｜DSML｜tool_calls>\n<｜DSML｜inv"}, {Kind::content, "c"}}},
      {{{"x<｜DS"}, end, {"c</thi"}}, true, {{Kind::reasoning, "x<｜DS"}, {Kind::content, "c</thi"}}},
  };
  for (const auto& [pieces, reasons, parts] : cases) {
    const std::string first = pieces.front().text;
    for (const size_t cut : {size_t{1}, size_t{3}, size_t{1000}}) {
      CAPTURE(first);
      CAPTURE(cut);
      CHECK(read(pieces, reasons, cut) == parts);
    }
  }
}

}  // namespace dspack::deepseek_v4_test
