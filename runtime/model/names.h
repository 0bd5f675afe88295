// Names of the tensors that the model asks for. Source: the released indexes of the DeepSeek-V3 family.
// Threads: thread-safe (pure functions).
#pragma once

#include <fmt/format.h>

#include <string>

#include "format/base/ids.h"

namespace dspack::runtime::names {

inline constexpr char kEmbedding[] = "model.embed_tokens.weight";
inline constexpr char kFinalNorm[] = "model.norm.weight";
inline constexpr char kHead[] = "lm_head.weight";

/// "model.layers.3"
[[nodiscard]] inline std::string layer(LayerId layer) {
  return fmt::format("model.layers.{}", layer.value);
}

/// "model.layers.3.mlp.experts.17"
[[nodiscard]] inline std::string expert(ExpertKey key) {
  return fmt::format("model.layers.{}.mlp.experts.{}", key.layer.value, key.expert.value);
}

}  // namespace dspack::runtime::names
