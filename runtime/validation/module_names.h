// The modules that a forward pass reports to a trace: their names, patterns for choosing among them, and the names of
// their tensors in a recording.
// Threads: thread-safe (pure functions). Errors: none.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/config.h"

namespace dspack::runtime {

/// Every module of a pass over `layer_map`, including every routed expert.
[[nodiscard]] std::vector<std::string> module_names(const ModelConfig& config, std::span<const LayerId> layer_map);

/// Whether the whole `name` matches `pattern`: `*` matches any characters, `?` one character.
[[nodiscard]] bool matches_pattern(std::string_view pattern, std::string_view name);

/// "model.layers.3.mlp.gate": its outputs are logits, weights and indices.
[[nodiscard]] bool is_router(std::string_view module);
/// "model.layers.3.mlp.experts.17" or a module inside it: its rows are the tokens that were routed there.
[[nodiscard]] bool is_routed(std::string_view module);
/// "model.layers.3.self_attn.o_proj" -> "model.layers.3.self_attn"; "model" for a layer; empty for a top-level module.
[[nodiscard]] std::string enclosing_module(std::string_view module);

// Names of tensors in a recording.
[[nodiscard]] std::string input_tensor(std::string_view module);
/// As transformers' modules return it: attention and the router return tuples (".output.0").
[[nodiscard]] std::string output_tensor(std::string_view module);

inline constexpr char kInputIds[] = "input_ids";

}  // namespace dspack::runtime
