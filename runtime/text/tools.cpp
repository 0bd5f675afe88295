#include "runtime/text/tools.h"

#include <algorithm>

namespace dspack::runtime {

std::vector<CallableTool> callable_tools(const OrderedJson& tools) {
  std::vector<CallableTool> callable;
  if (!tools.is_array()) return callable;
  for (const OrderedJson& each : tools) {
    const auto function = each.is_object() ? each.find("function") : each.end();
    if (function == each.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    callable.push_back({.name = name->get<std::string>(), .parameters = function->value("parameters", OrderedJson())});
  }
  return callable;
}

const CallableTool* find_tool(std::span<const CallableTool> tools, std::string_view name) {
  const auto found = std::ranges::find(tools, name, &CallableTool::name);
  return found == tools.end() ? nullptr : &*found;
}

bool is_reply_mark(std::string_view token) {
  using namespace marks;
  constexpr std::array kAlone = {
      kThink, kEndThink, kToolCall, kEndToolCall, kKey, kEndKey, kValue, kEndValue, std::string_view("｜DSML｜")};
  if (std::ranges::find(kAlone, token) != kAlone.end()) return true;
  return std::ranges::any_of(std::array{kCalls, kCall, kHead, kEndCall, kEndCalls},
                             [token](const auto& pair) { return std::ranges::find(pair, token) != pair.end(); });
}

}  // namespace dspack::runtime
