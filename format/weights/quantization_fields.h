// What the readers of "quantization_config" share: a method's own keys are asked for one by one; the others are passed
// over with a note, because the type and the shape of a weight are those of its tensors.
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

/// Two sizes, as in [128, 128]; nullopt: not said.
[[nodiscard]] std::optional<BlockSize> read_block(ConfigFields& fields, std::string_view key);

/// Columns that share a scale; nullopt: not said, or -1, a row of weights as one group.
[[nodiscard]] std::optional<uint32_t> read_group_size(ConfigFields& fields);

/// Fails (unsupported) where the key says something else.
void only(ConfigFields& fields, std::string_view key, const Json& value);

/// Adds a note for each key that nothing has asked for and that is not in `without_effect`. Fails (unsupported) where
/// one says what codes mean, or speaks of weights that are not the model's own: rotated, permuted, transformed, sparse.
void pass_over(ConfigFields& fields, std::span<const std::string_view> without_effect, std::vector<std::string>& notes);

}  // namespace dspack::format
