#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMostLogprobs = 20;  // OpenAI's bound
constexpr uint64_t kMostChoices = 128;  // the same

/// The four forms of "prompt": a text, texts, token ids, lists of token ids.
Result<std::vector<TextPrompt>> read_prompts(const OrderedJson* field) {
  if (field == nullptr) return invalid("\"prompt\" is missing");
  if (field->is_string()) return std::vector<TextPrompt>{field->get<std::string>()};
  const Error wrong = invalid("\"prompt\" is not a string, a list of strings, of token ids, or of lists of token ids");
  if (!field->is_array() || field->empty()) return wrong;
  const auto read_ids = [&](const OrderedJson& list) -> Result<std::vector<uint32_t>> {
    std::vector<uint32_t> ids;
    for (const OrderedJson& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) return wrong;
      ids.push_back(id.get<uint32_t>());
    }
    return ids;
  };
  std::vector<TextPrompt> prompts;
  if (field->front().is_number()) {
    TRY_ASSIGN(prompts.emplace_back(), read_ids(*field));
    return prompts;
  }
  if (field->size() > kMostAnswers) {
    return invalid(fmt::format("\"prompt\" has {} prompts, of {} at most; send the others in requests of their own",
                               field->size(), kMostAnswers));
  }
  for (const OrderedJson& each : *field) {
    if (each.type() != field->front().type()) return wrong;
    if (each.is_string()) {
      prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array()) {
      TRY_ASSIGN(prompts.emplace_back(), read_ids(each));
    } else {
      return wrong;
    }
  }
  return prompts;
}

Result<AnswerRequest> read_openai(const JsonFields& fields, const SamplerOptions& defaults, uint64_t least_tokens) {
  AnswerRequest request;
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY(read_format(fields.find("response_format"), "response_format", request.form));
  TRY_ASSIGN(const auto choices, fields.whole("n", 1, kMostChoices));
  request.choices = static_cast<uint32_t>(choices.value_or(1));
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    TRY_ASSIGN(const auto most, fields.whole(name, least_tokens, kMostTokens));
    if (most) request.max_tokens = static_cast<uint32_t>(*most);
  }
  TRY_ASSIGN(request.stop, read_stops(fields.find("stop"), "stop"));
  if (const OrderedJson* options = fields.find("stream_options")) {
    if (!options->is_object()) return invalid("\"stream_options\" is not an object");
    TRY_ASSIGN(const auto usage, JsonFields(*options).flag("include_usage"));
    request.includes_usage = usage.value_or(false);
  }
  return request;
}

}  // namespace

Result<AnswerRequest> parse_chat_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(AnswerRequest request, read_openai(fields, defaults, 1));
  TRY_ASSIGN(Conversation conversation, parse_conversation(body));
  if (conversation.messages.empty()) return invalid("\"messages\" is empty");
  // chat_template_kwargs, as in vLLM and SGLang, are the conversation's arguments; OpenAI's name is one more of them.
  TRY_ASSIGN(const auto effort, fields.text("reasoning_effort"));
  if (effort) {
    request.thinking = *effort != "none" && *effort != "minimal";
    if (!conversation.arguments.contains("reasoning_effort")) conversation.arguments["reasoning_effort"] = *effort;
  }
  TRY_ASSIGN(const auto logprobs, fields.flag("logprobs"));
  TRY_ASSIGN(const auto likeliest, fields.whole("top_logprobs", 0, kMostLogprobs));
  if (logprobs.value_or(false)) request.top_logprobs = static_cast<uint32_t>(likeliest.value_or(0));
  if (likeliest && !logprobs.value_or(false)) return invalid("\"top_logprobs\" needs \"logprobs\": true");
  TRY(read_tool_choice(fields, conversation.tools, request.form));
  request.prompt = std::move(conversation);
  return request;
}

Result<AnswerRequest> parse_completion_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(AnswerRequest request, read_openai(fields, defaults, 0));
  if (!request.max_tokens) request.max_tokens = 16;  // the API's default
  TRY_ASSIGN(const auto logprobs, fields.whole("logprobs", 0, kMostLogprobs));
  if (logprobs) request.top_logprobs = static_cast<uint32_t>(*logprobs);
  TRY_ASSIGN(const auto echoes, fields.flag("echo"));
  request.echoes = echoes.value_or(false);
  if (fields.find("suffix") != nullptr) return Error{ErrorKind::unsupported, "\"suffix\" is not supported"};
  TRY_ASSIGN(request.prompt, read_prompts(fields.find("prompt")));
  const uint64_t answers = uint64_t{request.prompts()} * request.choices;
  if (answers > kMostAnswers) {
    return invalid(
        fmt::format("\"n\" answers to each prompt of \"prompt\" are {}, of {} at most", answers, kMostAnswers));
  }
  return request;
}

}  // namespace dspack::runtime
