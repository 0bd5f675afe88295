// What each transform makes of a weight: names, dtypes and shapes. The arithmetic is in converter.h.
// Threads: pure functions. Errors: invalid (a scale that is missing), unsupported (one that does not fit, FP8 that is
// no matrix, sizes that no model has).
#pragma once

#include "reshard/plan/transform.h"

namespace dspack::reshard {

/// Rows and columns of a block that shares one scale. Source: DeepSeek-V3's README_WEIGHTS.md, "weight_block_size".
inline constexpr uint64_t kBlock = 128;
/// The most that a conversion may hold of one tensor: its scales, or the rows that are converted together. Both are a
/// few MB of the largest matrix of DeepSeek-V3; a header that asks for more is not one of a model's.
inline constexpr uint64_t kMaxHeldBytes = 256ULL << 20;

struct RuleInput {
  uint32_t index;                     // of the weight
  const format::TensorEntry& weight;  // any tensor: a rule looks whether it concerns it
  const format::Checkpoint& source;
  const std::function<bool(uint32_t)>& exact_scales;
};

[[nodiscard]] Result<std::optional<Change>> dequantise_to_bf16(const RuleInput& input);
[[nodiscard]] Result<std::optional<Change>> dequantise_to_f32(const RuleInput& input);
[[nodiscard]] Result<std::optional<Change>> quantise_to_fp8(const RuleInput& input);
[[nodiscard]] Result<std::optional<Change>> narrow_scales(const RuleInput& input);

/// Whether a tensor is of the linear layers that DeepSeek-V3 stores as FP8: those of attention and of all MLPs.
/// Embedding, output head, router, norms and what the MTP module has of its own are not.
[[nodiscard]] bool is_quantised_role(const format::TensorEntry& tensor);

/// The scale tensor of an FP8 matrix in blocks of 128 x 128, as a catalogue index: F32 or E8M0, one value a block.
[[nodiscard]] Result<uint32_t> block_scales(const format::TensorEntry& weight, const format::Checkpoint& source);

/// The scale tensor that narrow_scales might change for a weight, as a catalogue index: of an FP8 matrix, F32.
[[nodiscard]] std::optional<uint32_t> narrowable_scales(const format::TensorEntry& weight,
                                                        const format::Checkpoint& source);

}  // namespace dspack::reshard
