// Chat templates by the engine, for comparisons and measurements: tests/tools/text/compare_templates.py.
//
//   bench_templates < cases.jsonl
//
// A line of input is a case: {"template": FILE, "messages": [...], "tools": [...], "chat_template_kwargs": {...},
// "add_generation_prompt": true, "bos_token": "...", "eos_token": "..."}. For each it prints a line: {"text": "..."} or
// {"error": "..."}, with the template's steps and bytes (jinja/budget.h), and the microseconds that compiling it and
// rendering took. A template is compiled once.
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "runtime/text/chat_template.h"

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

}  // namespace

int main() {
  std::map<std::string, Compiled> templates;
  for (std::string line; std::getline(std::cin, line);) {
    const OrderedJson each = OrderedJson::parse(line);
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
