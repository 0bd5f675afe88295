#include "runtime/serve/answer_request.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/serve/json_fields.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMostTokens = 1U << 24U;
constexpr size_t kMostStops = 16;  // OpenAI allows 4; clients of llama.cpp send more
constexpr size_t kMostStopBytes = 4096;
constexpr uint64_t kMostLogprobs = 20;  // OpenAI's bound
constexpr size_t kMostBiases = 1024;    // the same

Result<OrderedJson> parse_body(std::string_view body) {
  TRY(format::parse_json(body, format::kConversationDocument));
  OrderedJson root = OrderedJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return invalid("the body is not a JSON object");
  return root;
}

/// What this server cannot do is refused by name where the client wants it, rather than left out.
Result<void> refuse_unsupported(const JsonFields& fields) {
  TRY_ASSIGN(const auto count, fields.whole("n", 1, 128));
  if (count.value_or(1) > 1) return Error{ErrorKind::unsupported, "\"n\": this server gives one answer a request"};
  for (const char* name : {"frequency_penalty", "presence_penalty"}) {
    TRY_ASSIGN(const auto penalty, fields.number(name, -2, 2));
    if (penalty.value_or(0) != 0) {
      return Error{ErrorKind::unsupported, fmt::format("\"{}\" is not supported; repetition_penalty is", name)};
    }
  }
  if (const OrderedJson* format = fields.find("response_format")) {
    const auto type = format->is_object() ? format->find("type") : format->end();
    if (type == format->end() || !type->is_string()) return invalid("\"response_format\" has no \"type\"");
    if (*type != "text") {
      return Error{ErrorKind::unsupported, fmt::format("\"response_format\": {} is not supported, only \"text\"",
                                                       quote(type->get<std::string>()))};
    }
  }
  return {};
}

Result<void> read_bias(const JsonFields& fields, SamplerOptions& sampling) {
  const OrderedJson* bias = fields.find("logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object() || bias->size() > kMostBiases) {
    return invalid(fmt::format("\"logit_bias\" is not an object of at most {} token ids", kMostBiases));
  }
  for (const auto& [key, value] : bias->items()) {
    uint32_t token = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || !value.is_number()) {
      return invalid("\"logit_bias\" is not an object of token ids and numbers");
    }
    sampling.logit_bias[token] = value.get<double>();
  }
  return {};
}

Result<std::vector<std::string>> read_stops(const OrderedJson* field, const char* name) {
  std::vector<std::string> stops;
  if (field == nullptr) return stops;
  const OrderedJson list = field->is_string() ? OrderedJson::array({*field}) : *field;
  if (!list.is_array() || list.size() > kMostStops) {
    return invalid(fmt::format("\"{}\" is not a string or a list of at most {}", name, kMostStops));
  }
  for (const OrderedJson& each : list) {
    if (!each.is_string() || each.get_ref<const std::string&>().size() > kMostStopBytes) {
      return invalid(fmt::format("\"{}\" holds something else than strings of at most {} bytes", name, kMostStopBytes));
    }
    if (!each.get_ref<const std::string&>().empty()) stops.push_back(each.get<std::string>());
  }
  return stops;
}

/// What all APIs name alike.
Result<void> read_sampling(const JsonFields& fields, AnswerRequest& request) {
  TRY_ASSIGN(const auto temperature, fields.number("temperature", 0, 100));
  TRY_ASSIGN(const auto top_p, fields.number("top_p", 0, 1));
  TRY_ASSIGN(const auto min_p, fields.number("min_p", 0, 1));
  TRY_ASSIGN(const auto top_k, fields.whole("top_k", 0, kMostTokens));
  TRY_ASSIGN(const auto penalty, fields.number("repetition_penalty", 0.01, 100));
  TRY_ASSIGN(const auto seed, fields.whole("seed", 0, UINT64_MAX));
  SamplerOptions& sampling = request.sampling;
  sampling.temperature = temperature.value_or(sampling.temperature);
  if (top_p && *top_p > 0) sampling.top_p = *top_p;
  sampling.min_p = min_p.value_or(sampling.min_p);
  sampling.top_k = static_cast<uint32_t>(top_k.value_or(sampling.top_k));
  sampling.repetition_penalty = penalty.value_or(sampling.repetition_penalty);
  sampling.seed = seed ? *seed : std::random_device()();
  TRY(read_bias(fields, sampling));
  TRY_ASSIGN(const auto model, fields.text("model"));
  request.model = model.value_or("");
  TRY_ASSIGN(const auto streams, fields.flag("stream"));
  request.streams = streams.value_or(false);
  return {};
}

Result<AnswerRequest> read_openai(const JsonFields& fields, const SamplerOptions& defaults) {
  AnswerRequest request;
  request.sampling = defaults;
  TRY(refuse_unsupported(fields));
  TRY(read_sampling(fields, request));
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    TRY_ASSIGN(const auto most, fields.whole(name, 1, kMostTokens));
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

/// The switch of a template that thinks: chat_template_kwargs as in vLLM and SGLang, or OpenAI's reasoning_effort.
Result<std::optional<bool>> read_thinking(const JsonFields& fields) {
  if (const OrderedJson* arguments = fields.find("chat_template_kwargs")) {
    if (!arguments->is_object()) return invalid("\"chat_template_kwargs\" is not an object");
    for (const auto& [key, value] : arguments->items()) {
      if ((key != "thinking" && key != "enable_thinking") || !value.is_boolean()) {
        return Error{ErrorKind::unsupported,
                     fmt::format("\"chat_template_kwargs\": {} is not supported, only thinking and enable_thinking, "
                                 "true or false",
                                 quote(key))};
      }
      return std::optional(value.get<bool>());
    }
  }
  TRY_ASSIGN(const auto effort, fields.text("reasoning_effort"));
  if (effort) return std::optional(*effort != "none" && *effort != "minimal");
  return std::optional<bool>();
}

/// A content block of Anthropic's API as a part of OpenAI's.
Result<std::string> block_text(const OrderedJson& content, std::string_view where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return invalid(fmt::format("{} is not a string or a list", where));
  std::string text;
  for (const OrderedJson& block : content) {
    const auto type = block.is_object() ? block.find("type") : block.end();
    if (!block.is_object() || type == block.end() || *type != "text") {
      return Error{ErrorKind::unsupported, fmt::format("{}: only blocks of type \"text\" can be read there", where)};
    }
    TRY_ASSIGN(const auto words, JsonFields(block).text("text"));
    if (!text.empty()) text += '\n';
    text += words.value_or("");
  }
  return text;
}

/// One message of Anthropic's API, which may stand for several: results of tools are messages of their own.
Result<void> read_blocks(const OrderedJson& message, std::vector<ChatMessage>& messages) {
  TRY_ASSIGN(const auto role, JsonFields(message).text("role"));
  if (role != "user" && role != "assistant") return invalid("a message's \"role\" is not user or assistant");
  const OrderedJson* content = JsonFields(message).find("content");
  if (content == nullptr) return invalid("a message has no \"content\"");
  ChatMessage spoken{.role = *role == "user" ? Role::user : Role::assistant};
  if (content->is_string()) {
    spoken.content = content->get<std::string>();
    messages.push_back(std::move(spoken));
    return {};
  }
  if (!content->is_array()) return invalid("a message's \"content\" is not a string or a list");
  for (const OrderedJson& block : *content) {
    if (!block.is_object()) return invalid("a block of \"content\" is not an object");
    const JsonFields fields(block);
    TRY_ASSIGN(const auto type, fields.text("type"));
    if (type == "text") {
      TRY_ASSIGN(const auto text, fields.text("text"));
      spoken.content = spoken.content ? *spoken.content + "\n" + text.value_or("") : text.value_or("");
    } else if (type == "thinking") {
      TRY_ASSIGN(const auto thinking, fields.text("thinking"));
      if (thinking) spoken.others["reasoning_content"] = *thinking;
    } else if (type == "tool_use") {
      TRY_ASSIGN(const auto name, fields.text("name"));
      TRY_ASSIGN(const auto id, fields.text("id"));
      const OrderedJson* input = fields.find("input");
      if (!name || input == nullptr || !input->is_object())
        return invalid("a tool_use block lacks \"name\" or \"input\"");
      if (!spoken.tool_calls) spoken.tool_calls.emplace();
      spoken.tool_calls->push_back({.name = *name, .arguments = input->dump(), .id = id});
    } else if (type == "tool_result") {
      TRY_ASSIGN(const auto id, fields.text("tool_use_id"));
      const OrderedJson* result = fields.find("content");
      ChatMessage answer{.role = Role::tool, .content = "", .tool_call_id = id};
      if (result != nullptr) {
        TRY_ASSIGN(answer.content, block_text(*result, "the content of a tool_result"));
      }
      messages.push_back(std::move(answer));
    } else if (type != "redacted_thinking") {
      return Error{ErrorKind::unsupported, fmt::format("a block of type {} cannot be read", quote(type.value_or("")))};
    }
  }
  if (spoken.content || spoken.tool_calls) messages.push_back(std::move(spoken));
  return {};
}

}  // namespace

Result<AnswerRequest> parse_chat_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(AnswerRequest request, read_openai(fields, defaults));
  TRY_ASSIGN(Conversation conversation, parse_conversation(body));
  TRY_ASSIGN(request.thinking, read_thinking(fields));
  TRY_ASSIGN(const auto logprobs, fields.flag("logprobs"));
  TRY_ASSIGN(const auto likeliest, fields.whole("top_logprobs", 0, kMostLogprobs));
  if (logprobs.value_or(false)) request.top_logprobs = static_cast<uint32_t>(likeliest.value_or(0));
  if (likeliest && !logprobs.value_or(false)) return invalid("\"top_logprobs\" needs \"logprobs\": true");
  if (const OrderedJson* choice = fields.find("tool_choice")) {
    if (*choice == "none") {
      conversation.tools = nullptr;
    } else if (*choice != "auto") {
      return Error{ErrorKind::unsupported, "\"tool_choice\" can be \"auto\" or \"none\": calls are not forced"};
    }
  }
  request.prompt = std::move(conversation);
  return request;
}

Result<AnswerRequest> parse_completion_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(AnswerRequest request, read_openai(fields, defaults));
  if (!request.max_tokens) request.max_tokens = 16;  // the API's default
  TRY_ASSIGN(const auto logprobs, fields.whole("logprobs", 0, kMostLogprobs));
  if (logprobs) request.top_logprobs = static_cast<uint32_t>(*logprobs);
  TRY_ASSIGN(const auto echoes, fields.flag("echo"));
  request.echoes = echoes.value_or(false);
  if (fields.find("suffix") != nullptr) return Error{ErrorKind::unsupported, "\"suffix\" is not supported"};
  const OrderedJson* prompt = fields.find("prompt");
  if (prompt == nullptr) return invalid("\"prompt\" is missing");
  if (prompt->is_array() && prompt->size() == 1 && prompt->front().is_string()) prompt = &prompt->front();
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
    return request;
  }
  std::vector<uint32_t> ids;
  if (!prompt->is_array()) return invalid("\"prompt\" is not a string or a list of token ids");
  for (const OrderedJson& id : *prompt) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return invalid("\"prompt\" is not one string or one list of token ids");
    }
    ids.push_back(id.get<uint32_t>());
  }
  request.prompt = std::move(ids);
  return request;
}

Result<AnswerRequest> parse_messages_request(std::string_view body, const SamplerOptions& defaults) {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  AnswerRequest request;
  request.sampling = defaults;
  TRY(read_sampling(fields, request));
  TRY_ASSIGN(const auto most, fields.whole("max_tokens", 1, kMostTokens));
  if (most) request.max_tokens = static_cast<uint32_t>(*most);
  TRY_ASSIGN(request.stop, read_stops(fields.find("stop_sequences"), "stop_sequences"));
  Conversation conversation;
  if (const OrderedJson* system = fields.find("system")) {
    TRY_ASSIGN(std::string text, block_text(*system, "\"system\""));
    conversation.messages.push_back({.role = Role::system, .content = std::move(text)});
  }
  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array()) return invalid("\"messages\" is not a list");
  for (const OrderedJson& message : *messages) {
    if (!message.is_object()) return invalid("a message is not an object");
    TRY(read_blocks(message, conversation.messages));
  }
  if (const OrderedJson* tools = fields.find("tools"); tools != nullptr) {
    if (!tools->is_array()) return invalid("\"tools\" is not a list");
    conversation.tools = OrderedJson::array();
    for (const OrderedJson& tool : *tools) {
      TRY_ASSIGN(const auto name, tool.is_object() ? JsonFields(tool).text("name") : std::optional<std::string>());
      if (!name) return invalid("a tool has no \"name\"");
      OrderedJson function = {{"name", *name}};
      if (tool.contains("description")) function["description"] = tool["description"];
      if (tool.contains("input_schema")) function["parameters"] = tool["input_schema"];
      conversation.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const OrderedJson* thinking = fields.find("thinking"); thinking != nullptr && thinking->is_object()) {
    TRY_ASSIGN(const auto type, JsonFields(*thinking).text("type"));
    request.thinking = type == "enabled";
  }
  request.prompt = std::move(conversation);
  return request;
}

}  // namespace dspack::runtime
