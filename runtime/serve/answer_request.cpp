#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/foreign_text.h"
#include "runtime/serve/field_table.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMaxLogprobs = 20;  // OpenAI's limit
constexpr uint64_t kMaxChoices = 128;  // OpenAI's limit

/// Reads the four forms of "prompt": a text, texts, token ids, lists of token ids.
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
  if (field->size() > kMaxAnswers) {
    return invalid(fmt::format("\"prompt\" has {} prompts, of {} at most; send the others in requests of their own",
                               field->size(), kMaxAnswers));
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

Result<AnswerRequest> read_openai(const OrderedJson& root, RequestApi api, const SamplerOptions& defaults) {
  AnswerRequest request;
  TRY(check_fields(root, api, request.remarks));
  const JsonFields fields(root);
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY(read_format(fields.find("response_format"), "response_format", request.form));
  TRY(read_schemas(fields, request.form));
  for (const char* name : {"n_cmpl", "n"}) {  // llama-server's name and OpenAI's
    TRY_ASSIGN(const auto choices, fields.whole(name, 1, kMaxChoices));
    if (choices) request.choices = static_cast<uint32_t>(*choices);
  }
  // An evaluator may request only the prompt's likelihoods: no answer tokens.
  const uint64_t least = api == kCompletions ? 0 : 1;
  TRY(read_length(fields, {"max_completion_tokens", "max_tokens", "n_predict"}, least, request));
  TRY_ASSIGN(request.stop, read_stops(fields.find("stop"), "stop"));
  if (const OrderedJson* options = fields.find("stream_options")) {
    if (!options->is_object()) return invalid("\"stream_options\" is not an object");
    TRY_ASSIGN(const auto usage, JsonFields(*options).flag("include_usage"));
    request.includes_usage = usage.value_or(false);
  }
  return request;
}

/// Reads the switches of reasoning: DeepSeek's, Alibaba's, SGLang's and OpenRouter's; the last one present decides, and
/// for most templates OpenAI's effort overrides it. chat_template_kwargs, as in vLLM and SGLang, are the conversation's
/// arguments; the effort is added to them.
Result<void> read_reasoning(const JsonFields& fields, Conversation& conversation, AnswerRequest& request) {
  std::optional<bool>& thinking = request.thinking;
  TRY(read_thinking(fields, thinking));
  TRY_ASSIGN(const auto enabled, fields.flag("enable_thinking"));
  if (enabled) thinking = *enabled;
  std::optional<std::string>& effort = request.effort;
  TRY_ASSIGN(effort, fields.text("reasoning_effort"));
  if (const OrderedJson* reasoning = fields.find("reasoning")) {
    if (!reasoning->is_object()) return invalid("\"reasoning\" is not an object");
    TRY_ASSIGN(const auto wanted, JsonFields(*reasoning).flag("enabled"));
    if (wanted) thinking = *wanted;
    if (!effort) {
      TRY_ASSIGN(effort, JsonFields(*reasoning).text("effort"));
    }
  }
  if (effort && !conversation.arguments.contains("reasoning_effort"))
    conversation.arguments["reasoning_effort"] = *effort;
  return {};
}

/// Reads how the prompt ends: where an answer begins, or within the last message.
Result<void> read_ending(const JsonFields& fields, Conversation& conversation) {
  TRY_ASSIGN(const auto continues, fields.flag("continue_final_message"));
  TRY_ASSIGN(const auto prompts, fields.flag("add_generation_prompt"));
  conversation.add_generation_prompt = prompts.value_or(true);
  const bool has_prefix = conversation.messages.back().role == Role::assistant && conversation.messages.back().prefix;
  if (!continues.value_or(has_prefix)) return {};
  if (prompts.value_or(false)) {
    return invalid("\"continue_final_message\" (or \"prefix\") and \"add_generation_prompt\" cannot both be true");
  }
  return continue_last_message(conversation);
}

void leave_out_tools(OrderedJson& tools, std::vector<std::string>& remarks) {
  if (!tools.is_array()) return;
  OrderedJson functions = OrderedJson::array();
  for (OrderedJson& tool : tools) {
    const auto type = tool.is_object() ? tool.find("type") : tool.end();
    if (type != tool.end() && type->is_string() && *type != "function") {
      remark(remarks, left_out_tool(type->get_ref<const std::string&>()));
    } else {
      functions.push_back(std::move(tool));
    }
  }
  tools = functions.empty() ? OrderedJson() : std::move(functions);
}

}  // namespace

std::optional<bool> AnswerRequest::reasons() const {
  return effort ? std::optional(is_reasoning_effort(*effort)) : thinking;
}

Result<AnswerRequest> parse_chat_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(AnswerRequest request, read_openai(root, kChat, defaults));
  TRY_ASSIGN(Conversation conversation, read_conversation(root));
  if (conversation.messages.empty()) return invalid("\"messages\" is empty");
  TRY(read_reasoning(fields, conversation, request));
  TRY(read_ending(fields, conversation));
  leave_out_tools(conversation.tools, request.remarks);
  TRY_ASSIGN(const auto logprobs, fields.flag("logprobs"));
  TRY_ASSIGN(const auto likeliest, fields.whole("top_logprobs", 0, kMaxLogprobs));
  if (logprobs.value_or(false)) request.top_logprobs = static_cast<uint32_t>(likeliest.value_or(0));
  if (likeliest.value_or(0) > 0 && !logprobs.value_or(false))
    return invalid("\"top_logprobs\" needs \"logprobs\": true");
  TRY(read_tool_choice(fields, conversation.tools, request.form, request.remarks));
  request.prompt = std::move(conversation);
  return request;
}

Result<AnswerRequest> parse_completion_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(AnswerRequest request, read_openai(root, kCompletions, defaults));
  if (!request.max_tokens) request.max_tokens = std::max(16U, request.min_tokens);  // the API's default
  TRY_ASSIGN(const auto logprobs, fields.whole("logprobs", 0, kMaxLogprobs));
  if (logprobs) request.top_logprobs = static_cast<uint32_t>(*logprobs);
  TRY_ASSIGN(const auto echoes, fields.flag("echo"));
  request.echoes = echoes.value_or(false);
  TRY_ASSIGN(request.prompt, read_prompts(fields.find("prompt")));
  const uint64_t answers = uint64_t{request.prompts()} * request.choices;
  if (answers > kMaxAnswers) {
    return invalid(
        fmt::format("\"n\" answers to each prompt of \"prompt\" are {}, of {} at most", answers, kMaxAnswers));
  }
  return request;
}

}  // namespace dspack::runtime
