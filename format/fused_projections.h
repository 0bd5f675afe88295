// Matrices that lie within a tensor of an expert: gate and up one behind the other in "gate_up_proj" [2n, d], beside
// "down_proj" [d, n].
// Threads: pure functions. Errors: none; what has other shapes has no such matrices.
// Source: Mistral-Small-4's weights in the names of Hugging Face transformers, whose experts take gate and up with
// chunk(2).
#pragma once

#include <span>
#include <vector>

#include "format/checkpoint.h"

namespace dspack::format {

/// The matrices, and their scales, under the names of models that store each as a tensor ("gate_proj.weight",
/// "gate_proj.weight_scale_inv", ...): parts of the bytes of `expert`, which are all tensors of one expert. A scale of
/// the whole tensor is that of both matrices. Empty: the expert has no such tensors, or they lie turned, as Llama-4's
/// [d, 2n] and gpt-oss' do.
[[nodiscard]] std::vector<TensorEntry> projections_within(std::span<const TensorEntry* const> expert);

}  // namespace dspack::format
