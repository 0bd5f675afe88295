#include "runtime/config/config_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "runtime/config/config_keys.h"
#include "runtime/config/config_rope.h"

namespace dspack::runtime {

namespace {

constexpr std::string_view kType = "deepseek_v4";

// Far above every released model.
constexpr uint32_t kMaxHeadDim = 1U << 16;
constexpr uint32_t kMaxWindow = 1U << 20;
constexpr uint32_t kMaxRounds = 1000;
constexpr uint32_t kMaxDraftSources = 16;
constexpr uint32_t kMaxDraftBlock = 64;
constexpr uint32_t kUsualStages = 3;

// Positions per entry (0: no entries), and transformers' name for such a layer.
struct LayerKind {
  uint32_t every;
  std::string_view type;
};
constexpr std::array<LayerKind, 3> kLayerKinds = {{{0, "sliding_attention"},
                                                   {ModelConfig::kChosenEntryPositions, "compressed_sparse_attention"},
                                                   {128, "heavily_compressed_attention"}}};

using Ratios = std::optional<std::vector<uint32_t>>;

// DeepSeek's list: a number for each layer, then one for each draft module.
Ratios read_ratios(format::ConfigFields& fields, const ModelConfig& config) {
  const format::Json* list = fields.find("compress_ratios");
  if (list == nullptr) return std::nullopt;
  const auto is_good = [](const format::Json& ratio) {
    return std::ranges::any_of(kLayerKinds, [&](const LayerKind& kind) { return ratio == kind.every; });
  };
  if (!list->is_array() || list->size() < config.layers || !std::ranges::all_of(*list, is_good)) {
    fields.fail(ErrorKind::unsupported, "compress_ratios",
                fmt::format("expected 0, 4 or 128 for each of {} layers", config.layers));
    return std::nullopt;
  }
  std::vector<uint32_t> ratios;
  for (uint32_t layer = 0; layer < config.layers; ++layer)
    ratios.push_back((*list)[layer].get<uint32_t>());
  return ratios;
}

Ratios read_layer_types(format::ConfigFields& fields, const ModelConfig& config) {
  const format::Json* list = fields.find("layer_types");
  if (list == nullptr) return std::nullopt;
  std::vector<uint32_t> ratios;
  bool is_good = list->is_array() && list->size() == config.layers;
  for (size_t layer = 0; is_good && layer < config.layers; ++layer) {
    const auto kind =
        std::ranges::find_if(kLayerKinds, [&](const LayerKind& one) { return (*list)[layer] == one.type; });
    is_good = kind != kLayerKinds.end();
    if (is_good) ratios.push_back(kind->every);
  }
  if (is_good) return ratios;
  fields.fail(ErrorKind::unsupported, "layer_types",
              fmt::format("expected \"{}\", \"{}\" or \"{}\" for each of {} layers", kLayerKinds[0].type,
                          kLayerKinds[1].type, kLayerKinds[2].type, config.layers));
  return std::nullopt;
}

// compress_rates: positions per entry, by kind of layer. Only the released numbers can be run.
void check_rates(format::ConfigFields& fields) {
  const format::Json* rates = fields.object("compress_rates");
  if (rates == nullptr) return;
  for (const auto& rate : rates->items()) {
    const bool is_known = std::ranges::any_of(kLayerKinds, [&](const LayerKind& kind) {
      return kind.every != 0 && kind.type == rate.key() && rate.value() == kind.every;
    });
    if (!is_known) fields.fail(ErrorKind::unsupported, "compress_rates", "only rates of 4 and 128 can be run");
  }
}

std::vector<uint32_t> read_entries(format::ConfigFields& fields, const ModelConfig& config) {
  const Ratios ratios = read_ratios(fields, config);
  const Ratios types = read_layer_types(fields, config);
  check_rates(fields);
  if (fields.error()) return {};
  if (ratios && types && *ratios != *types)
    fields.fail(ErrorKind::invalid, "layer_types", "it contradicts \"compress_ratios\"; remove one of them");
  if (!ratios && !types)
    fields.fail(ErrorKind::invalid, "compress_ratios",
                "is missing; implementations have different patterns in its place");
  return ratios ? *ratios : types.value_or(std::vector<uint32_t>());
}

uint32_t read_rotated(format::ConfigFields& fields, uint32_t head_dim) {
  const double share = fields.number("partial_rotary_factor", 0, 1, 0);
  const bool has_share = fields.find("partial_rotary_factor") != nullptr;
  const auto of_share = static_cast<uint32_t>(head_dim * share);
  const uint32_t dim =
      fields.integer("qk_rope_head_dim", 2, kMaxHeadDim, has_share ? std::optional(of_share) : std::nullopt);
  if (has_share && dim != of_share) {
    fields.fail(ErrorKind::invalid, "partial_rotary_factor",
                fmt::format("of head_dim {} it is not qk_rope_head_dim {}", head_dim, dim));
  }
  if (dim < 2 || dim % 2 != 0 || dim > head_dim)
    fields.fail(ErrorKind::invalid, "qk_rope_head_dim", fmt::format("must be even, and at most head_dim {}", head_dim));
  return dim;
}

// YaRN's magnitude factor scales neither cosines nor scores (DeepSeek-V4 inference/model.py, precompute_freqs_cis and
// Attention.softmax_scale).
Result<void> check_magnitude(RopeConfig& rope, const std::string& place) {
  if (!rope.yarn) return {};
  const bool has_other = rope.yarn->mscale != 0 || rope.yarn->attention_factor.value_or(1) != 1;
  if (has_other)
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: YaRN of this model has no factor of its own; leave out mscale, "
                             "mscale_all_dim and attention_factor",
                             place)};
  rope.yarn->attention_factor = 1;
  return {};
}

// Both rotary embeddings as transformers writes them: "rope_parameters": {"main": {..}, "compress": {..}}.
Result<void> read_two_ropes(const format::Json& parameters, const std::string& place, ModelConfig& config) {
  format::ConfigFields both(parameters, place);
  const double share = static_cast<double>(config.rope_dim) / config.query_dim();
  for (const std::string_view key : {"main", "compress"}) {
    const format::Json* one = both.object(key);
    if (one == nullptr) {
      both.fail(ErrorKind::invalid, key, "is missing");
      return *both.error();
    }
    const format::Json wrapped = {{"rope_parameters", *one}};
    format::ConfigFields inner(wrapped, fmt::format("{}: in \"{}\"", place, key));
    TRY_ASSIGN(RopeConfig rope, read_rope(inner, config.max_positions, share));
    (key == "main" ? config.rope : config.window->rope) = rope;
  }
  both.refuse_others({});
  if (both.error()) return *both.error();
  return {};
}

Result<void> read_ropes(format::ConfigFields& fields, ModelConfig& config) {
  const double theta = fields.number("compress_rope_theta", 1.001, 1e12, 0);
  if (const format::Json* parameters = fields.object("rope_parameters");
      parameters != nullptr && parameters->contains("compress")) {
    (void)fields.find("rope_theta");
    TRY(read_two_ropes(*parameters, fmt::format("{}: in \"rope_parameters\"", fields.place()), config));
    if (theta != 0 && theta != config.window->rope.theta)
      fields.fail(ErrorKind::invalid, "compress_rope_theta", "but \"rope_parameters\" has another one");
  } else {
    if (theta == 0) {
      fields.fail(ErrorKind::invalid, "compress_rope_theta",
                  "is missing; released models have 160000 and DeepSeek's code another default");
    }
    TRY_ASSIGN(config.window->rope, read_rope(fields, config.max_positions, 1));
    config.rope = RopeConfig();
    config.rope.theta = config.window->rope.theta;
    config.window->rope.theta = theta;
  }
  if (config.rope.yarn)
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: only layers with compressed entries can have YaRN", fields.place())};
  return check_magnitude(config.window->rope, fields.place());
}

Result<void> read_window_attention(format::ConfigFields& fields, ModelConfig& config) {
  config.heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  if (fields.integer("num_key_value_heads", 1, kMaxHeads, 1) != 1)
    fields.fail(ErrorKind::unsupported, "num_key_value_heads", "only 1 can be run: all heads share a key");
  const uint32_t head_dim = fields.integer("head_dim", 2, kMaxHeadDim);
  config.rope_dim = read_rotated(fields, head_dim);
  config.q_rank = fields.integer("q_lora_rank", 1, kMaxWidth);
  WindowConfig window;
  window.positions = fields.integer("sliding_window", 1, kMaxWindow);
  window.every = read_entries(fields, config);
  window.out_groups = fields.integer("o_groups", 1, kMaxHeads);
  window.out_rank = fields.integer("o_lora_rank", 1, kMaxWidth);
  IndexerConfig indexer;
  indexer.heads = fields.integer("index_n_heads", 1, kMaxIndexHeads);
  indexer.dim = fields.integer("index_head_dim", 2, kMaxHeadDim);
  indexer.most = fields.integer("index_topk", 1, kMaxChosen);
  indexer.pairs = kernels::RopePairs::neighbours;
  if (fields.error()) return *fields.error();
  config.nope_dim = head_dim - config.rope_dim;
  config.kv_rank = config.nope_dim;
  config.value_dim = head_dim;
  if (config.heads % window.out_groups != 0)
    fields.fail(ErrorKind::invalid, "o_groups", fmt::format("{} heads do not divide into it", config.heads));
  if (indexer.dim < config.rope_dim)
    fields.fail(ErrorKind::invalid, "index_head_dim", fmt::format("its last {} values are rotated", config.rope_dim));
  if (uint64_t{config.heads} * head_dim > kMaxRowValues ||
      uint64_t{window.out_groups} * window.out_rank > kMaxRowValues)
    fields.fail(ErrorKind::invalid, "num_attention_heads", "heads times their sizes exceed 2^31 values a token");
  config.indexer = indexer;
  config.window = std::move(window);
  if (fields.error()) return *fields.error();
  return read_ropes(fields, config);
}

void read_streams(format::ConfigFields& fields, ModelConfig& config) {
  StreamsConfig streams;
  streams.count = fields.integer("hc_mult", 1, kernels::kMaxStreams);
  streams.rounds = fields.integer("hc_sinkhorn_iters", 1, kMaxRounds);
  streams.epsilon = static_cast<float>(fields.number("hc_eps", 0, 1));
  if (uint64_t{config.hidden} * streams.count > kMaxRowValues)
    fields.fail(ErrorKind::invalid, "hc_mult", "times hidden_size exceeds 2^31");
  config.streams = streams;
}

// Reads how many leading layers look their experts up by token id: DeepSeek gives the number, transformers a list.
void read_layers_by_token(format::ConfigFields& fields, ModelConfig& config) {
  std::optional<uint32_t> listed;
  if (const format::Json* types = fields.find("mlp_layer_types"); types != nullptr) {
    const auto is_good = [](const format::Json& type) { return type == "hash_moe" || type == "moe"; };
    if (types->is_array() && types->size() == config.layers && std::ranges::all_of(*types, is_good) &&
        std::ranges::is_partitioned(*types, [](const format::Json& type) { return type == "hash_moe"; })) {
      listed = static_cast<uint32_t>(std::ranges::count(*types, "hash_moe"));
    } else {
      fields.fail(ErrorKind::unsupported, "mlp_layer_types",
                  fmt::format("expected \"hash_moe\", and behind them \"moe\", {} in all", config.layers));
    }
  }
  config.layers_by_token = fields.integer("num_hash_layers", 0, config.layers, listed);
  if (listed && *listed != config.layers_by_token)
    fields.fail(ErrorKind::invalid, "num_hash_layers", "\"mlp_layer_types\" lists another number");
}

void read_clamped_experts(format::ConfigFields& fields, ModelConfig& config) {
  config.experts = fields.integer("n_routed_experts", 1, kMaxExperts);
  config.shared_experts = fields.integer("n_shared_experts", 0, 1024);
  config.expert_inner = fields.integer("moe_intermediate_size", 1, kMaxWidth);
  config.top_k = fields.integer("num_experts_per_tok", 1, 1024);
  config.routed_scale = static_cast<float>(fields.number("routed_scaling_factor", 0, 1e6));
  config.gate_limit = static_cast<float>(fields.number("swiglu_limit", 1e-6, 1e6));
  config.score = kernels::ScoreFunction::sqrt_softplus;
  config.selection_bias = true;
  config.normalise = true;
  if (fields.text("scoring_func", "sqrtsoftplus") != "sqrtsoftplus")
    fields.fail(ErrorKind::unsupported, "scoring_func", "only \"sqrtsoftplus\" can be run");
  if (fields.text("topk_method", "noaux_tc") != "noaux_tc")
    fields.fail(ErrorKind::unsupported, "topk_method", "only \"noaux_tc\" can be run");
  if (!fields.flag("norm_topk_prob", true))
    fields.fail(ErrorKind::unsupported, "norm_topk_prob", "only true can be run");
  if (config.top_k > config.experts)
    fields.fail(ErrorKind::invalid, "num_experts_per_tok", fmt::format("there are only {} experts", config.experts));
  if (uint64_t{config.shared_experts} * config.expert_inner > kMaxRowValues)
    fields.fail(ErrorKind::invalid, "n_shared_experts", "times moe_intermediate_size exceeds 2^31");
  read_layers_by_token(fields, config);
  // Only for plans without tensors: otherwise the tensors give the experts' type.
  config.expects_fp4 = fields.text("expert_dtype", "") == "fp4";
  // Further keys that transformers writes.
  for (const std::string_view key : {"num_local_experts", "intermediate_size"})
    (void)fields.find(key);
}

// Layers whose streams the stages read, each once.
std::vector<LayerId> read_draft_sources(format::ConfigFields& fields, const ModelConfig& config) {
  constexpr std::string_view kKey = "dspark_target_layer_ids";
  const format::Json* list = fields.find(kKey);
  std::vector<LayerId> layers;
  const auto is_good = [&](const format::Json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() < config.layers &&
           std::ranges::find(layers, LayerId(id.get<uint32_t>())) == layers.end();
  };
  const bool is_list = list != nullptr && list->is_array() && !list->empty() && list->size() <= kMaxDraftSources;
  for (size_t i = 0; is_list && i < list->size() && is_good((*list)[i]); ++i)
    layers.emplace_back((*list)[i].get<uint32_t>());
  if (!is_list || layers.size() != list->size()) {
    fields.fail(ErrorKind::invalid, kKey,
                fmt::format("expected 1 to {} different layers of {}", kMaxDraftSources, config.layers));
  }
  return layers;
}

// A model of April has one MTP module, a layer without entries. Later ones have the stages of DSpark in its place:
// their number is that of the further entries of compress_ratios, since num_nextn_predict_layers is 1 in them, too.
void read_drafts(format::ConfigFields& fields, ModelConfig& config) {
  (void)fields.find("router_jitter_noise");
  constexpr std::array<std::string_view, 4> kKeys = {"dspark_block_size", "dspark_noise_token_id",
                                                     "dspark_target_layer_ids", "dspark_markov_rank"};
  const format::Json* ratios = fields.find("compress_ratios");
  const size_t further = ratios == nullptr || ratios->size() < config.layers ? 0 : ratios->size() - config.layers;
  if (std::ranges::any_of(kKeys, [&](std::string_view key) { return fields.find(key) != nullptr; })) {
    DsparkConfig& dspark = config.dspark.emplace();
    dspark.block = fields.integer(kKeys[0], 1, kMaxDraftBlock);
    dspark.noise_token = fields.integer(kKeys[1], 0, config.vocab - 1);
    dspark.layers = read_draft_sources(fields, config);
    dspark.markov_rank = fields.integer(kKeys[3], 1, kMaxWidth);
    config.mtp_layers = static_cast<uint32_t>(std::min<size_t>(further == 0 ? kUsualStages : further, kMaxLayers));
  }
  for (size_t i = 0; i < std::min<size_t>(further, config.mtp_layers); ++i) {
    if ((*ratios)[config.layers + i] == 0) continue;
    fields.fail(ErrorKind::unsupported, "compress_ratios",
                "only modules for drafts without entries can be run: after the layers' numbers all must be 0");
  }
}

}  // namespace

bool is_window_type(std::string_view model_type) {
  return model_type == kType;
}

Result<void> read_window_model(format::ConfigFields& fields, ModelConfig& config) {
  config.names = &kDeepseekNames;
  TRY(read_window_attention(fields, config));
  read_streams(fields, config);
  read_clamped_experts(fields, config);
  read_drafts(fields, config);
  if (config.ties_head)
    fields.fail(ErrorKind::unsupported, "tie_word_embeddings", "only a head of its own can be run for this model");
  if (fields.error()) return *fields.error();
  return {};
}

}  // namespace dspack::runtime
