// A client's request, whichever API it uses: a conversation or text, sampling, when the answer ends, and how it is
// delivered.
// Threads: plain values, pure functions. Errors: invalid (a field of a wrong type or out of range; named), unsupported
// (a known field that this server refuses; listed in field_table.cpp).
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

/// A text, or token ids.
using TextPrompt = std::variant<std::string, std::vector<uint32_t>>;

/// Limit of answers per request: an evaluator's batch has one for each of its prompts.
inline constexpr uint64_t kMaxAnswers = 1024;

struct AnswerRequest {
  /// The prompt: a conversation, or independent texts.
  std::variant<Conversation, std::vector<TextPrompt>> prompt;
  std::string model;  // the client's name for the model; echoed
  SamplerOptions sampling;
  std::optional<uint32_t> max_tokens;
  std::vector<std::string> stop;
  uint32_t min_tokens = 0;            // until then neither tokens nor texts end the answer
  bool ignores_end_tokens = false;    // the model's end tokens do not end it
  std::vector<uint32_t> stop_tokens;  // further tokens that end the answer
  AnswerForm form;
  uint32_t choices = 1;  // answers to each prompt, with consecutive seeds; OpenAI's older APIs only
  bool streams = false;
  bool includes_usage = false;           // in a stream
  std::optional<uint32_t> top_logprobs;  // unset: no logprobs; 0: of the answer's tokens only
  std::optional<bool> thinking;          // the request's switch for reasoning
  std::optional<std::string> effort;     // for most templates also a switch for reasoning, which overrides `thinking`
  bool echoes = false;  // the prompt's text comes first, with its logprobs if requested; text completions only
  std::vector<std::string> remarks = {};  // log lines on ignored parts of the request

  /// Whether to reason, for templates without efforts.
  [[nodiscard]] std::optional<bool> reasons() const;
  [[nodiscard]] uint32_t prompts() const {
    const auto* texts = std::get_if<std::vector<TextPrompt>>(&prompt);
    return texts == nullptr ? 1 : static_cast<uint32_t>(texts->size());
  }
  /// Whether the prompt's tokens are returned with their likelihoods.
  [[nodiscard]] bool scores_prompt() const { return echoes && top_logprobs.has_value(); }
};

// Sampling options that a request lacks are taken from `defaults`; without a seed one is drawn.
/// POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat).
[[nodiscard]] Result<AnswerRequest> parse_chat_request(std::string_view body, const SamplerOptions& defaults);
/// POST /v1/completions.
[[nodiscard]] Result<AnswerRequest> parse_completion_request(std::string_view body, const SamplerOptions& defaults);
/// POST /v1/responses (https://platform.openai.com/docs/api-reference/responses), without the parts that need stored
/// responses.
[[nodiscard]] Result<AnswerRequest> parse_responses_request(std::string_view body, const SamplerOptions& defaults);
/// POST /v1/messages of Anthropic's API (https://docs.anthropic.com/en/api/messages).
[[nodiscard]] Result<AnswerRequest> parse_messages_request(std::string_view body, const SamplerOptions& defaults);

}  // namespace dspack::runtime
