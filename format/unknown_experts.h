// Experts that no family of names explains: tensors that speak of experts and belong to none that was found.
// Threads: thread-safe (a pure function). Errors: none.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "format/checkpoint.h"

namespace dspack::format {

/// For people: how many there are and what they look like, as `12 tensors speak of experts and have names of no known
/// family: "a.N.experts.w1" (such as "a.0.experts.w1")`. nullopt: there are none. Tensors that look like fused experts
/// are not counted: FusedExperts speaks of them.
[[nodiscard]] std::optional<std::string> unknown_experts(std::span<const TensorEntry> tensors);

}  // namespace dspack::format
