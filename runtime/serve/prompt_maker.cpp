#include "runtime/serve/prompt_maker.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/foreign_text.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

// Limit per request: each answer keeps its prompt, 16 MB in all.
constexpr uint64_t kMaxPromptTokens = 1U << 22U;
// Limit for likelihoods of prompt tokens: about 100 bytes each, kept until the last answer has ended.
constexpr uint64_t kMaxLikelihoods = 1U << 21U;
constexpr uint64_t kLikelihoodBytes = 100;
// Too long a prompt is counted this far beyond the context, for the message.
constexpr uint64_t kCountedBeyond = 65'536;

/// Bytes of messages that templates print whole: they may leave out an assistant's reasoning.
uint64_t printed_bytes(std::span<const ChatMessage> messages) {
  uint64_t bytes = 0;
  for (const ChatMessage& message : messages)
    if (message.role != Role::assistant && message.content) bytes += message.content->size();
  return bytes;
}

/// A template's budget error is permanent: rendering is deterministic.
Error never(const Error& error) {
  return error.kind == ErrorKind::budget ? invalid(error.message) : error;
}

/// The answer's form for templates that describe it to the model, as OpenAI's response_format.
OrderedJson told_format(const AnswerForm& form) {
  if (form.kind == AnswerForm::Kind::object) return {{"type", "json_object"}};
  return {{"type", "json_schema"}, {"json_schema", {{"schema", form.schema}}}};
}

}  // namespace

Result<RenderOptions> PromptMaker::render_options(const AnswerRequest& request, const Asker& asker) const {
  const auto& conversation = std::get<Conversation>(request.prompt);
  OrderedJson arguments = options_.template_arguments;
  const auto& chat = text_.chat_template(!conversation.tools.is_null());
  const bool is_v4 = chat && chat->traits().is_v4;
  if (const auto thinking = is_v4 ? request.thinking : request.reasons())
    arguments.update(thinking_arguments(*thinking));
  if (is_v4 && is_json(request.form)) arguments["response_format"] = told_format(request.form);
  for (const auto& [name, value] : conversation.arguments.items()) {
    if (is_given_to_templates(name))
      return invalid(fmt::format("\"chat_template_kwargs\" cannot hold {}", quote(name)));
    const bool is_thinking = thinking_arguments(true).contains(name) && value.is_boolean();
    arguments.update(is_thinking ? thinking_arguments(value.get<bool>()) : OrderedJson{{name, value}});
  }
  return RenderOptions{.add_generation_prompt = conversation.add_generation_prompt,
                       .continue_final_message = conversation.continue_final_message,
                       .tools = conversation.tools,
                       .arguments = std::move(arguments),
                       .now = options_.clock(),
                       .stop = asker.gone};
}

Result<std::string> PromptMaker::render(const AnswerRequest& request, const Asker& asker) const {
  TRY_ASSIGN(RenderOptions options, render_options(request, asker));
  auto text = text_.render_chat(std::get<Conversation>(request.prompt).messages, std::move(options));
  if (!text) return never(text.error());
  return text->plain();
}

size_t PromptMaker::answer_begin(std::string_view text, std::span<const ChatMessage> messages,
                                 RenderOptions options) const {
  options.continue_final_message = false;
  const auto before = text_.render_chat(messages.first(messages.size() - 1), std::move(options));
  if (!before) return 0;  // the template cannot render it, so the position is unknown
  const auto differs = static_cast<size_t>(std::ranges::mismatch(text, before->text).in1 - text.begin());
  // Both may continue with different marks of reasoning that begin alike.
  return differs - std::min(differs, std::string_view("<think>").size());
}

std::optional<uint64_t> PromptMaker::too_many(uint64_t text_bytes) const {
  const uint64_t longest = text_.tokenizer().longest_token_bytes();
  const uint64_t tokens = (text_bytes + longest - 1) / longest;
  return tokens > options_.context ? std::optional(tokens) : std::nullopt;
}

Result<void> PromptMaker::encode_into(Prompt& prompt, std::string_view text, SpecialTokens special, bool begins,
                                      const Asker& asker) const {
  prompt.at_least = too_many(special == SpecialTokens::guarded ? unguarded(text).size() : text.size());
  if (prompt.at_least) return {};
  const uint64_t before = asker.memory.bytes();
  TRY(asker.memory.need(before + encoding_bytes(text.size())));
  const EncodingLimits limits{.most_tokens = options_.context + kCountedBeyond, .stop = asker.gone};
  TRY_ASSIGN(prompt.tokens, begins ? text_.encode_raw(text, limits) : text_.tokenizer().encode(text, special, limits));
  if (prompt.tokens.size() > limits.most_tokens) prompt.at_least = prompt.tokens.size();
  return asker.memory.need(before + prompt.tokens.capacity() * sizeof(uint32_t));
}

Result<std::vector<uint32_t>> PromptMaker::encode(std::string_view text, bool begins, const Asker& asker) const {
  TRY(asker.memory.need(asker.memory.bytes() + encoding_bytes(text.size())));
  const EncodingLimits limits{.stop = asker.gone};
  return begins ? text_.encode_raw(text, limits) : text_.tokenizer().encode(text, SpecialTokens::parse, limits);
}

Result<Prompt> PromptMaker::prompt_of(const AnswerRequest& request, const Asker& asker) const {
  const auto& conversation = std::get<Conversation>(request.prompt);
  Prompt prompt{.tokens = {}, .form = Answering::Form::conversation, .at_least = {}};
  prompt.at_least = too_many(printed_bytes(conversation.messages));
  if (prompt.at_least) return prompt;
  TRY_ASSIGN(const RenderOptions options, render_options(request, asker));
  const auto rendered = text_.render_chat(conversation.messages, options);
  if (!rendered) return never(rendered.error());
  const std::string& text = rendered->text;
  const bool continues = conversation.continue_final_message;
  const size_t begin = continues ? answer_begin(text, conversation.messages, options) : text.size();
  TRY(encode_into(prompt, text, rendered->special, false, asker));
  const auto& chat = text_.chat_template();
  if (continues_reasoning(text, begin)) {
    prompt.form = Answering::Form::conversation_in_thought;
    prompt.reasoning = Reasoning::begun;
  } else if (continues &&
             conversation.messages.back().content.value_or("").find_first_not_of(" \t\r\n") != std::string::npos) {
    prompt.reasoning = Reasoning::none;  // the answer has already begun
  } else if (!text.ends_with("</think>") && !text.ends_with("</think>\n\n") && chat && chat->has_thinking_switch()) {
    prompt.reasoning = Reasoning::optional;  // the switch may leave it to the model
  }
  return prompt;
}

Result<std::vector<Prompt>> PromptMaker::prompts_of(const AnswerRequest& request, const Asker& asker) const {
  std::vector<Prompt> prompts;
  const auto* texts = std::get_if<std::vector<TextPrompt>>(&request.prompt);
  if (texts == nullptr) {
    TRY_ASSIGN(prompts.emplace_back(), prompt_of(request, asker));
    return prompts;
  }
  uint64_t tokens = 0;
  for (const TextPrompt& each : *texts) {
    Prompt& prompt = prompts.emplace_back();
    if (const auto* text = std::get_if<std::string>(&each)) {
      TRY(encode_into(prompt, *text, SpecialTokens::parse, true, asker));
      if (prompt.at_least) return prompts;
    } else {
      prompt.tokens = std::get<std::vector<uint32_t>>(each);
    }
    tokens += prompt.tokens.size() * request.choices;
  }
  const auto refuse = [](uint64_t count, std::string_view of, uint64_t most) {
    return invalid(
        fmt::format("the prompts of this request, once for each answer, have {} {}, of {} at most; send fewer "
                    "in a request",
                    count, of, most));
  };
  if (tokens > kMaxPromptTokens) return refuse(tokens, "tokens", kMaxPromptTokens);
  const uint64_t likelihoods = request.scores_prompt() ? tokens * (1 + *request.top_logprobs) : 0;
  if (likelihoods > kMaxLikelihoods) return refuse(likelihoods, "logprobs", kMaxLikelihoods);
  TRY(asker.memory.need(asker.memory.bytes() + likelihoods * kLikelihoodBytes));
  return prompts;
}

}  // namespace dspack::runtime
