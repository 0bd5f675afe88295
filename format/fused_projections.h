// Matrices within a tensor of an expert: gate followed by up in "gate_up_proj" [2n, d], next to "down_proj" [d, n].
// Threads: pure functions. Errors: none; tensors of other shapes have no such matrices.
// Source: Mistral-Small-4's weights in the names of Hugging Face transformers, whose experts take gate and up with
// chunk(2).
#pragma once

#include <span>
#include <vector>

#include "format/checkpoint.h"

namespace dspack::format {

/// The matrices, and their scales, under the names of models that store each as a tensor ("gate_proj.weight",
/// "gate_proj.weight_scale_inv", ...): parts of the bytes of `expert`, which holds all tensors of one expert. A scale
/// of the whole tensor applies to both matrices. Empty: the expert has no such tensors, or they are transposed, as
/// Llama-4's [d, 2n] and gpt-oss' are.
[[nodiscard]] std::vector<TensorEntry> projections_within(std::span<const TensorEntry* const> expert);

}  // namespace dspack::format
