// What requests of all APIs have in common: the body's JSON, sampling, stop strings.
// Threads: pure functions. Errors: invalid, naming the field.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/answer_request.h"
#include "runtime/serve/json_fields.h"

namespace dspack::runtime {

inline constexpr uint64_t kMostTokens = 1U << 24U;  // of an answer

/// An object, read strictly.
[[nodiscard]] Result<OrderedJson> parse_body(std::string_view body);
/// A string, or a list of strings; none where the field is null.
[[nodiscard]] Result<std::vector<std::string>> read_stops(const OrderedJson* field, const char* name);
/// Temperature and the like, seed, "model" and "stream", and which tokens end the answer. Without a seed one is drawn.
[[nodiscard]] Result<void> read_sampling(const JsonFields& fields, AnswerRequest& request);
/// The length that the first of these names gives, `least` tokens or more.
[[nodiscard]] Result<void> read_length(const JsonFields& fields, std::initializer_list<const char*> names,
                                       uint64_t least, AnswerRequest& request);
/// "thinking" of Anthropic's and DeepSeek's APIs: {"type": "enabled"}, "disabled", or "adaptive", where the model
/// thinks as much as it wants.
[[nodiscard]] Result<void> read_thinking(const JsonFields& fields, std::optional<bool>& thinking);
/// The names in OpenAI's form of a request for reasoning: all but "none" and "minimal" want it.
[[nodiscard]] bool is_reasoning_effort(std::string_view effort);
/// A tool that is no function, which only a service could run or whose calls have a form of their own, for the log.
[[nodiscard]] std::string left_out_tool(std::string_view type);
/// Of a whole request: the answer goes on with the last message. Errors: invalid (which is not an assistant's),
/// unsupported (which calls).
[[nodiscard]] Result<void> continue_last_message(Conversation& conversation);

}  // namespace dspack::runtime
