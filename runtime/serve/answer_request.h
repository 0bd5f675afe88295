// What a client asks for, whichever API it speaks: a conversation or a text, how tokens are chosen, when the answer
// ends, and how it is delivered.
// Threads: plain values, pure functions. Errors: invalid (a field of a wrong type or out of range; named), unsupported
// (a field that is understood and cannot be done; field_table.h has them).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/base/result.h"
#include "runtime/generate/sampler.h"
#include "runtime/serve/answer_form.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// A text as it is, or token ids.
using TextPrompt = std::variant<std::string, std::vector<uint32_t>>;

/// Answers of one request: an evaluator's batch has one for each of its prompts.
inline constexpr uint64_t kMostAnswers = 1024;

struct AnswerRequest {
  /// What is continued: a conversation, or texts, each for itself.
  std::variant<Conversation, std::vector<TextPrompt>> prompt;
  std::string model;  // as the client names it; echoed
  SamplerOptions sampling;
  std::optional<uint32_t> max_tokens;
  std::vector<std::string> stop;
  uint32_t min_tokens = 0;            // before so many neither tokens nor texts end the answer
  bool ignores_end_tokens = false;    // those of the model
  std::vector<uint32_t> stop_tokens;  // that end it as well
  AnswerForm form;
  uint32_t choices = 1;  // answers to each prompt, with seeds that follow one another; of OpenAI's older APIs
  bool streams = false;
  bool includes_usage = false;           // in a stream
  std::optional<uint32_t> top_logprobs;  // absent: none are told; 0: those of the answer's tokens alone
  std::optional<bool> thinking;          // as a switch says
  std::optional<std::string> effort;     // how much of it, which for most templates is a switch as well, and decides
  bool echoes = false;  // the prompt's text comes first, with its likelihoods where they are told; of a text
  std::vector<std::string> remarks = {};  // lines for the log: what of the request was passed over

  /// Whether to reason, for templates that know no efforts.
  [[nodiscard]] std::optional<bool> reasons() const;
  [[nodiscard]] uint32_t prompts() const {
    const auto* texts = std::get_if<std::vector<TextPrompt>>(&prompt);
    return texts == nullptr ? 1 : static_cast<uint32_t>(texts->size());
  }
  /// Whether the prompt's tokens are told with their likelihoods.
  [[nodiscard]] bool scores_prompt() const { return echoes && top_logprobs.has_value(); }
};

// What the request does not say of sampling is as in `defaults`; without a seed one is drawn.
/// POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat).
[[nodiscard]] Result<AnswerRequest> parse_chat_request(std::string_view body, const SamplerOptions& defaults);
/// POST /v1/completions.
[[nodiscard]] Result<AnswerRequest> parse_completion_request(std::string_view body, const SamplerOptions& defaults);
/// POST /v1/responses (https://platform.openai.com/docs/api-reference/responses): without what the server would have to
/// keep.
[[nodiscard]] Result<AnswerRequest> parse_responses_request(std::string_view body, const SamplerOptions& defaults);
/// POST /v1/messages of Anthropic's API (https://docs.anthropic.com/en/api/messages).
[[nodiscard]] Result<AnswerRequest> parse_messages_request(std::string_view body, const SamplerOptions& defaults);

}  // namespace dspack::runtime
