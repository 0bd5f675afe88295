// The tools that a conversation offers, and the marks with which models write calls of them. Families as chat templates
// teach them:
//
//   v3    DeepSeek-V3, R1  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{..}\n```
//                          <｜tool▁call▁end｜> .. <｜tool▁calls▁end｜>
//   v31   DeepSeek-V3.1    the same with <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>
//   dsml  DeepSeek-V3.2    <｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="a"
//                          string="true">text</｜DSML｜parameter> .. </｜DSML｜invoke> .. </｜DSML｜function_calls>;
//                          V4: tool_calls
//   kimi  Kimi-K2          <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>
//                          {..}<|tool_call_end|> .. <|tool_calls_section_end|>
//   glm   GLM-4            <tool_call>NAME<arg_key>a</arg_key><arg_value>text</arg_value> .. </tool_call>
//   json  others           <tool_call>{"name": "NAME", "arguments": {..}}</tool_call>
//
// Threads: plain values, pure functions. Errors: none.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

enum class ToolFamily { v3, v31, dsml, kimi, glm, json };

/// A function that may be called, and the JSON schema of its arguments.
struct CallableTool {
  std::string name;
  OrderedJson parameters;
};

/// The functions of a list in OpenAI's form, as RenderOptions::tools; entries other than named functions are ignored.
[[nodiscard]] std::vector<CallableTool> callable_tools(const OrderedJson& tools);
/// nullptr: no such tool is offered.
[[nodiscard]] const CallableTool* find_tool(std::span<const CallableTool> tools, std::string_view name);

namespace marks {

inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";

// DeepSeek's and Kimi's marks, in this order.
inline constexpr std::array<std::string_view, 2> kCalls = {"<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"};
inline constexpr std::array<std::string_view, 2> kCall = {"<｜tool▁call▁begin｜>", "<|tool_call_begin|>"};
inline constexpr std::array<std::string_view, 2> kHead = {"<｜tool▁sep｜>", "<|tool_call_argument_begin|>"};
inline constexpr std::array<std::string_view, 2> kEndCall = {"<｜tool▁call▁end｜>", "<|tool_call_end|>"};
inline constexpr std::array<std::string_view, 2> kEndCalls = {"<｜tool▁calls▁end｜>", "<|tool_calls_section_end|>"};

// DeepSeek-V3.2's and V4's marks, in this order.
inline constexpr std::array<std::string_view, 2> kDsml = {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"};
inline constexpr std::array<std::string_view, 2> kEndDsml = {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"};
inline constexpr std::string_view kInvoke = "<｜DSML｜invoke";
inline constexpr std::string_view kEndInvoke = "</｜DSML｜invoke>";
inline constexpr std::string_view kParameter = "<｜DSML｜parameter";
inline constexpr std::string_view kEndParameter = "</｜DSML｜parameter>";

inline constexpr std::string_view kToolCall = "<tool_call>";
inline constexpr std::string_view kEndToolCall = "</tool_call>";
inline constexpr std::string_view kKey = "<arg_key>";
inline constexpr std::string_view kEndKey = "</arg_key>";
inline constexpr std::string_view kValue = "<arg_value>";
inline constexpr std::string_view kEndValue = "</arg_value>";

}  // namespace marks

/// Whether a token of this text has a meaning in a reply, even if it is flagged special.
[[nodiscard]] bool is_reply_mark(std::string_view token);

}  // namespace dspack::runtime
