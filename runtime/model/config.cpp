#include "runtime/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/base/checked.h"
#include "runtime/model/config_fields.h"

namespace dspack::runtime {

namespace {

using kernels::GroupScore;
using kernels::ScoreFunction;

constexpr std::string_view kFile = "config.json";
// Far above every released model, and low enough that a product of two sizes in bytes cannot overflow 64 bits.
constexpr uint32_t kMaxWidth = 1U << 20;
constexpr uint32_t kMaxVocab = 1U << 24;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxHeads = 1U << 14;
constexpr uint32_t kMaxExperts = 1U << 16;
constexpr uint32_t kMaxPositions = 1U << 26;
// kernels::Rows counts in 32 bits.
constexpr uint64_t kMaxRowValues = 1ULL << 31;

// The architectures whose computation is the one graph of this folder.
constexpr std::array<std::string_view, 3> kModelTypes = {"deepseek_v3", "deepseek_v2", "kimi_k2"};

void read_sizes(ConfigFields& fields, ModelConfig& config) {
  config.vocab = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden = fields.integer("hidden_size", 1, kMaxWidth);
  config.layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.mtp_layers = fields.integer("num_nextn_predict_layers", 0, kMaxLayers, 0);
  config.max_positions = fields.integer("max_position_embeddings", 1, kMaxPositions);
  config.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", 0, 1));
}

void read_attention(ConfigFields& fields, ModelConfig& config) {
  config.heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.q_rank = fields.integer("q_lora_rank", 1, kMaxWidth, 0);
  config.kv_rank = fields.integer("kv_lora_rank", 1, kMaxWidth);
  config.nope_dim = fields.integer("qk_nope_head_dim", 1, kMaxWidth);
  config.rope_dim = fields.integer("qk_rope_head_dim", 2, kMaxWidth);
  config.value_dim = fields.integer("v_head_dim", 1, kMaxWidth);
  if (config.rope_dim % 2 != 0) fields.fail(ErrorKind::invalid, "qk_rope_head_dim", "must be even");
  if (fields.integer("num_key_value_heads", 1, kMaxHeads, config.heads) != config.heads) {
    fields.fail(ErrorKind::unsupported, "num_key_value_heads", "must equal num_attention_heads for latent attention");
  }
  const uint64_t per_head = uint64_t{config.kv_rank} + config.nope_dim + config.rope_dim + config.value_dim;
  if (per_head * config.heads > kMaxRowValues) {
    fields.fail(ErrorKind::invalid, "num_attention_heads", "heads times their sizes exceed 2^31 values a token");
  }
}

void refuse_unsupported(ConfigFields& fields) {
  if (fields.flag("attention_bias", false)) {
    fields.fail(ErrorKind::unsupported, "attention_bias", "only attention without bias can be run");
  }
  if (fields.flag("tie_word_embeddings", false)) {
    fields.fail(ErrorKind::unsupported, "tie_word_embeddings",
                "only models with an output head of their own can be run");
  }
  if (!fields.flag("rope_interleave", true)) {
    fields.fail(ErrorKind::unsupported, "rope_interleave", "only interleaved rotary pairs can be run");
  }
  if (fields.text("hidden_act", "silu") != "silu") {
    fields.fail(ErrorKind::unsupported, "hidden_act", "only \"silu\" can be run");
  }
}

RopeConfig::Yarn read_yarn(ConfigFields& fields, uint32_t max_positions) {
  RopeConfig::Yarn yarn;
  yarn.original_positions = fields.integer("original_max_position_embeddings", 1, kMaxPositions);
  const double by_positions = double{static_cast<double>(max_positions)} / std::max(yarn.original_positions, 1U);
  yarn.factor = fields.number("factor", 1e-3, 1e6, by_positions);
  yarn.beta_fast = fields.number("beta_fast", 1e-3, 1e6, 32);
  yarn.beta_slow = fields.number("beta_slow", 1e-3, 1e6, 1);
  yarn.mscale = fields.number("mscale", 0, 1e3, 0);
  yarn.mscale_all_dim = fields.number("mscale_all_dim", 0, 1e3, 0);
  if (fields.find("attention_factor") != nullptr) {
    yarn.attention_factor = fields.number("attention_factor", 1e-3, 1e3);
  }
  yarn.truncate = fields.flag("truncate", true);
  return yarn;
}

// Released files say rope_theta and rope_scaling {type}; transformers 5 writes rope_parameters {rope_type, rope_theta}.
std::optional<Error> read_rope(ConfigFields& fields, ModelConfig& config) {
  config.rope.theta = fields.number("rope_theta", 1.001, 1e12, 10000);
  const std::string key = fields.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const format::Json* scaling = fields.object(key);
  if (scaling == nullptr) return std::nullopt;
  ConfigFields inner(*scaling, fmt::format("{}: in \"{}\"", fields.place(), key));
  config.rope.theta = inner.number("rope_theta", 1.001, 1e12, config.rope.theta);
  const std::string type = inner.text("rope_type", inner.text("type", "default"));
  if (type == "yarn") {
    config.rope.yarn = read_yarn(inner, config.max_positions);
  } else if (type != "default") {
    inner.fail(ErrorKind::unsupported, inner.find("rope_type") != nullptr ? "rope_type" : "type",
               R"(only "yarn" and "default" can be run)");
  }
  return inner.error();
}

void read_routing(ConfigFields& fields, ModelConfig& config) {
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
  if (method == "greedy") {
    config.groups = config.groups_kept = 1;
  } else if (method != "noaux_tc" && method != "group_limited_greedy") {
    fields.fail(ErrorKind::unsupported, "topk_method",
                R"(only "noaux_tc", "group_limited_greedy" and "greedy" can be run)");
  }
}

void check_routing(ConfigFields& fields, const ModelConfig& config) {
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

void read_moe(ConfigFields& fields, ModelConfig& config) {
  config.dense_inner = fields.integer("intermediate_size", 1, kMaxWidth);
  config.first_moe_layer = fields.integer("first_k_dense_replace", 0, kMaxLayers, 0);
  config.moe_layer_step = fields.integer("moe_layer_freq", 1, kMaxLayers, 1);
  config.experts = fields.integer("n_routed_experts", 1, kMaxExperts);
  config.shared_experts = fields.integer("n_shared_experts", 0, 1024, 0);
  config.expert_inner = fields.integer("moe_intermediate_size", 1, kMaxWidth);
  config.top_k = fields.integer("num_experts_per_tok", 1, 1024);
  config.groups = fields.integer("n_group", 1, kMaxExperts, 1);
  config.groups_kept = fields.integer("topk_group", 1, kMaxExperts, 1);
  config.normalise = fields.flag("norm_topk_prob", config.model_type != "deepseek_v2");
  config.routed_scale = static_cast<float>(fields.number("routed_scaling_factor", 0, 1e6, 1));
  read_routing(fields, config);
  check_routing(fields, config);
  if (uint64_t{config.shared_experts} * config.expert_inner > kMaxRowValues) {
    fields.fail(ErrorKind::invalid, "n_shared_experts", "times moe_intermediate_size exceeds 2^31");
  }
}

std::optional<Error> read_quantization(ConfigFields& fields, ModelConfig& config) {
  const format::Json* object = fields.object("quantization_config");
  if (object == nullptr) return std::nullopt;
  ConfigFields inner(*object, fmt::format("{}: in \"quantization_config\"", fields.place()));
  if (inner.text("quant_method", "") != "fp8") {
    inner.fail(ErrorKind::unsupported, "quant_method", "only \"fp8\" and unquantised weights can be run");
  }
  if (inner.text("fmt", "e4m3") != "e4m3") inner.fail(ErrorKind::unsupported, "fmt", "only \"e4m3\" can be run");
  const format::Json* block = inner.find("weight_block_size");
  if (block != nullptr) {
    const auto good = [](const format::Json& size) {
      return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxWidth;
    };
    if (!block->is_array() || block->size() != 2 || !good((*block)[0]) || !good((*block)[1])) {
      inner.fail(ErrorKind::invalid, "weight_block_size", "expected two whole numbers, as in [128, 128]");
    } else {
      config.fp8_block = BlockSize{.out = (*block)[0].get<uint32_t>(), .in = (*block)[1].get<uint32_t>()};
    }
  }
  return inner.error();
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

Result<format::Json> parse_object(std::string_view text, std::string_view file) {
  auto parsed = format::parse_json(text);
  if (!parsed) return parsed.error().in(file);
  if (!parsed->is_object()) return Error{ErrorKind::invalid, fmt::format("{}: expected a JSON object", file)};
  return parsed;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text) {
  TRY_ASSIGN(const format::Json json, parse_object(text, kFile));
  ConfigFields fields(json, std::string(kFile));
  ModelConfig config;
  config.model_type = fields.text("model_type", "");
  if (std::ranges::find(kModelTypes, config.model_type) == kModelTypes.end()) {
    fields.fail(ErrorKind::unsupported, "model_type",
                fmt::format("this program runs {}", fmt::join(kModelTypes, ", ")));
  }
  refuse_unsupported(fields);
  read_sizes(fields, config);
  read_attention(fields, config);
  if (fields.error()) return *fields.error();
  if (auto error = read_rope(fields, config)) return *error;
  read_moe(fields, config);
  if (fields.error()) return *fields.error();
  if (auto error = read_quantization(fields, config)) return *error;
  if (fields.error()) return *fields.error();
  TRY_ASSIGN(config.eos_tokens, eos_tokens(json, kFile));
  return config;
}

Result<std::vector<uint32_t>> parse_eos_tokens(std::string_view text, std::string_view file) {
  TRY_ASSIGN(const format::Json json, parse_object(text, file));
  return eos_tokens(json, file);
}

}  // namespace dspack::runtime
