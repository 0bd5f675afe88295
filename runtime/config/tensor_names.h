// Names of the tensors that the model reads, by family of checkpoints.
// Threads: plain values. Source: the released indexes of DeepSeek-V3 and DeepSeek-V4.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "format/base/ids.h"

namespace dspack::runtime {

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

}  // namespace dspack::runtime
