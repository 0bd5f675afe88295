// Chat templates by the engine, and answers by their parser, for comparisons and measurements:
// tests/tools/text/compare_templates.py and compare_encoding.py.
//
//   bench_templates < cases.jsonl
//
// A line of input is a case: {"template": FILE or built-in name, "messages": [...], "tools": [...],
// "chat_template_kwargs": {...}, "add_generation_prompt": true, "bos_token": "...", "eos_token": "..."}. For each it
// prints a line: {"text": "..."} or {"error": "..."}, with the template's steps and bytes (jinja/value.h), and the
// microseconds that compiling it and rendering took. A template is compiled once. Another case is an answer:
// {"reply": "...", "reasons": true, "tools": ["NAME", ...]}: whether the prompt has begun its reasoning, and what may
// be called. It becomes {"reasoning": "...", "content": "...", "calls": [["NAME", "ARGUMENTS"], ...]}.
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "runtime/text/chat_template.h"
#include "runtime/text/reply_parser.h"

using namespace dspack;
using runtime::ChatTemplate;
using runtime::OrderedJson;

namespace {

struct Compiled {
  Result<ChatTemplate> chat;
  double micros = 0;
};

double micros_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

Compiled compile(const std::string& file) {
  if (auto known = ChatTemplate::named(file)) return {.chat = std::move(known)};
  std::stringstream source;
  source << std::ifstream(file).rdbuf();
  const auto start = std::chrono::steady_clock::now();
  auto chat = ChatTemplate::compile(source.str());
  return {.chat = std::move(chat), .micros = micros_since(start)};
}

std::tm local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return now;
}

Result<std::string> render(const Compiled& compiled, const OrderedJson& each, runtime::jinja::Cost& cost) {
  if (!compiled.chat) return compiled.chat.error();
  TRY_ASSIGN(const runtime::Conversation conversation, runtime::parse_conversation(each.dump()));
  return compiled.chat->render(conversation.messages,
                               {.bos_token = each.value("bos_token", ""),
                                .eos_token = each.value("eos_token", ""),
                                .add_generation_prompt = each.value("add_generation_prompt", true),
                                .tools = conversation.tools,
                                .arguments = conversation.arguments,
                                .now = local_time()},
                               &cost);
}

OrderedJson read_reply(const OrderedJson& each) {
  runtime::ReplyForm form{.reasons = each.value("reasons", false)};
  for (const OrderedJson& name : each.value("tools", OrderedJson::array()))
    form.tools.push_back({.name = name, .parameters = nullptr});
  runtime::ReplyParser parser(std::move(form));
  std::vector<runtime::ReplyPart> parts = parser.push(each.at("reply").get<std::string>());
  for (runtime::ReplyPart& part : parser.finish())
    parts.push_back(std::move(part));
  OrderedJson told = {{"reasoning", ""}, {"content", ""}, {"calls", OrderedJson::array()}};
  using Kind = runtime::ReplyPart::Kind;
  for (const runtime::ReplyPart& part : parts) {
    if (part.kind == Kind::call) {
      told["calls"].push_back({part.text, ""});
    } else if (part.kind == Kind::arguments) {
      told["calls"].back()[1].get_ref<std::string&>() += part.text;
    } else {
      told[part.kind == Kind::reasoning ? "reasoning" : "content"].get_ref<std::string&>() += part.text;
    }
  }
  return told;
}

}  // namespace

int main() {
  std::map<std::string, Compiled> templates;
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson each = OrderedJson::parse(line);
    if (each.contains("reply")) {
      std::cout << read_reply(each).dump() << '\n';
      continue;
    }
    const std::string file = each.at("template");
    const auto found = templates.find(file);
    const Compiled& compiled =
        found != templates.end() ? found->second : templates.emplace(file, compile(file)).first->second;
    runtime::jinja::Cost cost;
    const auto start = std::chrono::steady_clock::now();
    const auto text = render(compiled, each, cost);
    OrderedJson said = OrderedJson::object();
    said[text ? "text" : "error"] = text ? *text : text.error().message;
    said["steps"] = cost.steps;
    said["bytes"] = cost.bytes;
    said["compile_us"] = compiled.micros;
    said["render_us"] = micros_since(start);
    std::cout << said.dump() << '\n';
  }
  return 0;
}
