#include "runtime/serve/request_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

#include "format/json.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMostStops = 16;  // OpenAI allows 4; clients of llama.cpp send more
constexpr size_t kMostStopBytes = 4096;
constexpr size_t kMostBiases = 1024;  // the same

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

}  // namespace

Result<OrderedJson> parse_body(std::string_view body) {
  const auto bounded = format::parse_json(body, format::kConversationDocument);
  // A bound of the document is no lack of room now: the client would only send it again.
  if (!bounded && bounded.error().kind == ErrorKind::budget) return invalid(bounded.error().message);
  TRY(bounded);
  OrderedJson root = OrderedJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return invalid("the body is not a JSON object");
  return root;
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

Result<void> read_sampling(const JsonFields& fields, AnswerRequest& request) {
  TRY_ASSIGN(const auto temperature, fields.number("temperature", 0, 100));
  TRY_ASSIGN(const auto top_p, fields.number("top_p", 0, 1));
  TRY_ASSIGN(const auto min_p, fields.number("min_p", 0, 1));
  TRY_ASSIGN(const auto top_k, fields.whole("top_k", 0, kMostTokens));
  TRY_ASSIGN(const auto penalty, fields.number("repetition_penalty", 0.01, 100));
  TRY_ASSIGN(const auto presence, fields.number("presence_penalty", -2, 2));
  TRY_ASSIGN(const auto frequency, fields.number("frequency_penalty", -2, 2));
  TRY_ASSIGN(const auto seed, fields.whole("seed", 0, UINT64_MAX));
  SamplerOptions& sampling = request.sampling;
  sampling.temperature = temperature.value_or(sampling.temperature);
  if (top_p && *top_p > 0) sampling.top_p = *top_p;
  sampling.min_p = min_p.value_or(sampling.min_p);
  sampling.top_k = static_cast<uint32_t>(top_k.value_or(sampling.top_k));
  sampling.repetition_penalty = penalty.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = presence.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = frequency.value_or(sampling.frequency_penalty);
  sampling.seed = seed ? *seed : std::random_device()();
  TRY(read_bias(fields, sampling));
  TRY_ASSIGN(const auto model, fields.text("model"));
  request.model = model.value_or("");
  TRY_ASSIGN(const auto streams, fields.flag("stream"));
  request.streams = streams.value_or(false);
  return {};
}

}  // namespace dspack::runtime
