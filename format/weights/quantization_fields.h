// Shared by the readers of "quantization_config": a method's own keys are read one by one; the others are ignored with
// a note, because a weight's type and shape are those of its tensors.
// Threads: single-thread, as ConfigFields. Errors: as ConfigFields keeps them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/config_fields.h"
#include "format/weights/quantization_config.h"

namespace dspack::format {

inline constexpr uint32_t kMaxBlock = 1U << 20;

/// Two sizes, as in [128, 128]; nullopt: absent.
[[nodiscard]] std::optional<BlockSize> read_block(ConfigFields& fields, std::string_view key);

/// Columns that share a scale; nullopt: absent, or -1 (a row of weights is one group).
[[nodiscard]] std::optional<uint32_t> read_group_size(ConfigFields& fields);

/// Fails (unsupported) if the key has another value.
void only(ConfigFields& fields, std::string_view key, const Json& value);

/// Adds a note for each key that was not read and is not in `without_effect`. Fails (unsupported) if one determines the
/// meaning of codes, or is about modified weights: rotated, permuted, transformed, sparse.
void pass_over(ConfigFields& fields, std::span<const std::string_view> without_effect, std::vector<std::string>& notes);

}  // namespace dspack::format
