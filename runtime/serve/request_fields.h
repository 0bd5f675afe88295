// The fields that requests of all APIs share: the body's JSON, sampling, stop strings.
// Threads: pure functions. Errors: invalid, naming the field.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/answer_request.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {

inline constexpr uint64_t kMaxTokens = 1U << 24U;  // limit of an answer's length

/// Parses the body strictly; it must be an object.
[[nodiscard]] Result<OrderedJson> parse_body(std::string_view body);
/// A string, or a list of strings; empty if the field is null.
[[nodiscard]] Result<std::vector<std::string>> read_stops(const OrderedJson* field, const char* name);
/// Reads temperature and the like, seed, "model" and "stream", and which tokens end the answer. Without a seed one is
/// drawn.
[[nodiscard]] Result<void> read_sampling(const JsonFields& fields, AnswerRequest& request);
/// Reads the answer's length from the first of these names that is present; at least `least` tokens.
[[nodiscard]] Result<void> read_length(const JsonFields& fields, std::initializer_list<const char*> names,
                                       uint64_t least, AnswerRequest& request);
/// "thinking" of Anthropic's and DeepSeek's APIs: {"type": "enabled"}, "disabled", or "adaptive" (the model decides;
/// here: enabled).
[[nodiscard]] Result<void> read_thinking(const JsonFields& fields, std::optional<bool>& thinking);
/// Whether OpenAI's name for an effort requests reasoning: all but "none" and "minimal" do.
[[nodiscard]] bool is_reasoning_effort(std::string_view effort);
/// Log line for a tool that is not a function: a service would have to run it, or its calls have another form.
[[nodiscard]] std::string left_out_tool(std::string_view type);
/// Makes the answer continue the last message. Errors: invalid (it is not the assistant's), unsupported (it has tool
/// calls).
[[nodiscard]] Result<void> continue_last_message(Conversation& conversation);

}  // namespace dspack::runtime
