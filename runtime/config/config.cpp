#include "runtime/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/base/size.h"
#include "format/config_fields.h"
#include "format/json.h"
#include "runtime/config/config_keys.h"
#include "runtime/config/config_rope.h"
#include "runtime/config/config_sparse.h"
#include "runtime/config/config_window.h"

namespace dspack::runtime {
namespace {

using kernels::GroupScore;
using kernels::ScoreFunction;

constexpr std::string_view kFile = "config.json";
constexpr std::string_view kTied = "tie_word_embeddings";
constexpr std::string_view kQuantization = "quantization_config";
// Architectures that this program runs.
constexpr std::string_view kMistral = "mistral4";
constexpr std::array<std::string_view, 8> kModelTypes = {"deepseek_v4", "deepseek_v3",   "deepseek_v2", "deepseek_v32",
                                                         "kimi_k2",     "glm4_moe_lite", "glm_moe_dsa", kMistral};
// Not run: its graph differs from DeepSeek-V4's.
constexpr std::string_view kNextWindowType = "deepseek_v41";
// Keys that mean something else in DeepSeek-V4.
constexpr std::array<std::string_view, 2> kWindowKeys = {"sliding_window", "partial_rotary_factor"};
// Multimodal models whose language model is one of kModelTypes.
constexpr std::array<std::string_view, 4> kWrapperTypes = {"kimi_k25", "kimi_vl", "kimi_k2", "mistral3"};

void read_sizes(format::ConfigFields& fields, ModelConfig& config) {
  config.vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config.ties_head = fields.flag(kTied, false);
  config.hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config.layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.mtp_layers = fields.integer("num_nextn_predict_layers", 0, kMaxLayers, 0);
  config.max_positions = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", 0, 1));
}

void read_attention(format::ConfigFields& fields, ModelConfig& config) {
  config.heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.q_rank = fields.integer("q_lora_rank", 1, kMaxWidth, 0);
  config.kv_rank = fields.integer("kv_lora_rank", 1, kMaxWidth);
  config.nope_dim = fields.integer("qk_nope_head_dim", 1, kMaxWidth);
  config.rope_dim = fields.integer("qk_rope_head_dim", 2, kMaxWidth);
  config.value_dim = fields.integer("v_head_dim", 1, kMaxWidth);
  if (config.rope_dim % 2 != 0) fields.fail(ErrorKind::invalid, "qk_rope_head_dim", "must be even");
  const uint64_t per_head = uint64_t{config.kv_rank} + config.nope_dim + config.rope_dim + config.value_dim;
  if (per_head * config.heads > kMaxRowValues) {
    fields.fail(ErrorKind::invalid, "num_attention_heads", "heads times their sizes exceed 2^31 values a token");
  }
}

// Keys under which transformers repeats values given elsewhere: they must agree.
void check_other_names(format::ConfigFields& fields, const ModelConfig& config) {
  const auto same = [&](std::string_view key, uint32_t value, std::string_view of) {
    const format::Json* found = fields.find(key);
    if (found != nullptr && *found != value) {
      fields.fail(ErrorKind::invalid, key, fmt::format("it must be {}, as follows from {}", value, of));
    }
  };
  if (fields.integer("num_key_value_heads", 1, kMaxHeads, config.heads) != config.heads) {
    fields.fail(ErrorKind::unsupported, "num_key_value_heads", "must equal num_attention_heads for latent attention");
  }
  same("qk_head_dim", config.query_dim(), "qk_nope_head_dim and qk_rope_head_dim");
  same("num_local_experts", config.experts, "n_routed_experts");
  same("num_experts", config.experts, "n_routed_experts");
  same("num_mtp_layers", config.mtp_layers, "num_nextn_predict_layers");
  // transformers sets head_dim to the rotary part, GLM-5.2 to the other part, other programs to the whole head.
  const format::Json* found = fields.find("head_dim");
  if (found != nullptr && *found != config.query_dim() && *found != config.nope_dim) {
    same("head_dim", config.rope_dim, "qk_rope_head_dim");
  }
}

// Mistral-Small-4 has one implementation: softmax scores, groups ranked by the sum of their two best, no bias
// (transformers' Mistral4TopkRouter).
void read_mistral_routing(format::ConfigFields& fields, ModelConfig& config) {
  config.score = ScoreFunction::softmax;
  config.group_score = GroupScore::top2_sum;
  config.selection_bias = false;
  config.groups = fields.integer("n_group", 1, kMaxExperts);
  config.groups_kept = fields.integer("topk_group", 1, kMaxExperts);
}

// Accepts the three combinations that have a published implementation.
void read_routing(format::ConfigFields& fields, ModelConfig& config) {
  if (config.model_type == kMistral) return read_mistral_routing(fields, config);
  const bool v2 = config.model_type == "deepseek_v2";
  const std::string score = fields.text("scoring_func", v2 ? "softmax" : "sigmoid");
  if (score == "softmax") {
    config.score = ScoreFunction::softmax;
  } else if (score != "sigmoid") {
    fields.fail(ErrorKind::unsupported, "scoring_func", R"(only "sigmoid" and "softmax" can be run)");
  }
  const std::string method = fields.text("topk_method", v2 ? "greedy" : "noaux_tc");
  config.selection_bias = method == "noaux_tc";
  config.group_score = config.selection_bias ? GroupScore::top2_sum : GroupScore::max;
  if (method != "noaux_tc" && method != "group_limited_greedy" && method != "greedy") {
    fields.fail(ErrorKind::unsupported, "topk_method",
                R"(only "noaux_tc", "group_limited_greedy" and "greedy" can be run)");
  } else if (config.selection_bias != (config.score == ScoreFunction::sigmoid)) {
    fields.fail(ErrorKind::unsupported, "topk_method",
                fmt::format("with scoring_func \"{}\"; \"noaux_tc\" goes with \"sigmoid\", the others with \"softmax\"",
                            score));
  }
  if (config.score == ScoreFunction::softmax && config.normalise) {
    fields.fail(ErrorKind::unsupported, "norm_topk_prob",
                "with scoring_func \"softmax\" the published implementations disagree about it");
  }
  if (method == "greedy") {
    for (const std::string_view key : {"n_group", "topk_group"})
      (void)fields.find(key);  // greedy choice is among all experts, without groups
    return;
  }
  config.groups = fields.integer("n_group", 1, kMaxExperts);
  config.groups_kept = fields.integer("topk_group", 1, kMaxExperts);
}

void check_routing(format::ConfigFields& fields, const ModelConfig& config) {
  if (config.experts % config.groups != 0) {
    fields.fail(ErrorKind::invalid, "n_group", fmt::format("{} experts do not divide into it", config.experts));
    return;
  }
  const uint32_t group_size = config.experts / config.groups;
  if (config.groups_kept > config.groups) {
    fields.fail(ErrorKind::invalid, "topk_group", fmt::format("there are only {} groups (n_group)", config.groups));
  }
  if (config.group_score == GroupScore::top2_sum && config.groups > 1 && group_size < 2) {
    fields.fail(ErrorKind::invalid, "n_group", "a group needs at least two experts");
  }
  if (config.top_k > config.groups_kept * group_size) {
    fields.fail(ErrorKind::invalid, "num_experts_per_tok",
                fmt::format("the kept groups hold only {} experts", config.groups_kept * group_size));
  }
}

// Reads which layers have experts: all from first_k_dense_replace on, or those in a list. If both are given, they must
// agree.
void read_layer_kinds(format::ConfigFields& fields, ModelConfig& config) {
  const format::Json* types = fields.find("mlp_layer_types");
  const bool has_first = fields.find("first_k_dense_replace") != nullptr;
  config.moe_layer_step = fields.integer("moe_layer_freq", 1, kMaxLayers, 1);
  if (has_first || types == nullptr) {
    config.first_moe_layer = fields.integer("first_k_dense_replace", 0, kMaxLayers);
  }
  if (types == nullptr) return;
  const auto good = [](const format::Json& type) { return type == "dense" || type == "sparse"; };
  if (!types->is_array() || types->size() != config.layers || !std::ranges::all_of(*types, good)) {
    fields.fail(ErrorKind::invalid, "mlp_layer_types",
                fmt::format("expected {} times \"dense\" or \"sparse\", one for each layer", config.layers));
    return;
  }
  std::vector<bool> listed;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    listed.push_back((*types)[layer] == "sparse");
    if (has_first && listed.back() != config.is_moe(LayerId(layer))) {
      fields.fail(ErrorKind::invalid, "mlp_layer_types",
                  fmt::format("layer {} contradicts first_k_dense_replace", layer));
    }
  }
  if (!has_first) config.moe_layers = std::move(listed);
}

void read_moe(format::ConfigFields& fields, ModelConfig& config) {
  config.dense_inner = fields.integer("intermediate_size", 1, kMaxWidth);
  read_layer_kinds(fields, config);
  config.experts = fields.integer("n_routed_experts", 1, kMaxExperts);
  // null means no shared experts. An absent key is an error, because implementations have different defaults.
  config.shared_experts = fields.integer("n_shared_experts", 0, 1024,
                                         fields.is_null("n_shared_experts") ? std::optional(0U) : std::nullopt);
  config.expert_inner = fields.integer("moe_intermediate_size", 1, kMaxWidth);
  config.top_k = fields.integer("num_experts_per_tok", 1, 1024);
  if (fields.find("norm_topk_prob") == nullptr) {
    fields.fail(ErrorKind::invalid, "norm_topk_prob", "expected true or false");
  }
  config.normalise = fields.flag("norm_topk_prob", false);
  config.routed_scale = static_cast<float>(fields.number("routed_scaling_factor", 0, 1e6));
  read_routing(fields, config);
  check_routing(fields, config);
  if (uint64_t{config.shared_experts} * config.expert_inner > kMaxRowValues) {
    fields.fail(ErrorKind::invalid, "n_shared_experts", "times moe_intermediate_size exceeds 2^31");
  }
}

Result<std::vector<uint32_t>> eos_tokens(const format::Json& object, std::string_view file) {
  std::vector<uint32_t> ids;
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return ids;
  const auto good = [](const format::Json& id) { return id.is_number_unsigned() && id.get<uint64_t>() < kMaxVocab; };
  const format::Json list = found->is_array() ? *found : format::Json::array({*found});
  for (const format::Json& id : list) {
    if (!good(id)) {
      return Error{ErrorKind::invalid, fmt::format("{}: \"eos_token_id\" must be a token id or a list of them", file)};
    }
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

std::string place_of_quantization() {
  return fmt::format("{}: in \"{}\"", kFile, kQuantization);
}

Result<format::Json> parse_object(std::string_view text, std::string_view file) {
  auto parsed = format::parse_json_file(text, format::kConfigDocument);
  if (!parsed) return parsed.error().in(file);
  if (!parsed->is_object()) return Error{ErrorKind::invalid, fmt::format("{}: expected a JSON object", file)};
  return parsed;
}

Result<void> read_latent_model(format::ConfigFields& fields, ModelConfig& config) {
  read_attention(fields, config);
  if (is_sparse_type(config.model_type)) read_sparse_attention(fields, config);
  if (fields.error()) return *fields.error();
  // Mistral's partial_rotary_factor is relative to a whole query head: the part without position and the rotated part.
  const bool counts_head = config.model_type == kMistral;
  const double rotated_share = counts_head ? static_cast<double>(config.rope_dim) / config.query_dim() : 1.0;
  TRY_ASSIGN(config.rope, read_rope(fields, config.max_positions, rotated_share));
  if (config.rope.query_beta != 0 && config.query_dim() % 2 != 0)
    fields.fail(ErrorKind::unsupported, "qk_nope_head_dim", "must be even where queries are scaled by position");
  read_moe(fields, config);
  check_other_names(fields, config);
  return {};
}

// The JSON object that describes how weights are stored, and its place for error texts. A null object: there is none.
struct Described {
  const format::Json* object = nullptr;
  std::string place;
};

Result<ModelConfig> parse_language_model(const format::Json& json, const std::string& place,
                                         const Described& quantization) {
  format::ConfigFields fields(json, place);
  ModelConfig config;
  config.model_type = fields.text("model_type", "");
  if (std::ranges::find(kModelTypes, config.model_type) == kModelTypes.end()) {
    const bool is_wrapper = std::ranges::find(kWrapperTypes, config.model_type) != kWrapperTypes.end();
    fields.fail(ErrorKind::unsupported, "model_type",
                fmt::format("this program runs {}{}", fmt::join(kModelTypes, ", "),
                            is_wrapper ? R"(, and this one with a "text_config", which is missing)" : ""));
  }
  const bool has_window = is_window_type(config.model_type);
  refuse_other_values(fields, has_window ? kWindowKeys : std::span<const std::string_view>());
  read_sizes(fields, config);
  if (fields.error()) return *fields.error();
  TRY(has_window ? read_window_model(fields, config) : read_latent_model(fields, config));
  (void)fields.object(kQuantization);
  fields.refuse_others(keys_without_effect());
  if (fields.error()) return *fields.error();
  config.is_quantised = quantization.object != nullptr;
  if (quantization.object != nullptr) {
    TRY_ASSIGN(auto reading, format::parse_quantization(*quantization.object, quantization.place));
    config.quantization = std::move(reading.stored);
    config.expected = std::move(reading.expected);
    config.notes = std::move(reading.notes);
  }
  return config;
}

// The configuration of a multimodal model: only its language model is run.
Result<ModelConfig> parse_wrapper(const format::Json& json, Described quantization) {
  format::ConfigFields fields(json, std::string(kFile));
  const std::string type = fields.text("model_type", "");
  if (std::ranges::find(kWrapperTypes, type) == kWrapperTypes.end()) {
    fields.fail(ErrorKind::unsupported, "model_type",
                fmt::format("with a \"text_config\" this program runs {}", fmt::join(kWrapperTypes, ", ")));
  }
  refuse_other_values(fields, {});
  const format::Json* text = fields.object("text_config");
  (void)fields.object(kQuantization);
  (void)fields.flag(kTied, false);
  fields.refuse_others(wrapper_keys_without_effect());
  if (fields.error()) return *fields.error();
  const std::string place = fmt::format("{}: in \"text_config\"", kFile);
  format::ConfigFields inner(*text, place);
  if (const format::Json* own = inner.object(kQuantization); own != nullptr)
    quantization = {.object = own, .place = place_of_quantization()};
  if (inner.error()) return *inner.error();
  TRY_ASSIGN(ModelConfig config, parse_language_model(*text, place, quantization));
  if (fields.flag(kTied, config.ties_head) != config.ties_head) {
    fields.fail(ErrorKind::unsupported, kTied, "\"text_config\" has another value; correct one of them");
    return *fields.error();
  }
  return config;
}

const format::Json* text_config(const format::Json& json) {
  const auto found = json.find("text_config");
  return found == json.end() || !found->is_object() ? nullptr : &*found;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view hf_quant_config) {
  TRY_ASSIGN(const format::Json json, parse_object(text, kFile));
  format::ConfigFields fields(json, std::string(kFile));
  const bool is_own = fields.object(kQuantization) != nullptr;
  if (fields.error()) return *fields.error();
  const auto found = format::find_quantization(json, hf_quant_config);
  if (!found) return found.error().in(format::kHfQuantConfigPath);
  Described quantization;
  if (!found->is_null()) {
    quantization = {
        .object = &*found,
        .place = is_own ? place_of_quantization() : fmt::format("{}: in \"quantization\"", format::kHfQuantConfigPath)};
  }
  if (fields.text("model_type", "") == kNextWindowType) {
    fields.fail(
        ErrorKind::unsupported, "model_type",
        "of DeepSeek-V4.1 this program lacks keys and choices that layers share, and tables of n-grams (Engram)");
    return *fields.error();
  }
  const bool is_wrapper = text_config(json) != nullptr;
  TRY_ASSIGN(ModelConfig config, is_wrapper ? parse_wrapper(json, std::move(quantization))
                                            : parse_language_model(json, std::string(kFile), quantization));
  TRY_ASSIGN(config.eos_tokens, parse_eos_tokens(text, kFile));
  return config;
}

Result<std::vector<uint32_t>> parse_eos_tokens(std::string_view text, std::string_view file) {
  TRY_ASSIGN(const format::Json json, parse_object(text, file));
  if (const format::Json* inner = text_config(json); inner != nullptr) {
    TRY_ASSIGN(auto tokens, eos_tokens(*inner, file));
    if (!tokens.empty()) return tokens;
  }
  return eos_tokens(json, file);
}

}  // namespace dspack::runtime
