// Fused experts: tensors whose first axis counts the routed experts of a layer, as "mlp.experts.gate_up_proj"
// [E, 2n, d]. A catalogue has one tensor an expert instead, each a slice of the bytes: they are contiguous, since the
// axis is the outermost one.
// Threads: immutable once made. Lifetime: owns its data. Errors: none; what is not certain is left whole, with a
// warning.
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

/// More in one checkpoint stay together: a short header names any number of them. Qwen3.5's largest has 61,440 (60
/// layers of two tensors of 512 experts), gpt-oss 27,648.
inline constexpr uint64_t kMaxSlices = 250'000;

/// One tensor for each expert of a tensor that is fused: named by slice_name, without the first axis, each with its
/// part of the bytes. nullopt: its name is none of a fused tensor, or its shape cannot be cut into 2 to kMaxId experts
/// of whole bytes.
[[nodiscard]] std::optional<std::vector<TensorInfo>> slices_of(const TensorInfo& tensor);

/// Which layers of a checkpoint have fused experts.
class FusedExperts {
 public:
  /// Decides by the tensors of all shards, since a layer may lie in several: a layer is split if none of its experts
  /// has a number, all tensors that stand where experts are have the same number E of them along the first axis, but
  /// for single numbers, which stay whole, and one of these is a matrix of each expert, of three axes or more.
  explicit FusedExperts(std::span<const std::span<const TensorInfo>> shards);

  /// The slices of a tensor of such a layer; nullopt: it stays as it is.
  [[nodiscard]] std::optional<std::vector<TensorInfo>> split(const TensorInfo& tensor) const;
  /// Of layers that look fused and stay whole: which, and why.
  [[nodiscard]] const std::optional<std::string>& warning() const { return warning_; }

 private:
  std::set<LayerId> layers_;  // that are split
  std::optional<std::string> warning_;
};

}  // namespace dspack::format
