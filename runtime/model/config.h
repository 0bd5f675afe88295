// A model's architecture: config.json, read in full and checked, so that nothing after it has to doubt a number.
// Threads: a plain value. Errors: invalid (a key missing, of the wrong kind or out of range), unsupported (well-formed,
// but an architecture that this program does not run); each names the file, the key and the value.
// Source: the released config.json files of the DeepSeek-V3 family and transformers' DeepseekV3Config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

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
  };
  std::optional<Yarn> yarn;
};

/// Rows and columns of a weight that share one FP8 scale. Absent sizes are taken from the scales' shapes.
struct BlockSize {
  uint32_t out = 0;
  uint32_t in = 0;
};

struct ModelConfig {
  std::string model_type;
  uint32_t vocab = 0;
  uint32_t hidden = 0;
  uint32_t layers = 0;      // decoder layers, without the MTP module
  uint32_t mtp_layers = 0;  // further layers in the checkpoint that a plain run does not read
  uint32_t max_positions = 0;
  float norm_epsilon = 1e-6F;

  uint32_t heads = 0;
  uint32_t q_rank = 0;  // latent of the queries; 0: q_proj instead of q_a, q_b
  uint32_t kv_rank = 0;
  uint32_t nope_dim = 0;  // per head, without position
  uint32_t rope_dim = 0;  // per head, rotated
  uint32_t value_dim = 0;
  RopeConfig rope;

  uint32_t dense_inner = 0;  // width of a dense layer's MLP
  uint32_t first_moe_layer = 0;
  uint32_t moe_layer_step = 1;
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

  std::optional<BlockSize> fp8_block;
  std::vector<uint32_t> eos_tokens;

  [[nodiscard]] bool is_moe(LayerId layer) const {
    return layer.value >= first_moe_layer && layer.value % moe_layer_step == 0;
  }
  [[nodiscard]] uint32_t query_dim() const { return nope_dim + rope_dim; }
  /// Numbers that the cache holds for a token and layer: latent, then rotary key.
  [[nodiscard]] uint32_t cache_dim() const { return kv_rank + rope_dim; }
};

/// Parses the text of config.json.
[[nodiscard]] Result<ModelConfig> parse_model_config(std::string_view text);

/// The token ids under "eos_token_id" (a number, a list, or absent) of config.json or generation_config.json.
/// `file` is for the error text.
[[nodiscard]] Result<std::vector<uint32_t>> parse_eos_tokens(std::string_view text, std::string_view file);

}  // namespace dspack::runtime
