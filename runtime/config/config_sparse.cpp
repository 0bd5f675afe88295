#include "runtime/config/config_sparse.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "runtime/config/config_keys.h"

namespace dspack::runtime {

namespace {

constexpr std::string_view kDeepseek = "deepseek_v32";
constexpr std::string_view kGlm = "glm_moe_dsa";

constexpr uint32_t kMaxFrequency = 1U << 20;

using Shared = std::optional<std::vector<bool>>;  // [layers]; nullopt: the key is absent or invalid

// Reads "FSS..", or a list of "full" and "shared".
Shared read_list(format::ConfigFields& fields, std::string_view key, const ModelConfig& config) {
  const format::Json* found = fields.find(key);
  if (found == nullptr) return std::nullopt;
  std::vector<bool> shared;
  bool is_good = true;
  if (found->is_string()) {
    for (const char kind : found->get_ref<const std::string&>()) {
      is_good &= kind == 'F' || kind == 'S';
      shared.push_back(kind == 'S');
    }
  } else if (found->is_array()) {
    for (const format::Json& kind : *found) {
      is_good &= kind == "full" || kind == "shared";
      shared.push_back(kind == "shared");
    }
  } else {
    is_good = false;
  }
  if (!is_good || shared.size() != config.layers) {
    fields.fail(
        ErrorKind::invalid, key,
        fmt::format("expected \"full\" or \"shared\", or a text of F and S, for each of {} layers", config.layers));
    return std::nullopt;
  }
  return shared;
}

// The first `index_skip_topk_offset` layers have an indexer, then every `index_topk_freq`-th one (GLM-5.2; transformers
// GlmMoeDsaConfig).
Shared read_frequency(format::ConfigFields& fields, const ModelConfig& config) {
  const uint32_t frequency = fields.integer("index_topk_freq", 1, kMaxFrequency, 1);
  const uint32_t offset = fields.integer("index_skip_topk_offset", 0, kMaxFrequency, 2);
  if (fields.find("index_topk_freq") == nullptr) return std::nullopt;
  std::vector<bool> shared;
  for (uint32_t layer = 0; layer < config.layers; ++layer)
    shared.push_back(layer + 1 > offset && (layer + 1 - offset) % frequency != 0);
  return shared;
}

// Three keys may list these layers, and programs differ in which they read first, so indexer_types must agree with the
// others.
std::vector<bool> read_shared(format::ConfigFields& fields, const ModelConfig& config) {
  const Shared types = read_list(fields, "indexer_types", config);
  const Shared pattern = read_list(fields, "index_topk_pattern", config);
  const Shared frequency = read_frequency(fields, config);
  if (fields.error()) return {};
  const auto check = [&](const Shared& other, std::string_view key) {
    if (types && other && *types != *other) {
      fields.fail(ErrorKind::invalid, "indexer_types", fmt::format("it contradicts \"{}\"; remove one of them", key));
    }
  };
  check(pattern, "index_topk_pattern");
  // A pattern overrides the frequency.
  if (!pattern) check(frequency, "index_topk_freq");
  std::vector<bool> shared = types.value_or(pattern.value_or(frequency.value_or(std::vector<bool>())));
  if (!shared.empty() && shared.front()) {
    fields.fail(ErrorKind::invalid,
                types     ? "indexer_types"
                : pattern ? "index_topk_pattern"
                          : "index_topk_freq",
                "the first layer has no layer before it whose choice it could share");
  }
  if (std::ranges::find(shared, true) == shared.end()) shared.clear();
  return shared;
}

void check_layer_types(format::ConfigFields& fields) {
  const format::Json* types = fields.find("layer_types");
  if (types == nullptr) return;
  const auto known = [](const format::Json& type) {
    return type == "indexed_attention" || type == "full_attention" || type == "deepseek_sparse_attention";
  };
  if (!types->is_array() || !std::ranges::all_of(*types, known)) {
    fields.fail(ErrorKind::unsupported, "layer_types", "only \"indexed_attention\" can be run");
  }
}

}  // namespace

bool is_sparse_type(std::string_view model_type) {
  return model_type == kDeepseek || model_type == kGlm;
}

void read_sparse_attention(format::ConfigFields& fields, ModelConfig& config) {
  const bool is_glm = config.model_type == kGlm;
  IndexerConfig indexer;
  indexer.heads = fields.integer("index_n_heads", 1, kMaxIndexHeads);
  indexer.dim = fields.integer("index_head_dim", 2, kMaxIndexDim);
  indexer.most = fields.integer("index_topk", 1, kMaxChosen);
  indexer.pairs = is_glm ? kernels::RopePairs::neighbours : kernels::RopePairs::halves;
  if (fields.error()) return;
  if (indexer.dim < config.rope_dim) {
    fields.fail(ErrorKind::invalid, "index_head_dim",
                fmt::format("its first {} values are rotated (qk_rope_head_dim)", config.rope_dim));
  }
  if (config.q_rank == 0) {
    fields.fail(ErrorKind::unsupported, "q_lora_rank",
                "the indexer reads the latent of the queries; there must be one");
  }
  // transformers ignores this key; other programs read it.
  if (fields.flag("indexer_rope_interleave", is_glm) != is_glm) {
    fields.fail(ErrorKind::unsupported, "indexer_rope_interleave",
                fmt::format("only {} can be run for {}", is_glm, config.model_type));
  }
  check_layer_types(fields);
  if (is_glm) {
    indexer.shared = read_shared(fields, config);
    indexer.drafts_share = fields.flag("index_share_for_mtp_iteration", false);
  }
  config.indexer = indexer;
}

}  // namespace dspack::runtime
