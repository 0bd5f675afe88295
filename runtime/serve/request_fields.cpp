#include "runtime/serve/request_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxStops = 16;  // OpenAI allows 4; clients of llama.cpp send more
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxBiases = 1024;  // as kMaxStops: clients of llama.cpp send more than OpenAI allows
constexpr size_t kMaxStopTokens = 128;

Result<void> read_bias(const JsonFields& fields, SamplerOptions& sampling) {
  const OrderedJson* bias = fields.find("logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object() || bias->size() > kMaxBiases) {
    return invalid(fmt::format("\"logit_bias\" is not an object of at most {} token ids", kMaxBiases));
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

/// An integer of any size, modulo 2^64; nullopt: absent or -1, so draw one.
Result<std::optional<uint64_t>> read_seed(const JsonFields& fields) {
  const OrderedJson* seed = fields.find("seed");
  if (seed == nullptr || is_minus_one(*seed)) return std::optional<uint64_t>();
  if (seed->is_number_unsigned()) return std::optional(seed->get<uint64_t>());
  if (seed->is_number_integer()) return std::optional(static_cast<uint64_t>(seed->get<int64_t>()));
  std::string_view digits = long_number(*seed);
  if (digits.empty()) return invalid("\"seed\" is not a whole number");
  const bool is_negative = digits.starts_with('-');
  if (is_negative) digits.remove_prefix(1);
  uint64_t value = 0;
  for (const char digit : digits)
    value = value * 10 + static_cast<uint64_t>(digit - '0');
  return std::optional(is_negative ? 0 - value : value);
}

/// Reads which tokens end the answer, and how early they may.
Result<void> read_ends(const JsonFields& fields, AnswerRequest& request) {
  TRY_ASSIGN(const auto least, fields.whole("min_tokens", 0, kMaxTokens));
  TRY_ASSIGN(const auto ignores, fields.flag("ignore_eos"));
  request.min_tokens = static_cast<uint32_t>(least.value_or(0));
  request.ignores_end_tokens = ignores.value_or(false);
  const OrderedJson* tokens = fields.find("stop_token_ids");
  if (tokens == nullptr) return {};
  if (!tokens->is_array() || tokens->size() > kMaxStopTokens) {
    return invalid(fmt::format("\"stop_token_ids\" is not a list of at most {} token ids", kMaxStopTokens));
  }
  for (const OrderedJson& id : *tokens) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return invalid("\"stop_token_ids\" holds something else than token ids");
    }
    request.stop_tokens.push_back(id.get<uint32_t>());
  }
  return {};
}

}  // namespace

Result<OrderedJson> parse_body(std::string_view body) {
  auto root = parse_ordered_json(body, format::kConversationDocument);
  // Not a temporary lack of memory: the client must not retry.
  if (!root && root.error().kind == ErrorKind::budget) return invalid(root.error().message);
  if (!root) return root.error();
  if (!root->is_object()) return invalid("the body is not a JSON object");
  return root;
}

Result<std::vector<std::string>> read_stops(const OrderedJson* field, const char* name) {
  std::vector<std::string> stops;
  if (field == nullptr) return stops;
  const OrderedJson list = field->is_string() ? OrderedJson::array({*field}) : *field;
  if (!list.is_array() || list.size() > kMaxStops) {
    return invalid(fmt::format("\"{}\" is not a string or a list of at most {}", name, kMaxStops));
  }
  for (const OrderedJson& each : list) {
    if (!each.is_string() || each.get_ref<const std::string&>().size() > kMaxStopBytes) {
      return invalid(fmt::format("\"{}\" holds something else than strings of at most {} bytes", name, kMaxStopBytes));
    }
    if (!each.get_ref<const std::string&>().empty()) stops.push_back(each.get<std::string>());
  }
  return stops;
}

Result<void> read_sampling(const JsonFields& fields, AnswerRequest& request) {
  TRY_ASSIGN(const auto temperature, fields.number("temperature", 0, 100));
  TRY_ASSIGN(const auto top_p, fields.number("top_p", 0, 1));
  TRY_ASSIGN(const auto min_p, fields.number("min_p", 0, 1));
  TRY_ASSIGN(const auto top_k, fields.limit("top_k", 0, kMaxTokens));
  TRY_ASSIGN(auto penalty, fields.number("repetition_penalty", 0.01, 100));
  if (!penalty) {
    TRY_ASSIGN(penalty, fields.number("repeat_penalty", 0.01, 100));  // llama-server's name
  }
  TRY_ASSIGN(const auto presence, fields.number("presence_penalty", -2, 2));
  TRY_ASSIGN(const auto frequency, fields.number("frequency_penalty", -2, 2));
  TRY_ASSIGN(const auto seed, read_seed(fields));
  SamplerOptions& sampling = request.sampling;
  sampling.temperature = temperature.value_or(sampling.temperature);
  if (top_p && *top_p > 0) sampling.top_p = *top_p;
  sampling.min_p = min_p.value_or(sampling.min_p);
  if (top_k) sampling.top_k = *top_k == JsonFields::kUnlimited ? 0 : static_cast<uint32_t>(*top_k);
  sampling.repetition_penalty = penalty.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = presence.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = frequency.value_or(sampling.frequency_penalty);
  sampling.seed = seed ? *seed : std::random_device()();
  TRY(read_bias(fields, sampling));
  TRY_ASSIGN(const auto model, fields.text("model"));
  request.model = model.value_or("");
  TRY_ASSIGN(const auto streams, fields.flag("stream"));
  request.streams = streams.value_or(false);
  return read_ends(fields, request);
}

Result<void> read_length(const JsonFields& fields, std::initializer_list<const char*> names, uint64_t least,
                         AnswerRequest& request) {
  for (const char* name : names) {
    TRY_ASSIGN(const auto most, fields.limit(name, least, kMaxTokens));
    if (!most) continue;
    request.max_tokens = *most == JsonFields::kUnlimited ? UINT32_MAX : static_cast<uint32_t>(*most);
    if (request.min_tokens <= *request.max_tokens) return {};
    return invalid(fmt::format("\"min_tokens\" is {}, more than \"{}\", {}", request.min_tokens, name, *most));
  }
  return {};
}

Result<void> read_thinking(const JsonFields& fields, std::optional<bool>& thinking) {
  const OrderedJson* field = fields.find("thinking");
  if (field == nullptr) return {};
  if (!field->is_object()) return invalid("\"thinking\" is not an object");
  TRY_ASSIGN(const auto type, JsonFields(*field).text("type"));
  if (type != "enabled" && type != "adaptive" && type != "between_tools" && type != "disabled") {
    return invalid("\"thinking\" is not of type \"enabled\", \"adaptive\" or \"disabled\"");
  }
  thinking = type != "disabled";
  return {};
}

bool is_reasoning_effort(std::string_view effort) {
  return effort != "none" && effort != "minimal";
}

std::string left_out_tool(std::string_view type) {
  return fmt::format("a tool of type {} is left out: only functions can be called here", quote(type));
}

Result<void> continue_last_message(Conversation& conversation) {
  if (conversation.messages.empty() || conversation.messages.back().role != Role::assistant) {
    return invalid("\"continue_final_message\": the last message is not an assistant's");
  }
  const auto& calls = conversation.messages.back().tool_calls;
  if (calls && !calls->empty()) {
    return Error{ErrorKind::unsupported, "\"continue_final_message\": a message that calls tools cannot be continued"};
  }
  conversation.continue_final_message = true;
  conversation.add_generation_prompt = false;
  return {};
}

}  // namespace dspack::runtime
