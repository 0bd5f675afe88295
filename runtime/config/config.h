// A model's architecture: config.json, read in full and checked, so that later code can rely on every number.
// Threads: a plain value. Errors: invalid (a key missing, of the wrong kind or out of range), unsupported (well-formed,
// but an architecture that this program does not run, or a key that it does not know); each names the file, the key and
// the value. A key whose default differs between published implementations is required.
// Source: the released config.json files of the DeepSeek family and of models that share its graph; DeepSeek's and
// transformers' configuration classes. docs/models.md lists models and keys.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/weights/quantization_config.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// Names of the tensors that the model reads, by family of checkpoints. Source: the released indexes of DeepSeek-V3 and
/// DeepSeek-V4.
struct TensorNames {
  std::string_view embedding;
  std::string_view final_norm;
  std::string_view head;
  std::string_view layers;          // prefix of a layer's number
  std::string_view attention_norm;  // below a layer, as the next three
  std::string_view mlp_norm;
  std::string_view attention;
  std::string_view mlp;                         // dense or MoE
  std::string_view router_bias;                 // below the mlp
  std::array<std::string_view, 3> projections;  // below an MLP: gate, up, down

  /// "model.layers.3"
  [[nodiscard]] std::string layer(LayerId layer) const { return fmt::format("{}{}", layers, layer.value); }
  /// "model.layers.3.mlp.experts.17"
  [[nodiscard]] std::string expert(ExpertKey key) const {
    return fmt::format("{}{}.{}.experts.{}", layers, key.layer.value, mlp, key.expert.value);
  }
};

/// A layer's module name in transformers, which traces use: "model.layers.3".
[[nodiscard]] inline std::string layer_module(LayerId layer) {
  return fmt::format("model.layers.{}", layer.value);
}

/// DeepSeek-V3's names, as transformers writes them.
inline constexpr TensorNames kTransformersNames{.embedding = "model.embed_tokens.weight",
                                                .final_norm = "model.norm.weight",
                                                .head = "lm_head.weight",
                                                .layers = "model.layers.",
                                                .attention_norm = "input_layernorm.weight",
                                                .mlp_norm = "post_attention_layernorm.weight",
                                                .attention = "self_attn",
                                                .mlp = "mlp",
                                                .router_bias = "gate.e_score_correction_bias",
                                                .projections = {"gate_proj", "up_proj", "down_proj"}};

/// DeepSeek-V4's names, as in DeepSeek's own code.
inline constexpr TensorNames kDeepseekNames{.embedding = "embed.weight",
                                            .final_norm = "norm.weight",
                                            .head = "head.weight",
                                            .layers = "layers.",
                                            .attention_norm = "attn_norm.weight",
                                            .mlp_norm = "ffn_norm.weight",
                                            .attention = "attn",
                                            .mlp = "ffn",
                                            .router_bias = "gate.bias",
                                            .projections = {"w1", "w3", "w2"}};

/// Rotary embedding. With `yarn` unset the frequencies are the plain theta^(-2k/dim).
struct RopeConfig {
  double theta = 10000;
  struct Yarn {
    double factor = 1;
    uint32_t original_positions = 0;
    double beta_fast = 32;
    double beta_slow = 1;
    double mscale = 0;          // 0: not given
    double mscale_all_dim = 0;  // 0: not given
    std::optional<double> attention_factor;
    bool truncate = true;  // round the correction range to whole dimensions
    bool operator==(const Yarn&) const = default;
  };
  std::optional<Yarn> yarn;
  /// Queries at position p are multiplied by 1 + beta ln(1 + floor(p / yarn's original_positions))
  /// (llama_4_scaling_beta of Mistral-Small-4); 0: not scaled.
  double query_beta = 0;
  bool operator==(const RopeConfig&) const = default;
};

/// Sparse attention: an indexer chooses the positions that a row attends to (Indexer in runtime/model/mla_attention.h).
struct IndexerConfig {
  uint32_t heads = 0;
  uint32_t dim = 0;   // per head and key; the first rope_dim are rotated (DeepSeek-V4: the last)
  uint32_t most = 0;  // positions chosen for a row, at most (index_topk)
  kernels::RopePairs pairs = kernels::RopePairs::halves;
  /// [layers]: whether a layer has no indexer and reuses the choice of the last layer before it that has one. Empty:
  /// every layer has one.
  std::vector<bool> shared = {};
  /// After the first draft, the MTP module reuses the first draft's choice (index_share_for_mtp_iteration).
  bool drafts_share = false;
  bool operator==(const IndexerConfig&) const = default;
};

/// DeepSeek-V4's attention: to a sliding window of positions, and to compressed entries, each made of several positions
/// (runtime/model/window_attention.h).
struct WindowConfig {
  uint32_t positions = 0;       // window size, the row's own position included (sliding_window)
  std::vector<uint32_t> every;  // [layers]: positions per compressed entry; 0: no entries (compress_ratios)
  RopeConfig rope;              // for layers with entries; ModelConfig::rope is for the others
  uint32_t out_groups = 0;      // groups of heads whose outputs are projected together (o_groups)
  uint32_t out_rank = 0;        // width that each group is projected to (o_lora_rank)
  bool operator==(const WindowConfig&) const = default;
};

/// Residual streams that are mixed before and after each block (manifold-constrained hyper-connections).
struct StreamsConfig {
  uint32_t count = 0;   // hc_mult
  uint32_t rounds = 0;  // iterations of Sinkhorn's algorithm (hc_sinkhorn_iters)
  float epsilon = 0;    // hc_eps
  bool operator==(const StreamsConfig&) const = default;
};

/// DeepSeek-V4's later modules for drafts (runtime/model/dspark.h): stages that draft a block of tokens at once.
struct DsparkConfig {
  uint32_t block = 0;           // tokens drafted at once (dspark_block_size)
  uint32_t noise_token = 0;     // in the place of tokens that are not known yet (dspark_noise_token_id)
  std::vector<LayerId> layers;  // the stages read the mean of the streams after each of these (dspark_target_layer_ids)
  uint32_t markov_rank = 0;     // width of the Markov head (dspark_markov_rank)
  bool operator==(const DsparkConfig&) const = default;
};

struct ModelConfig {
  std::string model_type;
  const TensorNames* names = &kTransformersNames;
  uint32_t vocab = 0;
  bool ties_head = false;  // the output head is the token embedding (tie_word_embeddings)
  uint32_t hidden = 0;
  uint32_t layers = 0;                 // decoder layers, without the modules for drafts
  uint32_t mtp_layers = 0;             // further layers in the checkpoint that a plain run does not read
  std::optional<DsparkConfig> dspark;  // absent: a further layer is an MTP module
  uint32_t max_positions = 0;
  float norm_epsilon = 1e-6F;

  uint32_t heads = 0;
  uint32_t q_rank = 0;  // latent of the queries; 0: q_proj instead of q_a, q_b
  uint32_t kv_rank = 0;
  uint32_t nope_dim = 0;  // per head, without position
  uint32_t rope_dim = 0;  // per head, rotated
  uint32_t value_dim = 0;
  RopeConfig rope;
  std::optional<IndexerConfig> indexer;  // absent: attention is to all positions
  std::optional<WindowConfig> window;    // absent: attention is latent attention
  std::optional<StreamsConfig> streams;  // absent: one stream, to which outputs are added

  uint32_t dense_inner = 0;  // width of a dense layer's MLP
  uint32_t first_moe_layer = 0;
  uint32_t moe_layer_step = 1;
  std::vector<bool> moe_layers;  // [layers], if only a list gives them (mlp_layer_types); else empty
  uint32_t experts = 0;
  uint32_t shared_experts = 0;
  uint32_t expert_inner = 0;
  uint32_t top_k = 0;
  uint32_t groups = 1;
  uint32_t groups_kept = 1;
  kernels::ScoreFunction score = kernels::ScoreFunction::sigmoid;
  kernels::GroupScore group_score = kernels::GroupScore::top2_sum;
  bool selection_bias = true;  // e_score_correction_bias
  bool normalise = true;
  float routed_scale = 1;
  uint32_t layers_by_token = 0;          // leading layers that look experts up by token id (num_hash_layers)
  float gate_limit = kernels::kNoLimit;  // clamp in routed and shared experts (swiglu_limit)

  bool is_quantised = false;  // a "quantization_config" or hf_quant_config.json describes its weights
  format::Quantization quantization;
  format::ExpectedForm expected;   // stored form to plan with while the tensors are unread
  bool expects_fp4 = false;        // the same for routed experts (expert_dtype)
  std::vector<std::string> notes;  // for people: a sentence for each thing that was passed over
  std::vector<uint32_t> eos_tokens;

  [[nodiscard]] bool is_moe(LayerId layer) const {
    if (layer.value < moe_layers.size()) return moe_layers[layer.value];
    return layer.value >= first_moe_layer && layer.value % moe_layer_step == 0;
  }
  /// Positions per compressed entry of the layer; 0: it has no entries, as a draft module's layer.
  [[nodiscard]] uint32_t entry_positions(LayerId layer) const {
    return window && layer.value < window->every.size() ? window->every[layer.value] : 0;
  }
  /// Whether the layer has its own indexer, for positions or entries. With latent attention, so has the layer after the
  /// last: the MTP module's.
  [[nodiscard]] bool has_indexer(LayerId layer) const {
    if (window) return entry_positions(layer) == kChosenEntryPositions;
    return indexer && (layer.value >= indexer->shared.size() || !indexer->shared[layer.value]);
  }
  /// The further layers that a draft runs through: the first alone, or all stages.
  [[nodiscard]] std::vector<LayerId> draft_layers() const {
    std::vector<LayerId> further = {LayerId(layers)};
    for (uint32_t stage = 1; dspark && stage < mtp_layers; ++stage)
      further.emplace_back(layers + stage);
    return further;
  }
  /// Name of the output head's tensor.
  [[nodiscard]] std::string_view head_name() const { return ties_head ? names->embedding : names->head; }
  /// Entries of this many positions overlap, and an indexer chooses among them. Other entries do not overlap, and rows
  /// attend to all of them (DeepSeek-V4 inference/model.py, class Attention).
  static constexpr uint32_t kChosenEntryPositions = 4;
  [[nodiscard]] bool is_by_token(LayerId layer) const { return layer.value < layers_by_token; }
  [[nodiscard]] uint32_t query_dim() const { return nope_dim + rope_dim; }
  /// Values that the cache holds per token and layer: latent, then rotary key.
  [[nodiscard]] uint32_t cache_dim() const { return kv_rank + rope_dim; }
  [[nodiscard]] kernels::LatentShape cache_shape() const { return {.latent_dim = kv_rank, .rope_dim = rope_dim}; }
  bool operator==(const ModelConfig&) const = default;
};

/// Parses the text of config.json. If it wraps a language model ("text_config"), reads that model.
/// `hf_quant_config`: text of hf_quant_config.json, which describes the stored weights if config.json does not; may be
/// empty.
[[nodiscard]] Result<ModelConfig> parse_model_config(std::string_view text, std::string_view hf_quant_config = {});

/// Token ids under "eos_token_id" (a number, a list, or absent) in config.json or generation_config.json. Those in a
/// "text_config", if any, take precedence. `file` is for the error text.
[[nodiscard]] Result<std::vector<uint32_t>> parse_eos_tokens(std::string_view text, std::string_view file);

}  // namespace dspack::runtime
