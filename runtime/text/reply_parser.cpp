#include "runtime/text/reply_parser.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kFence = "```json\n";
// The marks of DeepSeek's templates and of Kimi-K2's, in the same order.
constexpr std::array<std::string_view, 2> kCalls = {"<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"};
constexpr std::array<std::string_view, 2> kCall = {"<｜tool▁call▁begin｜>", "<|tool_call_begin|>"};
constexpr std::array<std::string_view, 2> kHead = {"<｜tool▁sep｜>", "<|tool_call_argument_begin|>"};
constexpr std::array<std::string_view, 2> kEndCall = {"<｜tool▁call▁end｜>", "<|tool_call_end|>"};
constexpr std::array<std::string_view, 2> kEndCalls = {"<｜tool▁calls▁end｜>", "<|tool_calls_section_end|>"};

constexpr std::array<std::string_view, 2> kDsml = {"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"};
constexpr std::array<std::string_view, 2> kEndDsml = {"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"};
constexpr std::string_view kInvoke = "<｜DSML｜invoke";
constexpr std::string_view kEndInvoke = "</｜DSML｜invoke>";
constexpr std::string_view kToolCall = "<tool_call>";
constexpr std::string_view kEndToolCall = "</tool_call>";

/// Bytes at the end of a text that may be the beginning of a mark.
size_t begun(std::string_view text, std::span<const std::string_view> marks) {
  size_t longest = 0;
  for (const std::string_view mark : marks) {
    for (size_t length = std::min(mark.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(mark.substr(0, length))) longest = length;
  }
  return longest;
}

/// "functions.NAME:0" is NAME.
std::string function_name(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  return std::string(id.substr(0, id.rfind(':')));
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// The text between two marks, from `at` on, which is moved after the second; nullopt if they are not there.
std::optional<std::string_view> between(std::string_view text, std::string_view begin, std::string_view end,
                                        size_t& at) {
  const size_t first = text.find(begin, at);
  if (first == std::string_view::npos) return std::nullopt;
  const size_t last = text.find(end, first + begin.size());
  if (last == std::string_view::npos) return std::nullopt;
  at = last + end.size();
  return text.substr(first + begin.size(), last - first - begin.size());
}

/// A value that may be JSON, else is text.
OrderedJson value_of(std::string_view text) {
  OrderedJson value = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? OrderedJson(text) : value;
}

std::string json_text_of(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// As a value of a JSON object: text that is JSON stays as the model wrote it, since a number may have more digits than
/// a value of 64 bits has.
std::string json_text_or_string(std::string_view text) {
  return OrderedJson::accept(text) ? std::string(trimmed(text)) : json_text_of(OrderedJson(text));
}

struct BlockCall {
  std::string name;
  std::string arguments;  // as JSON
};

/// What follows "<｜DSML｜invoke".
BlockCall read_invoke(std::string_view text) {
  size_t at = 0;
  BlockCall call;
  call.name = std::string(between(text, "name=\"", "\"", at).value_or(""));
  nlohmann::ordered_map<std::string, std::string> values;  // JSON text by name
  while (const auto name = between(text, "<｜DSML｜parameter name=\"", "\"", at)) {
    const auto attributes = between(text, "", ">", at);
    const auto value = attributes ? between(text, "", "</｜DSML｜parameter>", at) : std::nullopt;
    if (!value) break;
    const bool is_text = attributes->find("string=\"false\"") == std::string_view::npos;
    values[std::string(*name)] = is_text ? json_text_of(OrderedJson(*value)) : json_text_or_string(*value);
  }
  for (const auto& [name, value] : values)
    call.arguments += (call.arguments.empty() ? "{" : ",") + json_text_of(OrderedJson(name)) + ":" + value;
  call.arguments += call.arguments.empty() ? "{}" : "}";
  return call;
}

/// What stands between <tool_call> and </tool_call>.
BlockCall read_tool_call(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('{')) {
    const OrderedJson written = value_of(text);
    if (!written.is_object() || !written.contains("name") || !written["name"].is_string())
      return {.name = "", .arguments = std::string(text)};
    const OrderedJson arguments = written.value("arguments", OrderedJson::object());
    return {.name = written["name"].get<std::string>(),
            .arguments = arguments.is_string() ? arguments.get<std::string>() : json_text_of(arguments)};
  }
  BlockCall call;
  call.name = std::string(trimmed(text.substr(0, text.find("<arg_key>"))));
  OrderedJson arguments = OrderedJson::object();
  size_t at = 0;
  while (const auto name = between(text, "<arg_key>", "</arg_key>", at)) {
    const auto value = between(text, "<arg_value>", "</arg_value>", at);
    if (!value) break;
    arguments[std::string(trimmed(*name))] = value_of(trimmed(*value));
  }
  call.arguments = json_text_of(arguments);
  return call;
}

}  // namespace

bool ReplyParser::is_mark(std::string_view token) {
  for (const std::string_view mark :
       {kThink, kEndThink, kToolCall, kEndToolCall, std::string_view("<arg_key>"), std::string_view("</arg_key>"),
        std::string_view("<arg_value>"), std::string_view("</arg_value>"), std::string_view("｜DSML｜")})
    if (token == mark) return true;
  return std::ranges::any_of(std::array{kCalls, kCall, kHead, kEndCall, kEndCalls},
                             [token](const auto& marks) { return std::ranges::find(marks, token) != marks.end(); });
}

std::vector<ReplyPart> ReplyParser::push(std::string_view text) {
  held_ += text;
  while (step(false)) {
  }
  return std::exchange(parts_, {});
}

std::vector<ReplyPart> ReplyParser::finish() {
  while (step(true)) {
  }
  return std::exchange(parts_, {});
}

void ReplyParser::emit(ReplyPart::Kind kind, std::string text, std::string id) {
  if (text.empty() && kind != ReplyPart::Kind::call) return;
  parts_.push_back({.kind = kind, .text = std::move(text), .id = std::move(id)});
}

/// Emits what comes before the first of `marks` and takes that, or what is certain to come before any. True if one was
/// found, whose number is `found` then.
bool ReplyParser::take_until(std::span<const std::string_view> marks, ReplyPart::Kind kind, bool is_end,
                             size_t& found) {
  size_t first = std::string::npos;
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t at = held_.find(marks[i]);
    if (at < first) {
      first = at;
      found = i;
    }
  }
  const bool has_found = first != std::string::npos;
  size_t end = has_found ? first : held_.size() - (is_end ? 0 : begun(held_, marks));
  // White space in front of a mark belongs to the form.
  if (!is_end || has_found) {
    const size_t last = std::string_view(held_).substr(0, end).find_last_not_of(kSpace);
    const size_t kept = last == std::string_view::npos ? 0 : last + 1;
    if (!has_found) end = kept;
    emit(kind, held_.substr(0, kept));
  } else {
    emit(kind, held_.substr(0, end));
  }
  held_.erase(0, has_found ? first + marks[found].size() : end);
  return has_found;
}

/// One step; false: the rest of the text is needed.
bool ReplyParser::step(bool is_end) {
  size_t found = 0;
  switch (state_) {
    case State::begin:
    case State::after: {
      const size_t space = held_.find_first_not_of(kSpace);
      if (space == std::string::npos) {
        if (is_end) held_.clear();
        return false;
      }
      if (state_ == State::after) {
        held_.erase(0, space);
        state_ = State::content;
        return true;
      }
      const std::string_view rest = std::string_view(held_).substr(space);
      if (rest.starts_with(kThink)) {
        held_.erase(0, space + kThink.size());
        state_ = State::reasoning;
        return true;
      }
      if (!is_end && kThink.starts_with(rest)) return false;
      state_ = State::content;
      return true;
    }
    case State::reasoning: {
      const std::array<std::string_view, 3> marks = {kEndThink, kDsml[0], kDsml[1]};
      if (!take_until(marks, ReplyPart::Kind::reasoning, is_end, found)) return false;
      state_ = found == 0 ? State::after : State::calls;
      return true;
    }
    case State::content: {
      const std::array<std::string_view, 5> marks = {kCalls[0], kCalls[1], kDsml[0], kDsml[1], kToolCall};
      if (!reads_calls_) {
        emit(ReplyPart::Kind::content, std::exchange(held_, {}));
        return false;
      }
      if (!take_until(marks, ReplyPart::Kind::content, is_end, found)) return false;
      state_ = found < 4 ? State::calls : State::block;
      end_ = kEndToolCall;
      return true;
    }
    case State::calls: {
      const std::array<std::string_view, 7> marks = {kCall[0],     kCall[1],    kInvoke,    kEndCalls[0],
                                                     kEndCalls[1], kEndDsml[0], kEndDsml[1]};
      if (!take_until(marks, ReplyPart::Kind::content, is_end, found)) return false;
      state_ = found < 2 ? State::head : found == 2 ? State::block : State::after;
      end_ = kEndInvoke;
      return true;
    }
    case State::block: return end_block(is_end);
    case State::head:
    case State::name:
    case State::fence: return begin_call(is_end);
    case State::arguments: return end_arguments(is_end);
  }
  return false;
}

bool ReplyParser::begin_call(bool is_end) {
  if (state_ == State::head) {
    for (size_t i = 0; i < kHead.size(); ++i) {
      const size_t at = held_.find(kHead[i]);
      if (at == std::string::npos) continue;
      head_ = std::string(trimmed(held_.substr(0, at)));
      held_.erase(0, at + kHead[i].size());
      is_fenced_ = false;
      calls_ = true;
      if (i == 1) {
        emit(ReplyPart::Kind::call, function_name(head_), head_);
        state_ = State::arguments;
      } else {
        state_ = State::name;
      }
      return true;
    }
    if (is_end) held_.clear();  // a call without a name calls nothing
    return false;
  }
  if (state_ == State::name) {
    // DeepSeek-V3.1 has the name in front of the mark, and here the arguments.
    if (head_ != "function" || held_.starts_with('{')) {
      emit(ReplyPart::Kind::call, head_);
      state_ = State::arguments;
      return true;
    }
    const size_t line = held_.find('\n');
    if (line == std::string::npos && !is_end) return false;
    emit(ReplyPart::Kind::call, std::string(trimmed(held_.substr(0, line))));
    held_.erase(0, line == std::string::npos ? held_.size() : line + 1);
    state_ = State::fence;
    return true;
  }
  if (held_.starts_with(kFence)) {
    held_.erase(0, kFence.size());
    is_fenced_ = true;
  } else if (!is_end && kFence.starts_with(held_)) {
    return false;
  }
  state_ = State::arguments;
  return true;
}

bool ReplyParser::end_block(bool is_end) {
  const size_t at = held_.find(end_);
  if (at == std::string::npos && !is_end) return false;
  const std::string_view text = std::string_view(held_).substr(0, at);
  BlockCall call = end_ == kEndInvoke ? read_invoke(text) : read_tool_call(text);
  calls_ = true;
  emit(ReplyPart::Kind::call, std::move(call.name));
  emit(ReplyPart::Kind::arguments, std::move(call.arguments));
  held_.erase(0, at == std::string::npos ? held_.size() : at + end_.size());
  state_ = end_ == kEndInvoke ? State::calls : State::after;
  return at != std::string::npos;
}

bool ReplyParser::end_arguments(bool is_end) {
  size_t at = std::string::npos;
  size_t length = 0;
  for (const std::string_view mark : kEndCall) {
    const size_t here = held_.find(mark);
    if (here < at) {
      at = here;
      length = mark.size();
    }
  }
  const bool has_ended = at != std::string::npos;
  std::string_view text = std::string_view(held_).substr(0, at);
  if (!has_ended && !is_end) {
    text.remove_suffix(begun(text, kEndCall));
    const size_t last = text.find_last_not_of(kSpace);
    text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    // The end of the fence, with the line feed before it, is no part of the arguments.
    if (is_fenced_) {
      while (text.ends_with('`'))
        text.remove_suffix(1);
      const size_t kept = text.find_last_not_of(kSpace);
      text = text.substr(0, kept == std::string_view::npos ? 0 : kept + 1);
    }
    const size_t taken = text.size();
    emit(ReplyPart::Kind::arguments, std::string(text));
    held_.erase(0, taken);
    return false;
  }
  const size_t kept = text.find_last_not_of(kSpace);
  text = text.substr(0, kept == std::string_view::npos ? 0 : kept + 1);
  if (is_fenced_ && text.ends_with("```")) {
    text.remove_suffix(3);
    const size_t last = text.find_last_not_of(kSpace);
    text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
  }
  emit(ReplyPart::Kind::arguments, std::string(text));
  if (!has_ended) {
    held_.clear();
    return false;
  }
  held_.erase(0, at + length);
  state_ = State::calls;
  return true;
}

}  // namespace dspack::runtime
