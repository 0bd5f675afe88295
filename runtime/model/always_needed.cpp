#include "runtime/model/always_needed.h"

#include <algorithm>
#include <string_view>

#include "format/tensor_name.h"

namespace dspack::runtime {

namespace {

// Embeddings, and the Markov head's first table, are read by rows; an MTP module's head may be a copy of the main head.
bool is_table(const format::TensorEntry& tensor) {
  return tensor.name.ends_with("embed_tokens.weight") || tensor.name.ends_with("shared_head.head.weight");
}

bool is_copy(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor) {
  return std::ranges::any_of(checkpoint.tensors(), [&](const format::TensorEntry& other) {
    return &other != &tensor && tensor.digest && other.digest == tensor.digest && !other.place.layer;
  });
}

}  // namespace

std::vector<format::Extent> always_needed(const format::Checkpoint& checkpoint, const ModelConfig& config,
                                          const format::LayerMap& layers, bool with_mtp) {
  const std::vector<LayerId> further = config.draft_layers();
  const auto runs = [&](LayerId layer) {
    if (layer.value >= config.layers) return with_mtp && std::ranges::find(further, layer) != further.end();
    return layers.empty() || std::ranges::find(layers, layer) != layers.end();
  };
  std::vector<format::Extent> extents;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    const format::TensorName& place = tensor.place;
    if (place.expert) continue;
    if (config.ties_head && !place.layer && format::without_wrapper(tensor.name) == config.head_name()) {
      extents.push_back({.file = tensor.file, .range = tensor.range});
      continue;
    }
    if (place.role == format::Role::embed || tensor.name.ends_with("markov_head.markov_w1.weight")) continue;
    if (place.layer ? !runs(*place.layer) : place.role != format::Role::head) continue;
    // A table without a digest may be a copy: it is read once it is known to be needed.
    if (is_table(tensor) && (!tensor.digest || is_copy(checkpoint, tensor))) continue;
    extents.push_back({.file = tensor.file, .range = tensor.range});
  }
  return extents;
}

}  // namespace dspack::runtime
