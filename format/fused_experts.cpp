#include "format/fused_experts.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/tensor_name.h"

namespace dspack::format {
namespace {

using Shards = std::span<const std::span<const TensorInfo>>;
using Fused = std::vector<const TensorInfo*>;

/// Bytes per expert; nullopt: the first axis is no number of experts, or a part has no whole bytes.
std::optional<uint64_t> slice_bytes(const TensorInfo& tensor) {
  if (tensor.shape.empty() || tensor.shape[0] < 2 || tensor.shape[0] > kMaxId) return std::nullopt;
  const std::optional<uint64_t> bytes = tensor_bytes(tensor.dtype, {tensor.shape.begin() + 1, tensor.shape.end()});
  if (!bytes || *bytes == 0 || tensor.data.size() / tensor.shape[0] != *bytes) return std::nullopt;
  return bytes;
}

/// A single number for all experts of a layer, such as Mistral-Small-4's activation scales.
bool is_of_all(const TensorInfo& tensor) {
  return std::ranges::all_of(tensor.shape, [](uint64_t length) { return length == 1; });
}

std::map<LayerId, Fused> find_fused(Shards shards) {
  std::map<LayerId, Fused> layers;
  for (const std::span<const TensorInfo> shard : shards) {
    for (const TensorInfo& tensor : shard) {
      const auto name = parse_fused_name(tensor.name);
      if (name && !is_of_all(tensor)) layers[name->layer].push_back(&tensor);
    }
  }
  // An expert's bias alone, for example, does not show what the axis counts.
  std::erase_if(layers, [](const auto& layer) {
    return std::ranges::none_of(layer.second,
                                [](const TensorInfo* t) { return parse_fused_name(t->name)->projection; });
  });
  return layers;
}

std::set<LayerId> layers_of_numbered_experts(Shards shards) {
  std::set<LayerId> layers;
  for (const std::span<const TensorInfo> shard : shards) {
    for (const TensorInfo& tensor : shard) {
      if (const TensorName name = parse_tensor_name(tensor.name); name.expert) layers.insert(*name.layer);
    }
  }
  return layers;
}

std::string described(const TensorInfo& tensor) {
  return fmt::format("\"{}\" {} [{}]", tensor.name, to_string(tensor.dtype), fmt::join(tensor.shape, ","));
}

/// Why the tensors of a layer cannot be taken for fused experts; nullopt: they can.
std::optional<std::string> doubt(const Fused& tensors) {
  const TensorInfo& first = *tensors.front();
  for (const TensorInfo* tensor : tensors) {
    if (!slice_bytes(*tensor)) return described(*tensor) + " cannot be cut into experts of whole bytes";
    if (tensor->shape[0] != first.shape[0])
      return fmt::format("{} and {} differ in the number of experts", described(first), described(*tensor));
  }
  const bool matrices = std::ranges::any_of(tensors, [](const TensorInfo* tensor) {
    return tensor->shape.size() >= 3 && parse_fused_name(tensor->name)->projection;
  });
  if (!matrices) return described(first) + " is no matrix of each expert, nor is any beside it";
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<TensorInfo>> slices_of(const TensorInfo& tensor) {
  const std::optional<FusedName> name = parse_fused_name(tensor.name);
  const std::optional<uint64_t> bytes = slice_bytes(tensor);
  if (!name || !bytes) return std::nullopt;
  std::vector<TensorInfo> slices;
  for (uint32_t expert = 0; expert < tensor.shape[0]; ++expert) {
    const uint64_t begin = tensor.data.begin + expert * *bytes;
    slices.push_back({.name = slice_name(tensor.name, *name, ExpertId(expert)),
                      .dtype = tensor.dtype,
                      .shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                      .data = {begin, begin + *bytes}});
  }
  return slices;
}

FusedExperts::FusedExperts(Shards shards) {
  const std::map<LayerId, Fused> layers = find_fused(shards);
  if (layers.empty()) return;
  const std::set<LayerId> numbered = layers_of_numbered_experts(shards);
  uint64_t slices = 0;
  std::vector<LayerId> whole;
  std::string reason;  // for the first of `whole`
  for (const auto& [layer, tensors] : layers) {
    std::optional<std::string> why = doubt(tensors);
    if (!why && numbered.contains(layer)) why = described(*tensors.front()) + " is beside numbered experts";
    const uint64_t experts = why ? 0 : tensors.front()->shape[0];
    if (!why && experts * tensors.size() > kMaxSlices - slices)
      why = fmt::format("with {} the checkpoint has more than {} tensors of experts", described(*tensors.front()),
                        kMaxSlices);
    if (!why) {
      slices += experts * tensors.size();
      layers_.insert(layer);
      continue;
    }
    if (whole.empty()) reason = std::move(*why);
    whole.push_back(layer);
  }
  if (whole.empty()) return;
  warning_ = fmt::format("layer {}: {}, so its experts are not separated{}", layer_text(whole.front()), reason,
                         whole.size() == 1 ? "" : fmt::format("; {} more layers likewise", whole.size() - 1));
}

std::optional<std::vector<TensorInfo>> FusedExperts::split(const TensorInfo& tensor) const {
  if (layers_.empty()) return std::nullopt;
  const std::optional<FusedName> name = parse_fused_name(tensor.name);
  if (!name || !layers_.contains(name->layer)) return std::nullopt;
  return slices_of(tensor);
}

}  // namespace dspack::format
