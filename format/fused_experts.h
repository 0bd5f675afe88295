// Fused experts: tensors whose first axis counts the routed experts of a layer, such as "mlp.experts.gate_up_proj" [E,
// 2n, d]. A catalogue lists one tensor per expert instead, each a slice of the bytes: slices are contiguous, since the
// axis is the outermost one.
// Threads: immutable once made. Lifetime: owns its data. Errors: none; doubtful tensors stay whole, with a warning.
// Source: the weights of Llama-4, gpt-oss, Qwen3-VL and Qwen3.5 in the names of Hugging Face transformers.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/safetensors.h"

namespace dspack::format {

/// Limit for one checkpoint; layers beyond it stay whole, since a short header can name any number of slices. Qwen3.5's
/// largest has 61,440 (60 layers of two tensors of 512 experts), gpt-oss 27,648.
inline constexpr uint64_t kMaxSlices = 250'000;

/// Cuts a fused tensor into one tensor per expert: named by slice_name, without the first axis, each with its part of
/// the bytes. nullopt: the name is not a fused tensor's, or the shape cannot be cut into 2 to kMaxId experts of whole
/// bytes.
[[nodiscard]] std::optional<std::vector<TensorInfo>> slices_of(const TensorInfo& tensor);

/// Which layers of a checkpoint have fused experts.
class FusedExperts {
 public:
  /// Decides by the tensors of all shards, since a layer may be spread over several. A layer is split if none of its
  /// experts is numbered, all its tensors with names of fused experts have the same number E along the first axis
  /// (except single numbers, which stay whole), and at least one of them is a matrix per expert, with three axes or
  /// more.
  explicit FusedExperts(std::span<const std::span<const TensorInfo>> shards);

  /// The slices of a tensor of a layer that is split; nullopt: the tensor stays whole.
  [[nodiscard]] std::optional<std::vector<TensorInfo>> split(const TensorInfo& tensor) const;
  /// Names the first layer that looks fused and stays whole, why, and how many others there are; nullopt: none.
  [[nodiscard]] const std::optional<std::string>& warning() const { return warning_; }

 private:
  std::set<LayerId> layers_;  // the layers that are split
  std::optional<std::string> warning_;
};

}  // namespace dspack::format
